"""How well a broker is: six ways to be degraded, each with what brings it on, what it holds back and what ends it.

State machines only: observations and times are passed in (monotonic nanoseconds), and who asks decides what to do.
Invariant: what ends a degradation is further away than what began it, so nothing flickers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Literal, Protocol, TypeAlias, get_args

from penstock.client.timeline.wire import Kind
from penstock.clock import MILLISECOND, SECOND
from penstock.cluster.broker import State
from penstock.cluster.denial import Denial

Reason: TypeAlias = Literal["time_drift", "storage", "partition", "consumers_busy", "producer_errors", "memory"]
REASONS: tuple[Reason, ...] = get_args(Reason)

#: What is asked for: messages created, leased, pushed ahead of time, extended, released and deleted; clients that
#: greet; topics made and deleted; and what is cleaned up because it is old.
Op: TypeAlias = Literal["create", "lease", "prefetch", "extend", "release", "delete", "greet", "admin", "clean"]

#: What each degradation of the whole broker holds back. `storage` lets some of everything through instead.
HOLDS_BACK: Mapping[Reason, frozenset[Op]] = {
    "time_drift": frozenset({"create", "lease", "prefetch", "extend", "release", "clean"}),
    "partition": frozenset({"create", "lease", "prefetch", "admin"}),
    "memory": frozenset({"prefetch", "greet"}),
}
#: What reaches the storage for somebody who waits.
STORED: frozenset[Op] = frozenset({"create", "extend", "release", "delete"})

DRIFT_ENTER_MS, DRIFT_LEAVE_MS = 500, 250
DRIFT_SAMPLES = 3
DRIFT_LEAVE_NS = 10 * SECOND

STORAGE_WINDOW, STORAGE_IN_A_ROW = 20, 5
STORAGE_SAMPLED = 10
STORAGE_SUCCESSES = 10
STORAGE_THROTTLED_MS = 500

PARTITION_NS = 5 * SECOND
#: Brokers that were there within this time should be.
BROKERS_SEEN_NS = 60 * SECOND
BROKERS_MIN = 3

BUSY_ENTER, BUSY_LEAVE = 0.75, 0.50

PRODUCER_WINDOW, PRODUCER_MIN = 20, 10
PRODUCER_SUCCESSES = 10
PRODUCER_THROTTLED_MS, PRODUCER_THROTTLED_MS_MAX = 100, 10_000

MEMORY_ENTER, MEMORY_LEAVE = 0.90, 0.80


class Machine(Protocol):
    """One way to be degraded."""

    @property
    def active(self) -> bool:
        """Whether it is."""


class TimeDrift:
    """The clock is not the others': what would be written or pushed by it would be wrong."""

    def __init__(self) -> None:
        self.active = False
        self.offset_ms = 0.0
        self._far = 0
        self._near_ns: int | None = None

    def observe(self, offset_ms: float, now_ns: int) -> None:
        """Take how far the others' clocks are ahead."""
        self.offset_ms = offset_ms
        self._far = self._far + 1 if abs(offset_ms) > DRIFT_ENTER_MS else 0
        if abs(offset_ms) >= DRIFT_LEAVE_MS:
            self._near_ns = None
        elif self._near_ns is None:
            self._near_ns = now_ns
        if self._far >= DRIFT_SAMPLES:
            self.active = True
        elif self._near_ns is not None and now_ns - self._near_ns >= DRIFT_LEAVE_NS:
            self.active = False


class StorageTrouble:
    """The storage fails: a sample finds out when it is back, and the rest is refused before it waits."""

    def __init__(self) -> None:
        self.active = False
        self._last: deque[bool] = deque(maxlen=STORAGE_WINDOW)
        self._in_a_row = 0
        self._successes = 0
        self._asked = 0

    def admit(self) -> bool:
        """Tell whether this operation may be tried."""
        if not self.active:
            return True
        self._asked += 1
        return self._asked % STORAGE_SAMPLED == 0

    def observe(self, is_well: bool) -> None:
        """Take what became of an operation."""
        self._last.append(is_well)
        self._in_a_row = 0 if is_well else self._in_a_row + 1
        if self.active:
            self._successes = self._successes + 1 if is_well else 0
            if self._successes >= STORAGE_SUCCESSES:
                self.active = False
                self._last.clear()
            return
        failed = self._last.count(False)
        if self._in_a_row >= STORAGE_IN_A_ROW or (len(self._last) == STORAGE_WINDOW and 2 * failed >= STORAGE_WINDOW):
            self.active = True
            self._successes = self._asked = 0


