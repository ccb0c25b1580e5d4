"""Time and turns: the only way the node learns what time it is or asks to be called later.

`Clock` is a seam. `LoopClock` stands on an asyncio loop; the simulation has one with virtual time. Nothing below
`node` may call `time`, `asyncio.sleep` or a loop itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

MILLISECOND = 1_000_000
SECOND = 1_000_000_000

#: The least that a loop's timer is asked for: uvloop takes less than half a millisecond for none, and whoever asks for
#: that until its time has come keeps a core busy and the interpreter lock from all other threads.
GRAIN_S = 0.0006


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None:
        """Make it not happen."""


class Clock(Protocol):
    """Wall time for records and due times, monotonic time for deadlines and windows, and calls at a time."""

    def now(self) -> int:
        """Return wall-clock nanoseconds since 1970."""

    def monotonic(self) -> int:
        """Return nanoseconds that never go back; deadlines of leases are counted in these."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call in the next turn of the loop."""

    def call_at(self, monotonic_ns: int, call: Callable[[], None]) -> Timer:
        """Call once the monotonic clock has reached this time, never before."""


class SteadyTime:
    """Wall time for whatever drops data because it is old: it does not jump forward.

    Somebody who sets the clock a month ahead, or a time server gone mad, must not cost a month of history. So time
    goes on from the start of the process as the monotonic clock does, and no further than the wall clock is. It is
    too early after a jump forward that was right, which keeps data too long; the next start takes the new time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ns = clock.now() - clock.monotonic()

    def now(self) -> int:
        """Return nanoseconds since 1970."""
        return min(self._clock.now(), self._clock.monotonic() + self._ahead_ns)


class LoopClock:
    """The real clock, on an asyncio loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = time.time_ns
        self.monotonic = time.monotonic_ns

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call in the next turn of the loop."""
        self._loop.call_soon(call)

    def call_at(self, monotonic_ns: int, call: Callable[[], None]) -> Timer:
        """Call once the monotonic clock has reached this time, never before."""
        return _LoopTimer(self._loop, monotonic_ns, call)


class _LoopTimer:
    """One call on an asyncio loop, which stays cancelled also where the loop was early."""

    __slots__ = ("_at_ns", "_call", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, at_ns: int, call: Callable[[], None]) -> None:
        self._loop = loop
        self._at_ns = at_ns
        self._call = call
        self._handle = loop.call_later(max(at_ns - time.monotonic_ns(), 0) / SECOND, self._due)

    def cancel(self) -> None:
        """Make it not happen."""
        self._handle.cancel()

    def _due(self) -> None:
        # The loop's timers have a grain of a millisecond and may fire that much early.
        left_ns = self._at_ns - time.monotonic_ns()
        if left_ns > 0:
            self._handle = self._loop.call_later(max(left_ns / SECOND, GRAIN_S), self._due)
        else:
            self._call()
