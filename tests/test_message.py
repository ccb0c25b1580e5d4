"""Rows made of a record batch are the rows of the batch, whole or sliced."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columns import SMALL
from penstock.message import Rows

BODIES = st.lists(st.tuples(st.binary(max_size=20), st.none() | st.text(max_size=5)), max_size=60)


@given(BODIES, st.data())
def test_rows_of_arrow_are_the_rows_of_the_slice(values: list[tuple[bytes, str | None]], data: st.DataObject) -> None:
    low = data.draw(st.integers(0, len(values)))
    high = data.draw(st.integers(low, len(values)))
    whole = pa.record_batch(
        {"body": pa.array([b for b, _ in values], pa.binary()), "tag": pa.array([t for _, t in values], pa.string())}
    )
    rows = Rows.of_arrow(whole.slice(low, high - low), "test", b"s")
    picked = values[low:high]
    assert rows.count == len(picked)
    assert rows.sequence == b"s"
    view = memoryview(rows.body)
    assert [bytes(view[rows.cuts[n] : rows.cuts[n + 1]]) for n in range(rows.count)] == [b for b, _ in picked]
    tags = rows.columns.get("tag")
    if tags is None:
        assert all(tag is None for _, tag in picked)
    else:
        assert isinstance(tags, list) == (rows.count <= SMALL)
        assert (tags if isinstance(tags, list) else tags.to_pylist()) == [t for _, t in picked]


def test_column_that_is_all_null_is_left_out() -> None:
    batch = pa.record_batch({"body": pa.array([b"a"], pa.binary()), "key": pa.nulls(1, pa.binary())})
    assert Rows.of_arrow(batch, "test").columns == {}


@pytest.mark.parametrize("count", [1, SMALL, SMALL + 1])
def test_bodies_of_an_arrow_batch_are_not_copied(count: int) -> None:
    body = pa.array([b"x" * 100] * count, pa.binary())
    rows = Rows.of_arrow(pa.record_batch({"body": body}), "test")
    assert isinstance(rows.body, pa.Buffer)
    assert rows.body.address == body.buffers()[2].address
