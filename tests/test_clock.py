"""A timer on the loop is never early, and stays cancelled."""

from __future__ import annotations

import asyncio

import pytest

from penstock.clock import MILLISECOND, SECOND, LoopClock, SteadyTime
from tests.fakes import FakeClock


class EarlyLoop:
    """A loop whose timers all fire at once, whatever they were asked for."""

    def __init__(self) -> None:
        self.handles: list[Handle] = []
        self.delays: list[float] = []

    def call_later(self, delay_s: float, call: object) -> Handle:
        self.delays.append(delay_s)
        self.handles.append(Handle(call))
        return self.handles[-1]

    def turn(self) -> None:
        handles, self.handles = self.handles, []
        for handle in handles:
            if not handle.cancelled:
                handle.call()  # type: ignore[operator]


class Handle:
    def __init__(self, call: object) -> None:
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


@pytest.fixture
def time_ns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Time in your hand."""
    now = [0]
    monkeypatch.setattr("penstock.clock.time.monotonic_ns", lambda: now[0])
    return now


def test_timer_that_fires_early_is_asked_for_again(time_ns: list[int]) -> None:
    loop = EarlyLoop()
    called: list[int] = []
    LoopClock(loop).call_at(5 * MILLISECOND, lambda: called.append(time_ns[0]))  # type: ignore[arg-type]
    loop.turn()
    assert called == []
    time_ns[0] = 5 * MILLISECOND
    loop.turn()
    assert called == [5 * MILLISECOND]


def test_timer_that_fired_early_can_still_be_cancelled(time_ns: list[int]) -> None:
    loop = EarlyLoop()
    called: list[int] = []
    timer = LoopClock(loop).call_at(5 * MILLISECOND, lambda: called.append(1))  # type: ignore[arg-type]
    loop.turn()
    timer.cancel()
    time_ns[0] = 5 * MILLISECOND
    loop.turn()
    assert called == []


def test_timer_on_a_real_loop_fires_once() -> None:
    async def wait() -> int:
        clock = LoopClock(asyncio.get_running_loop())
        fired = asyncio.get_running_loop().create_future()
        at_ns = clock.monotonic() + MILLISECOND
        clock.call_at(at_ns, lambda: fired.set_result(clock.monotonic()))
        return int(await fired) - at_ns

    assert asyncio.run(wait()) >= 0


def test_steady_time_does_not_jump_forward_with_the_wall_clock() -> None:
    clock = FakeClock()
    steady = SteadyTime(clock)
    start_ns = clock.now()
    clock.advance(5 * SECOND)
    assert steady.now() == start_ns + 5 * SECOND
    clock._wall_ns += 1000 * SECOND
    assert steady.now() == start_ns + 5 * SECOND
    clock.advance(SECOND)
    assert steady.now() == start_ns + 6 * SECOND


def test_steady_time_goes_back_with_the_wall_clock() -> None:
    clock = FakeClock()
    steady = SteadyTime(clock)
    start_ns = clock.now()
    clock._wall_ns -= 1000 * SECOND
    assert steady.now() == start_ns - 1000 * SECOND


def test_wait_for_less_than_a_loop_can_measure_does_not_keep_it_busy(time_ns: list[int]) -> None:
    loop = EarlyLoop()
    LoopClock(loop).call_at(5 * MILLISECOND, lambda: None)  # type: ignore[arg-type]
    time_ns[0] = 5 * MILLISECOND - 1
    loop.turn()
    # uvloop rounds to milliseconds, and takes 0 for the next turn.
    assert [round(delay_s * 1000) for delay_s in loop.delays] == [5, 1]
