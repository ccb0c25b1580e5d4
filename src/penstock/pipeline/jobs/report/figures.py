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
from penstock.pipeline.jobs.report.scale import Distribution
from penstock.pipeline.jobs.report.span import Span, Windows, windows
from penstock.pipeline.jobs.report.tallies import INTERVAL_US, Backlog, Tallies
from penstock.pipeline.jobs.report.totals import SHOWN_BYTES, Hot

if TYPE_CHECKING:
    from penstock.codecs import Measure
    from penstock.pipeline.jobs.report.options import Report
    from penstock.pipeline.jobs.report.queries import Row
    from penstock.pipeline.jobs.report.totals import Total, Totals


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
    """What happened to messages in one subscription."""

    name: str
    #: Whether the node counted them; else they are estimates, sampled events counted up.
    exact: bool = False
    #: How many messages were in the sample that times and attempts come from.
    sample: int = 0
    delivered: int = 0
    acked: int = 0
    released: int = 0
    expired: int = 0
    dead: int = 0
    #: Where they went last; empty where nobody counted them.
    dead_letter: str = ""
    #: Deliveries that were not a message's first; None where nobody counted them.
    again: int | None = None
    backlog: Backlog | None = None
    #: Messages by how often they were delivered, in the sample.
    attempts: Mapping[int, int] = {}
    latency_us: Distribution = Distribution(())
    lease_us: Distribution = Distribution(())
    #: Latency of deliveries in each step of time; None for a subscription that is not among the busiest.
    latencies: tuple[Distribution, ...] | None = None


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic's figures."""

    name: str
    #: Taken in by the node, and what of them could still be read: sizes, keys and shares are of these.
    messages: int = 0
    stored: int = 0
    body_bytes: int = 0
    stored_bytes: int = 0
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
    #: Whether the node counted everything that happened; then the history is only for shapes and percentiles.
    counts: bool = False
    #: The largest sampling of its events: 1 for all of them, n for one message in n.
    one_in: int = 1
    #: When the node was killed, so that what it had counted in the seconds before is missing.
    killed_us: tuple[int, ...] = ()
    #: Where the counts begin, if there are messages from before.
    counted_from_us: int | None = None
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
Sums = dict[str | None, dict[str, int]]


