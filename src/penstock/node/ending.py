"""The end of a node, beside its loop: what is not synced yet is, and then every topic is closed.

Owns the order in which that happens. Syncs run in the executor, one after the other, so that a node of many shards on
a slow disk still hears signals and can say how far it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.node.events import HISTORIES

if TYPE_CHECKING:
    from penstock.message import Done
    from penstock.node.node import Node
    from penstock.node.topic import Topic


class Ending:
    """One node on its way out; its connections are closed."""

    def __init__(self, node: Node, done: Callable[[], None]) -> None:
        self._node = node
        self._done = done
        #: Shards, and those that are closed.
        self.shards = 0
        self.closed = 0
        #: Pieces of work that the disk has done: who waits can tell a slow disk from one that does not answer.
        self.steps = 0

    def start(self) -> None:
        """Begin; `done` is called once, when everything is written down."""
        node = self._node
        node.rest()  # what was counted last may have to make its topic
        self.shards = sum(len(topic.shards) for topic in node.topics.values())
        own = [node.own_name(name) for name in HISTORIES]
        histories = [topic for topic in node.topics.values() if topic.name in own]
        others = [topic for topic in node.topics.values() if topic.name not in own]
        # Last, because they tell how the others ended.
        self.end(others, partial(self._end_histories, histories))

    def _end_histories(self, topics: Sequence[Topic]) -> None:
        self._node.close_events()
        self.end(topics, self._done)

    def end(self, topics: Sequence[Topic], then: Callable[[], None]) -> None:
        """End some topics, and go on."""
        syncs = [sync for topic in topics for sync in topic.syncs()]
        self._all(syncs, partial(self._close, topics, then))

    def _close(self, topics: Sequence[Topic], then: Callable[[], None]) -> None:
        closes = [partial(self._close_shards, topic) for topic in topics]
        self._all(closes, then)

    def _close_shards(self, topic: Topic, done: Done) -> None:
        def closed(error: BaseException | None) -> None:
            self.closed += len(topic.shards)
            done(error)

        try:
            topic.close_later(closed)
        except Exception as failure:  # it must not keep the others from their end
            self._node.report_bug(f"close of topic {topic.name}", failure)
            done(failure)

    def _all(self, works: Sequence[Callable[[Done], None]], then: Callable[[], None]) -> None:
        """Start all of them, and go on once each has called back; what failed is as after a crash at the next start."""
        left = len(works)

        def done(_: BaseException | None) -> None:
            nonlocal left
            left -= 1
            self.steps += 1
            if left == 0:
                then()

        if not works:
            then()
        for work in works:
            work(done)
