"""Work that stops the loop, one piece after another: it leaves most of the time to everybody else.

Making a topic waits for the disk. One that a client needs is made at once; a client that needs hundreds waits, and so
do others who need new ones, but nobody who publishes to those that are there. Knows nothing of what the work is.
"""

from __future__ import annotations

from collections import deque

from penstock.clock import MILLISECOND, Clock, Timer
from penstock.errors import Refusal
from penstock.registry.answer import Answer

#: So much of it is done without a pause, after a while without any ...
BURST_NS = 200 * MILLISECOND
#: ... and in the long run one part in so many of the time.
PART = 10
#: More than these wait for nothing: their clients gave up.
WAITING_MAX = 1000


class Turns:
    """Who is next."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left_ns = BURST_NS
        self._seen_ns = clock.monotonic()
        self._waiting: deque[Answer[None]] = deque()
        self._timer: Timer | None = None

    def next(self) -> Answer[None]:
        """Answer when the next piece of work may be done."""
        self._refill()
        if not self._waiting and self._left_ns > 0:
            return Answer.of(None)
        if len(self._waiting) >= WAITING_MAX:
            text = f"{WAITING_MAX} topics are waited for already, more than the disk can make; try again later"
            return Answer.refused(Refusal("limit_reached", text))
        answer: Answer[None] = Answer()
        self._waiting.append(answer)
        self._arm()
        return answer

    def spent(self, began_ns: int) -> None:
        """Count the time since then as work."""
        self._refill()
        self._left_ns -= self._clock.monotonic() - began_ns

    def stop(self) -> None:
        """Let nobody wait any longer."""
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, deque()
        for answer in waiting:
            answer.refuse(Refusal("stopping", "the node is stopping"))

    def _refill(self) -> None:
        now_ns = self._clock.monotonic()
        self._left_ns = min(self._left_ns + (now_ns - self._seen_ns) // PART, BURST_NS)
        self._seen_ns = now_ns

    def _arm(self) -> None:
        if self._timer is None:
            wait_ns = max(MILLISECOND, -self._left_ns * PART)
            self._timer = self._clock.call_at(self._seen_ns + wait_ns, self._go_on)

    def _go_on(self) -> None:
        """Let the next one work, alone in this turn of the loop."""
        self._timer = None
        self._refill()
        if self._waiting and self._left_ns > 0:
            self._waiting.popleft().give(None)
        if self._waiting:
            self._arm()
