"""Several brokers over one registry, in one process and on virtual time; each may be killed at any moment."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any, Literal, TypeVar

import pytest

from penstock.clock import SECOND
from penstock.cluster.denial import Denial
from penstock.cluster.entries import Entry, Settings
from penstock.cluster.overseer import Overseer
from penstock.cluster.records import BrokerRecord, ClientRecord
from penstock.cluster.tables import Tables
from penstock.errors import Refusal
from penstock.registry import EmbeddedRegistry, Registry
from penstock.registry.answer import Answer
from tests.registry.far import Far, Trouble
from tests.simulation.clock import SimClock
from tests.simulation.machine import Machine

T = TypeVar("T")
SETTINGS: Settings = {"bucket_count": 16, "time_window_ms": 1000}

#: What a broker does next to the storage, and whether it dies before or after that was done.
Fate = tuple[str, Literal["before", "after"]]


class Store:
    """The storage all brokers share: rows by incarnation, purged ten at a time."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.fenced: set[str] = set()
        self.fails = False
        #: (broker, what it did, incarnation), in order.
        self.done: list[tuple[str, str, str]] = []

    def fill(self, entry: Entry, rows: int) -> None:
        self.rows[entry.incarnation] = rows


class Broker:
    """One broker: an overseer with a clock of its own, and its way to the storage."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.world = world
        self.clock = SimClock(world.machine.scheduler, 0, Random(f"timers {name}"))
        self.fate: Fate | None = None
        self.is_well = True
        self.told: list[tuple[str, str]] = []
        registry: Registry = world.server
        if world.is_far:
            registry = Far(world.server, self.clock, Random(name), world.trouble)
        self.registry = registry
        self.overseer = Overseer(
            registry,
            self.clock,
            Random(f"random {name} {next(world.births)}"),
            "blue",
            name,
            self,
            may_work=lambda: self.is_well,
        )
        self.overseer.watch(lambda what, entry: self.told.append((what, entry.id)))
        self.records = self.overseer.records
        self.tables = Tables(registry, self.clock, self.overseer.keys, self.records)
        self.overseer.watch(self._topic)
        for entry in self.overseer.topics():
            self.tables.follow(entry)

    def _topic(self, what: str, entry: Entry) -> None:
        if what == "live":
            self.tables.follow(entry)
        else:
            self.tables.forget(entry.id)

    def join(self, topic: str, ident: str, rack: str = "") -> None:
        """Say that a consumer is here."""
        entry = self.overseer.find(topic)
        self.world.answered(self.records.join("consumer", self.client(entry, ident, rack)))

    def client(self, entry: Entry, ident: str, rack: str = "") -> ClientRecord:
        """Return the record of a consumer of this broker."""
        return ClientRecord(
            id=ident, topic=entry.id, incarnation=entry.incarnation, broker=self.name, since_ms=0, rack=rack
        )

    def announce(self, **figures: Any) -> None:
        """Say how the broker is."""
        self.records.announce(BrokerRecord(id=self.name, life=self.records.life, since_ms=0, **figures))

    def kill(self) -> None:
        """Let none of its timers ring and none of its answers come, from now on."""
        self.clock.alive = False
        if not self.world.is_far:  # else the registry forgets it by itself
            self.overseer.stop()
            self.tables.close()

    def provision(self, ident: str, incarnation: str, settings: Settings) -> Answer[None]:
        return self._do("provision", incarnation, lambda: self.world.store.rows.setdefault(incarnation, 0), None)

    def fence(self, ident: str, incarnation: str) -> Answer[None]:
        return self._do("fence", incarnation, lambda: self.world.store.fenced.add(incarnation), None)

    def purge(self, ident: str, incarnation: str, step: int) -> Answer[bool]:
        rows = self.world.store.rows
        left = max(rows.get(incarnation, 0) - 10, 0)

        def remove() -> None:
            assert incarnation in self.world.store.fenced, "purged before it was fenced"
            rows[incarnation] = left
            if not left:
                del rows[incarnation]

        return self._do(f"purge {step}", incarnation, remove, not left)

    def _do(self, what: str, incarnation: str, effect: Callable[[], Any], value: T) -> Answer[T]:
        never: Answer[T] = Answer()
        fate = self.fate if self.fate is not None and self.fate[0] == what else None
        if not self.clock.alive:
            return never
        if fate == (what, "before"):
            self.kill()
            return never
        holder = self.world.holder(incarnation)
        assert holder == self.name, f"{self.name} does {what} while {holder or 'nobody'} has the lock"
        if self.world.store.fails:
            return Answer.refused(Refusal("disk_failed", "the disk is gone"))
        effect()
        self.world.store.done.append((self.name, what, incarnation))
        if fate is not None:
            self.kill()
            return never
        return Answer.of(value)


class World:
    """A registry, a storage and the brokers over them."""

    def __init__(self, *, is_far: bool, trouble: Trouble | None = None) -> None:
        self.machine = Machine(3)
        self.is_far = is_far
        self.trouble = trouble or Trouble()
        self.server = EmbeddedRegistry.open(self.machine.disk, self.machine.clock, "data/registry")
        self.store = Store()
        self.births = count()

    def broker(self, name: str) -> Broker:
        return Broker(self, name)

    def run(self, seconds: float) -> None:
        self.machine.run(seconds)

    def until(self, holds: Callable[[], object], seconds: float = 120) -> float:
        """Let time pass until something is so, and return how long that took."""
        began = self.machine.scheduler.time_ns
        while not holds():
            spent = (self.machine.scheduler.time_ns - began) / SECOND
            assert spent < seconds, "it never came to be"
            self.machine.run(0.01)
        return (self.machine.scheduler.time_ns - began) / SECOND

    def answered(self, answer: Answer[T]) -> T:
        self.until(lambda: answer.is_given)
        return answer.now()

    def denied(self, answer: Answer[T]) -> Denial:
        with pytest.raises(Denial) as caught:
            self.answered(answer)
        return caught.value

    def holder(self, incarnation: str) -> str:
        """Return which broker works on a topic, as the registry itself knows it."""
        for key, entry in self.server.list("timeline/blue/masters/").items():
            if key.endswith(incarnation):
                return entry.value.decode().partition(" ")[0]
        return ""

    def keys(self, prefix: str) -> list[str]:
        return [key for key in self.server.list("timeline/blue/") if key.startswith(f"timeline/blue/{prefix}")]


def kind_of(broker: Broker, ident: str) -> int:
    """Return the kind with which a broker says that a topic is not there; 0 if it is."""
    try:
        broker.overseer.find(ident)
    except Denial as denial:
        return denial.kind
    return 0
