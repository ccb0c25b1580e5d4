from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import Refusal
from penstock.units import times

NOW_NS = 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    ("value", "expected_ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01 00:00", 0),
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("1970-01-01T00:00:00,000000001Z", 1),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1969-12-31T23:00:00-0100", 0),
        (1, 1_000_000),
        (0.5, 500_000),
        ("1700000000000", NOW_NS),
        ("30s", NOW_NS + 30_000_000_000),
        (" 1h30m ", NOW_NS + 5_400_000_000_000),
    ],
)
def test_moment_is_read_in_all_its_forms(value: str | int | float, expected_ns: int) -> None:
    assert times.moment(value, NOW_NS, "due") == expected_ns


def test_duration_counts_back_where_the_past_is_meant() -> None:
    assert times.past("30s", NOW_NS, "since") == NOW_NS - 30_000_000_000
    with pytest.raises(Refusal, match="since"):
        times.past("100000d", NOW_NS, "since")


@given(st.integers(0, (1 << 63) - 1))
def test_shown_moment_reads_back_as_the_same_nanosecond(time_ns: int) -> None:
    assert times.instant(times.shown(time_ns), "x") == time_ns


@example(1.7e308)
@example(float("nan"))
@given(st.text() | st.integers() | st.floats())
def test_anything_is_read_or_refused(value: str | int | float) -> None:
    for now_ns in (NOW_NS, None):
        try:
            found = times.instant(value, "due") if now_ns is None else times.moment(value, now_ns, "due")
            assert 0 <= found < 1 << 63
        except Refusal as refusal:
            assert refusal.code == "bad_column"
            assert "due" in str(refusal)


def test_duration_has_a_limit() -> None:
    assert times.duration("60s", "wait", 60_000_000_000) == 60_000_000_000
    with pytest.raises(Refusal, match=r"wait '61s' is above the limit of 60s"):
        times.duration("61s", "wait", 60_000_000_000)
