"""Who is there: brokers, and their consumers and producers by topic, as all brokers of a cluster know them.

A record hangs on a lease of the broker that says it, so whoever reads one knows that this broker lives, or did ten
seconds ago. A broker that is not there and did not say goodbye should return: it is known for a day.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Literal, TypeAlias

import msgspec

from penstock.clock import MILLISECOND, Clock
from penstock.cluster.broker import Broker, State
from penstock.cluster.keys import Keys, topic_in
from penstock.cluster.presence import Presence
from penstock.registry.answer import Answer
from penstock.registry.attempt import Draft, attempt
from penstock.registry.reader import Reader
from penstock.registry.registry import Cancel, Entry, Event, Registry

#: A broker that went without a word is taken for one that returns, for so long.
RETURN_MS_MAX = 24 * 3600 * 1000

Role: TypeAlias = Literal["consumer", "producer"]

_log = logging.getLogger("penstock.cluster")


class BrokerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A broker that is alive. Whoever says one does not do so all the time: each other value is a write."""

    id: str
    #: Tells two processes that call themselves the same apart.
    life: str
    since_ms: int
    hostname: str = ""
    addresses: tuple[str, ...] = ()
    version: str = ""
    state: State = "healthy"
    #: Why it is degraded.
    reasons: tuple[str, ...] = ()
    connections: int = 0
    #: Clients by topic.
    consumers: dict[str, int] = {}
    producers: dict[str, int] = {}
    cpu: float = 0.0
    #: To its clients on average, and to the registry; and how far their clocks are from its own.
    latency_ms: float = 0.0
    registry_latency_ms: float = 0.0
    drift_ms: int = 0
    registry_drift_ms: int = 0
    #: What its clock showed when it said this.
    said_ms: int = 0

    def seen(self, role: Role) -> Broker:
        """Return what is looked at where clients of this role are sent to a broker."""
        return Broker(
            id=self.id,
            state=self.state,
            counts=self.consumers if role == "consumer" else self.producers,
            connections=self.connections,
            cpu=self.cpu,
            latency_ms=self.latency_ms,
        )


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A broker that was there; with the time since when it is not, once somebody noticed."""

    id: str
    hostname: str = ""
    gone_ms: int = 0


class ClientRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer or a producer of a topic."""

    id: str
    topic: str
    #: Of the topic: a client of one that was deleted is none of the next with its name.
    incarnation: str
    broker: str
    since_ms: int
    #: The life of the broker that said it.
    life: str = ""
    #: Of consumers.
    rack: str = ""
    leases: int = 0
    weight: int = 1
    #: Of producers.
    group: str = ""


