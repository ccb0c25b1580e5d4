"""Dory's inputs on a real node: order, names, limits, files, and senders of garbage."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.config import CallersConfig, Config, LimitsConfig, MemoryConfig, NodeConfig, TopicConfig
from penstock.dialect import Peer, Sample
from penstock.dialects.dory.config import DATAGRAM, HTTP, STREAM, TCP, DoryConfig, check, endpoints
from penstock.dialects.dory.datagrams import BURST_MAX, TURN_BYTES_MAX
from penstock.dory import encode
from penstock.errors import ConfigError
from penstock.node.node import Served as NodeServed
from penstock.registry.answer import Answer
from tests.dory.senders import TIME_MS, M, Sockets, dory
from tests.served import PATIENCE_S

TRANSPORTS = ["datagram", "stream", "tcp"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_five_thousand_messages_of_any_size_are_stored_once_each_in_order(tmp_path: Path, transport: str) -> None:
    dice = random.Random(1)
    bodies = [b"%d " % number + dice.randbytes(dice.choice([0, 10, 100, 1000])) for number in range(5000)]
    wires = [encode("t", body, b"k%d" % (number % 7)) for number, body in enumerate(bodies)]
    with dory(tmp_path) as node, node.open(transport) as line:
        if transport == "datagram":
            line.say(*wires)
        else:
            wire, at, step = b"".join(wires), 0, 1
            while at < len(wire):
                line.say(wire[at : at + step])
                at, step = at + step, step * 7 % 100_003
        found = node.until_stored(5000)
        assert [body for body, _ in found] == bodies
        assert [row["key"] for _, row in found] == [b"k%d" % (number % 7) for number in range(5000)]
        assert node.thrown() == {}


def test_messages_of_many_topics_go_to_their_own_and_each_keeps_its_order(tmp_path: Path) -> None:
    with dory(tmp_path) as node, node.open("stream") as line:
        line.say(*[encode(f"t{number % 5}", b"%d" % number) for number in range(500)])
        for topic in range(5):
            found = node.until_stored(100, f"t{topic}")
            assert [int(body) for body, _ in found] == list(range(topic, 500, 5))


def test_a_topic_name_that_no_topic_can_have_is_a_bad_topic(tmp_path: Path) -> None:
    names = [b"nul\0", b"\xff\xfe", b"x" * 1025]
    with dory(tmp_path) as node, node.open("stream") as line:
        line.say(*[encode(name, b"hello", timestamp_ms=TIME_MS) for name in names], M)
        node.until_stored(1)
        node.until_thrown(bad_topic=3)
        assert node.served.do(lambda: set(node.served.node.topics)) == {"t"}
        assert node.running.pool.used == 0
        assert node.served.do(lambda: node.served.node.ledger.total("dory:bad_name")) == 3


def test_who_may_not_publish_is_told_nothing_and_counted(tmp_path: Path) -> None:
    with dory(tmp_path, {"callers": CallersConfig(anonymous="off", audit="off")}) as node:
        for transport in TRANSPORTS:
            with node.open(transport) as line:
                line.say(M)
        node.until_thrown(bad_topic=3)
        assert node.served.do(lambda: "t" in node.served.node.topics) is False


def test_a_message_that_no_topic_takes_is_too_long_and_its_neighbours_are_stored(tmp_path: Path) -> None:
    with dory(tmp_path, {"node": NodeConfig(message_bytes=1000)}) as node, node.open("stream") as line:
        sizes = (1000, 1001, 5) * 20
        line.say(b"".join([encode("t", b"x" * size) for size in sizes]))
        assert [len(body) for body, _ in node.until_stored(40)] == [1000, 5] * 20
        node.until_thrown(too_long=20)


def test_a_deleted_topic_is_made_again(tmp_path: Path) -> None:
    with dory(tmp_path) as node, node.open("tcp") as line:
        line.say(M)
        node.until_stored(1)
        assert node.served.ask("DELETE", "topics/t").status == 204
        line.say(M)
        node.until_stored(1)


def test_what_the_node_refuses_is_counted_and_gives_the_pool_back(tmp_path: Path) -> None:
    with dory(tmp_path) as node, node.open("stream") as line:
        line.say(M)
        node.until_stored(1)
        node.served.do(lambda: setattr(node.served.node.topic("t").intake, "closed", "stopping"))
        line.say(M, M)
        node.until_thrown(shutdown=2)
        assert node.running.pool.used == 0


def test_datagrams_that_the_loop_does_not_come_to_are_dropped_beyond_the_buffer(tmp_path: Path) -> None:
    wire = encode("t", b"x" * 1000, timestamp_ms=TIME_MS)
    with dory(tmp_path, max_buffer=100_000) as node, node.open("datagram") as line:
        line.say(M)
        node.until_stored(1)
        with node.stalled():
            # The first find room, and the others are held until they are counted, whatever bursts they come in: their
            # sender is done, however long the loop takes.
            for count in (90, 180):
                line.say(*[wire] * 90)
                node.until_received(count * len(wire))
        node.served.until(
            lambda: node.served.node.topic("t").intake.published + node.served.node.discards.total() == 181
        )
        assert node.thrown()["no_memory"] >= 80


def test_datagrams_that_nobody_could_even_count_wait_in_the_kernel_and_none_is_forgotten(tmp_path: Path) -> None:
    wire = encode("t", b"x" * 1000, timestamp_ms=TIME_MS)
    with dory(tmp_path, max_buffer=100_000) as node, node.open("datagram") as line:
        line.say(M)
        node.until_stored(1)
        sender = threading.Thread(target=line.say, args=[wire] * 5000)
        with node.stalled():
            sender.start()
            node.until_received(100_000)
        sender.join(PATIENCE_S)
        node.served.until(
            lambda: node.served.node.topic("t").intake.published + node.served.node.discards.total() == 5001
        )


def shown(node: Sockets, part: str) -> tuple[int, int, int]:
    """Return what a part of the node's memory holds, as /metrics and the status say and as it is."""
    served = node.served
    metrics = served.ask("GET", "/metrics").content.decode()
    line = next(each for each in metrics.splitlines() if each.startswith(f'penstock_memory_bytes{{part="{part}"}}'))
    told = {each["name"]: each["bytes"] for each in served.ask("GET", "memory").json["parts"]}
    held = served.do(lambda: {each.name: each.used for each in served.node.memory()})
    return int(line.split()[1]), told[part], held[part]


