from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config import host_and_port
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.http.api import observe
from penstock.dialects.nsq.stats.statsd import prefix, sender
from penstock.wire.statsd import BURST_PACKETS, Statsd, dialler
from tests.nsq.parts import Broker, dpub

PREFIX = "nsq.127_0_0_1_4151."


class Ear:
    """A StatsD server that remembers what it heard."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"

    def packets(self) -> list[bytes]:
        found = []
        while True:
            try:
                found.append(self.socket.recv(65536))
            except BlockingIOError:
                return found

    def heard(self) -> dict[str, str]:
        """Return what was heard since the last time, by name without the prefix."""
        lines = [line for packet in self.packets() for line in packet.decode().splitlines()]
        pairs = [line.removeprefix(PREFIX).split(":") for line in lines]
        assert all(line.startswith(PREFIX) for line in lines)
        assert len({name for name, _ in pairs}) == len(pairs)
        return dict(pairs)


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.socket.close()


def start(path: Path, ear: Ear, **nsq: Any) -> tuple[Broker, Statsd]:
    broker = Broker(path, statsd_address=ear.address, **nsq)
    return broker, sending(broker)


def sending(broker: Broker) -> Statsd:
    observer = observe(broker.node, broker.config, broker.server)
    nsq = broker.config.of(NsqConfig)
    dial = dialler(*host_and_port(nsq.statsd_address))
    return sender(observer, broker.clock, nsq, "127.0.0.1:4151", dial)


def test_every_name_of_nsqd_is_sent_each_interval(tmp_path: Path, ear: Ear) -> None:
    broker, statsd = start(tmp_path, ear, statsd_mem_stats=False)
    client = broker.client()
    client.sub("t", "ch", rdy=1)
    client.pub("t", b"one", b"two")
    client.send(dpub("t", 3_600_000, b"later"))
    assert ear.packets() == []
    broker.clock.advance(59_999_000_000)
    assert ear.packets() == []
    broker.clock.advance(1_000_000)
    channel = "topic.t.channel.ch."
    assert {name: value for name, value in ear.heard().items() if not name.startswith(channel)} == {
        "topic.t.message_count": "3|c",
        "topic.t.message_bytes": "11|c",
        "topic.t.depth": "0|g",
        "topic.t.backend_depth": "0|g",
    }
    statsd.close()


def test_channels_are_sent_with_their_clients(tmp_path: Path, ear: Ear) -> None:
    broker, statsd = start(tmp_path, ear, statsd_mem_stats=False, statsd_interval_ns=10**9)
    client = broker.client()
    client.sub("t", "ch", rdy=1)
    client.send(dpub("t", 3_600_000, b"later"))
    client.pub("t", b"one", b"two")
    broker.advance(1)
    assert {n: v for n, v in ear.heard().items() if ".channel." in n} == {
        "topic.t.channel.ch.message_count": "3|c",
        "topic.t.channel.ch.depth": "1|g",
        "topic.t.channel.ch.backend_depth": "1|g",
        "topic.t.channel.ch.in_flight_count": "1|g",
        "topic.t.channel.ch.deferred_count": "1|g",
        "topic.t.channel.ch.requeue_count": "0|c",
        "topic.t.channel.ch.timeout_count": "0|c",
        "topic.t.channel.ch.clients": "1|g",
    }
    statsd.close()


def test_counters_are_sent_as_what_they_grew(tmp_path: Path, ear: Ear) -> None:
    broker, statsd = start(tmp_path, ear, statsd_mem_stats=False, statsd_interval_ns=10**9)
    client = broker.client()
    client.sub("t", "ch")
    for count in (3, 0, 2):
        client.pub("t", *[b"x"] * count)
        broker.advance(1)
        heard = ear.heard()
        assert heard["topic.t.message_count"] == f"{count}|c"
        assert heard["topic.t.channel.ch.message_count"] == f"{count}|c"
    assert heard["topic.t.channel.ch.depth"] == "5|g"
    statsd.close()


def test_what_was_counted_before_a_restart_is_not_sent_again(tmp_path: Path, ear: Ear) -> None:
    broker = Broker(tmp_path, statsd_address=ear.address, statsd_interval_ns=10**9)
    client = broker.client()
    client.sub("t", "ch", rdy=5)
    client.pub("t", *[b"x"] * 5)
    client.send(b"".join(b"FIN " + data[10:26] + b"\n" for kind, data in client.frames() if kind == 2))
    broker.kill()
    statsd = sending(broker)
    broker.client().pub("t", b"new")
    broker.advance(1)
    assert ear.heard()["topic.t.channel.ch.message_count"] == "1|c"
    statsd.close()


def test_topic_that_began_anew_counts_from_zero(tmp_path: Path, ear: Ear) -> None:
    broker, statsd = start(tmp_path, ear, statsd_interval_ns=10**9)
    broker.client().pub("t", b"x", b"y", b"z")
    broker.advance(1)
    ear.heard()
    broker.node.delete_topic("t").now()
    broker.client().pub("t", b"x", b"y")
    broker.advance(1)
    assert ear.heard()["topic.t.message_count"] == "2|c"
    statsd.close()


def test_memory_and_ephemeral_names_are_a_choice(tmp_path: Path, ear: Ear) -> None:
    broker, statsd = start(tmp_path, ear, statsd_interval_ns=10**9, statsd_exclude_ephemeral=True)
    client = broker.client()
    client.sub("t", "c#ephemeral")
    client.pub("e#ephemeral", b"x")
    broker.advance(1)
    heard = ear.heard()
    assert {name for name in heard if not name.startswith("topic.t.")} == {
        *("mem.heap_objects", "mem.heap_idle_bytes", "mem.heap_in_use_bytes", "mem.heap_released_bytes"),
        *("mem.gc_pause_usec_100", "mem.gc_pause_usec_99", "mem.gc_pause_usec_95", "mem.next_gc_bytes", "mem.gc_runs"),
    }
    assert heard["mem.gc_runs"].endswith("|c")
    assert not any("#ephemeral" in name for name in heard)
    statsd.close()


def test_latencies_are_sent_in_nanoseconds(tmp_path: Path, ear: Ear) -> None:
    broker, statsd = start(tmp_path, ear, statsd_interval_ns=10**9, e2e_processing_latency_percentiles=("0.99", "0.5"))
    client = broker.client()
    client.sub("t", "ch", rdy=1)
    client.pub("t", b"x")
    broker.advance(0.5)
    client.send(b"".join(b"FIN " + data[10:26] + b"\n" for kind, data in client.frames() if kind == 2))
    broker.advance(0.5)
    heard = ear.heard()
    for name in ("topic.t.", "topic.t.channel.ch."):
        for quantile in (99, 50):
            value = int(heard[f"{name}e2e_processing_latency_{quantile}"].removesuffix("|g"))
            assert value == pytest.approx(500_000_000, rel=0.02)
    statsd.close()


def test_packets_leave_in_small_groups(tmp_path: Path, ear: Ear) -> None:
    broker, statsd = start(tmp_path, ear, statsd_interval_ns=10**9, statsd_mem_stats=False)
    for number in range(500):
        broker.node.create_topic(f"topic-with-a-rather-long-name-{number}").now()
    broker.advance(1)
    first = ear.packets()
    assert len(first) == BURST_PACKETS
    assert all(len(packet) <= 508 for packet in first)
    rest = []
    for _ in range(50):
        broker.advance(0.01)
        rest += ear.packets()
    lines = b"".join([*first, *rest]).splitlines()
    assert len(lines) == 500 * 4
    statsd.close()


def test_nobody_listening_does_no_harm(tmp_path: Path, ear: Ear) -> None:
    broker, statsd = start(tmp_path, ear, statsd_interval_ns=10**9)
    broker.client().pub("t", b"x")
    ear.socket.close()
    broker.advance(5)
    assert broker.node.bugs == 0
    statsd.close()


def test_closed_means_silent(tmp_path: Path, ear: Ear) -> None:
    broker, statsd = start(tmp_path, ear, statsd_interval_ns=10**9)
    statsd.close()
    broker.advance(5)
    assert ear.packets() == []


@pytest.mark.parametrize(
    ("pattern", "host", "text"),
    [
        ("nsq.%s", "127.0.0.1:4151", "nsq.127_0_0_1_4151."),
        ("nsq.%s.", "a.b:1", "nsq.a_b_1."),
        ("plain", "x", "plain."),
        ("", "x", ""),
    ],
)
def test_prefix_names_the_host(pattern: str, host: str, text: str) -> None:
    assert prefix(pattern, host) == text
