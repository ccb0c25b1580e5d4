"""How long to stand still after trouble: the first time briefly, and longer each time while it goes on.

Pure: time and chance are passed in.
"""

from __future__ import annotations

from random import Random


class Pauses:
    """Pauses of a window; a quiet window makes the next pause a first one again."""

    def __init__(self, initial_ns: int, doublings: int, least_ns: int, random: Random) -> None:
        self._initial_ns = initial_ns
        self._doublings = doublings
        self._least_ns = least_ns
        self._random = random
        self._window_ns = initial_ns << (doublings + 2)
        self._start_ns: int | None = None
        self._last_ns = 0
        self._count = 0

    def next_ns(self, now_ns: int) -> int:
        """Return how long the pause that begins now is."""
        if self._start_ns is None or now_ns - self._start_ns >= self._window_ns:
            self._start_ns, self._count, wait_ns = now_ns, 0, 0
        else:
            base_ns = self._initial_ns << min(self._count, self._doublings)
            self._count += 1
            wait_ns = int(base_ns * self._random.uniform(0.5, 1.5)) - (now_ns - self._last_ns)
        wait_ns = max(wait_ns, self._least_ns)
        # What was waited counts as elapsed only from its end on.
        self._last_ns = now_ns + wait_ns
        return wait_ns
