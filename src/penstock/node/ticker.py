"""What time does to a node: topics are ticked while there is something to do, and looked over now and then.

Owns the timers. Knows nothing of what a topic does in its turn. Invariant: a topic in which nothing happens costs
nothing, and what fails in one costs no other its turn.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.clock import MILLISECOND, SECOND, Timer
from penstock.delivery.instant import Instant
from penstock.errors import Refusal
from penstock.log.cached import share

if TYPE_CHECKING:
    from penstock.node.node import Node
    from penstock.node.topic import Topic

#: Acks are written, leases end and the log does its chores this often while there is something to do.
TICK_NS = 10 * MILLISECOND

#: History is looked over no more often than this, whatever the configuration asks for.
RETAIN_NS_MIN = 10 * MILLISECOND

#: What shards keep in memory is brought within its common bound this often: it costs a look at every shard.
SHARE_NS = SECOND


class Ticker:
    """The timers of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._clock = node.clock
        #: Topics that are not asleep.
        self._active: dict[Topic, None] = {}
        self._timer: Timer | None = None
        self._retain_timer: Timer | None = None
        self._shared_ns = node.clock.monotonic()

    def start(self) -> None:
        """Look over all topics from now on."""
        self._retain_timer = self._clock.call_at(self._clock.monotonic() + self._retain_ns(), self.retain)

    def stop(self) -> None:
        """Do nothing more by itself."""
        for timer in (self._timer, self._retain_timer):
            if timer is not None:
                timer.cancel()

    def forget(self, topic: Topic) -> None:
        """Tick a topic no more."""
        self._active.pop(topic, None)

    def look_after(self, topic: Topic) -> None:
        """Tick a topic until it sleeps."""
        if topic not in self._active:
            self._active[topic] = None
            self._set_timer(self._clock.monotonic())

    def _set_timer(self, now_ns: int) -> None:
        if self._timer is None:
            self._timer = self._clock.call_at(now_ns + self._tick_ns(), self._tick)

    def _tick_ns(self) -> int:
        flush_ns = self._node.config.node.ack_flush_ns
        return min(flush_ns, TICK_NS) if flush_ns else TICK_NS

    def _tick(self) -> None:
        self._timer = None
        now = self._node.now()
        for topic in list(self._active):
            self._tick_topic(topic, now)
        self._share_at_times(now)
        if self._active and not self._node.stopping:
            self._set_timer(now.monotonic_ns)

    def tick_now(self, topic: Topic) -> None:
        """Tick a topic that slept, and until it sleeps again."""
        if self._node.stopping:
            return
        now = self._node.now()
        self._active[topic] = None
        self._tick_topic(topic, now)
        self._share_at_times(now)
        if self._active:
            self._set_timer(now.monotonic_ns)

    def _tick_topic(self, topic: Topic, now: Instant) -> None:
        self._node.guarded(f"tick of topic {topic.name}", partial(self._tick_active, topic, now))

    def _tick_active(self, topic: Topic, now: Instant) -> None:
        if topic.deleted or not topic.tick(now):
            self._active.pop(topic, None)

    def _share_at_times(self, now: Instant) -> None:
        if now.monotonic_ns - self._shared_ns >= SHARE_NS:
            self._shared_ns = now.monotonic_ns
            self._node.guarded("cache", self._share_cache)

    def _share_cache(self) -> None:
        share(list(self._node.shards()), self._node.budget.cache.bytes_max)

    def _retain_ns(self) -> int:
        return max(self._node.config.node.retention_check_ns, RETAIN_NS_MIN)

    def retain(self) -> None:
        """Let history go that is neither needed nor young, in all topics; again after a while."""
        now = self._node.now()
        may_clean = self._node.health.may("clean")  # by a clock that is wrong, what is old is not
        for topic in list(self._node.topics.values()):
            self._node.guarded(f"chores of topic {topic.name}", partial(topic.chores, now))
            if may_clean:
                self._node.guarded(f"retention of topic {topic.name}", topic.storage.retain)
        if may_clean:
            self._node.guarded("sweep", self._sweep)
        if not self._node.stopping:
            self.start()

    def _sweep(self) -> None:
        self._node.pipelines.sweep()
        try:
            self._node.lifecycle.remove_deleted()
            self._node.holds.sweep()
            self._node.transactions.sweep()
        except Refusal:
            pass  # a full disk: there is time
