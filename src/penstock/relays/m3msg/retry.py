"""When a message that nobody acked is sent again: later each time, or as a list says."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from penstock.clock import SECOND

#: However often it was tried, a message is sent again within this; less than the longest lease a service has.
PAUSE_NS_MAX = 12 * 3600 * SECOND


class Retry:
    """The pauses after each attempt, counted from 1."""

    def __init__(
        self,
        first_ns: int,
        most_ns: int,
        random: Random,
        *,
        pauses_ns: Sequence[int] = (),
    ) -> None:
        self._first_ns = first_ns
        #: 0 for no limit but the one there is for all.
        self._most_ns = min(most_ns or PAUSE_NS_MAX, PAUSE_NS_MAX)
        self._random = random
        #: Wins over all others; the last one repeats.
        self._pauses_ns = tuple(pauses_ns)

    def after_ns(self, attempt: int) -> int:
        """Return how long to wait for the ack of an attempt."""
        if self._pauses_ns:
            return min(self._pauses_ns[min(attempt, len(self._pauses_ns)) - 1], PAUSE_NS_MAX)
        half_ns = (self._first_ns << min(attempt - 1, 40)) / 2
        base_ns = half_ns + self._random.random() * half_ns
        return int(min(base_ns, self._most_ns))
