"""How late the loop is: a timer that measures its own lateness, so that a blocked loop shows in the metrics.

Invariant: one timer is out at a time, and none after `stop`.
"""

from __future__ import annotations

from bisect import bisect_left

from penstock.clock import MILLISECOND, SECOND, Clock, Timer

#: Four samples a second cost nothing and still catch a stall that a person or a heartbeat would notice.
SAMPLE_NS = 250 * MILLISECOND

#: From a busy turn to a node that looks dead.
BOUNDS_NS = tuple(bound * MILLISECOND for bound in (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 5000))


class LoopLag:
    """A histogram of the loop's lateness."""

    def __init__(self, clock: Clock) -> None:
        #: Samples between the bounds; the last counts those beyond all of them.
        self.counts = [0] * (len(BOUNDS_NS) + 1)
        self.sum_ns = 0
        self._clock = clock
        self._timer: Timer | None = None
        self._expected_ns = 0

    @property
    def bounds_s(self) -> list[float]:
        """The bounds in seconds."""
        return [bound / SECOND for bound in BOUNDS_NS]

    def start(self) -> None:
        """Begin to measure."""
        self._expected_ns = self._clock.monotonic() + SAMPLE_NS
        self._timer = self._clock.call_at(self._expected_ns, self._sample)

    def stop(self) -> None:
        """End it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sample(self) -> None:
        late_ns = max(self._clock.monotonic() - self._expected_ns, 0)
        self.counts[bisect_left(BOUNDS_NS, late_ns)] += 1
        self.sum_ns += late_ns
        self.start()
