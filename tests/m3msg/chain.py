"""A producer in memory on a simulated clock, and the instances it sends to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

from penstock.relays.m3msg.buffer import Fate, Limits
from penstock.relays.m3msg.config import RelayConfig
from penstock.relays.m3msg.producer import Producer
from penstock.wire.dial import Dialling, Failed
from tests.m3msg.consumers import NAME, Consumer, Told
from tests.simulation.clock import Scheduler
from tests.simulation.machine import Machine
from tests.simulation.network import Weather
from tests.simulation.outgoing import Outside


class Chain:
    """Buffer, services and connections, and no node."""

    def __init__(self, limits: Limits | None = None, config: RelayConfig | None = None) -> None:
        self.machine = Machine()
        self.outside = Outside(self.scheduler, Weather(Random(7), 1_000_000, 0.3))
        self.topology = Told()
        self.producer = Producer(
            NAME, self.topology, self.machine.clock, self, Random(3), config=config, limits=limits or Limits()
        )
        #: What became of each message, in the order in which it did.
        self.fates: list[tuple[bytes, Fate]] = []
        self._ports = 9000

    @property
    def scheduler(self) -> Scheduler:
        return self.machine.scheduler

    def dial(self, host: str, port: int, protocol: asyncio.Protocol, failed: Failed) -> Dialling:
        return self.outside.dial(self.machine.clock, port, protocol, failed)

    def consumer(self) -> Consumer:
        self._ports += 1
        return Consumer(self, self._ports)

    def run(self, seconds: float = 1.0) -> None:
        self.machine.run(seconds)

    def produce(self, *values: bytes, shard: int = 0, size: int | None = None) -> None:
        for value in values:
            self.producer.produce(value, shard=shard, size=size, finished=partial(self._finished, value))

    def _finished(self, value: bytes, fate: Fate) -> None:
        self.fates.append((value, fate))

    def until(self, holds: Callable[[], bool], seconds: float = 600.0) -> None:
        for _ in range(int(seconds * 5)):
            if holds():
                return
            self.run(0.2)
        raise AssertionError("it never holds")
