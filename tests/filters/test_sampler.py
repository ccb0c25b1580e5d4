"""The sampler chooses one row in n, the same ones however it is asked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columns import id_of
from penstock.filters.sample import keep_percent
from penstock.filters.sampler import ONE_IN_MAX, Sampler, base_of

bases = st.integers(0, (1 << 32) - 1)
offsets = st.integers(0, 1 << 47)


@given(st.integers(1, 3000), bases, offsets, st.integers(1, 6000))
def test_range_and_array_are_sampled_as_one_row_after_the_other(one_in: int, base: int, first: int, count: int) -> None:
    sampler = Sampler(one_in)
    chosen = [offset for offset in range(first, first + count) if sampler.one(base, offset)]
    assert sampler.of_range(base, first, count) == chosen
    assert (first + np.flatnonzero(sampler.of(base, np.arange(first, first + count)))).tolist() == chosen


@given(st.sampled_from([2, 10, 64, 1000]), bases, offsets)
def test_sampler_chooses_one_in_so_many(one_in: int, base: int, first: int) -> None:
    assert len(Sampler(one_in).of_range(base, first, 100 * one_in)) == pytest.approx(100, abs=3)


def test_of_many_short_topics_some_are_in_the_sample() -> None:
    sampler = Sampler(64)
    chosen = sum(len(sampler.of_range(base_of(f"topic-{number}", 0), 0, 10)) for number in range(6400))
    assert 800 < chosen < 1200


def test_sampler_has_nothing_to_do_with_the_sample_of_a_consumer() -> None:
    rows = np.array(Sampler(64).of_range(base_of("t", 0), 0, 640_000))
    kept = keep_percent(rows + id_of(0, 0), 10).mean()
    assert 0.08 < kept < 0.12


def test_sampler_that_makes_no_sense_is_refused() -> None:
    for one_in in (0, -1, ONE_IN_MAX + 1):
        with pytest.raises(ValueError, match="choose 1"):
            Sampler(one_in)