def test_what_waits_for_its_topic_counts_as_input_and_when_that_is_full_the_newest_are_dropped(tmp_path: Path) -> None:
    wire = encode("t", b"x" * 1200, timestamp_ms=TIME_MS)  # ten blocks
    with dory(tmp_path, {"memory": MemoryConfig(input_bytes=64_000)}) as node, node.open("stream") as line:
        node_, asked = node.served.node, []

        def later() -> Answer[None]:
            asked.append(Answer[None]())
            return asked[-1]

        turns = node_.lifecycle._turns
        node.served.do(lambda: setattr(turns, "next", later))
        line.say(wire)
        node.served.until(lambda: bool(asked))
        assert shown(node, "input") == (1280, 1280, 1280)
        line.say(*[wire] * 30)  # of half of the memory for input, the other half is for others
        node.until_thrown(no_memory=6)
        assert shown(node, "input") == (32_000, 32_000, 32_000)
        assert node.served.do(lambda: node_.budget.input.refused) > 0
        assert b"memory.input_bytes is full" in node.served.ask("GET", "ledger").content
        node.served.do(lambda: asked[0].give(None))
        assert len(node.until_stored(25)) == 25
        node.served.until(lambda: node_.budget.input.used == 0)

        node.served.do(lambda: setattr(node_.budget.input, "used", 64_000))
        line.say(wire, encode("t", b"", timestamp_ms=TIME_MS))
        node.until_thrown(no_memory=7)
        node.served.until(lambda: node_.topic("t").intake.published == 26)  # one without a byte needs no room
        assert node.served.do(lambda: node_.budget.input.used) == 64_000


