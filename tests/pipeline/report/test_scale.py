"""Distributions against sorted lists, spans and windows against arithmetic: no Spark."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.jobs.report.scale import PER_DOUBLING, PLAIN, Distribution
from penstock.pipeline.jobs.report.span import (
    DAY_US,
    FAR_US,
    HOUR_US,
    LATER,
    MINUTE_US,
    MINUTES,
    NEAR_US,
    SECOND_US,
    Span,
    begin_us,
    windows,
)


def classed(values: list[int], weight: int = 1) -> Distribution:
    """Count values in the classes that Spark puts them into."""
    classes: dict[int, list[int]] = {}
    for value in values:
        number = value if value < PLAIN else int(math.log2(value) * PER_DOUBLING) + PLAIN
        classes.setdefault(number, []).append(value)
    return Distribution((weight * len(some), min(some), max(some)) for some in classes.values())


@given(st.lists(st.integers(0, 1 << 50), min_size=1, max_size=200), st.floats(0, 1), st.integers(1, 1000))
def test_a_percentile_is_within_a_class_of_the_value_of_that_rank(values: list[int], share: float, weight: int) -> None:
    found = classed(values, weight)
    rank = max(math.ceil(share * len(values) - 1e-9), 1)
    true = sorted(values)[rank - 1]
    assert abs(found.percentile(share) - true) <= true * (2 ** (1 / PER_DOUBLING) - 1) + 1e-6
    assert (found.total, found.least, found.greatest) == (weight * len(values), min(values), max(values))


def test_no_values_have_no_percentile() -> None:
    assert Distribution(()).percentile(0.5) == 0
    assert Distribution(()).total == 0


def test_histograms_count_every_value_once() -> None:
    found = classed([0, 1, 5, 5, 99, 1000]).counts([0, 1, 10, 100])
    assert found == [1, 3, 2]  # what is beyond the last edge counts below it


@given(st.integers(0, 1 << 52), st.integers(0, 1 << 52), st.integers(1, 500))
def test_a_span_covers_its_range_in_about_as_many_steps_as_asked(since: int, length: int, steps: int) -> None:
    span = Span.over(since, since + length, steps)
    assert span.start_us <= since
    assert span.start_us + span.steps * span.width_us >= since + max(length, 1)
    assert 1 <= span.steps <= steps + 1


def test_steps_are_round() -> None:
    widths = [Span.over(0, length, 96).width_us for length in (SECOND_US, 600 * SECOND_US, 24 * HOUR_US, 90 * DAY_US)]
    assert widths == [20_000, 10 * SECOND_US, 15 * MINUTE_US, DAY_US]


def test_slots_of_waiting_messages_begin_one_after_the_other() -> None:
    begins = [begin_us(slot) for slot in range(LATER + 1)]
    assert {later - first for first, later in pairwise(begins)} == {MINUTE_US, HOUR_US}
    assert (begins[MINUTES], begins[LATER]) == (NEAR_US, FAR_US)


@given(
    st.dictionaries(st.sampled_from("ab"), st.dictionaries(st.integers(0, LATER), st.integers(1, 9))),
    st.integers(1, 60),
)
def test_every_waiting_message_is_in_one_window_or_later(slots: dict[str, dict[int, int]], count: int) -> None:
    found = windows(0, slots, count)
    assert found.total == sum(many for one in slots.values() for many in one.values())
    assert all(len(row) <= count for row in found.counts.values())


def test_windows_are_as_wide_as_nearly_all_messages_need() -> None:
    near = windows(0, {"t": {0: 50, 47: 49}}, 48)
    assert (near.width_us, near.counts["t"][47]) == (MINUTE_US, 49)
    far = windows(0, {"t": {0: 1000, MINUTES + 3: 100, LATER: 1}}, 48)
    assert (far.width_us, far.counts["t"][0], far.counts["t"][9], far.later) == (HOUR_US, 1000, 100, {"t": 1})
