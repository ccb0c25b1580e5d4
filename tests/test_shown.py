from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.columns import OFFSET_BITS, OFFSET_MAX, SHARD_MAX, id_of
from penstock.shown import SPACE, _unmixed, cuts, hidden_id, hidden_ids, shown_id, shown_ids

keys = st.integers(0, (1 << 63) - 1)
ids = st.integers(1, SPACE) | st.builds(id_of, st.integers(0, SHARD_MAX), st.integers(0, OFFSET_MAX))


@given(id_=ids, key=keys)
def test_a_shown_id_leads_back_to_its_id(id_: int, key: int) -> None:
    shown = shown_id(id_, key)
    assert 0 <= shown < SPACE
    assert hidden_id(shown, key) == id_


@given(shown=st.integers(0, SPACE - 1), key=keys)
def test_every_number_of_the_range_is_some_id(shown: int, key: int) -> None:
    id_ = hidden_id(shown, key)
    assert 1 <= id_ <= SPACE
    assert shown_id(id_, key) == shown


@given(some=st.lists(ids, max_size=40), key=keys)
def test_an_array_gets_what_its_ids_would_get_one_by_one(some: list[int], key: int) -> None:
    array = np.array(some, np.int64)
    shown = shown_ids(array, key)
    assert shown.tolist() == [shown_id(id_, key) for id_ in some]
    assert hidden_ids(shown, key).tolist() == some


@given(key=keys)
def test_what_would_lie_beyond_the_range_goes_around(key: int) -> None:
    rounds = _rounds_of(key)
    place = _unmixed(SPACE, rounds)
    if place == SPACE:  # it stays outside by itself
        return
    assert shown_id(place + 1, key) != SPACE
    assert hidden_id(shown_id(place + 1, key), key) == place + 1
    assert shown_ids(np.array([place + 1]), key).tolist() == [shown_id(place + 1, key)]
    last = shown_id(place + 1, key)
    assert hidden_ids(np.array([last]), key).tolist() == [place + 1]


def _rounds_of(key: int) -> tuple[int, int, int]:
    from penstock.shown import _rounds

    return _rounds(key)


@given(key=keys, shard=st.integers(0, SHARD_MAX), first=st.integers(0, 1 << 40), parts=st.integers(2, 50))
def test_ids_that_follow_each_other_fill_the_range_evenly(key: int, shard: int, first: int, parts: int) -> None:
    rows = 20_000
    shown = shown_ids((shard << OFFSET_BITS) + first + 1 + np.arange(rows), key)
    assert len(np.unique(shown)) == rows
    counts = np.histogram(shown, np.array(cuts(0, SPACE, parts), np.float64))[0]
    # Six deviations of a fair throw: one key in 10^9 would be that uneven.
    assert np.abs(counts - rows / parts).max() < 6 * (rows / parts) ** 0.5


def test_another_key_shows_other_ids() -> None:
    some = np.arange(1, 1001)
    assert not np.isin(shown_ids(some, 1), shown_ids(some, 2)).any()


def test_cuts_are_those_of_the_specification() -> None:
    assert cuts(0, SPACE, 3) == [0, 3074457345618258602, 6148914691236517204, SPACE]
    low, high = cuts(0, SPACE, 3)[1:3]
    assert cuts(low, high, 4)[1:4] == [3843071682022823252, 4611686018427387903, 5380300354831952553]


@given(nodes=st.integers(1, 9), parts=st.integers(1, 50), id_=st.integers(0, SPACE - 1), data=st.data())
def test_dynamiq_case_25_each_id_is_in_exactly_one_partition_of_exactly_one_node(
    nodes: int, parts: int, id_: int, data: st.DataObject
) -> None:
    borders = cuts(0, SPACE, nodes)
    ranges = [(low, high) for first, end in pairwise(borders) for low, high in pairwise(cuts(first, end, parts))]
    edge, _ = data.draw(st.sampled_from(ranges))
    for tried in (id_, edge, max(edge - 1, 0), 0, SPACE - 1):
        assert sum(low <= tried < high for low, high in ranges) == 1
