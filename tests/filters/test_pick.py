"""Rows picked by tag, traffic bits and bucket: one that has no value does not pass."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.filters.pick import asked, picked

_row = st.tuples(
    st.one_of(st.none(), st.sampled_from(["a", "b", ""])),
    st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1)),
    st.one_of(st.none(), st.integers(0, 9)),
)


@given(
    st.lists(_row, max_size=20),
    st.one_of(st.none(), st.lists(st.sampled_from(["a", "b", ""]))),
    st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1)),
    st.one_of(st.none(), st.tuples(st.integers(0, 9), st.integers(0, 9))),
)
def test_rows_pass_as_they_would_one_by_one(
    rows: list[tuple[str | None, int | None, int | None]],
    tags: list[str] | None,
    traffic: int | None,
    buckets: tuple[int, int] | None,
) -> None:
    schema = pa.schema([("tag", pa.string()), ("traffic", pa.int64()), ("bucket", pa.int32())])
    columns = [[row[number] for row in rows] for number in range(3)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )
    wanted = [
        row
        for row in rows
        if (tags is None or row[0] in tags)
        and (traffic is None or (row[1] is not None and row[1] & traffic != 0))
        and (buckets is None or (row[2] is not None and buckets[0] <= row[2] < buckets[1]))
        and not (tags is not None and row[0] is None)
    ]
    found = picked(batch, tags, traffic, buckets)
    assert [tuple(row.values()) for row in found.to_pylist()] == wanted


def test_only_columns_that_are_asked_about_are_needed() -> None:
    assert asked(["a"], None, (0, 1)) == ["tag", "bucket"]
    assert asked(None, None, None) == []
