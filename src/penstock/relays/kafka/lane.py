"""One topic on its way to Kafka: its seat, and what the relay knows and remembers of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import numpy as np

from penstock.columns import Offsets
from penstock.delivery.seat import Keep, Seat
from penstock.delivery.source import Delivery
from penstock.delivery.subscription import Subscription
from penstock.node.topic import Topic
from penstock.relays.kafka.batching import Batcher
from penstock.relays.kafka.choice import KeyMap, KeyMode, Spread
from penstock.relays.kafka.cluster import Cluster, KafkaTopic
from penstock.relays.kafka.config import TopicManner
from penstock.relays.kafka.group import Group
from penstock.settings import HOUR_NS

#: Rows are the relay's until Kafka has them: they are finished, or given back when it goes. Longer leases are renewed.
LEASE_NS = 24 * HOUR_NS

Take = Callable[["Lane", list[Delivery]], None]


class Lane:
    """A seat with credit, and the decisions that are made for each topic."""

    def __init__(
        self, topic: Topic, subscription: Subscription, manner: TopicManner, take: Take, keep: Keep | None, credit: int
    ) -> None:
        self.name = topic.name
        self.manner = manner
        self.topic = topic
        self.window = Window(manner.rate_interval_ns, manner.rate_count) if manner.rate_interval_ns else None
        self.batcher: Batcher[Group] | None = Batcher(manner.batch) if manner.batching == "per_topic" else None
        #: Messages that are in hand, and those of them that wait for an answer.
        self.held = 0
        self.ack_wait = 0
        self.known: KafkaTopic | None = None
        #: Until when Kafka is not asked to make the topic.
        self.refused_until_ns = 0
        self._spread: Spread | None = None
        self._keys: KeyMap | None = None
        self._subscription = subscription
        self._seat: Seat | None = topic.attach(
            subscription,
            partial(take, self),
            lease_ns=LEASE_NS,
            name="kafka",
            keep=keep,
            evict=self.close,
        )
        self._seat.block()
        self._seat.set_credit(credit)

    @property
    def is_open(self) -> bool:
        """Whether its topic is there."""
        return self._seat is not None

    @property
    def is_fleeting(self) -> bool:
        """Whether its messages end with the process."""
        return self.topic.settings.durability == "memory"

    @property
    def waiting(self) -> int:
        """How many messages nobody has looked at yet."""
        return self._subscription.depth() if self.is_open else 0

    @property
    def batched(self) -> int:
        """How many messages wait for company."""
        return self.batcher.count if self.batcher is not None else 0

    # --- the seat -------------------------------------------------------------------------------------------------

    def block(self) -> None:
        """Take nothing more for now."""
        if self._seat is not None:
            self._seat.block()

    def unblock(self) -> None:
        """Take what there is."""
        if self._seat is not None:
            self._seat.unblock()

    def end(self) -> None:
        """Take nothing more at all; what is in hand may still be finished."""
        if self._seat is not None:
            self._seat.set_credit(0)

    def take_rest(self) -> None:
        """Take what there is, however much is in hand."""
        if self._seat is not None:
            self._seat.unblock()
            self._seat.set_credit(self._seat.in_flight + self.waiting)

    def finish(self, groups: Sequence[Group]) -> None:
        """Be done with messages: Kafka has them, or they are given up."""
        ids: Offsets = groups[0].ids if len(groups) == 1 else np.concatenate([group.ids for group in groups])
        self.held -= len(ids)
        if self._seat is not None:
            self._seat.ack(ids)

    def renew(self) -> None:
        """Keep what is in hand for another while."""
        if self._seat is not None and self._seat.in_flight:
            self._seat.extend([lease.id for lease in self._seat.leases()], LEASE_NS)

    def close(self) -> None:
        """Leave; what is in hand comes again to whoever is next."""
        seat, self._seat = self._seat, None
        if seat is not None:
            seat.close()

    # --- where messages go ----------------------------------------------------------------------------------------

    def learn(self, cluster: Cluster, mode: KeyMode, random: Random) -> None:
        """Send as this says from now on."""
        topic = cluster.topics.get(self.name)
        self.known = topic
        self._spread = self._keys = None
        if topic is not None and topic.available:
            self._spread = Spread(topic, random)
            self._keys = KeyMap(topic, cluster.in_service, mode)

    @property
    def spread(self) -> Spread | None:
        """Where messages without a key go; None where no partition can be had."""
        return self._spread

    @property
    def keys(self) -> KeyMap | None:
        """Where messages with a key go; None where no partition can be had."""
        return self._keys


class Window:
    """How many messages of a topic may go in each window of time; the rest is thrown away.

    Windows begin with the topic's first message and follow each other without a gap.
    """

    def __init__(self, interval_ns: int, count_max: int) -> None:
        self._interval_ns = interval_ns
        self._count_max = count_max
        self._start_ns: int | None = None
        self._count = 0

    def admit(self, count: int, now_ns: int) -> int:
        """Return how many of the next messages may go, by a clock that never goes back."""
        if self._start_ns is None:
            self._start_ns = now_ns
        passed = (now_ns - self._start_ns) // self._interval_ns
        if passed > 0:
            self._start_ns += passed * self._interval_ns
            self._count = 0
        admitted = min(count, self._count_max - self._count)
        self._count += admitted
        return admitted
