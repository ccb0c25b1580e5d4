"""A relay on a simulated machine, and consumer services whose instances do what a test says."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol, cast

from penstock.config import Config
from penstock.m3.acks import acks
from penstock.m3.messages import MessageReader
from penstock.m3.placement import Instance, Placement, Shard
from penstock.m3.topic import ConsumerService, Consumption, Filters, ServiceId, Topic
from penstock.relays.m3msg.config import RelayConfig
from penstock.relays.m3msg.connection import Counts
from penstock.relays.m3msg.relay import Relay
from penstock.relays.m3msg.service import Service
from penstock.relays.m3msg.topology import Cancel, OnFlag, OnPlacement, OnTopic
from penstock.wire.dial import Dialling, Failed
from tests.simulation.clock import Scheduler, SimClock
from tests.simulation.network import Weather
from tests.simulation.outgoing import Outside
from tests.site import PLAIN, Site

NAME = "aggregated_metrics"


class Session(asyncio.Protocol):
    """One connection to an instance."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._reader = MessageReader()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._consumer.sessions.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._consumer.sessions:
            self._consumer.sessions.remove(self)

    def data_received(self, data: bytes) -> None:
        found = self._reader.feed(data)
        assert not self._reader.frames.fault, self._reader.frames.fault
        if found is None:
            return
        for row in range(found.count):
            value = bytes(memoryview(found.values)[int(found.cuts[row]) : int(found.cuts[row + 1])])
            self._consumer.got[value] += 1
            self._consumer.shards[value] = int(found.shard[row])
        if self._consumer.acks:
            self.say(acks([found.entries]).wire)

    def say(self, data: bytes) -> None:
        self._transport.write(data)

    def hang_up(self) -> None:
        self._transport.close()


class Net(Protocol):
    """Where instances are."""

    outside: Outside

    @property
    def scheduler(self) -> Scheduler:
        """What their processes run on."""


class Consumer:
    """An instance of a service: a process that takes messages, and acks them or not."""

    def __init__(self, way: Net, port: int) -> None:
        self.way = way
        self.port = port
        self.endpoint = f"10.0.0.1:{port}"
        self.acks = True
        #: How often each message came, and to which shard.
        self.got: Counter[bytes] = Counter()
        self.shards: dict[bytes, int] = {}
        self.sessions: list[Session] = []
        self.clock = SimClock(way.scheduler, 0, Random(port))
        self.listen()

    def listen(self) -> None:
        self.way.outside.listen(self.port, lambda: Session(self), self.clock)

    def revive(self) -> None:
        """Begin another process at the same place."""
        self.clock = SimClock(self.way.scheduler, 0, Random(self.port))
        self.listen()

    def die(self) -> None:
        """End as a killed process does."""
        self.way.outside.die(self.clock)
        self.sessions.clear()


class Told:
    """A topology that says what a test says."""

    def __init__(self) -> None:
        self.refused = self.losses = 0
        self.away = ""
        self.topic: Topic | None = None
        self.placements: dict[str, Placement] = {}
        self._on_topic: OnTopic | None = None
        self._on_placement: dict[str, OnPlacement] = {}
        self._on_flag: OnFlag | None = None

    def watch_topic(self, name: str, told: OnTopic) -> Cancel:
        self._on_topic = told
        if self.topic is not None:
            told(self.topic)
        return lambda: None

    def watch_placement(self, service: ServiceId, told: OnPlacement) -> Cancel:
        self._on_placement[service.name] = told
        if service.name in self.placements:
            told(self.placements[service.name])
        return lambda: self._on_placement.pop(service.name, None) and None

    def watch_flag(self, key: str, told: OnFlag) -> Cancel:
        self._on_flag = told
        return lambda: None

    def flag(self, says: bool) -> None:
        assert self._on_flag is not None
        self._on_flag(says)

    async def close(self) -> None:
        pass

    def say(self, topic: Topic) -> None:
        self.topic = topic
        if self._on_topic is not None:
            self._on_topic(topic)

    def place(self, name: str, placement: Placement) -> None:
        self.placements[name] = placement
        if name in self._on_placement:
            self._on_placement[name](placement)


class Way:
    """A node, its relay, and everybody it sends to."""

    def __init__(self, config: Config = PLAIN, site: Site | None = None) -> None:
        self.site = site or Site(config)
        weather = Weather(Random(7), 1_000_000, 0.3)
        self.outside = Outside(self.site.machine.scheduler, weather)
        self.topology = Told()
        self.config = RelayConfig(topics=(NAME,))
        self._ports = 9000
        self.start()

    def start(self) -> None:
        self.relay = Relay(self.site.node, self.config, self.topology, self, Random(3))
        self.site.machine.run()
        self.topic = self.site.node.topics[NAME]

    def restart(self) -> None:
        """Kill the node and begin another process on the same disk."""
        self.outside.die(self.site.machine.clock)
        self.site.start()
        self.start()

    @property
    def scheduler(self) -> Scheduler:
        return self.site.machine.scheduler

    def dial(self, host: str, port: int, protocol: asyncio.Protocol, failed: Failed) -> Dialling:
        return self.outside.dial(self.site.machine.clock, port, protocol, failed)

    def service(self, name: str) -> Service:
        return self.relay.topics[NAME].services[ServiceId(name)]

    def counts(self, name: str) -> Counts:
        return self.service(name).counts

    def consumer(self) -> Consumer:
        self._ports += 1
        return Consumer(self, self._ports)

    def run(self, seconds: float = 1.0) -> None:
        self.site.machine.run(seconds)

    def publish(
        self, *bodies: bytes, keys: list[bytes | None] | None = None, routes: list[int | None] | None = None
    ) -> None:
        columns = {name: column for name, column in (("key", keys), ("route", routes)) if column is not None}
        assert self.site.offer(self.topic, *bodies, **columns) == [None]

    def until(self, holds: Callable[[], bool], seconds: float = 600.0) -> None:
        """Let time pass until something holds."""
        for _ in range(int(seconds * 5)):
            if holds():
                return
            self.run(0.2)
        raise AssertionError("it never holds")


def topic(*services: ConsumerService, shards: int = 4) -> Topic:
    return Topic(name=NAME, shards=shards, services=services)


def service(
    name: str, consumption: Consumption = "shared", ttl_ns: int = 0, filters: Filters | None = None
) -> ConsumerService:
    return ConsumerService(
        service_id=ServiceId(name),
        consumption=consumption,
        ttl_ns=ttl_ns,
        filters=filters,
    )


def placed(owners: Mapping[Consumer, Sequence[Shard | int]], *, sharded: bool = True) -> Placement:
    """Return a placement in which consumers have these shards."""
    instances = {}
    for consumer, shards in owners.items():
        owned = tuple(shard if isinstance(shard, Shard) else Shard(shard, "available") for shard in shards)
        name = f"i{consumer.port}"
        instances[name] = Instance(id=name, endpoint=consumer.endpoint, shards=owned)
    return Placement(instances=instances, is_sharded=sharded, shards=4)
