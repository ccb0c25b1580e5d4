"""The due timer of a topic."""

from __future__ import annotations

import numpy as np

from penstock.clock import MILLISECOND, SECOND
from penstock.delivery.timer import REST_NS_MAX, RESTS, DueTimer
from tests.fakes import FakeClock


class Slow:
    """A look that takes a while."""

    def __init__(self, takes_ns: int) -> None:
        self.clock = FakeClock()
        self.takes_ns = takes_ns
        self.looks: list[int] = []
        self.popped: list[int] = []
        self.timer = DueTimer(self.clock, 1, self._look, tuple)

    def _look(self) -> None:
        self.looks.append(self.clock.monotonic())
        due = self.timer.pop(0, self.clock.now())
        self.popped.append(0 if due is None else len(due[0]))
        self.clock.advance(self.takes_ns)

    def wait(self, *after_ns: int) -> None:
        now_ns = self.clock.now()
        self.timer.wait_for(0, np.array(sorted(after_ns)) + now_ns, np.arange(len(after_ns)))


def test_rows_that_fall_due_while_it_rests_go_out_together() -> None:
    slow = Slow(MILLISECOND)
    slow.wait(*(number * MILLISECOND // 10 for number in range(1, 101)))
    slow.clock.advance(20 * MILLISECOND)
    assert sum(slow.popped) == 100
    gaps = np.diff(slow.looks)
    assert (gaps >= (1 + RESTS) * MILLISECOND).all()
    assert (gaps < (2 + RESTS) * MILLISECOND).all()


def test_it_rests_no_longer_than_its_bound() -> None:
    slow = Slow(50 * MILLISECOND)
    slow.wait(1, MILLISECOND)
    slow.clock.advance(200 * MILLISECOND)
    assert sum(slow.popped) == 2
    assert slow.looks[1] - slow.looks[0] <= 50 * MILLISECOND + REST_NS_MAX


def test_a_row_after_a_quiet_time_waits_for_nothing() -> None:
    slow = Slow(MILLISECOND)
    slow.wait(1, 30 * MILLISECOND)
    began_ns = slow.clock.monotonic()
    slow.clock.advance(100 * MILLISECOND)
    assert slow.looks[-1] - began_ns == 30 * MILLISECOND


def test_rows_are_announced_ahead_of_their_time_and_are_still_told_as_not_due() -> None:
    clock = FakeClock()
    lead_ns = 2 * SECOND
    found: list[tuple[list[int], int]] = []

    def look() -> None:
        announced = timer.pop(0, clock.now())
        assert announced is not None
        if len(announced[0]):
            found.append((announced[0].tolist(), announced[1] - clock.now()))

    timer = DueTimer(clock, 1, look, tuple, lambda: lead_ns)
    start_ns = clock.now()
    due_ns = start_ns + np.array([1, 5, 10]) * SECOND
    timer.wait_for(0, due_ns, np.arange(3))
    clock.advance(3 * SECOND)
    assert found == [([0], lead_ns), ([1], lead_ns)]
    assert timer.seen_ns() == start_ns + 5 * SECOND
    assert timer.between(0, 0, 3) == 2  # the first is due, the second is announced alone
    coming_ns, coming = timer.coming(0, start_ns + 20 * SECOND)
    assert dict(zip(coming.tolist(), coming_ns.tolist(), strict=True)) == {1: due_ns[1], 2: due_ns[2]}
    assert timer.coming(0, start_ns + 4 * SECOND)[1].tolist() == []
    lead_ns = 0
    clock.advance(6 * SECOND)
    assert found[2:] == []
    clock.advance(SECOND)
    assert found[2:] == [([2], 0)]
    assert timer.between(0, 0, 3) == 0
