"""Receives by clients that ask and then wait: a look of a named holder that is over after a time.

What is found is on lease under the holder's name, written down before anybody hears of it.
Invariant: every poll is answered once, with what it found or with nothing, also if its client, its queue or the node
goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.clock import MILLISECOND, SECOND, Timer
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.delivery.subscription import Subscription
from penstock.errors import Refusal
from penstock.registry.answer import Answer

if TYPE_CHECKING:
    from penstock.node.node import Node
    from penstock.node.topic import Topic

#: One that has to wait for the disk looks again so often, and so long at most, also for a client that wants to wait for
#: nothing.
AGAIN_NS, PATIENCE_NS = MILLISECOND, 5 * SECOND


class Polls:
    """Those of one dialect that wait."""

    def __init__(self, node: Node) -> None:
        self.node = node
        #: In the order they came.
        self.waiting: dict[Poll, None] = {}

    def begin(
        self,
        topic: Topic,
        subscription: Subscription,
        holder: str,
        limit: int,
        lease_ns: int,
        wait_ns: int = 0,
        *,
        is_free: bool = False,
    ) -> Poll:
        """Look for messages, and go on looking for so long; `is_free`: whatever others have locked."""
        subscription.expire(self.node.now())  # what is over now is there now, also between two ticks
        poll = Poll(self, topic, subscription)
        poll.begin(subscription.holder(holder), limit, lease_ns, wait_ns, is_free=is_free)
        return poll

    def stop(self) -> None:
        """Let nobody wait any longer."""
        for poll in list(self.waiting):
            poll.give_up()


class Poll:
    """One receive; `answer` is what it found."""

    def __init__(self, polls: Polls, topic: Topic, subscription: Subscription) -> None:
        self._polls = polls
        self._clock = polls.node.clock
        self._topic = topic
        self._subscription = subscription
        self.answer: Answer[list[Delivery]] = Answer()
        self._look: Seat | None = None
        self._timer: Timer | None = None
        self._patience_ns = 0

    def begin(self, holder: Seat, limit: int, lease_ns: int, wait_ns: int, *, is_free: bool) -> None:
        """Look."""
        self._look = holder.look(limit, lease_ns, self._found, is_free=is_free)
        if self.answer.is_given:
            return
        until_ns = self._clock.monotonic() + (0 if self._polls.node.stopping else wait_ns)
        self._patience_ns = until_ns + PATIENCE_NS
        self._polls.waiting[self] = None
        if wait_ns and not self._polls.node.stopping:
            self._timer = self._clock.call_at(until_ns, self._settle)
        else:
            self._settle()

    def give_up(self) -> None:
        """Answer that there is nothing."""
        if not self.answer.is_given:
            self._end()
            self.answer.give([])

    def _settle(self) -> None:
        """Its time is over: go on only while something comes by itself."""
        if self.answer.is_given or self._look is None or not self._look.credit:
            return  # without credit it found something or failed, and hears of that in a moment
        now_ns = self._clock.monotonic()
        if self._subscription.is_busy() and now_ns < self._patience_ns:
            self._timer = self._clock.call_at(now_ns + AGAIN_NS, self._settle)
        else:
            self.give_up()

    def _found(self, deliveries: list[Delivery]) -> None:
        if self.answer.is_given:
            return
        self._end()
        topic, name = self._topic, self._subscription.name
        if deliveries:
            self.answer.give(deliveries)
        elif topic.is_leaving:
            self.answer.refuse(Refusal("unavailable", f"topic {topic.name} went to another node; try again", SECOND))
        elif topic.deleted or topic.subscriptions.get(name) is not self._subscription:
            self.answer.refuse(Refusal("gone", f"subscription {name} of topic {topic.name} was deleted"))
        else:
            text = f"messages of topic {topic.name} could not be read, or their leases not be written down; try again"
            self.answer.refuse(Refusal("disk_failed", text))

    def _end(self) -> None:
        self._polls.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._look is not None:
            self._look.close()
