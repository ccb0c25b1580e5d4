"""What wakes a topic that sleeps: the next lease that ends, or a moment later if something happened not long ago."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.clock import MILLISECOND, SECOND, Timer

if TYPE_CHECKING:
    from penstock.node.topic import Topic

#: A topic in which nothing happens any more is looked after this often until it has been quiet for so long; then it
#: costs nothing until the next lease ends.
CALM_NS = 100 * MILLISECOND
QUIET_NS = 5 * SECOND


class Waking:
    """The next time one topic is woken."""

    __slots__ = ("_timer", "_topic", "active_ns")

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._timer: Timer | None = None
        #: When it was last seen that something happened.
        self.active_ns = 0

    def set(self, ends_ns: Iterable[int | None], now_ns: int) -> None:
        """Be woken when the first of these leases ends."""
        times = [time_ns for time_ns in ends_ns if time_ns is not None]
        if now_ns - self.active_ns < QUIET_NS:
            times.append(now_ns + CALM_NS)
        if times:
            self._timer = self._topic.node.clock.call_at(min(times), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._topic.node.ticker.tick_now(self._topic)

    def stop(self) -> None:
        """Be woken no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
