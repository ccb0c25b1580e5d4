"""A queue: a topic, its subscription `queue`, and the partitions that lock. Receives, deletes and looks at messages.

A queue that another dialect made has no partitions: what a receive gets is on lease, and nothing else is locked.

Owns what one receive is: a look under one name, so that what it got is on lease whatever becomes of connection and
process. Knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from penstock.columns import place_of
from penstock.delivery.leases import GRAIN_NS
from penstock.delivery.policies.partition_locked import PartitionLocked
from penstock.delivery.policies.policy import Policy
from penstock.delivery.source import Delivery
from penstock.delivery.subscription import Subscription
from penstock.dialects.dynamiq.choices import VISIBILITY_NS_MAX, DynamiqChoices
from penstock.message import Batch
from penstock.node.polls import Polls
from penstock.settings import SECOND_NS, SubscriptionSettings

if TYPE_CHECKING:
    from penstock.node.topic import Topic

#: The subscription that makes a topic a queue, and who holds what receives got.
NAME, HOLDER = "queue", "dynamiq"
SETTINGS = SubscriptionSettings(
    policy=PartitionLocked.name, lease_ns=30 * SECOND_NS, lease_max_ns=VISIBILITY_NS_MAX + SECOND_NS
)

#: Hears once what a receive found: nothing is an empty list, None says that every partition is locked.
Received = Callable[[list[Delivery] | None, Exception | None], None]


class Queue:
    """One queue of a running node."""

    def __init__(self, topic: Topic, subscription: Subscription, policy: Policy, polls: Polls) -> None:
        self._polls = polls
        self.topic = topic
        self.subscription = subscription
        self.policy = policy
        self._locks = policy if isinstance(policy, PartitionLocked) else None
        #: By what it goes now; the topic's record may say something else for the time after the next sync.
        self.in_force = DynamiqChoices()
        self.sync()

    @property
    def key(self) -> int:
        """The key of the ids that clients see."""
        return self.topic.incarnation

    @property
    def partitions(self) -> int:
        """How many it has."""
        return len(self._locks.partitions) if self._locks is not None else 0

    def sync(self) -> None:
        """Go by what was chosen, from now on."""
        chosen = self.topic.chosen.of(DynamiqChoices)
        if self._locks is None:
            if "dynamiq" not in self.topic.settings.dialects:
                chosen = msgspec.structs.replace(chosen, visibility_ns=self.subscription.settings.lease_ns)
            self.in_force = chosen
            return
        self.in_force = chosen
        self._locks.configure(
            chosen.min_partitions,
            chosen.max_partitions,
            chosen.visibility_ns,
            chosen.max_partition_age_ns,
            self.topic.now().monotonic_ns,
        )

    # --- out ------------------------------------------------------------------------------------------------------

    def receive(self, limit: int, told: Received) -> None:
        """Lease messages of one partition and lock it; if there are none, lock nothing."""
        locks = self._locks
        if locks is not None and not locks.is_open(self.topic.monotonic()):
            told(None, None)
            return
        # Leases end with the lock or just before it, never after it.
        lease_ns = max(self.in_force.visibility_ns - GRAIN_NS, 1)
        poll = self._polls.begin(self.topic, self.subscription, HOLDER, limit, lease_ns)

        def found(deliveries: list[Delivery] | None, error: Exception | None) -> None:
            if not deliveries and error is None:
                deliveries = [] if locks is None or locks.passed(self.topic.monotonic()) else None
            told(deliveries, error)

        poll.answer.then(found)

    def delete(self, ids: list[int]) -> int:
        """Finish messages, whoever has them; return how many of them there were."""
        if not ids:
            return 0
        refused = self.subscription.holder(HOLDER).ack(ids)
        count = len(ids) - len(refused)
        return count + len(self.subscription.remove(refused)) if refused else count

    def peek(self, ids: list[int], told: Callable[[list[tuple[int, Batch, int]]], None]) -> None:
        """Read messages that are not deleted, and leave them as they are; tell id, batch and row of each."""
        there = set(self.subscription.unfinished(ids).tolist())
        left = list(dict.fromkeys(id_ for id_ in ids if id_ in there))
        found: list[tuple[int, Batch, int]] = []

        def step(*, fetched: bool = False) -> None:
            while left:
                number, offset = place_of(left[0])
                batch = self.topic.shards[number].read(offset)
                if batch is None and not fetched:
                    self.topic.shards[number].fetch(offset, lambda: step(fetched=True))
                    return
                if batch is not None and batch.first <= offset:
                    found.append((left[0], batch, offset - batch.first))
                fetched = False
                del left[0]
            told(found)

        step()