def test_messages_of_nothing_that_wait_for_their_topic_have_an_end_too(tmp_path: Path) -> None:
    empty, full = encode("t", b"", timestamp_ms=TIME_MS), encode("t", b"x", timestamp_ms=TIME_MS)
    with dory(tmp_path, {"memory": MemoryConfig(input_bytes=64_000)}) as node, node.open("stream") as line:
        budget, asked = node.served.node.budget.input, []

        def later() -> Answer[None]:
            asked.append(Answer[None]())
            return asked[-1]

        turns = node.served.node.lifecycle._turns
        node.served.do(lambda: setattr(turns, "next", later))
        line.say(full, full, *[empty] * 300)
        node.until_thrown(no_memory=52)  # half of it, at a block each
        assert node.served.do(lambda: (budget.used, node.running.pool.used)) == (32_000, 2)
        node.served.do(lambda: asked[0].give(None))
        assert [body for body, _ in node.until_stored(250)].count(b"") == 248
        node.served.until(lambda: (budget.used, node.running.pool.used) == (0, 0))


def test_rows_of_a_memory_topic_count_once_as_what_they_are(tmp_path: Path) -> None:
    with dory(tmp_path, {"topic": TopicConfig(durability="memory")}) as node, node.open("stream") as line:
        line.say(*[encode("t", b"x" * 1200, timestamp_ms=TIME_MS)] * 5)
        node.until_stored(5)
        assert node.running.pool.used == 50
        memory = node.served.do(lambda: {part.name: part.used for part in node.served.node.memory()})
        assert memory["input"] == 0
        assert memory["topic"] > 6000


def test_datagrams_that_wait_for_the_loop_count_as_input_and_are_dropped_where_it_is_full(tmp_path: Path) -> None:
    wire = encode("t", b"x" * 1000, timestamp_ms=TIME_MS)
    with dory(tmp_path) as node, node.open("datagram") as line:
        budget = node.served.node.budget.input
        line.say(M)
        node.until_stored(1)
        most: list[int] = []
        publish = node.running.doors[DATAGRAM].take

        def seen(*given: Any, **more: Any) -> None:
            most.append(budget.used)
            publish(*given, **more)

        with node.stalled():
            node.running.doors[DATAGRAM].take = seen  # type: ignore[method-assign]
            line.say(*[wire] * 3000)
        node.until_stored(3001)
        # Beside the first to be looked at, and one burst that the thread may still have had.
        assert max(most) >= (3000 - 2 * BURST_MAX - 10) * len(wire) - TURN_BYTES_MAX
        assert node.served.do(lambda: budget.used) == 0

        with node.stalled():
            budget.used = budget.bytes_max  # others have it
            line.say(*[wire] * 10)
        node.until_thrown(no_memory=10)
        assert node.served.do(lambda: budget.used) == budget.bytes_max


