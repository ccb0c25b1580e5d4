"""Everything a report says, as plain data, and how the rows that the queries brought become it.

Invariant: sums over the topics shown and `others` are the sums of all; a topic for which a query brought nothing has
empty figures, never an error.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.pipeline.jobs.report.compression import Advice, advice
from penstock.pipeline.jobs.report.counts import SHOWN_BYTES, Hot
from penstock.pipeline.jobs.report.scale import Distribution
from penstock.pipeline.jobs.report.span import Span, Windows, windows

if TYPE_CHECKING:
    from pyspark.sql import Row

    from penstock.pipeline.jobs.report.compression import Measure
    from penstock.pipeline.jobs.report.counts import Total
    from penstock.pipeline.jobs.report.options import Report


class Course(msgspec.Struct, frozen=True):
    """What came in each step of time."""

    messages: tuple[int, ...]
    body_bytes: tuple[int, ...]


class Hottest(msgspec.Struct, frozen=True):
    """The members of a set that most messages have: keys, tags or buckets of a topic."""

    shown: tuple[Hot, ...] = ()
    #: How many members there are, and how many messages have one.
    members: int = 0
    messages: int = 0


class Shard(msgspec.Struct, frozen=True):
    """What one shard of a topic has of the messages."""

    number: int
    messages: int
    body_bytes: int


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to messages in one subscription; sampled events are counted up."""

    name: str
    delivered: int = 0
    acked: int = 0
    released: int = 0
    expired: int = 0
    dead: int = 0
    #: Messages by how often they were delivered.
    attempts: Mapping[int, int] = {}
    latency_us: Distribution = Distribution(())
    lease_us: Distribution = Distribution(())
    #: Latency of deliveries in each step of time; None for a subscription that is not among the busiest.
    latencies: tuple[Distribution, ...] | None = None


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic's figures."""

    name: str
    messages: int = 0
    body_bytes: int = 0
    first_us: int | None = None
    last_us: int | None = None
    #: By dialect.
    traffic: Mapping[str, Course] = {}
    sizes: Distribution = Distribution(())
    shards: tuple[Shard, ...] = ()
    #: The shard with most messages, as a multiple of their mean; 1 is even.
    skew: float = 0.0
    keys: Hottest = Hottest()
    tags: Hottest = Hottest()
    buckets: Hottest = Hottest()
    subscriptions: tuple[Subscription, ...] = ()
    #: How many subscriptions there are, those that are not shown included.
    subscriptions_all: int = 0
    #: By reason.
    discards: Mapping[str, int] = {}
    #: Events in each step of time, by kind.
    events: Mapping[str, tuple[int, ...]] = {}
    advice: Advice | None = None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A report's figures."""

    span: Span
    #: Columns that the messages had; what is missing was not recorded.
    columns: frozenset[str]
    #: Whether there was a history of deliveries.
    events: bool
    #: The largest sampling of its events: 1 for all of them, n for one message in n.
    one_in: int = 1
    topics: tuple[Topic, ...] = ()
    #: Topics that are not shown one by one, together.
    others: Topic | None = None
    topics_all: int = 0
    messages: int = 0
    body_bytes: int = 0
    waiting: Windows | None = None

    @property
    def everything(self) -> tuple[Topic, ...]:
        """Return the topics shown and the others, where there are some."""
        return self.topics if self.others is None else (*self.topics, self.others)


#: The name under which topics that are not shown are counted together, and what has no name.
OTHERS = "(others)"
UNKNOWN = "(unknown)"

Rows = Mapping[tuple[str, str | None], Sequence["Row"]]


