"""Sampling: the share that gets through, and that the draw is the id's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columns import id_of
from penstock.filters.sample import keep, keep_one
from tests.filters.imports import loaded_by

IDS = np.arange(1, 10_001)


def test_nsq_case_22_of_ten_thousand_at_rate_42_between_37_and_47_percent_get_through() -> None:
    assert 0.37 <= keep(IDS, 42).mean() <= 0.47


@pytest.mark.parametrize("rate", [1, 10, 42, 50, 90, 98])
@pytest.mark.parametrize("shard", [0, 1, 32_767])
def test_one_more_percent_than_the_rate_gets_through_in_every_shard(rate: int, shard: int) -> None:
    ids = np.arange(100_000) + id_of(shard, 0)
    # Five standard deviations of a fair draw.
    assert abs(keep(ids, rate).mean() - (rate + 1) / 100) < 5 * 0.5 / np.sqrt(len(ids))


def test_rate_zero_and_rate_ninety_nine_keep_everything() -> None:
    assert keep(IDS, 0).all()
    assert keep(IDS, 99).all()
    assert keep_one(7, 0)
    assert keep_one(7, 99)


def test_a_higher_rate_keeps_all_that_a_lower_one_keeps() -> None:
    low, high = keep(IDS, 20), keep(IDS, 30)
    assert not (low & ~high).any()


def test_the_draw_is_splitmix64_in_every_release() -> None:
    # The first two numbers published for seed 0: e220a8397b1dcdaf and 6e789e6aa1b965f4, 88.3 % and 43.2 % of 2^64.
    assert [keep_one(0, rate) for rate in (87, 88)] == [False, True]
    assert [keep_one(0x9E3779B97F4A7C15, rate) for rate in (42, 43)] == [False, True]


@pytest.mark.parametrize("rate", [-1, 100])
def test_a_rate_out_of_range_is_refused(rate: int) -> None:
    with pytest.raises(ValueError, match="choose one from 0"):
        keep(IDS, rate)
    with pytest.raises(ValueError, match="choose one from 0"):
        keep_one(1, rate)


@given(st.lists(st.integers(0, 2**63 - 1), max_size=50), st.integers(0, 99))
def test_a_batch_gets_what_its_ids_get_one_by_one(ids: list[int], rate: int) -> None:
    assert keep(np.array(ids, np.int64), rate).tolist() == [keep_one(id_, rate) for id_ in ids]


def test_the_filter_needs_nothing_of_the_node() -> None:
    assert loaded_by("penstock.filters.sample") == ["penstock", "penstock.filters", "penstock.filters.sample"]
