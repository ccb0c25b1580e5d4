"""The due calendar against a sorted list, and what its calls cost in rows touched."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.delivery import calendar as due
from penstock.delivery.calendar import (
    AHEAD,
    BLOCK_ROWS,
    EARLY_PAUSE_NS,
    LOOSE_ROWS_MAX,
    SHIFTS,
    STAGED_ROWS_MAX,
    Calendar,
)

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
NOW = 1_700_000_000 * SECOND
INT64_MAX = (1 << 63) - 1


def array(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def filled(due_ns: npt.NDArray[np.int64], now_ns: int = NOW) -> Calendar:
    calendar = Calendar(now_ns)
    calendar.put(due_ns, np.arange(len(due_ns)))
    return calendar


def drained(calendar: Calendar, now_ns: int, end_ns: int) -> list[tuple[int, int]]:
    """Pop whenever the calendar asks for it; return (time, offset)."""
    seen = []
    while (wake_ns := calendar.next_ns()) is not None and wake_ns <= end_ns:
        now_ns = max(now_ns, wake_ns)
        seen += [(now_ns, offset) for offset in calendar.pop(now_ns).tolist()]
    return seen


def test_empty_calendar_has_nothing_to_wake_for() -> None:
    calendar = Calendar(NOW)
    assert calendar.next_ns() is None
    assert len(calendar) == 0
    assert calendar.pop(NOW + HOUR).tolist() == []


def test_row_leaves_at_its_due_time_and_not_a_nanosecond_before() -> None:
    calendar = Calendar(NOW)
    calendar.put_one(NOW + SECOND, 7)
    assert calendar.pop(NOW + SECOND - 1).tolist() == []
    assert calendar.pop(NOW + SECOND).tolist() == [7]
    assert calendar.next_ns() is None


def test_row_already_due_leaves_at_once() -> None:
    calendar = Calendar(NOW)
    calendar.put_one(0, 1)
    calendar.put(np.full(100, NOW - HOUR), np.arange(2, 102))
    assert calendar.pop(NOW).tolist() == list(range(1, 102))


def test_rows_of_one_moment_leave_by_offset() -> None:
    calendar = Calendar(NOW)
    calendar.put(np.full(50, NOW + HOUR), np.arange(50)[::-1])
    calendar.put_one(NOW + HOUR, 50)
    assert calendar.pop(NOW + HOUR).tolist() == list(range(51))


@pytest.mark.parametrize("now_ns", [0, -HOUR, NOW, INT64_MAX - HOUR])
def test_calendar_starts_at_any_time(now_ns: int) -> None:
    calendar = filled(now_ns + np.arange(1, 101) * SECOND, now_ns)
    assert drained(calendar, now_ns, now_ns + HOUR) == [(now_ns + (i + 1) * SECOND, i) for i in range(100)]


def test_every_due_time_of_the_integer_range_is_kept() -> None:
    far = array(*(INT64_MAX // 199 * i for i in range(199)), INT64_MAX)
    calendar = filled(far)
    assert calendar.pop(INT64_MAX).tolist() == list(range(200))


@pytest.mark.parametrize("count", [1, STAGED_ROWS_MAX - 1, STAGED_ROWS_MAX, 3 * STAGED_ROWS_MAX])
def test_single_rows_leave_in_time_whether_staged_or_filed(count: int) -> None:
    calendar = Calendar(NOW)
    for offset in range(count):
        calendar.put_one(NOW + (count - offset) * SECOND, offset)
    assert len(calendar) == count
    assert drained(calendar, NOW, NOW + HOUR) == [(NOW + (count - o) * SECOND, o) for o in reversed(range(count))]


def test_rows_put_while_a_slot_is_open_join_it() -> None:
    calendar = filled(NOW + np.arange(100) * SECOND // 10)
    got = calendar.pop(NOW + SECOND).tolist()
    calendar.put(NOW + SECOND + np.arange(1, 101), np.arange(1000, 1100))
    got += calendar.pop(NOW + SECOND + 100).tolist()
    assert got == [*range(11), *range(1000, 1100)]


def test_a_jump_over_years_costs_no_look_at_empty_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    real = due._Level.open

    def counted(self: due._Level, key: int) -> list[due._Slot]:
        opened.append(key)
        return real(self, key)

    calendar = filled(np.full(100, NOW + 24 * HOUR))
    calendar.put(np.full(100, NOW + 100_000 * HOUR), np.arange(100, 200))
    monkeypatch.setattr(due._Level, "open", counted)
    assert calendar.pop(NOW + 50_000 * HOUR).tolist() == list(range(100))
    assert calendar.pop(NOW + 100_000 * HOUR).tolist() == list(range(100, 200))
    assert len(opened) <= 2 * (len(SHIFTS) + sum(AHEAD))


def test_clock_that_goes_back_makes_nothing_early() -> None:
    calendar = filled(NOW + np.arange(100) * SECOND)
    assert calendar.pop(NOW + 50 * SECOND).tolist() == list(range(51))
    assert calendar.pop(NOW - HOUR).tolist() == []
    assert calendar.pop(NOW + 51 * SECOND).tolist() == [51]


def test_caller_gets_its_own_array_and_the_calendar_does_not_keep_the_given_one() -> None:
    due_ns, offsets = NOW + np.arange(100), np.arange(100)
    calendar = Calendar(NOW)
    calendar.put(due_ns, offsets)
    due_ns[:], offsets[:] = 0, -1
    got = calendar.pop(NOW + 49)
    assert got.tolist() == list(range(50))
    assert got.base is None  # A view would keep the whole run in memory.
    got[:] = -1
    assert calendar.pop(NOW + 99).tolist() == list(range(50, 100))


def test_no_call_touches_much_more_than_it_returns() -> None:
    """A day of rows, asked for in the calendar's own rhythm; costs are rows touched, so they hold on any machine."""
    rows = 12 * BLOCK_ROWS
    rng = np.random.default_rng(5)
    due_ns = NOW + rng.integers(0, 24 * HOUR, rows)
    calendar = Calendar(NOW)
    for start in range(0, rows, 1000):
        before = calendar.touched
        calendar.put(due_ns[start : start + 1000], np.arange(start, min(start + 1000, rows)))
        assert calendar.touched - before <= LOOSE_ROWS_MAX + 1000
    now_ns, got, worst = NOW, 0, 0
    while (wake_ns := calendar.next_ns()) is not None:
        # A timer of 5 s, because a day has too many steps otherwise.
        now_ns = max(wake_ns, now_ns + 5 * SECOND)
        before = calendar.touched
        returned = len(calendar.pop(now_ns))
        got += returned
        worst = max(worst, calendar.touched - before - 4 * returned)
    assert got == rows
    assert worst <= 2 * BLOCK_ROWS
    # A row is moved once by each level, by a merge or two and by its way out.
    assert calendar.touched <= 9 * rows