class Records:
    """What one broker says of itself and its clients, and hears of the others."""

    def __init__(
        self, registry: Registry, clock: Clock, random: Random, keys: Keys, presence: Presence, broker: str
    ) -> None:
        self.broker = broker
        #: Two brokers with one name, if that is so.
        self.problem = ""
        self._registry = registry
        self._clock = clock
        self._keys = keys
        self._presence = presence
        self.life = f"{random.getrandbits(64):016x}"
        self._said: BrokerRecord | None = None
        self._reader = Reader()
        #: Clients of this broker, by key.
        self._mine: dict[str, ClientRecord] = {}
        self._on_members: list[Callable[[str], None]] = []
        self._on_brokers: list[Callable[[BrokerRecord], None]] = []
        self._cancels: list[Cancel] = [
            registry.watch(keys.brokers, registry.revision, self._heard_of_brokers),
            registry.watch(keys.consumers, registry.revision, self._heard),
            registry.watch(keys.producers, registry.revision, self._heard),
        ]

    def close(self) -> None:
        """Hear no more."""
        for cancel in self._cancels:
            cancel()

    # --- brokers --------------------------------------------------------------------------------------------------

    def announce(self, record: BrokerRecord) -> None:
        """Say how this broker is, if that is anything new."""
        key = self._keys.broker(self.broker)
        entry = self._registry.get(key)
        other = self._reader.read(key, entry, BrokerRecord)
        if other is not None and other.life != self.life:
            self.problem = (
                f"another broker calls itself {self.broker} (at {', '.join(other.addresses) or other.hostname}), or "
                "this one did, until a few seconds ago. Give one of them another name"
            )
            return
        self.problem = ""
        if entry is None or record != self._said:
            if self._said is None:
                self._remember(record)
            self._said = record
            self._presence.keep(key, msgspec.msgpack.encode(record)).then(_told)

    def depart(self) -> Answer[None]:
        """Say goodbye: nobody waits for this broker to return."""
        key = self._keys.known_broker(self.broker)
        entry = self._registry.get(key)
        if entry is None:
            return Answer.of(None)
        return self._registry.propose({}, [key], {key: entry.revision}).settled()

    def brokers(self) -> list[BrokerRecord]:
        """Return all brokers, those that should return as inactive, by id."""
        found: dict[str, BrokerRecord] = {}
        for key, entry in self._registry.list(self._keys.known).items():
            known = self._reader.read(key, entry, Known)
            if known is not None:
                found[known.id] = BrokerRecord(
                    id=known.id, life="", since_ms=known.gone_ms, hostname=known.hostname, state="inactive"
                )
        for key, entry in self._registry.list(self._keys.brokers).items():
            record = self._reader.read(key, entry, BrokerRecord)
            if record is not None:
                found[record.id] = record
        return [found[ident] for ident in sorted(found)]

    def on_brokers(self, told: Callable[[BrokerRecord], None]) -> None:
        """Tell somebody what other brokers say, as soon as it is heard."""
        self._on_brokers.append(told)

    def _heard_of_brokers(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.value is not None and event.key != self._keys.broker(self.broker):
                record = self._reader.read(event.key, Entry(event.value, event.revision), BrokerRecord)
                if record is not None:
                    for told in self._on_brokers:
                        told(record)

    def tidy(self) -> None:
        """Note which brokers have gone, and forget those that have been away for too long."""
        now_ms = self._clock.now() // MILLISECOND
        for key, entry in self._registry.list(self._keys.known).items():
            known = self._reader.read(key, entry, Known)
            if known is None or known.id == self.broker:
                continue
            is_here = self._registry.get(self._keys.broker(known.id)) is not None
            if not is_here and known.gone_ms and now_ms - known.gone_ms >= RETURN_MS_MAX:
                self._registry.propose({}, [key], {key: entry.revision})
            elif is_here == bool(known.gone_ms):
                noted = msgspec.structs.replace(known, gone_ms=0 if is_here else now_ms)
                self._registry.propose({key: msgspec.msgpack.encode(noted)}, (), {key: entry.revision})

    def _remember(self, record: BrokerRecord) -> None:
        key = self._keys.known_broker(self.broker)
        value = msgspec.msgpack.encode(Known(id=record.id, hostname=record.hostname))

        def compose() -> Draft[None]:
            entry = self._registry.get(key)
            return Draft(None, {key: value}, (), {key: entry.revision if entry else 0})

        attempt(self._registry, self._clock, compose).then(_told)

    # --- clients --------------------------------------------------------------------------------------------------

    def join(self, role: Role, record: ClientRecord) -> Answer[None]:
        """Say that a client is here, whoever had it before."""
        key = self._key(role, record.topic, record.id)
        record = msgspec.structs.replace(record, life=self.life)
        self._mine[key] = record
        return self._presence.keep(key, msgspec.msgpack.encode(record))

    def leave(self, role: Role, topic: str, ident: str) -> Answer[None]:
        """Say that a client is here no more; if it is with another broker by now, that stays so."""
        key = self._key(role, topic, ident)
        if self._mine.pop(key, None) is None:
            return Answer.of(None)
        return self._presence.drop(key)

    def members(self, topic: str, incarnation: str) -> list[ClientRecord]:
        """Return the consumers of a topic with all brokers, by id."""
        return self._clients(self._keys.consumers_of(topic), incarnation)

    def producers(self, topic: str, incarnation: str) -> list[ClientRecord]:
        """Return the producers of a topic with all brokers, by id."""
        return self._clients(self._keys.producers_of(topic), incarnation)

    def everybody(self, role: Role) -> list[ClientRecord]:
        """Return all consumers or producers."""
        return self._clients(self._keys.consumers if role == "consumer" else self._keys.producers, "")

    def on_members(self, told: Callable[[str], None]) -> None:
        """Tell somebody the topic whose consumers are others than before."""
        self._on_members.append(told)

    def _clients(self, prefix: str, incarnation: str) -> list[ClientRecord]:
        read = (self._reader.read(key, entry, ClientRecord) for key, entry in self._registry.list(prefix).items())
        return [each for each in read if each is not None and (not incarnation or each.incarnation == incarnation)]

    def _key(self, role: Role, topic: str, ident: str) -> str:
        return self._keys.consumer(topic, ident) if role == "consumer" else self._keys.producer(topic, ident)

    def _heard(self, events: Sequence[Event]) -> None:
        topics: dict[str, None] = {}
        for event in events:
            is_consumer = event.key.startswith(self._keys.consumers)
            if is_consumer:
                topics[topic_in(event.key, self._keys.consumers)] = None
            if event.value is not None:
                record = self._reader.read(event.key, Entry(event.value, event.revision), ClientRecord)
                if record is not None:
                    self._look(event.key, event.value, record)
        for topic in topics:
            for tell in self._on_members:
                tell(topic)

    def _look(self, key: str, value: bytes, record: ClientRecord) -> None:
        """See whether a record is one that this broker says, or should."""
        mine = self._mine.get(key)
        if mine is not None and record.life != self.life:
            del self._mine[key]
            self._presence.give_up(key)
        elif mine is None and record.life == self.life:
            self._presence.remove(key, value)  # it came late: the client has left since


def counted(clients: Mapping[str, int]) -> dict[str, int]:
    """Return counts by topic without those of nobody, in order, so that equal ones are written equal."""
    return {topic: count for topic, count in sorted(clients.items()) if count}


def _told(_: None, error: Exception | None) -> None:
    if error is not None:
        _log.warning("what this broker says of itself is not in the registry: %s", error)