class Partition:
    """Cut off from the registry, or from most of the brokers that were there."""

    def __init__(self) -> None:
        self.active = False
        self._away_ns: int | None = None
        self._back_ns: int | None = None
        self._seen: dict[str, int] = {}

    def observe(self, is_reachable: bool, brokers: Collection[str], now_ns: int) -> None:
        """Take whether the registry answers, and which brokers it shows alive."""
        self._seen = {name: at_ns for name, at_ns in self._seen.items() if now_ns - at_ns <= BROKERS_SEEN_NS}
        gone = len(self._seen.keys() - set(brokers))
        alone = len(self._seen) >= BROKERS_MIN and 2 * gone > len(self._seen)
        if is_reachable:
            self._seen.update(dict.fromkeys(brokers, now_ns))
            self._away_ns = None
        elif self._away_ns is None:
            self._away_ns = now_ns
        if alone or not is_reachable:
            self._back_ns = None
        elif self._back_ns is None:
            self._back_ns = now_ns
        if alone or (self._away_ns is not None and now_ns - self._away_ns >= PARTITION_NS):
            self.active = True
        elif self._back_ns is not None and now_ns - self._back_ns >= PARTITION_NS:
            self.active = False


class ConsumersBusy:
    """Most consumers of a topic have no room, or the last push to them failed."""

    def __init__(self) -> None:
        self.active = False
        self._busy: dict[str, bool] = {}

    def observe(self, consumer: str, is_busy: bool) -> None:
        """Take how a consumer is."""
        if self._busy.get(consumer) is not is_busy:
            self._busy[consumer] = is_busy
            self._judge()

    def forget(self, consumer: str) -> None:
        """Take that a consumer is gone."""
        if self._busy.pop(consumer, None) is not None:
            self._judge()

    def __len__(self) -> int:
        return len(self._busy)

    def _judge(self) -> None:
        busy, count = sum(self._busy.values()), len(self._busy)
        if count and busy >= BUSY_ENTER * count:
            self.active = True
        elif busy < BUSY_LEAVE * count or not count:
            self.active = False


class ProducerErrors:
    """Most requests of a producer are in error: it waits, and twice as long each time that does not help."""

    def __init__(self) -> None:
        self.active = False
        self._last: deque[bool] = deque(maxlen=PRODUCER_WINDOW)
        self._successes = 0
        self._throttled_ms = 0
        self._until_ns = 0

    def throttled_ms(self, now_ns: int) -> int:
        """Return for how long a request that comes now should have waited; 0 if it may be carried out."""
        return self._throttled_ms if self.active and now_ns < self._until_ns else 0

    def observe(self, is_well: bool, now_ns: int) -> None:
        """Take what became of a request."""
        self._last.append(is_well)
        if self.active:
            self._successes = self._successes + 1 if is_well else 0
            if self._successes >= PRODUCER_SUCCESSES:
                self.active = False
                self._last.clear()
            elif not is_well:
                self._throttle(min(2 * self._throttled_ms, PRODUCER_THROTTLED_MS_MAX), now_ns)
        elif len(self._last) >= PRODUCER_MIN and 2 * self._last.count(False) >= len(self._last):
            self.active = True
            self._successes = 0
            self._throttle(PRODUCER_THROTTLED_MS, now_ns)

    def _throttle(self, for_ms: int, now_ns: int) -> None:
        self._throttled_ms = for_ms
        self._until_ns = now_ns + for_ms * MILLISECOND


class Memory:
    """The process has little of its memory left."""

    def __init__(self) -> None:
        self.active = False

    def observe(self, used_bytes: int, bytes_max: int) -> None:
        """Take how much it has, of how much it may have."""
        if used_bytes > MEMORY_ENTER * bytes_max:
            self.active = True
        elif used_bytes < MEMORY_LEAVE * bytes_max:
            self.active = False


#: What a degradation of the whole broker is called to clients and people.
TEXTS: Mapping[Reason, str] = {
    "time_drift": "its clock is {offset:.0f} ms from the others'; nothing is created, leased or cleaned up by it",
    "storage": "its storage fails; one in 10 operations is tried",
    "partition": "it is cut off from the registry or from most brokers; nothing is created or leased",
    "consumers_busy": "most consumers of {topics} are busy; nothing is pushed to them",
    "producer_errors": "most requests of {producers} producers fail; they are made to wait",
    "memory": "it has little memory left; no client is let in and nothing is pushed ahead of its time",
}


