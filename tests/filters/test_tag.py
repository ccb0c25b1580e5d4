"""Tags as codes: numbering, batches against single rows, and grouping."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.filters.tag import NONE, OVERFLOW, TagTable, grouped
from tests.filters.imports import loaded_by

TAGS = st.one_of(st.none(), st.sampled_from(["", "a", "A", "ä", "tag", "x" * 100, "x" * 101]), st.text(max_size=3))


def test_tags_are_numbered_as_they_appear_and_keep_their_number() -> None:
    table = TagTable()
    assert table.codes(["b", None, "a", "b"]).tolist() == [1, 0, 2, 1]
    assert table.codes(pa.array(["a", "c", None])).tolist() == [2, 3, 0]
    assert [table.name(code) for code in range(4)] == ["", "b", "a", "c"]
    assert len(table) == 3


def test_tags_are_compared_byte_by_byte() -> None:
    table = TagTable()
    assert len({table.code(tag) for tag in ("a", "A", "a ", "ä", "a\u0308")}) == 5


def test_a_missing_tag_and_an_empty_one_are_no_tag() -> None:
    table = TagTable()
    assert (table.code(None), table.code("")) == (NONE, NONE)
    assert table.codes(pa.array(["", None], pa.string())).tolist() == [NONE, NONE]


def test_a_tag_too_long_for_any_client_to_ask_for_counts_as_none_and_is_not_kept() -> None:
    table = TagTable()
    assert table.code("x" * 100) == 1
    assert table.code("x" * 101) == NONE
    assert table.code("ä" * 51) == NONE
    assert len(table) == 1


def test_tags_beyond_a_full_table_share_the_overflow_code_and_known_ones_keep_theirs() -> None:
    table = TagTable()
    codes = table.codes(pa.array([f"t{n}" for n in range(70_000)]))
    assert codes[:3].tolist() == [1, 2, 3]
    assert codes[65_533] == 65_534
    assert (codes[65_534:] == OVERFLOW).all()
    assert (table.code("t0"), table.code("new")) == (1, OVERFLOW)
    with pytest.raises(KeyError):
        table.name(OVERFLOW)


@given(st.lists(st.lists(TAGS, max_size=40), max_size=4))
def test_a_batch_gets_the_codes_its_rows_get_one_by_one(batches: list[list[str | None]]) -> None:
    singles, lists, arrays = TagTable(), TagTable(), TagTable()
    for tags in batches:
        codes = [singles.code(tag) for tag in tags]
        assert lists.codes(tags).tolist() == codes
        array = pa.array(["skipped", *tags], pa.string())[1:]
        assert arrays.codes(array).tolist() == codes


@given(st.lists(st.integers(0, 5), max_size=60))
def test_groups_hold_every_row_once_in_the_order_of_the_batch(values: list[int]) -> None:
    codes = np.array(values, np.uint16)
    order, cuts, tags = grouped(codes)
    assert tags.tolist() == sorted(set(values))
    assert len(cuts) == len(tags) + 1
    for place, tag in enumerate(tags):
        rows = order[cuts[place] : cuts[place + 1]]
        assert rows.tolist() == [row for row, value in enumerate(values) if value == tag]


def test_the_table_needs_nothing_of_the_node() -> None:
    assert loaded_by("penstock.filters.tag") == [
        "penstock",
        "penstock.columns",
        "penstock.filters",
        "penstock.filters.tag",
    ]
