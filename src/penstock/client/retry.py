"""How long a caller goes on trying while a node is away, or out of room for a moment.

Owns which errors pass by themselves, and the pauses between tries. The one definition of it: publishing, consuming and
Spark's source and sink all wait like this.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.client.connection import Unreachable
from penstock.errors import PenstockError, Refusal

#: The first pause is short, because a connection may just have been cut; later ones leave a starting node alone.
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0

SECOND_NS = 1_000_000_000


class RetryPolicy:
    """The tries of one call; time runs from the first one that failed since it last worked."""

    def __init__(self, seconds: float, sleep: Callable[[float], object] = time.sleep) -> None:
        self._seconds = seconds
        self._sleep = sleep
        self._end: float | None = None
        self._pause_s = PAUSE_S_MIN

    def renew(self) -> None:
        """Take note that it works."""
        self._end = None
        self._pause_s = PAUSE_S_MIN

    def rest(self, error: PenstockError) -> None:
        """Wait before another try, as long as the node said; raise the error where that will not help, or it was long
        enough."""
        now = time.monotonic()
        if self._end is None:
            self._end = now + self._seconds
        if not passes(error) or now >= self._end:
            raise error
        told_s = error.retry_ns / SECOND_NS if isinstance(error, Refusal) else 0.0
        self._sleep(min(max(self._pause_s, told_s), self._end - now))
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)


def passes(error: PenstockError) -> bool:
    """Tell whether the same call may succeed later."""
    return isinstance(error, Unreachable) or (isinstance(error, Refusal) and error.reason.retry)
