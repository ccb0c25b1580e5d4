"""What happened in timelines, counted by what was done and to which topic.

Counters only: whoever does something says so once for a batch. Names and text are made of them elsewhere.
Invariant: a topic that is gone is counted under no name any more, so that names do not add up for ever.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

TopicOp: TypeAlias = Literal["create", "delete"]
MessageOp: TypeAlias = Literal["create", "delete", "release"]
LeaseOp: TypeAlias = Literal["create", "extend", "release", "expire"]
Role: TypeAlias = Literal["consumer", "producer"]
Partner: TypeAlias = Literal["sync", "storage", "producer", "consumer"]
Direction: TypeAlias = Literal["in", "out"]
QueryOp: TypeAlias = Literal["create", "read", "update", "delete"]
QueryType: TypeAlias = Literal["range", "lookup"]
Filter: TypeAlias = Literal["all", "available", "waiting", "processing"]

K = TypeVar("K")
V = TypeVar("V")

#: As ChronoQueue had them, in seconds; deliveries are told from one ms on.
BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)
DELIVERY_BOUNDS_S = (0.001, 0.005, *BOUNDS_S)
#: How many coming windows are told apart.
WINDOWS = 4


class Histogram:
    """Counts between bounds, and a sum."""

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: tuple[float, ...] = BOUNDS_S) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        seconds = max(seconds, 0.0)
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds

    def add_all(self, seconds: npt.NDArray[np.float64]) -> None:
        """Count many."""
        seconds = np.maximum(seconds, 0.0)
        found = np.bincount(np.searchsorted(self.bounds_s, seconds), minlength=len(self.counts))
        self.counts = (found + self.counts).tolist()
        self.sum_s += float(seconds.sum())


class Query(NamedTuple):
    """What was asked of the storage."""

    op: QueryOp
    type: QueryType
    filter: Filter
    topic: str


class Levels(NamedTuple):
    """How many messages of a topic are what, now; those that wait by shard and coming window."""

    topic: str
    available: int = 0
    processing: int = 0
    waiting: tuple[tuple[int, ...], ...] = ()
    #: Its consumers and producers that are here.
    consumers: int = 0
    producers: int = 0


class Figures:
    """The counters of one broker."""

    def __init__(self) -> None:
        #: By op and topic.
        self.topic_commands: Counter[tuple[str, str]] = Counter()
        self.topic_command_errors: Counter[tuple[str, str]] = Counter()
        self.messages: Counter[tuple[str, str]] = Counter()
        self.message_errors: Counter[tuple[str, str]] = Counter()
        self.leases: Counter[tuple[str, str]] = Counter()
        self.lease_errors: Counter[tuple[str, str]] = Counter()
        #: By topic.
        self.lease_bytes: Counter[str] = Counter()
        self.over_capacity: Counter[str] = Counter()
        #: By command and topic.
        self.commands: Counter[tuple[str, str]] = Counter()
        self.command_errors: Counter[tuple[str, str]] = Counter()
        self.queries: dict[Query, Histogram] = {}
        self.query_errors: Counter[Query] = Counter()
        #: By direction, partner and topic.
        self.network_bytes: Counter[tuple[str, str, str]] = Counter()
        #: By partner and topic.
        self.latencies: dict[tuple[str, str], Histogram] = {}
        #: By role and topic.
        self.channel_errors: Counter[tuple[str, str]] = Counter()
        self.deliveries: dict[str, Histogram] = {}
        #: Asked when somebody scrapes.
        self.levels: Callable[[], Iterable[Levels]] = tuple
        self.connections: Callable[[], int] = int

    def topic_command(self, op: TopicOp, topic: str, *, is_well: bool) -> None:
        """Count a topic that somebody wanted made or deleted."""
        self.topic_commands[op, topic] += 1
        self.topic_command_errors[op, topic] += not is_well

    def message(self, op: MessageOp, topic: str, count: int, failed: int = 0) -> None:
        """Count messages that somebody wanted created, deleted or released."""
        self.messages[op, topic] += count
        self.message_errors[op, topic] += failed

    def lease(self, op: LeaseOp, topic: str, count: int, failed: int = 0, body_bytes: int = 0) -> None:
        """Count leases that began, were to last longer, were given back or ended by themselves."""
        self.leases[op, topic] += count
        self.lease_errors[op, topic] += failed
        self.lease_bytes[topic] += body_bytes

    def command(self, command: str, topic: str, *, is_well: bool) -> None:
        """Count a command, once, however many messages it is about."""
        self.commands[command, topic] += 1
        self.command_errors[command, topic] += not is_well

    def query(self, query: Query, seconds: float, *, is_well: bool = True) -> None:
        """Count what was asked of the storage, and how long that took."""
        histogram = self.queries.get(query)
        if histogram is None:
            histogram = self.queries[query] = Histogram()
        histogram.add(seconds)
        self.query_errors[query] += not is_well

    def network(self, direction: Direction, partner: Partner, topic: str, size_bytes: int) -> None:
        """Count bytes of messages that came or went."""
        self.network_bytes[direction, partner, topic] += size_bytes

    def latency(self, partner: Partner, topic: str, seconds: float) -> None:
        """Count how long a partner took to answer."""
        histogram = self.latencies.get((partner, topic))
        if histogram is None:
            histogram = self.latencies[partner, topic] = Histogram()
        histogram.add(seconds)

    def delivered(self, topic: str, late_s: npt.NDArray[np.float64]) -> None:
        """Count how late messages were pushed after they were due."""
        histogram = self.deliveries.get(topic)
        if histogram is None:
            histogram = self.deliveries[topic] = Histogram(DELIVERY_BOUNDS_S)
        histogram.add_all(late_s)

    def forget(self, topic: str) -> None:
        """Count a topic no more that is gone; that it was made and deleted stays told."""
        for counts in (
            self.messages, self.message_errors, self.leases, self.lease_errors, self.commands, self.command_errors,
            self.channel_errors,
        ):  # fmt: skip
            _drop(counts, lambda key: key[1] == topic)
        _drop(self.network_bytes, lambda key: key[2] == topic)
        _drop(self.query_errors, lambda query: query.topic == topic)
        _drop(self.queries, lambda query: query.topic == topic)
        _drop(self.latencies, lambda key: key[1] == topic)
        self.lease_bytes.pop(topic, None)
        self.over_capacity.pop(topic, None)
        self.deliveries.pop(topic, None)


def windows_of(due_ms: npt.NDArray[np.int64], now_ms: int, window_ms: int) -> tuple[int, ...]:
    """Return how many of these are due in each of the windows after the present one."""
    ahead = due_ms // window_ms - now_ms // window_ms - 1
    inside = ahead[(ahead >= 0) & (ahead < WINDOWS)]
    return tuple(np.bincount(inside, minlength=WINDOWS).tolist())


def _drop(counts: dict[K, V], is_gone: Callable[[K], bool]) -> None:
    for key in [key for key in counts if is_gone(key)]:
        del counts[key]
