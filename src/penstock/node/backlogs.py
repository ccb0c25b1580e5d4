"""What subscriptions of a topic have not finished: how much, where it is, and when it is due."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.columns import Offsets
from penstock.delivery.subscription import Subscription
from penstock.delivery.timer import DueTimer

if TYPE_CHECKING:
    from penstock.node.topic import Topic


class Backlog(NamedTuple):
    """Messages of a subscription: those that are due and could go out, are out on lease, wait for their time."""

    ready: int
    leased: int
    waiting: int


class Backlogs:
    """The backlogs of one topic."""

    def __init__(self, topic: Topic, timer: DueTimer) -> None:
        self._topic = topic
        self._timer = timer

    def deferred(self, subscription: Subscription) -> int:
        """Return the rows a subscription has not come to yet and that are not due either."""
        return sum(self._timer.between(*stretch) for stretch in subscription.unread())

    def backlog(self, subscription: Subscription) -> Backlog:
        """Return how many messages of a subscription are not finished, by where they are."""
        deferred = self.deferred(subscription)
        ahead = subscription.ahead(self._topic.wall())
        ready = max(subscription.depth() - deferred - ahead, 0)
        return Backlog(ready, subscription.in_flight(), subscription.waiting() + deferred + ahead)

    def coming(self, subscription: Subscription, until_ns: int) -> list[Offsets]:
        """Return, shard by shard, when messages are due that are not yet and are before a time."""
        found = []
        for cursor in subscription.cursors:
            due_ns, offsets = self._timer.coming(cursor.source.number, until_ns)
            ahead = offsets >= cursor.position.offset  # nobody came to those yet
            passed = cursor.states.agenda.coming(offsets[~ahead], until_ns, self._topic.wall())
            found.append(np.concatenate((due_ns[ahead], passed)))
        return found
