"""How many messages of a topic may go in each window of time; the rest is thrown away.

Pure. Windows begin with the topic's first message and follow each other without a gap.
"""

from __future__ import annotations


class Window:
    """The window of one topic."""

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
