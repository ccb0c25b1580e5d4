"""The index finds batches by offset and time, and knows when its file is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.index import ENTRY_BYTES, FEW, Index

WORDS = st.integers(-(2**63), 2**63 - 1)


def index_of(count: int) -> Index:
    index = Index()
    for number in range(count):
        index.add(number * 10, 8, number * 100, 100, 1000 + number, 1005 + number)
    return index


def entries(index: Index) -> list[tuple[int, ...]]:
    return [index[number] for number in range(len(index))]


@pytest.mark.parametrize("count", [0, 1, FEW, FEW + 1, 500])
def test_entries_survive_the_file(count: int) -> None:
    again, whole = Index.decoded(index_of(count).encoded())
    assert whole
    assert entries(again) == entries(index_of(count))


@given(st.lists(st.tuples(WORDS, WORDS, WORDS, WORDS, WORDS, WORDS), min_size=1, max_size=3 * FEW))
def test_few_and_many_entries_are_written_alike(rows: list[tuple[int, int, int, int, int, int]]) -> None:
    index = Index()
    for row in rows:
        index.add(*row)
    one_by_one = b"".join(index.encoded(number, number + 1) for number in range(len(index)))
    assert index.encoded() == one_by_one
    assert entries(Index.decoded(one_by_one)[0]) == rows


@given(st.integers(0, 20 * ENTRY_BYTES * 8 - 1))
def test_any_flipped_bit_is_seen(bit: int) -> None:
    data = bytearray(index_of(20).encoded())
    data[bit // 8] ^= 1 << bit % 8
    hit = bit // 8 // ENTRY_BYTES
    before, whole = Index.decoded(bytes(data))
    assert not whole
    assert entries(before) == entries(index_of(20))[:hit]
    rest = entries(index_of(20))
    del rest[hit]
    assert entries(Index.salvaged(bytes(data))) == rest


def test_half_an_entry_at_the_end_does_not_count() -> None:
    data = index_of(5).encoded()
    index, whole = Index.decoded(data[:-3])
    assert not whole
    assert len(index) == 4


def test_offset_is_found_in_a_batch_or_in_the_next() -> None:
    index = index_of(10)
    assert index.at(0) == index.at(7) == 0
    assert index.at(8) == index.at(9) == index.at(10) == 1
    assert index.at(97) == 9
    assert index.at(98) == 10
    assert Index().at(5) == 0


def test_time_is_found_even_if_times_step_back() -> None:
    index = Index()
    for number, (low, high) in enumerate([(5, 9), (1, 2), (3, 20), (4, 6)]):
        index.add(number, 1, number, 1, low, high)
    assert index.since(0) == 0
    assert index.since(9) == 0
    assert index.since(10) == 2
    assert index.since(21) == 4
    assert Index().since(0) == 0
