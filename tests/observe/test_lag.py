from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.clock import MILLISECOND, SECOND
from penstock.observe.lag import BOUNDS_NS, SAMPLE_NS, LoopLag
from tests.fakes import FakeClock, FakeTimer


class LateClock(FakeClock):
    """Every call comes this much later than it was asked for."""

    def __init__(self, late_ns: int) -> None:
        super().__init__()
        self.late_ns = late_ns

    def call_at(self, monotonic_ns: int, call: Callable[[], None]) -> FakeTimer:
        return super().call_at(monotonic_ns + self.late_ns, call)


@pytest.mark.parametrize("late_ns", [0, MILLISECOND, MILLISECOND + 1, 30 * MILLISECOND, 20 * SECOND])
def test_lateness_is_counted_between_its_bounds(late_ns: int) -> None:
    clock = LateClock(late_ns)
    lag = LoopLag(clock)
    lag.start()
    clock.advance(4 * (SAMPLE_NS + late_ns))
    assert (sum(lag.counts), lag.sum_ns) == (4, 4 * late_ns)
    at = next((number for number, bound in enumerate(BOUNDS_NS) if bound >= late_ns), len(BOUNDS_NS))
    assert lag.counts[at] == 4


def test_stopped_measure_leaves_no_timer() -> None:
    clock = FakeClock()
    lag = LoopLag(clock)
    lag.start()
    lag.stop()
    clock.advance(10 * SECOND)
    assert sum(lag.counts) == 0
