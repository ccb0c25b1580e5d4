"""What a node is in a cluster of brokers: it says how it is, hears of the others, and sends clients where room is.

Looks around once a second; between two looks everything is counters. Knows no wire: who serves timelines tells it of
clients, asks it what may be done, and passes on what it suggests.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from penstock.clock import MILLISECOND, SECOND, Timer
from penstock.cluster.balance import Balance, Client
from penstock.cluster.drift import Target
from penstock.cluster.entries import Entry
from penstock.cluster.figures import Direction, Figures
from penstock.cluster.health import Reason
from penstock.cluster.overseer import Overseer
from penstock.cluster.records import BrokerRecord, ClientRecord, Role, counted
from penstock.cluster.selector import MOST, PREFERRED, choices
from penstock.cluster.tables import Tables
from penstock.registry.answer import Answer
from penstock.resident import memory_bytes, resident_bytes

if TYPE_CHECKING:
    from penstock.cluster.drift import Drift
    from penstock.cluster.health import Health
    from penstock.node.node import Node

LOOK_NS = SECOND
#: A broker's load is looked at in windows of this length.
BALANCE_MS = 1000
#: What changes all the time is said this often, and only where somebody hears it: each time is a write.
FIGURES_NS = 10 * SECOND
FIGURES = ("connections", "cpu", "latency_ms", "registry_latency_ms", "drift_ms", "registry_drift_ms")

_log = logging.getLogger("penstock.cluster")


class Preferred(NamedTuple):
    """A broker that a client should try; the lowest weight first."""

    broker: str
    address: str
    weight: int
    over_capacity: bool


class Habits(NamedTuple):
    """How many clients of a topic a broker takes before others, and at most; and whether more are refused."""

    preferred: int = PREFERRED
    most: int = MOST
    strict: bool = False


NO_HABITS = Habits()

#: Hears that a client of this broker should go to another: its role, its topic, its id, and where to.
Suggested: TypeAlias = Callable[[Role, str, str, Preferred], None]


class Membership:
    """One broker, as far as others are concerned."""

    def __init__(
        self,
        node: Node,
        overseer: Overseer,
        version: str = "",
        address: Callable[[], str] = str,
        habits: Habits = NO_HABITS,
    ) -> None:
        self.overseer = overseer
        self.records = overseer.records
        self.tables = Tables(
            node.registry, node.clock, overseer.keys, overseer.records, lambda: not node.health.time_drift.active
        )
        self.figures = Figures()
        #: Told when a client should move.
        self.suggested: list[Suggested] = []
        #: Told when the broker has become well enough to go on with something, or is not any more.
        self.changed: list[Callable[[], None]] = []
        #: How much memory the process has, and may have.
        self.resident = resident_bytes
        self.memory_max_bytes = memory_bytes()
        self._node = node
        self._version = version
        self._address = address
        self._since_ms = node.clock.now() // MILLISECOND
        self._clients: dict[Role, dict[str, set[str]]] = {"consumer": {}, "producer": {}}
        self.habits = habits
        balance = {"preferred": habits.preferred, "most": habits.most}
        self._balance: dict[Role, Balance] = {"consumer": Balance(**balance), "producer": Balance(**balance)}
        self._was: tuple[Reason, ...] = ()
        self._looked = (time.process_time(), node.clock.monotonic())
        self._cpu_share = 0.0
        #: Answers of the registry so far, and the time they took.
        self._answered = (0.0, 0.0)
        self._registry_bytes = {"in": 0, "out": 0}
        self._registry_latency_ms = 0.0
        #: What was last said of what changes all the time, and when.
        self._figures: BrokerRecord | None = None
        self._figured_ns = 0
        #: What was last said of all, and when: others read the time from it.
        self._told: BrokerRecord | None = None
        self._told_ms = 0
        overseer.may_work = lambda: node.health.may("clean") and node.health.may("admin")
        self._unwatch = overseer.watch(self._topic)
        for entry in overseer.topics():
            if entry.state == "live":
                self.tables.follow(entry)
        self.records.on_brokers(self._heard)
        self._timer: Timer = node.clock.call_at(node.clock.monotonic(), self._look)
        node.membership = self

    @property
    def cluster(self) -> str:
        """The cluster it belongs to."""
        return self.overseer.cluster

    @property
    def health(self) -> Health:
        """How well the broker is."""
        return self._node.health

    @property
    def drift(self) -> Drift:
        """The clocks of others."""
        return self._node.drift

    @property
    def bucket_moves(self) -> Mapping[str, int]:
        """Buckets that went to another consumer, by topic."""
        return self.tables.moves

    def close(self) -> Answer[None]:
        """Say goodbye, and take back everything that was said."""
        self._timer.cancel()
        self._unwatch()
        self.tables.close()
        if self._node.membership is self:
            self._node.membership = None
        return self.records.depart().then_ask(lambda _: self.overseer.close())

    # --- clients --------------------------------------------------------------------------------------------------

    def join(
        self, role: Role, entry: Entry, ident: str, *, rack: str = "", group: str = "", is_told: bool = True
    ) -> Answer[None]:
        """Say that a client is here; a consumer has a part in the next deal. What nobody would hear is only counted."""
        self._clients[role].setdefault(entry.id, set()).add(ident)
        if not is_told:
            return Answer.of(None)
        record = ClientRecord(
            id=ident,
            topic=entry.id,
            incarnation=entry.incarnation,
            broker=self.overseer.broker,
            since_ms=self._node.clock.now() // MILLISECOND,
            rack=rack,
            group=group,
        )
        return self.records.join(role, record)

    def leave(self, role: Role, topic: str, ident: str) -> Answer[None]:
        """Say that a client is here no more."""
        here = self._clients[role].get(topic, set())
        here.discard(ident)
        if not here:
            self._clients[role].pop(topic, None)
        self.drift.forget(role, topic, ident)
        if role == "consumer":
            self.health.consumer_left(topic, ident)
        return self.records.leave(role, topic, ident)

    def count(self, role: Role, topic: str) -> int:
        """Return how many clients of a topic are here."""
        return len(self._clients[role].get(topic, ()))

    def preference(self, role: Role, topic: str) -> list[Preferred]:
        """Return the brokers that a client of a topic should try, in order."""
        brokers = {record.id: record for record in self.brokers()}
        if self._node.share is not None and topic in self._node.topics:  # in a cluster nobody else can serve it
            brokers = {self.overseer.broker: brokers[self.overseer.broker]}
        seen = [record.seen(role) for record in brokers.values()]
        found = choices(seen, topic, preferred=self.habits.preferred, most=self.habits.most, strict=self.habits.strict)
        if found and found[0].over_capacity:
            self.figures.over_capacity[topic] += 1
        return [
            Preferred(each.broker, _first(brokers[each.broker].addresses), each.weight, each.over_capacity)
            for each in found
        ]

    def ponged(
        self, target: Target, topic: str, ident: str, sent_ms: float, partner_ms: float, voice: str = ""
    ) -> float:
        """Take what time it is for a partner that was asked a while ago; return how far its clock is ahead.

        Those of one `voice` have one vote on how far this node's is off.
        """
        now_ms = self._node.clock.now() / MILLISECOND
        if target in ("consumer", "producer"):
            self.figures.latency("consumer" if target == "consumer" else "producer", topic, (now_ms - sent_ms) / 1000)
        return self.drift.add(target, topic, ident, sent_ms, partner_ms, now_ms, voice)

    def told_time(self, target: Target, topic: str, ident: str, partner_ms: float, voice: str) -> None:
        """Take what time it was for a partner when it said so; how long ago that was is not known."""
        now_ms = self._node.clock.now() / MILLISECOND
        self.drift.add(target, topic, ident, now_ms, partner_ms, now_ms, voice)

    # --- once a second --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        clock, health = self._node.clock, self.health
        now_ns = clock.monotonic()
        self._timer = clock.call_at(now_ns + LOOK_NS, self._look)
        brokers = [record for record in self.records.brokers() if record.state != "inactive"]
        health.memory.observe(self.resident(), self.memory_max_bytes)
        health.partition.observe(self._ask_registry(), [record.id for record in brokers], now_ns)
        self.drift.keep("broker", {record.id for record in brokers})
        offset_ms = self.drift.self_offset_ms()
        if offset_ms is None and health.time_drift.active:
            # Those who found the clock wrong are gone: whoever is left may find it right.
            offset_ms = self.drift.likely_offset_ms()
        if offset_ms is not None:
            health.time_drift.observe(offset_ms, now_ns)
        self._say_changes()
        self._look_at_cpu(now_ns)
        self.records.announce(self._said(brokers, now_ns))
        if len(brokers) > 1 and self._node.share is None:  # a topic of a cluster is with its one owner
            self._suggest(brokers)

    def record(self) -> BrokerRecord:
        """Return how this broker is now."""
        drift = self.drift
        return BrokerRecord(
            id=self.overseer.broker,
            life=self.records.life,
            since_ms=self._since_ms,
            hostname=socket.gethostname(),
            addresses=tuple(filter(None, [self._address()])),
            version=self._version,
            state=self.health.state,
            reasons=self.health.reasons(),
            connections=self.figures.connections(),
            consumers=counted({topic: len(here) for topic, here in self._clients["consumer"].items()}),
            producers=counted({topic: len(here) for topic, here in self._clients["producer"].items()}),
            cpu=round(self._cpu_share, 2),
            latency_ms=round(drift.mean_latency_ms("consumer", "producer"), 1),
            registry_latency_ms=round(self._registry_latency_ms, 1),
            drift_ms=round(drift.mean_offset_ms("consumer", "producer")),
            registry_drift_ms=round(drift.mean_offset_ms("sync", "broker")),
        )

    def _said(self, brokers: list[BrokerRecord], now_ns: int) -> BrokerRecord:
        """Return what is said of it: of its figures what was so a while ago, and nothing where nobody hears it."""
        record, now_ms = self.record(), self._node.clock.now() // MILLISECOND
        is_alone = all(each.id == record.id for each in brokers)
        if is_alone:
            self._figures = BrokerRecord(id=record.id, life=record.life, since_ms=0)
        elif self._figures is None or now_ns - self._figured_ns >= FIGURES_NS:
            self._figures, self._figured_ns, self._told_ms = record, now_ns, now_ms
        told = msgspec.structs.replace(record, **{name: getattr(self._figures, name) for name in FIGURES}, said_ms=0)
        if told != self._told:
            self._told, self._told_ms = told, now_ms
        return told if is_alone else msgspec.structs.replace(told, said_ms=self._told_ms)

    def brokers(self) -> list[BrokerRecord]:
        """Return all brokers, this one as it is now: what it said is older, or on its way."""
        found = {record.id: record for record in self.records.brokers()}
        found[self.overseer.broker] = self.record()
        return [found[ident] for ident in sorted(found)]

    def _suggest(self, brokers: list[BrokerRecord]) -> None:
        """Tell clients of this broker that should go to another; all brokers come to the same, each tells its own."""
        now_ms = self._node.clock.now() // MILLISECOND
        addresses = {record.id: _first(record.addresses) for record in brokers}
        for role, balance in self._balance.items():
            there = {f"{each.topic}/{each.id}": each for each in self.records.everybody(role)}
            clients = [Client(name, each.topic, each.broker) for name, each in there.items()]
            seen = [record.seen(role) for record in brokers]
            for suggestion in balance.suggestions(now_ms // BALANCE_MS, now_ms, seen, clients):
                if suggestion.source == self.overseer.broker:
                    client = there[suggestion.client]
                    target = Preferred(suggestion.target, addresses.get(suggestion.target, ""), 1, False)
                    for told in self.suggested:
                        told(role, client.topic, client.id, target)

    def _heard(self, record: BrokerRecord) -> None:
        """Hear what time it is for another broker: it said so a moment ago."""
        if record.said_ms:
            now_ms = self._node.clock.now() / MILLISECOND
            self.drift.add("broker", "", record.id, now_ms, record.said_ms, now_ms)

    def _topic(self, what: str, entry: Entry) -> None:
        if what == "live":
            self.tables.follow(entry)
        else:
            self.tables.forget(entry.id)
            self.figures.forget(entry.id)

    def _ask_registry(self) -> bool:
        """Return whether the registry answers; how long its answers took since the last look is counted."""
        told = {figure.name: figure.value for figure in self._node.registry.figures()}
        answers, seconds = told.get("answers_total", 0.0), told.get("answer_seconds_total", 0.0)
        since = answers - self._answered[0]
        if since > 0:
            mean_s = (seconds - self._answered[1]) / since
            self._registry_latency_ms = mean_s * 1000
            self.figures.latency("sync", "", mean_s)
        self._answered = (answers, seconds)
        ways: dict[Direction, str] = {"in": "received_bytes_total", "out": "sent_bytes_total"}
        for way, name in ways.items():
            size = int(told.get(name, 0))
            self.figures.network(way, "sync", "", size - self._registry_bytes[way])
            self._registry_bytes[way] = size
        return bool(told.get("up", 1))

    def _say_changes(self) -> None:
        reasons = self.health.reasons()
        if reasons != self._was:
            self._was = reasons
            for sentence in self.health.sentences():
                _log.warning("this broker is %s", sentence)
            if not reasons:
                _log.info("this broker is healthy again")
            for told in self.changed:
                told()

    def _look_at_cpu(self, now_ns: int) -> None:
        """Find the share of the machine that the process has used since the last look."""
        used_s = time.process_time()
        if now_ns > self._looked[1]:
            spent_s = (now_ns - self._looked[1]) / SECOND
            self._cpu_share = (used_s - self._looked[0]) / spent_s / (os.cpu_count() or 1)
        self._looked = (used_s, now_ns)


def _first(addresses: tuple[str, ...]) -> str:
    return addresses[0] if addresses else ""