class Found:
    """The rows of all queries, by kind and topic."""

    def __init__(self, span: Span, options: Report, totals: Mapping[str, Total]) -> None:
        self.span = span
        self.options = options
        self.totals = totals
        self.counted: Rows = {}
        self.packed: Mapping[str, Sequence[Measure]] = {}
        self.happened: Rows = {}
        self.ways: Rows = {}
        self.one_in = 1

    def topic(self, name: str | None, messages: int = 0, body_bytes: int = 0) -> Topic:
        """Return the figures of a topic; None is all that are not shown, whose sums are given."""
        total = None if name is None else self.totals.get(name)
        shards = tuple(
            sorted(
                (Shard(row["shard"], row["messages"], row["body_bytes"]) for row in self._counted("shards", name)),
                key=lambda shard: shard.number,
            )
        )
        subscriptions = self._subscriptions(name)
        return Topic(
            name=OTHERS if name is None else name or UNKNOWN,
            messages=messages if total is None else total.messages,
            body_bytes=body_bytes if total is None else total.body_bytes,
            first_us=total.first_us if total else None,
            last_us=total.last_us if total else None,
            traffic=self._traffic(name),
            sizes=Distribution(
                (row["messages"], row["least"], row["greatest"])
                for row in self._counted("sizes", name)
                if row["least"] is not None
            ),
            shards=shards if name is not None else (),
            skew=max(shard.messages for shard in shards) * len(shards) / sum(shard.messages for shard in shards)
            if shards
            else 0.0,
            keys=Hottest(total.hot_keys, total.keys, total.keyed) if total else Hottest(),
            tags=self._hottest("tags", "tag", name),
            buckets=self._hottest("buckets", "bucket", name),
            subscriptions=subscriptions[: self.options.top],
            subscriptions_all=len(subscriptions),
            discards=self._discards(name),
            events=self._events(name),
            advice=None if name is None else advice(self.packed.get(name, ())),
        )

    def busiest(self, shown: Sequence[str], most: int) -> list[tuple[str, str]]:
        """Return the subscriptions with most deliveries, as pairs of topic and name."""
        found = [
            (row["events"], topic, row["subscription"])
            for topic in shown
            for row in self.happened.get(("events", topic), ())
            if row["event"] == "delivered" and row["subscription"] is not None
        ]
        return [(topic, subscription) for _, topic, subscription in sorted(found, reverse=True)[:most]]

    def waiting(self, shown: Iterable[str]) -> Windows:
        """Return how many messages wait for the coming windows."""
        slots = {}
        for name in (*shown, None):
            rows = self._counted("waiting", name)
            if rows:
                slots[OTHERS if name is None else name or UNKNOWN] = {row["slot"]: row["messages"] for row in rows}
        return windows(self.span.until_us, slots, self.options.windows)

    def _counted(self, kind: str, name: str | None) -> Sequence[Row]:
        return self.counted.get((kind, name), ())

    def _traffic(self, name: str | None) -> dict[str, Course]:
        rows: dict[str, list[Row]] = collections.defaultdict(list)
        for row in self._counted("traffic", name):
            rows[row["source"] or UNKNOWN].append(row)
        return {
            source: Course(
                self._steps((row["step"], row["messages"]) for row in found),
                self._steps((row["step"], row["body_bytes"]) for row in found),
            )
            for source, found in sorted(rows.items())
        }

    def _steps(self, values: Iterable[tuple[int, int]]) -> tuple[int, ...]:
        """Return one value for each step of time."""
        found = [0] * self.span.steps
        for step, value in values:
            if 0 <= step < len(found):
                found[step] += value
        return tuple(found)

    def _hottest(self, kind: str, column: str, name: str | None) -> Hottest:
        rows = self._counted(kind, name)
        if not rows:
            return Hottest()
        shown = tuple(Hot(_cut(str(row[column])), row["messages"]) for row in rows[: self.options.top])
        shown = tuple(sorted(shown, key=lambda hot: (-hot.messages, hot.name)))
        return Hottest(shown, rows[0]["members"], rows[0]["together"])

    def _subscriptions(self, name: str | None) -> tuple[Subscription, ...]:
        """Return a topic's subscriptions, those with most deliveries first."""
        sums: dict[str | None, dict[str, int]] = collections.defaultdict(lambda: collections.defaultdict(int))
        for row in self.happened.get(("events", name), ()):
            if row["event"] not in ("published", "discarded"):
                sums[row["subscription"]][row["event"]] += row["events"]
        attempts: dict[str | None, dict[int, int]] = collections.defaultdict(dict)
        for row in self.ways.get(("attempts", name), ()):
            attempts[row["subscription"]][row["attempts"]] = row["messages"]
        found = [
            Subscription(
                name=subscription or (OTHERS if name is None else UNKNOWN),
                delivered=events.get("delivered", 0),
                acked=events.get("acked", 0),
                released=events.get("released", 0),
                expired=events.get("expired", 0),
                dead=events.get("dead", 0),
                attempts=dict(sorted(attempts[subscription].items())),
                latency_us=self._distribution("latency", name, subscription),
                lease_us=self._distribution("lease", name, subscription),
                latencies=self._latencies(name, subscription),
            )
            for subscription, events in sums.items()
        ]
        return tuple(sorted(found, key=lambda each: (-each.delivered, each.name)))

    def _distribution(self, kind: str, name: str | None, subscription: str | None) -> Distribution:
        return Distribution(
            (row["messages"], row[f"{kind}_least"], row[f"{kind}_greatest"])
            for row in self.ways.get((kind, name), ())
            if row["subscription"] == subscription and row[f"{kind}_class"] is not None
        )

    def _discards(self, name: str | None) -> dict[str, int]:
        found: dict[str, int] = collections.defaultdict(int)
        for row in self.happened.get(("events", name), ()):
            if row["event"] == "discarded":
                found[row["reason"] or UNKNOWN] += row["events"]
        return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))

    def _events(self, name: str | None) -> dict[str, tuple[int, ...]]:
        rows: dict[str, list[tuple[int, int]]] = collections.defaultdict(list)
        for row in self.happened.get(("course", name), ()):
            rows[row["event"]].append((row["step"], row["events"]))
        return {event: self._steps(found) for event, found in sorted(rows.items())}

    def _latencies(self, name: str | None, subscription: str | None) -> tuple[Distribution, ...] | None:
        steps: list[list[tuple[int, int, int]]] = [[] for _ in range(self.span.steps)]
        for row in self.ways.get(("course", name), ()):
            if row["subscription"] == subscription and row["step"] is not None and row["coarse_class"] is not None:
                steps[row["step"]].append((row["messages"], row["latency_least"], row["latency_greatest"]))
        return tuple(map(Distribution, steps)) if any(steps) else None


def _cut(name: str) -> str:
    return name + "…" if len(name) >= SHOWN_BYTES else name or "(empty)"