class Health:
    """All of one broker."""

    def __init__(self) -> None:
        self.time_drift = TimeDrift()
        self.storage = StorageTrouble()
        self.partition = Partition()
        self.memory = Memory()
        self._topics: dict[str, ConsumersBusy] = {}
        self._producers: dict[str, tuple[str, ProducerErrors]] = {}

    @property
    def state(self) -> State:
        """As the other brokers are told."""
        return "degraded" if self.reasons() else "healthy"

    def reasons(self) -> tuple[Reason, ...]:
        """Return why the broker as a whole is degraded; one topic's consumers or one producer are not that."""
        machines: dict[Reason, Machine] = {
            "time_drift": self.time_drift,
            "storage": self.storage,
            "partition": self.partition,
            "memory": self.memory,
        }
        return tuple(reason for reason, machine in machines.items() if machine.active)

    def levels(self) -> Iterator[tuple[Reason, str, bool]]:
        """Return each degradation, the topic that it is of, and whether it is there."""
        active = self.reasons()
        for reason in ("time_drift", "storage", "partition", "memory"):
            yield reason, "", reason in active
        for topic, machine in self._topics.items():
            yield "consumers_busy", topic, machine.active
        producers: dict[str, bool] = {}
        for topic, errors in self._producers.values():
            producers[topic] = producers.get(topic, False) or errors.active
        for topic, is_active in producers.items():
            yield "producer_errors", topic, is_active

    def problems(self) -> list[str]:
        """Return what is wrong with the broker as a whole, for people."""
        return [f"degraded ({reason}): {self._text(reason)}" for reason in self.reasons()]

    def sentences(self) -> list[str]:
        """Return all that is wrong, for people, also of some topics."""
        busy = sorted(topic for topic, machine in self._topics.items() if machine.active)
        throttled = sum(errors.active for _, errors in self._producers.values())
        active: list[Reason] = list(self.reasons())
        if busy:
            active.append("consumers_busy")
        if throttled:
            active.append("producer_errors")
        shown = {"offset": self.time_drift.offset_ms, "topics": ", ".join(busy), "producers": throttled}
        return [f"degraded ({reason}): {TEXTS[reason].format(**shown)}" for reason in active]

    # --- what is asked ----------------------------------------------------------------------------------------------

    def may(self, op: Op) -> bool:
        """Tell whether something may be done of the broker's own accord."""
        return not any(op in HOLDS_BACK.get(reason, ()) for reason in self.reasons())

    def may_push(self, topic: str) -> bool:
        """Tell whether messages of a topic may be leased and pushed."""
        busy = self._topics.get(topic)
        return (busy is None or not busy.active) and self.may("lease")

    def check(self, op: Op) -> None:
        """Refuse what somebody asks for and must not be done now; counts as tried where the storage is sampled."""
        for reason in self.reasons():
            if op in HOLDS_BACK.get(reason, ()):
                kind = Kind.BROKER_MINORITY if reason == "partition" else Kind.BROKER_DEGRADED
                raise Denial(kind, "this broker is degraded: " + self._text(reason))
        if op in STORED and not self.storage.admit():
            raise Denial(
                Kind.BROKER_DEGRADED, "this broker is degraded: " + self._text("storage"), STORAGE_THROTTLED_MS
            )

    def check_producer(self, session: str, now_ns: int) -> None:
        """Refuse a request of a producer that must wait."""
        known = self._producers.get(session)
        throttled_ms = known[1].throttled_ms(now_ns) if known is not None else 0
        if throttled_ms:
            text = f"most of your requests failed; wait for {throttled_ms} ms, and look at what was said of them"
            raise Denial(Kind.THROTTLED, text, throttled_ms)

    def _text(self, reason: Reason) -> str:
        return TEXTS[reason].format(offset=self.time_drift.offset_ms, topics="", producers=0)

    # --- what is told -----------------------------------------------------------------------------------------------

    def consumer(self, topic: str, consumer: str, *, is_busy: bool) -> None:
        """Take how a consumer is."""
        busy = self._topics.get(topic)
        if busy is None:
            busy = self._topics[topic] = ConsumersBusy()
        busy.observe(consumer, is_busy)

    def consumer_left(self, topic: str, consumer: str) -> None:
        """Take that a consumer is gone."""
        busy = self._topics.get(topic)
        if busy is not None:
            busy.forget(consumer)
            if not len(busy):
                del self._topics[topic]

    def producer(self, topic: str, session: str, *, is_well: bool, now_ns: int) -> None:
        """Take what became of a producer's request."""
        known = self._producers.get(session)
        if known is None:
            known = self._producers[session] = (topic, ProducerErrors())
        known[1].observe(is_well, now_ns)

    def producer_left(self, session: str) -> None:
        """Take that a producer is gone."""
        self._producers.pop(session, None)