class Found:
    """The rows of all queries, by kind and topic."""

    def __init__(self, span: Span, options: Report, totals: Mapping[str, Total]) -> None:
        self.span = span
        self.options = options
        self.totals = totals
        self.counted: Rows = {}
        self.packed: Mapping[str, Sequence[Measure]] = {}
        self.happened: Rows = {}
        self.journeys: Rows = {}
        self.one_in = 1
        #: None where the node kept no counts.
        self.tallies: Tallies | None = None
        self._shown: frozenset[str] = frozenset()

    def figures(self, sums: Totals, shown: Sequence[str], columns: frozenset[str], *, events: bool) -> Figures:
        """Return everything, for the topics shown and for all others together."""
        self._shown = frozenset(shown)
        topics = tuple(self.topic(name) for name in shown)
        rest = self.topic(None, sums.messages - sum(topic.stored for topic in topics),
                          sums.body_bytes - sum(topic.stored_bytes for topic in topics))  # fmt: skip
        others = rest if rest.messages or rest.events or rest.subscriptions else None
        everything = topics if others is None else (*topics, others)
        tallies = self.tallies
        hidden = sums.topics - sum(name in self.totals for name in shown)
        began_us = None if tallies is None else tallies.first_us
        is_late = began_us is not None and sums.first_us is not None and sums.first_us < began_us - INTERVAL_US
        return Figures(
            span=self.span,
            columns=columns,
            events=events,
            counts=tallies is not None,
            one_in=self.one_in,
            killed_us=tuple(tallies.killed_us) if tallies is not None else (),
            counted_from_us=began_us if is_late else None,
            topics=topics,
            others=others,
            topics_all=len(shown) + max(hidden, len(self._left())),
            messages=sum(topic.messages for topic in everything),
            body_bytes=sum(topic.body_bytes for topic in everything),
            waiting=self.waiting(shown) if "due" in columns else None,
        )

    def published(self, name: str | None) -> tuple[int, int]:
        """Return how many messages the node took, and their bytes; None is all topics that are not shown."""
        if self.tallies is None:
            return 0, 0
        names = self._left() if name is None else [name]
        found = [self.tallies.published.get(each, (0, 0)) for each in names]
        return sum(messages for messages, _ in found), sum(size for _, size in found)

    def _left(self) -> set[str]:
        """Return the topics that were counted and are not shown."""
        return set() if self.tallies is None else self.tallies.topics() - self._shown

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
        stored, stored_bytes = (messages, body_bytes) if total is None else (total.messages, total.body_bytes)
        taken, taken_bytes = self.published(name)
        return Topic(
            name=OTHERS if name is None else name or UNKNOWN,
            # What can be read was taken, whatever became of the counts.
            messages=max(stored, taken),
            stored=stored,
            body_bytes=max(stored_bytes, taken_bytes) if taken > stored else stored_bytes,
            stored_bytes=stored_bytes,
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
        sums = self._tallied(name)
        exact = bool(sums)
        if not exact:
            for row in self.happened.get(("events", name), ()):
                if row["event"] not in ("published", "discarded"):
                    one = sums.setdefault(row["subscription"], {})
                    one[row["event"]] = one.get(row["event"], 0) + row["events"]
        attempts: dict[str | None, dict[int, int]] = collections.defaultdict(dict)
        samples: dict[str | None, int] = collections.defaultdict(int)
        for row in self.journeys.get(("attempts", name), ()):
            attempts[row["subscription"]][row["attempts"]] = row["messages"]
            samples[row["subscription"]] += row["sample"]
        found = [
            Subscription(
                name=subscription or (OTHERS if name is None else UNKNOWN),
                exact=exact,
                sample=samples[subscription],
                delivered=events.get("delivered", 0),
                acked=events.get("acked", 0),
                released=events.get("released", 0),
                expired=events.get("expired", 0),
                dead=events.get("dead", 0),
                dead_letter=self._dead_letter(name, subscription) if exact else "",
                again=events.get("again", 0) if exact else None,
                backlog=self._backlog(name, subscription),
                attempts=dict(sorted(attempts[subscription].items())),
                latency_us=self._distribution("latency", name, subscription),
                lease_us=self._distribution("lease", name, subscription),
                latencies=self._latencies(name, subscription),
            )
            for subscription, events in sums.items()
        ]
        return tuple(sorted(found, key=lambda each: (-each.delivered, each.name)))

    def _tallied(self, name: str | None) -> Sums:
        """Return what the node counted of a topic's subscriptions; those of topics not shown are one."""
        found: Sums = {}
        if self.tallies is None:
            return found
        for (topic, subscription), sums in self.tallies.sums.items():
            mine = topic == name if name is not None else topic not in self._shown
            if mine and subscription is not None:
                one = found.setdefault(subscription if name is not None else None, {})
                for event, count in sums.items():
                    one[event] = one.get(event, 0) + count
        for topic, subscription in self.tallies.backlogs:  # one that nothing was delivered to has one, too
            if topic == name:
                found.setdefault(subscription, {})
        return found

    def _backlog(self, name: str | None, subscription: str | None) -> Backlog | None:
        if self.tallies is None or name is None:
            return None
        return self.tallies.backlogs.get((name, subscription))

    def _dead_letter(self, name: str | None, subscription: str | None) -> str:
        if self.tallies is None or name is None:
            return ""
        return self.tallies.dead_letters.get((name, subscription)) or f"{name}.dead"

    def _distribution(self, kind: str, name: str | None, subscription: str | None) -> Distribution:
        return Distribution(
            (row["messages"], row[f"{kind}_least"], row[f"{kind}_greatest"])
            for row in self.journeys.get((kind, name), ())
            if row["subscription"] == subscription and row[f"{kind}_class"] is not None
        )

    def _discards(self, name: str | None) -> dict[str, int]:
        found: dict[str, int] = collections.defaultdict(int)
        if self.tallies is not None:
            for topic in self._left() if name is None else [name]:
                for reason, count in self.tallies.discards.get(topic, {}).items():
                    found[reason or UNKNOWN] += count
        for row in self.happened.get(("events", name), ()) if self.tallies is None else ():
            if row["event"] == "discarded":
                found[row["reason"] or UNKNOWN] += row["events"]
        return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))

    def _events(self, name: str | None) -> dict[str, tuple[int, ...]]:
        rows: dict[str, list[tuple[int, int]]] = collections.defaultdict(list)
        if self.tallies is not None:
            for topic in self._left() if name is None else [name]:
                for event, course in self.tallies.courses.get(topic, {}).items():
                    rows[event] += enumerate(course)
        for row in self.happened.get(("course", name), ()) if not rows else ():
            rows[row["event"]].append((row["step"], row["events"]))
        return {event: self._steps(found) for event, found in sorted(rows.items())}

    def _latencies(self, name: str | None, subscription: str | None) -> tuple[Distribution, ...] | None:
        steps: list[list[tuple[int, int, int]]] = [[] for _ in range(self.span.steps)]
        for row in self.journeys.get(("course", name), ()):
            if row["subscription"] == subscription and row["step"] is not None and row["coarse_class"] is not None:
                steps[row["step"]].append((row["messages"], row["latency_least"], row["latency_greatest"]))
        return tuple(map(Distribution, steps)) if any(steps) else None


def _cut(name: str) -> str:
    return name + "…" if len(name) >= SHOWN_BYTES else name or "(empty)"
