"""Bounds on rate and size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.intake.limits import SECOND_NS, RateWindow


def test_rate_fills_up_within_a_second_and_starts_anew_with_the_next() -> None:
    window = RateWindow(10)
    assert window.allow(6, 5 * SECOND_NS)
    assert window.allow(4, 6 * SECOND_NS - 1)
    assert not window.allow(1, 6 * SECOND_NS - 1)
    assert window.allow(10, 6 * SECOND_NS)


def test_group_is_let_in_whole_or_not_at_all() -> None:
    window = RateWindow(10)
    assert window.allow(6, 0)
    assert not window.allow(5, 0)
    assert window.refused == 5
    assert window.allow(4, 0)


def test_group_larger_than_the_rate_passes_once_and_is_paid_by_later_seconds() -> None:
    window = RateWindow(10)
    assert window.allow(35, 0)
    assert not window.allow(1, 1 * SECOND_NS)
    assert not window.allow(1, 2 * SECOND_NS)
    # 35 messages at 10 a second take three seconds and half of the fourth.
    assert window.allow(5, 3 * SECOND_NS)
    assert not window.allow(1, 3 * SECOND_NS)
    assert window.allow(10, 4 * SECOND_NS)


def test_rate_zero_is_no_limit() -> None:
    window = RateWindow(0)
    assert all(window.allow(1_000_000, 0) for _ in range(10))


@given(st.integers(1, 50), st.lists(st.tuples(st.integers(0, 3 * SECOND_NS), st.integers(1, 20)), max_size=60))
def test_rate_holds_over_any_whole_number_of_seconds(rate: int, groups: list[tuple[int, int]]) -> None:
    window, now_ns, taken = RateWindow(rate), 0, dict[int, int]()
    for step_ns, count in groups:
        now_ns += step_ns
        if window.allow(count, now_ns):
            taken[now_ns // SECOND_NS] = taken.get(now_ns // SECOND_NS, 0) + count
    for first in taken:
        for last in taken:
            passed = sum(count for second, count in taken.items() if first <= second <= last)
            # One group may be let in ahead of its time.
            assert passed <= rate * max(0, last - first + 1) + 20
