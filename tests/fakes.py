"""A clock in your hand and a disk whose threads do what you say, for tests without sleeping."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.callers import Gate
from penstock.clock import Clock
from penstock.config import Config
from penstock.disk import LocalDisk

T = TypeVar("T")

START_NS = 1_700_000_000_000_000_000


class FakeTimer:
    """A call that may still be cancelled."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class FakeClock:
    """Time stands still until it is advanced; calls happen in the order of their times."""

    def __init__(self, now_ns: int = START_NS) -> None:
        self._wall_ns = now_ns
        self._monotonic_ns = 1_000_000_000_000
        self._soon: deque[Callable[[], None]] = deque()
        self._later: list[tuple[int, int, FakeTimer]] = []
        self._count = 0

    def now(self) -> int:
        return self._wall_ns

    def monotonic(self) -> int:
        return self._monotonic_ns

    def call_soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def call_at(self, monotonic_ns: int, call: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(call)
        self._count += 1
        heapq.heappush(self._later, (monotonic_ns, self._count, timer))
        return timer

    def run(self) -> None:
        """Make all calls that are due now, and those they ask for."""
        while self._soon or (self._later and self._later[0][0] <= self._monotonic_ns):
            while self._soon:
                self._soon.popleft()()
            if self._later and self._later[0][0] <= self._monotonic_ns:
                timer = heapq.heappop(self._later)[2]
                if timer.call is not None:
                    timer.call()

    def advance(self, ns: int) -> None:
        """Let time pass, stopping at every call on the way."""
        end_ns = self._monotonic_ns + ns
        self.run()
        while self._later and self._later[0][0] <= end_ns:
            self._move(self._later[0][0])
            self.run()
        self._move(end_ns)
        self.run()

    def _move(self, monotonic_ns: int) -> None:
        step = max(monotonic_ns - self._monotonic_ns, 0)
        self._wall_ns += step
        self._monotonic_ns += step


class FakeDisk(LocalDisk):
    """Real files; work for the pools runs when it is told to, by default at once in the next turn of the clock."""

    def __init__(self, clock: FakeClock, *, eager: bool = True) -> None:
        super().__init__()
        self.clock = clock
        self.eager = eager
        self.boot = "boot-1"
        self.work: deque[tuple[str, Callable[[], Any], Callable[[Any, BaseException | None], None]]] = deque()

    def boot_id(self) -> str:
        return self.boot

    def submit(self, pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self.work.append((pool, work, done))
        if self.eager:
            self.clock.call_soon(self.step)

    def step(self) -> None:
        """Do the oldest piece of work and tell its owner."""
        if not self.work:
            return
        _, work, done = self.work.popleft()
        try:
            result = work()
        except BaseException as error:
            done(None, error)
        else:
            done(result, None)


def gate_of(clock: Clock, **config: Any) -> Gate:
    """Return a gate that nobody has users for."""
    return Gate(Config(data_dir="/nowhere", **config), clock, FakeDisk(FakeClock()))
