"""What NSQ clients can make the node hold: half commands, output that nobody reads, memory topics."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from penstock.budget import WINDOW_NS
from penstock.config import LimitsConfig, MemoryConfig
from penstock.dialects.nsq.tcp.receiver import SHARED_BYTES_MAX, _part
from penstock.registry.answer import Answer
from tests.nsq.parts import SECOND, Broker, Client, pub

MIB = 1 << 20
WINDOW_S = WINDOW_NS // SECOND


def half(client: Client, size: int, whole: int = 5 * MIB) -> None:
    """Begin an MPUB and leave it there."""
    client.send(b"MPUB t\n" + struct.pack(">I", whole) + bytes(size))


def test_half_sent_bodies_are_held_within_their_memory_and_the_slowest_hears_why(tmp_path: Path) -> None:
    broker = Broker(tmp_path, memory=MemoryConfig(body_bytes=16 * MIB))
    clients = [broker.client() for _ in range(40)]
    for client in clients:
        half(client, 4 * MIB)
        assert broker.node.budget.body.used <= 16 * MIB
    told = [client.replies() for client in clients]
    refused = ["E_MPUB_FAILED MPUB failed memory.body_bytes of 16MiB are full; try again in a moment"]
    assert told == [refused] * 37 + [[]] * 3
    broker.client().pub("t", b"small")
    assert broker.node.topic("t").intake.published == 1


def test_a_fast_large_body_passes_beside_many_that_were_left(tmp_path: Path) -> None:
    broker = Broker(tmp_path, memory=MemoryConfig(body_bytes=16 * MIB))
    for _ in range(10):
        half(broker.client(), 4 * MIB)
    good = broker.client()
    good.mpub("t", [bytes(MIB)] * 4)
    assert good.replies() == ["OK"]


def test_commands_that_wait_for_their_topic_are_held_within_the_memory_of_bodies(tmp_path: Path) -> None:
    broker = Broker(tmp_path, memory=MemoryConfig(body_bytes=16 * MIB))
    asked: list[Answer[None]] = []

    def later() -> Answer[None]:
        asked.append(Answer())
        return asked[-1]

    broker.node.lifecycle._turns.next = later  # type: ignore[method-assign]  # the disk is busy with other topics
    clients = [broker.client() for _ in range(6)]
    for number, client in enumerate(clients):
        client.mpub(f"t{number}", [bytes(MIB)] * 4)
        assert broker.node.budget.body.used <= 16 * MIB
    refused = ["E_MPUB_FAILED MPUB failed memory.body_bytes of 16MiB are full; try again in a moment"]
    assert [client.replies() for client in clients] == [refused] * 2 + [[]] * 4
    for answer in asked:
        answer.give(None)
    broker.clock.run()
    assert [client.replies() for client in clients[2:]] == [["OK"]] * 4
    assert broker.node.budget.body.used == 0


@pytest.mark.parametrize(
    ("begun", "said"),
    [
        (b"MPUB t\n\x00\x00\x10\x00abc", "E_BAD_BODY MPUB came too slowly: "),
        (b"PUB t\n\x00\x00\x10\x00abc", "E_BAD_BODY PUB came too slowly: "),
        (b"IDENTIFY\n\x00\x00\x10\x00{", "E_BAD_BODY IDENTIFY came too slowly: "),
        (b"PU", "E_INVALID command came too slowly: "),
    ],
)
def test_what_does_not_go_on_is_cut_off_also_without_heartbeats(tmp_path: Path, begun: bytes, said: str) -> None:
    broker = Broker(tmp_path)
    client = broker.client()
    client.identify(heartbeat_interval=-1)
    client.send(begun)
    broker.advance(WINDOW_S - 1)
    assert client.replies() == []
    broker.advance(2)
    (reply,) = client.replies()
    assert reply.startswith(said)
    assert client.closed
    assert broker.node.budget.body.used == 0


def test_a_body_that_drips_is_cut_off_and_one_that_flows_has_its_time(tmp_path: Path) -> None:
    broker = Broker(tmp_path, limits=LimitsConfig(body_timeout_ns=120 * SECOND))
    drip, flow = broker.client(), broker.client()
    for client in (drip, flow):
        client.identify(heartbeat_interval=-1)
        half(client, 1)
    for second in range(121):
        if not drip.closed:
            drip.send(b"x")
        if not flow.closed:
            flow.send(bytes(2000))
        broker.advance(1)
        if second == WINDOW_S:
            assert (drip.closed, flow.closed) == (True, False)
    (reply,) = flow.replies()
    assert reply == "E_BAD_BODY MPUB came too slowly: took more than limits.body_timeout = 2m"


def test_a_client_that_pipelines_in_odd_pieces_is_never_too_slow(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    client = broker.client()
    client.identify(heartbeat_interval=-1)
    data = pub("t", b"x" * 20) * 3
    for _ in range(3 * WINDOW_S):  # every read ends within a command that the next one completes
        client.send(data[:50])
        broker.advance(1)
        client.send(data[50:])
    assert broker.node.topic("t").intake.published == 9 * WINDOW_S
    assert (broker.node.budget.body.used, len(broker.node.budget.body)) == (0, 0)


def test_a_command_that_waits_for_the_node_is_not_too_slow(tmp_path: Path) -> None:
    broker = Broker(tmp_path, ask=lambda *_: None)
    client = broker.client()
    client.identify(heartbeat_interval=-1)
    client.send(b"AUTH\n" + struct.pack(">I", 3) + b"abc" + b"PUB t\n")
    assert broker.node.budget.body.used > 0
    broker.advance(3 * WINDOW_S)
    assert not client.closed


def test_consumers_that_do_not_read_are_held_within_the_output_memory(tmp_path: Path) -> None:
    broker = Broker(tmp_path, memory=MemoryConfig(output_bytes=10 * MIB))
    clients = [broker.client() for _ in range(6)]
    for client in clients:
        client.sub("t", "ch", 1)
        client.out = bytearray(3 * MIB)
        client.connection.pause_writing()
        assert broker.node.budget.output.used <= 10 * MIB
    assert [client.closed for client in clients] == [True, True, True, False, False, False]
    clients[3].connection.resume_writing()
    assert broker.node.budget.output.used == 6 * MIB
    clients[4].hang_up()
    clients[5].hang_up()
    assert broker.node.budget.output.used == 0


def test_a_memory_topic_is_bounded_in_bytes(tmp_path: Path) -> None:
    broker = Broker(tmp_path, memory=MemoryConfig(topic_bytes=20 * MIB), max_msg_size=2 * MIB)
    client = broker.client()
    for _ in range(300):
        client.pub("fill#ephemeral", bytes(MIB))
        assert broker.node.budget.topic.used <= 20 * MIB
    assert client.replies() == ["OK"] * 300
    topic = broker.node.topic("fill#ephemeral")
    broker.advance(1)
    kept = topic.shards[0].rows_between(0, topic.shards[0].end)
    assert 5 < kept < 12
    assert broker.node.ledger.total("memory_bytes", topic.name) == 300 - kept
    broker.node.delete_topic(topic.name).now()
    assert broker.node.budget.topic.used == 0


def test_many_memory_topics_of_one_large_message_each_are_bounded_too(tmp_path: Path) -> None:
    broker = Broker(tmp_path, memory=MemoryConfig(topic_bytes=20 * MIB), max_msg_size=2 * MIB)
    client = broker.client()
    for number in range(40):
        client.pub(f"fill{number}#ephemeral", bytes(MIB))
        assert broker.node.budget.topic.used <= 20 * MIB
    assert client.replies() == ["OK"] * 40
    last = broker.node.topic("fill39#ephemeral").shards[0]
    assert last.rows_between(0, last.end) == 1
    client.pub("fill0#ephemeral", b"more")
    assert client.replies() == ["OK"]
    first = broker.node.topic("fill0#ephemeral").shards[0]
    assert first.rows_between(0, first.end) == 1
    broker.advance(1)
    gone = sum(broker.node.ledger.total("memory_bytes", f"fill{number}#ephemeral") for number in range(40))
    assert gone == 41 - sum(topic.shards[0].rows_between(0, 2) for topic in broker.node.topics.values())


def test_a_large_memory_topic_gives_way_to_small_ones(tmp_path: Path) -> None:
    broker = Broker(tmp_path, memory=MemoryConfig(topic_bytes=20 * MIB), max_msg_size=2 * MIB)
    client = broker.client()
    for _ in range(10):
        client.pub("large#ephemeral", bytes(MIB))
    for number in range(20):
        client.pub("small#ephemeral", b"%d" % number)
    for _ in range(10):
        client.pub("large#ephemeral", bytes(MIB))
    small = broker.node.topic("small#ephemeral").shards[0]
    assert small.rows_between(0, small.end) == 20


@pytest.mark.parametrize(("rows", "is_copied"), [(1, True), (9, True), (16, False), (20, False)])
def test_what_a_client_has_not_read_keeps_no_frames_of_others(rows: int, is_copied: bool) -> None:
    frames = b"".join(bytes([row]) * 100_000 for row in range(20))
    part = _part(frames, 0, rows * 100_000)
    assert bytes(part) == frames[: rows * 100_000]
    assert (not isinstance(part, memoryview)) is is_copied
    few = frames[:SHARED_BYTES_MAX]
    assert isinstance(_part(few, 0, 100), memoryview)  # costs nobody much, and saves a copy of each
