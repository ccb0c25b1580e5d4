"""Virtual time: one scheduler for the whole world, and the clock that one life of the node sees of it.

Time only passes between calls, so whatever happens inside one call happens at one moment. Everything that is random
comes from the seed, and calls at the same time run in the order they were asked for.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from random import Random

from penstock.clock import MILLISECOND

#: 2024-01-01: any wall-clock time will do as long as it is always the same.
WALL_START_NS = 1_704_067_200_000_000_000

#: What one turn of the loop costs at most, and how late a timer fires at worst.
TURN_NS_MAX = 40_000
LATE_NS_MAX = 2 * MILLISECOND


class Call:
    """A call that is still to come."""

    __slots__ = ("cancelled", "function", "owner")

    def __init__(self, owner: SimClock | None, function: Callable[[], None]) -> None:
        self.owner = owner
        self.function = function
        self.cancelled = False

    def cancel(self) -> None:
        """Make it not happen."""
        self.cancelled = True


class Scheduler:
    """The world's time in nanoseconds since the run began; it never jumps. The wall clock is it plus an offset."""

    def __init__(self, random: Random) -> None:
        self.time_ns = 0
        self.calls = 0
        self._random = random
        self._soon: deque[Call] = deque()
        self._heap: list[tuple[int, int, Call]] = []
        self._count = 0
        #: (time, offset) of the wall clock, from that time on.
        self._offsets: list[tuple[int, int]] = [(0, WALL_START_NS)]

    def soon(self, function: Callable[[], None], owner: SimClock | None = None) -> Call:
        """Call in the next turn."""
        call = Call(owner, function)
        self._soon.append(call)
        return call

    def at(self, time_ns: int, function: Callable[[], None], owner: SimClock | None = None) -> Call:
        """Call once this time is reached."""
        call = Call(owner, function)
        self._count += 1
        heapq.heappush(self._heap, (max(time_ns, self.time_ns), self._count, call))
        return call

    def after(self, delay_ns: int, function: Callable[[], None]) -> Call:
        """Call after a delay."""
        return self.at(self.time_ns + delay_ns, function)

    def turn(self) -> bool:
        """Run one turn of the loop; False if nothing is left to do, ever."""
        if not self._soon:
            if not self._heap:
                return False
            self.time_ns = max(self.time_ns, self._heap[0][0])
        self.time_ns += 1 + int(self._random.random() * TURN_NS_MAX)
        while self._heap and self._heap[0][0] <= self.time_ns:
            self._soon.append(heapq.heappop(self._heap)[2])
        for _ in range(len(self._soon)):
            call = self._soon.popleft()
            if not call.cancelled and (call.owner is None or call.owner.alive):
                self.calls += 1
                call.function()
        return True

    def run_until(self, time_ns: int, stop: Callable[[], bool] | None = None) -> None:
        """Run turns up to a time, or until `stop` says so after one of them."""
        while self.time_ns < time_ns and (self._soon or (self._heap and self._heap[0][0] <= time_ns)):
            self.turn()
            if stop is not None and stop():
                return
        self.time_ns = max(self.time_ns, time_ns)

    # --- the wall clock -------------------------------------------------------------------------------------------

    def wall_ns(self) -> int:
        """Return what the wall clock shows."""
        return self.time_ns + self._offsets[-1][1]

    def jump(self, by_ns: int) -> None:
        """Set the wall clock forward or back."""
        self._offsets.append((self.time_ns, self._offsets[-1][1] + by_ns))

    @property
    def jumps(self) -> int:
        """How often the wall clock was set."""
        return len(self._offsets) - 1

    def wall_between(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Return the least and the most the wall clock showed between two times."""
        if len(self._offsets) == 1:
            offset = self._offsets[0][1]
            return start_ns + offset, end_ns + offset
        shown = []
        for (since, offset), (until, _) in pairwise([*self._offsets, (end_ns + 1, 0)]):
            low, high = max(since, start_ns), min(until, end_ns)
            if low <= high:
                shown += [low + offset, high + offset]
        return min(shown), max(shown)


class SimClock:
    """The clock of one life of the node: when the process dies, its calls die with it."""

    def __init__(self, scheduler: Scheduler, booted_ns: int, random: Random) -> None:
        self.alive = True
        self._scheduler = scheduler
        self._booted_ns = booted_ns
        self._random = random

    def now(self) -> int:
        """Return wall-clock nanoseconds since 1970."""
        return self._scheduler.wall_ns()

    def monotonic(self) -> int:
        """Return nanoseconds since the machine booted."""
        return self._scheduler.time_ns - self._booted_ns

    def run(self, call: Callable[[], None]) -> None:
        """Call now: something came in from outside."""
        call()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call in the next turn of the loop."""
        self._scheduler.soon(call, self)

    def call_at(self, monotonic_ns: int, call: Callable[[], None]) -> Call:
        """Call once the monotonic clock has reached this time, mostly a little later, never before."""
        late = self._random.random()
        late_ns = int(late * 100_000) if late < 0.9 else int(late * LATE_NS_MAX)
        return self._scheduler.at(monotonic_ns + self._booted_ns + late_ns, call, self)
