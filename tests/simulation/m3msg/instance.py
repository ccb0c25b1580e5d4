"""An instance of a simulated consumer service: a process that takes messages, and acks them, late, twice, or not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import cast

from penstock.clock import MILLISECOND
from penstock.m3.acks import acks
from penstock.m3.messages import MessageReader
from tests.simulation.clock import SimClock
from tests.simulation.host import Host
from tests.simulation.outgoing import Mood, Outside

#: Told the messages, and the shard of each, that an instance was sent.
Got = Callable[["Instance", list[tuple[bytes, int]]], None]


class Instance:
    """One process, while it lives; what it acked it has, whoever comes after it."""

    def __init__(self, host: Host, outside: Outside, port: int, random: Random, fault_odds: float, got: Got) -> None:
        self.port = port
        self.host = host
        self.random = random
        self.fault_odds = fault_odds
        self.got = got
        self.mood: Mood = "accept"
        #: How often it acked each message, and the shards that were ever its own.
        self.acked: Counter[bytes] = Counter()
        self.shards: set[int] = set()
        self.clock: SimClock | None = None
        self._outside = outside
        self.start()

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"10.0.0.1:{self.port}"

    def start(self) -> None:
        """Run."""
        if self.clock is None:
            self.clock = SimClock(self.host.scheduler, 0, self.random)
            self._outside.listen(self.port, lambda: _Session(self), self.clock)

    def kill(self) -> None:
        """Be gone."""
        if self.clock is not None:
            self._outside.die(self.clock)
            self.clock = None

    def heal(self) -> None:
        """Ack everything from now on."""
        self.fault_odds = 0.0
        self.mood = "accept"
        self.start()


class _Session(asyncio.Protocol):
    """One connection to it."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._reader = MessageReader()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        found = self._reader.feed(data)
        instance = self._instance
        if self._reader.frames.fault:
            instance.host.fail("a relay speaks M3Msg", self._reader.frames.fault)
        if found is None:
            return
        values = memoryview(found.values)
        rows = [
            (bytes(values[int(found.cuts[row]) : int(found.cuts[row + 1])]), int(found.shard[row]))
            for row in range(found.count)
        ]
        instance.got(instance, rows)
        said, random = acks([found.entries]).wire, instance.random
        if random.random() >= instance.fault_odds:
            self._ack(said, rows)
            return
        what = random.choice(("none", "late", "twice", "last", "half"))
        instance.host.record("instance", instance.port, what, len(rows))
        if what == "late":
            late_ns = int(random.random() * 500 * MILLISECOND)
            scheduler = instance.host.scheduler
            scheduler.at(scheduler.time_ns + late_ns, partial(self._ack, said, rows), instance.clock)
        elif what in ("twice", "last"):
            self._ack(said * 2 if what == "twice" else said, rows)
        if what == "half":
            self._transport.write(said[: len(said) // 2])
        if what in ("half", "last"):
            self._transport.close()

    def _ack(self, said: bytes, rows: list[tuple[bytes, int]]) -> None:
        if not self._transport.is_closing():
            self._instance.acked.update(body for body, _ in rows)
            self._transport.write(said)