def test_a_burst_of_one_moment_is_sorted_before_it_is_due() -> None:
    rows = 30 * BLOCK_ROWS
    moment_ns = NOW + HOUR
    calendar = filled(np.full(rows, moment_ns) + np.arange(rows) % 1000)
    worst = 0
    while (wake_ns := calendar.next_ns()) is not None and wake_ns < moment_ns:
        before = calendar.touched
        assert len(calendar.pop(wake_ns)) == 0
        worst = max(worst, calendar.touched - before)
    assert worst <= 2 * BLOCK_ROWS
    before = calendar.touched
    got = calendar.pop(moment_ns + 1000)
    assert calendar.touched - before <= rows
    assert got.tolist() == sorted(range(rows), key=lambda offset: (offset % 1000, offset))


def test_early_splits_pause_between_each_other() -> None:
    calendar = filled(NOW + 20 * HOUR + np.arange(4 * BLOCK_ROWS))
    wakes = []
    while (wake_ns := calendar.next_ns()) is not None and wake_ns < NOW + 20 * HOUR:
        wakes.append(wake_ns)
        calendar.pop(wake_ns)
    assert min(np.diff(wakes)) >= EARLY_PAUSE_NS
    assert len(wakes) < 100


dues = st.one_of(
    st.integers(-SECOND, 3 * SECOND),
    st.integers(0, 20 * HOUR),
    st.integers(0, 1000 * HOUR),
    st.sampled_from([n << shift for shift in SHIFTS for n in (1, 2, 63, 64, 65)]),
)


@given(st.integers(0, 1 << 52), st.lists(dues, max_size=80), st.lists(st.integers(0, 30 * HOUR), max_size=20))
def test_batch_and_single_puts_agree(now_ns: int, delays: list[int], steps: list[int]) -> None:
    due_ns = [now_ns + delay for delay in delays]
    batch, single = filled(np.array(due_ns, np.int64), now_ns), Calendar(now_ns)
    for offset, when in enumerate(due_ns):
        single.put_one(when, offset)
    for step in steps:
        now_ns += step
        assert batch.pop(now_ns).tolist() == single.pop(now_ns).tolist()
        assert len(batch) == len(single)


