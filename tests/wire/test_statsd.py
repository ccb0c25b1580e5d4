"""The StatsD sender, whatever it sends: lines in packets, counters by what they grew, and nobody waits for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import SECOND
from penstock.wire.statsd import Dial, Sample, Statsd, Totals, dialler, packets
from tests.fakes import FakeClock

Told = Callable[[socket.socket | None], None]


@pytest.fixture
def ear() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
        ear.bind(("127.0.0.1", 0))
        ear.setblocking(False)
        yield ear


def heard(ear: socket.socket) -> list[str]:
    lines: list[str] = []
    while True:
        try:
            lines += ear.recv(65536).decode().splitlines()
        except BlockingIOError:
            return lines


def start(samples: list[Sample], clock: FakeClock, dial: Dial) -> Statsd:
    lines = Totals(lambda: samples, "me.").lines
    return Statsd(lines, clock, dial, interval_ns=SECOND, packet_bytes_max=508)


def test_gauges_are_sent_as_they_are_and_counters_as_what_they_grew(ear: socket.socket) -> None:
    clock = FakeClock()
    samples: list[Sample] = [("depth", 5, False), ("count", 10, True)]
    statsd = start(samples, clock, dialler(*ear.getsockname()))
    told = []
    for samples[:] in (
        [("depth", 4, False), ("count", 13, True)],
        [("depth", 4, False), ("count", 13, True), ("new", 2, True)],
        [("count", 1, True)],
    ):
        clock.advance(SECOND)
        told.append(heard(ear))
    assert told == [
        ["me.depth:4|g", "me.count:3|c"],
        ["me.depth:4|g", "me.count:0|c", "me.new:2|c"],
        ["me.count:1|c"],
    ]
    statsd.close()
    clock.advance(9 * SECOND)
    assert heard(ear) == []


def test_interval_that_comes_before_the_address_is_known_sends_nothing_twice(ear: socket.socket) -> None:
    clock = FakeClock()
    waiting: list[Told] = []
    samples: list[Sample] = []
    statsd = start(samples, clock, waiting.append)
    samples.append(("count", 1, True))
    clock.advance(3 * SECOND)
    assert len(waiting) == 1
    dialler(*ear.getsockname())(waiting.pop())
    assert heard(ear) == ["me.count:1|c"]
    clock.advance(SECOND)
    waiting.pop()(None)
    clock.advance(SECOND)
    assert len(waiting) == 1
    statsd.close()
    dialler(*ear.getsockname())(waiting.pop())
    assert heard(ear) == []


def test_name_is_asked_for_without_stopping_the_loop(ear: socket.socket) -> None:
    port = ear.getsockname()[1]

    async def dialled(host: str) -> socket.socket | None:
        answer: asyncio.Future[socket.socket | None] = asyncio.get_running_loop().create_future()
        dialler(host, port)(answer.set_result)
        return await asyncio.wait_for(answer, 30)

    found = asyncio.run(dialled("localhost"))
    assert found is not None
    found.close()
    assert asyncio.run(dialled("no-such-host.invalid")) is None


@given(st.lists(st.text("abc", min_size=1, max_size=30)), st.integers(1, 60))
def test_packets_hold_whole_lines_within_the_size(words: list[str], size: int) -> None:
    lines = [f"{word}\n" for word in words]
    made = list(packets(iter(lines), size))
    assert b"".join(made) == "".join(lines).encode()
    assert all(packet.endswith(b"\n") and (len(packet) <= size or packet.count(b"\n") == 1) for packet in made)