@contextmanager
def flooded(node: Sockets) -> Iterator[None]:
    """Have somebody send garbage to all sockets, as fast as it goes."""
    script = Path(__file__).parent / "garbage.py"
    command = [sys.executable, str(script), node.datagram, node.stream, str(node.served.ports[TCP])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"flooding\n"
        try:
            yield
        finally:
            process.kill()


def test_a_flood_of_garbage_on_all_sockets_costs_good_senders_nothing(tmp_path: Path) -> None:
    count = 300
    with dory(tmp_path, {"limits": LimitsConfig(topics=20)}) as node:
        with node.open("datagram") as one, node.open("stream") as two, node.open("tcp") as three:
            two.say(encode("good", b"first"))
            three.say(encode("good", b"first"))
            node.until_stored(2, "good")
            with flooded(node):
                node.until("InputAgentDiscardMsgMalformed", 100)
                for transport, line in zip(TRANSPORTS, (one, two, three), strict=True):
                    line.say(*[encode("good", b"%s %d" % (transport.encode(), number)) for number in range(count)])
                found = node.until_stored(2 + 3 * count, "good")
        for transport in TRANSPORTS:
            own = [body for body, _ in found if body.startswith(transport.encode())]
            assert own == [b"%s %d" % (transport.encode(), number) for number in range(count)]
        assert node.served.do(lambda: node.served.node.bugs) == 0
        node.served.until(lambda: node.running.pool.used == 0)


def test_socket_files_have_their_mode_and_go_with_the_node(tmp_path: Path) -> None:
    with dory(tmp_path, unix_datagram_mode="0222", unix_stream_mode="0b110110000") as node:
        assert stat.S_IMODE(os.stat(node.datagram).st_mode) == 0o222
        assert stat.S_IMODE(os.stat(node.stream).st_mode) == 0o660
        with node.open("datagram") as line:
            line.say(*[M] * 100)
            node.served.stop()
            assert not os.path.exists(node.datagram)
            assert not os.path.exists(node.stream)
            with pytest.raises(OSError):
                line.say(M)


def test_what_was_sent_before_the_node_stops_is_stored(tmp_path: Path) -> None:
    with dory(tmp_path) as node, node.open("datagram") as line:
        line.say(*[M] * 200)
        node.served.stop()
        assert node.served.node.topics["t"].intake.published == 200


class Relay:
    """Something that takes messages elsewhere, and looks at the inputs when it is told to come to an end."""

    def __init__(self, node: Sockets) -> None:
        self.node = node
        self.refused: list[str] = []
        self.published = 0
        self.seen = 0

    async def drain(self) -> None:
        self.published = self.node.served.node.topics["t"].intake.published
        for transport in TRANSPORTS:
            try:
                self.node.open(transport).sock.close()
            except OSError:
                self.refused.append(transport)
        # How far it is can be seen until the end.
        self.seen = (await asyncio.to_thread(self.node.served.ask, "GET", "topics")).status

    async def close(self) -> None:
        pass

    def samples(self) -> list[Sample]:
        return []

    def peers(self) -> list[Peer]:
        return []


def test_inputs_are_closed_and_what_they_took_is_stored_before_a_relay_comes_to_its_end(tmp_path: Path) -> None:
    with dory(tmp_path) as node, node.open("datagram") as line:
        relay = Relay(node)
        node.served.do(lambda: node.served.node.served.__setitem__("kafka_relay", NodeServed(relay, [])))
        line.say(*[M] * 200)
        node.served.stop()
        assert relay.refused == list(TRANSPORTS)
        assert (relay.published, relay.seen) == (200, 200)


def test_a_socket_file_that_a_dead_node_left_is_replaced(tmp_path: Path) -> None:
    left = tmp_path / "left"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(left))
    with dory(tmp_path / "data", unix_datagram_path=str(left)) as node:
        node.datagram = str(left)
        with node.open("datagram") as line:
            line.say(M)
            node.until_stored(1)


def test_more_connections_than_a_listener_takes_are_closed_and_counted(tmp_path: Path) -> None:
    with dory(tmp_path, {"limits": LimitsConfig(connections=1)}) as node, node.open("stream") as line:
        line.say(M)
        node.until_stored(1)
        with node.open("stream") as other:
            assert other.until_end() == b""
        assert node.served.do(lambda: node.served.node.ledger.total("dory:too_many_connections")) == 1
        line.say(M)
        node.until_stored(2)


def test_figures_and_peers_are_told(tmp_path: Path) -> None:
    with dory(tmp_path) as node, node.open("tcp") as line, node.open("stream") as other:
        line.say(M)
        other.say(M)
        node.until_stored(2)
        text = node.served.get("/metrics").content.decode()
        assert 'penstock_dory_input_total{name="TcpInputForwardMsg"} 1\n' in text
        assert "penstock_dory_connections 2\n" in text
        peers = node.served.get("peers?dialect=dory").json["peers"]
        assert sorted(peer["listener"] for peer in peers) == [TCP, STREAM]


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"unix_datagram_path": "dory.socket"}, "no absolute path"),
        ({"unix_stream_mode": "0x1ff"}, "no mode"),
        ({"unix_stream_mode": "1777"}, "no mode"),
        ({"unix_datagram_path": "/x", "max_datagram_msg_size": 16 << 20}, "allow_large_unix_datagrams"),
        ({"tcp": True, "max_stream_msg_size": 1 << 40}, "memory.body_bytes"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(chosen: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check(Config(parts=(DoryConfig(**chosen),)))  # type: ignore[arg-type]


def test_an_input_is_off_until_it_is_named() -> None:
    assert endpoints(Config(parts=(DoryConfig(max_datagram_msg_size=16 << 20),))) == []
    chosen = DoryConfig(unix_datagram_path="/a", unix_stream_path="/b", tcp=True)
    assert [endpoint.key for endpoint in endpoints(Config(parts=(chosen,)))] == [DATAGRAM, STREAM, TCP, HTTP]