class CalendarAgainstList(RuleBasedStateMachine):
    """Random puts, pops and jumps; the reference is a list that is sorted at every pop."""

    def __init__(self) -> None:
        super().__init__()
        # Small blocks, so that a few hundred rows go through everything that millions would.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(due, "BLOCK_ROWS", 64)
        self.patch.setattr(due, "LOOSE_ROWS_MAX", 50)
        self.patch.setattr(due, "STAGED_ROWS_MAX", 20)

    def teardown(self) -> None:
        self.patch.undo()

    @initialize(now_ns=st.integers(0, 1 << 61))
    def start(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self.calendar = Calendar(now_ns)
        self.waiting: list[tuple[int, int]] = []
        self.offset = 0

    @rule(delay=dues)
    def put_one(self, delay: int) -> None:
        self.calendar.put_one(self.now_ns + delay, self.offset)
        self.waiting.append((self.now_ns + delay, self.offset))
        self.offset += 1

    @rule(delays=st.lists(dues, min_size=1, max_size=40))
    def put(self, delays: list[int]) -> None:
        pairs = [(self.now_ns + delay, self.offset + i) for i, delay in enumerate(delays)]
        self.calendar.put(array(*(when for when, _ in pairs)), array(*(offset for _, offset in pairs)))
        self.waiting += pairs
        self.offset += len(pairs)

    @rule(spread=st.sampled_from([1, SECOND, HOUR, 100 * HOUR]), seed=st.integers(0, 9))
    def put_many(self, spread: int, seed: int) -> None:
        due_ns = self.now_ns + np.random.default_rng(seed).integers(0, spread, 200 + seed)
        offsets = np.arange(self.offset, self.offset + len(due_ns))
        self.calendar.put(due_ns, offsets)
        self.waiting += zip(due_ns.tolist(), offsets.tolist(), strict=True)
        self.offset += len(due_ns)

    @rule(step=st.one_of(st.just(0), st.integers(0, SECOND), st.integers(0, HOUR), st.integers(0, 2000 * HOUR)))
    def pop_after(self, step: int) -> None:
        self.now_ns += step
        self.check_pop()

    @rule(times=st.integers(1, 20))
    def pop_when_asked(self, times: int) -> None:
        for _ in range(times):
            wake_ns = self.calendar.next_ns()
            if wake_ns is None:
                return
            self.now_ns = max(self.now_ns, wake_ns)
            self.check_pop()

    def check_pop(self) -> None:
        expected = sorted(pair for pair in self.waiting if pair[0] <= self.now_ns)
        self.waiting = [pair for pair in self.waiting if pair[0] > self.now_ns]
        assert self.calendar.pop(self.now_ns).tolist() == [offset for _, offset in expected]

    @invariant()
    def counts_and_wakes_in_time(self) -> None:
        assert len(self.calendar) == len(self.waiting)
        wake_ns = self.calendar.next_ns()
        assert (wake_ns is None) == (not self.waiting)
        assert wake_ns is None or wake_ns <= min(self.waiting)[0]


TestCalendarAgainstList = CalendarAgainstList.TestCase


@given(st.lists(st.integers(0, 10**12), max_size=600), st.integers(0, 600), st.integers(0, 600))
@settings(deadline=None, max_examples=40)
def test_rows_between_two_offsets_are_counted_wherever_they_lie(delays: list[int], first: int, end: int) -> None:
    calendar = Calendar(NOW)
    for start in range(0, len(delays), 50):
        part = np.array(delays[start : start + 50], np.int64)
        calendar.put(NOW + part, np.arange(start, start + len(part)))
    for step in (0, 10**9, 10**11):
        popped = set(calendar.pop(NOW + step).tolist())
        assert all(delays[offset] <= step for offset in popped)
        left = sum(delays[offset] > step for offset in range(first, min(end, len(delays))))
        assert calendar.between(first, end) == left


@settings(deadline=None, max_examples=50)
@given(
    delays=st.lists(st.integers(-HOUR, 40 * HOUR), max_size=200),
    until=st.integers(-HOUR, 50 * HOUR),
    passed=st.integers(0, 3 * HOUR),
)
def test_rows_due_before_a_time_are_found_wherever_they_lie(delays: list[int], until: int, passed: int) -> None:
    calendar = filled(array(*(NOW + delay for delay in delays)))
    calendar.pop(NOW + passed)
    due_ns, offsets = calendar.coming(NOW + until)
    expected = [(NOW + delay, number) for number, delay in enumerate(delays) if passed < delay < until]
    assert sorted(zip(due_ns.tolist(), offsets.tolist(), strict=True)) == sorted(expected)
