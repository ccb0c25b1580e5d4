"""Everything a report says, as plain data.

Owns the shape of the figures. Knows nothing of Spark and nothing of how they are shown. Invariant: sums over the topics
shown and `others` are the sums of all.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.pipeline.jobs.report.advice import Advice
from penstock.pipeline.jobs.report.scale import Distribution
from penstock.pipeline.jobs.report.span import Span
from penstock.pipeline.jobs.report.totals import Hot
from penstock.pipeline.jobs.report.waiting import Windows


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
