"""The queues of a node: which there are, how they come and go, and when their settings are in force."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from penstock.callers import Caller
from penstock.clock import Timer
from penstock.dialects.dynamiq.choices import DynamiqChoices
from penstock.dialects.dynamiq.codec import is_name
from penstock.dialects.dynamiq.queue import NAME, SETTINGS, Queue
from penstock.node.polls import Polls
from penstock.peers.far import Reached, Unreached
from penstock.registry.answer import Answer

if TYPE_CHECKING:
    from penstock.delivery.subscription import Subscription
    from penstock.node.node import Change, Node
    from penstock.node.topic import Topic


class Queues:
    """All queues, by name."""

    def __init__(self, node: Node, sync_ns: int) -> None:
        self._node = node
        self._sync_ns = sync_ns
        self._queues: dict[str, Queue] = {}
        self.polls = Polls(node)
        for name in list(node.topics):
            self._here(name)
        node.watchers.append(self._heard)
        self._timer: Timer = self._arm()

    def __len__(self) -> int:
        return len(self._queues)

    def close(self) -> None:
        """Do nothing more by itself, and let nobody wait."""
        self.polls.stop()
        self._timer.cancel()
        self._node.watchers.remove(self._heard)

    def get(self, name: str) -> Queue | None:
        """Return a queue, or None; one that another node has raises where."""
        self._node.find(name)
        return self._here(name)

    def is_queue(self, name: str) -> bool:
        """Tell whether there is a queue of a name, here or on another node."""
        return self._node.known.subscription(name, NAME) is not None

    def among(self, topics: list[Reached]) -> list[Reached]:
        """Return which of some topics are queues; what cannot be reached may be one, and is not lost in silence."""
        return [topic for topic in topics if isinstance(topic, Unreached) or self.is_queue(topic.name)]

    def _here(self, name: str) -> Queue | None:
        topic = self._node.topics.get(name)
        if topic is None:
            return None
        subscription = topic.subscriptions.get(NAME)
        if subscription is None:
            return None
        queue, policy = self._queues.get(name), subscription.chosen_policy
        if queue is None or queue.subscription is not subscription or queue.policy is not policy:
            queue = self._queues[name] = Queue(topic, subscription, policy, self.polls)
        return queue

    def names(self, caller: Caller) -> list[str]:
        """Return the names of those that somebody may know of, on whichever node, and that can be spelled here."""
        return [
            name
            for name in self._node.known.names()
            if is_name(name) and self.is_queue(name) and caller.may("see", name)
        ]

    def create(self, caller: Caller, name: str) -> Answer[None]:
        """Make a queue of a name that no queue has; a topic of that name becomes one."""
        topic = self._node.find(name)
        if topic is not None:
            caller.check("change", name, f"subscription {NAME}")
            caller.check_not_own(name)
        asked = self._node.obtain_for(caller, "create", name) if topic is None else Answer.of(topic)
        return asked.then_ask(lambda there: there.create_subscription(NAME, SETTINGS)).then_make(lambda _: None)

    def update(self, queue: Queue, change: Callable[[DynamiqChoices], DynamiqChoices]) -> Answer[None]:
        """Choose something else for a queue, from the next sync on; all of it or nothing."""
        topic = queue.topic
        before = topic.chosen.of(DynamiqChoices)
        after = change(before)
        after.check(before)
        settings = after.put(topic.settings)
        if after.compressed != before.compressed:  # of segments that are closed from now on
            settings = msgspec.structs.replace(settings, compression="zstd" if after.compressed else "none")
        return topic.update(settings)

    def _heard(self, event: Change, topic: Topic, subscription: Subscription | None) -> None:
        """Know a queue from the moment it is there."""
        if event in ("deleted", "left") and (subscription is None or subscription.name == NAME):
            self._queues.pop(topic.name, None)
        elif event == "created":
            self._here(topic.name)

    def _arm(self) -> Timer:
        return self._node.clock.call_at(self._node.clock.monotonic() + self._sync_ns, self._sync)

    def _sync(self) -> None:
        self._timer = self._arm()
        for name in list(self._queues):
            queue = self._here(name)
            if queue is None:
                del self._queues[name]
            else:
                queue.topic.guarded(queue.sync)
