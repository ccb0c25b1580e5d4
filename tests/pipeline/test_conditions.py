"""Filters taken on by the source give the verdicts that SQL gives; those that are not understood go back."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import MapType, StringType, StructField, StructType

from penstock.pipeline.conditions import Conditions
from penstock.pipeline.schema import Shape, struct

UTC = datetime.UTC
SCHEMA = Shape(struct(["topic", "shard", "offset", "timestamp", "timestamp_ns", "tag", "traffic", "key"])).schema


def conditions(*filters: Filter) -> Conditions:
    made = Conditions(SCHEMA)
    assert made.push(filters) == []
    return made


def passing(column: str, values: list[Any], *filters: Filter) -> list[Any]:
    schema = pa.schema([SCHEMA.field(column)])
    made = Conditions(schema)
    assert made.push(filters) == []
    batch = pa.RecordBatch.from_arrays([pa.array(values, schema.field(0).type)], schema=schema)
    found: list[Any] = made.passing(batch).column(0).to_pylist()
    return found


@pytest.mark.parametrize(
    ("one", "left"),
    [
        (EqualTo(("tag",), "b"), ["b"]),
        (Not(EqualTo(("tag",), "b")), ["a", "bc"]),
        (EqualNullSafe(("tag",), "b"), ["b"]),
        (EqualNullSafe(("tag",), None), [None]),
        (Not(EqualNullSafe(("tag",), "b")), ["a", None, "bc"]),
        (In(("tag",), ("a", "bc")), ["a", "bc"]),
        (Not(In(("tag",), ("a", "bc"))), ["b"]),
        (IsNull(("tag",)), [None]),
        (IsNotNull(("tag",)), ["a", "b", "bc"]),
        (GreaterThan(("tag",), "b"), ["bc"]),
        (LessThanOrEqual(("tag",), "b"), ["a", "b"]),
        (StringStartsWith(("tag",), "b"), ["b", "bc"]),
        (StringEndsWith(("tag",), "c"), ["bc"]),
        (Not(StringContains(("tag",), "c")), ["a", "b"]),
    ],
)
def test_verdicts_are_those_of_sql(one: Filter, left: list[str | None]) -> None:
    assert passing("tag", ["a", "b", None, "bc"], one) == left


def test_bytes_and_times_are_compared_as_spark_does() -> None:
    assert passing("key", [b"\x01", b"\xff", None], GreaterThan(("key",), b"\x7f")) == [b"\xff"]
    moment = datetime.datetime(2024, 1, 1, tzinfo=UTC)
    later = moment + datetime.timedelta(microseconds=1)
    assert passing("timestamp", [moment, later], GreaterThan(("timestamp",), moment)) == [later]


def test_what_is_not_understood_goes_back_to_spark() -> None:
    made = Conditions(SCHEMA)
    refused = [
        EqualTo(("headers", "a"), "x"),
        In(("tag",), ("a", None)),
        EqualTo(("offset",), "x"),
        EqualTo(("tag",), None),
    ]
    assert made.push([*refused, IsNotNull(("tag",))]) == refused
    assert made.filters == [IsNotNull(("tag",))]


def test_a_map_is_for_spark_to_judge() -> None:
    shape = Shape(StructType([StructField("headers", MapType(StringType(), StringType()))]))
    made = Conditions(shape.schema)
    assert made.push([EqualTo(("headers",), {"a": "b"})]) != []


def test_topics_and_shards_that_cannot_pass_are_not_read() -> None:
    made = conditions(StringStartsWith(("topic",), "or"), Not(EqualTo(("shard",), 1)), IsNotNull(("topic",)))
    assert made.may_hold("orders", 0)
    assert not made.may_hold("orders", 1)
    assert not made.may_hold("users", 0)


def test_offsets_and_times_bound_what_is_read() -> None:
    made = conditions(GreaterThan(("offset",), 5), LessThanOrEqual(("offset",), 9), In(("offset",), (3, 7, 8)))
    assert made.offsets() == (6, 9)
    moment = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    times = conditions(GreaterThanOrEqual(("timestamp",), moment), LessThan(("timestamp_ns",), 5_000_000_001))
    assert times.times() == (1_000_000_000, 5_000_000_001)
    assert conditions(LessThanOrEqual(("timestamp",), moment)).times() == (None, 1_000_001_000)
    assert conditions().times() == (None, None)


def test_tags_are_asked_for_by_name() -> None:
    assert conditions(EqualTo(("tag",), "a")).tags() == ["a"]
    assert conditions(In(("tag",), ("a", "b")), EqualTo(("tag",), "b")).tags() == ["b"]
    assert conditions(IsNotNull(("tag",))).tags() is None


_filters = st.one_of(
    [st.builds(kind, st.just(("offset",)), st.integers(0, 20)) for kind in
     (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)]
)  # fmt: skip


@given(st.lists(_filters, max_size=4))
def test_no_row_that_passes_lies_outside_the_bounds(filters: list[Filter]) -> None:
    low, high = conditions(*filters).offsets()
    assert all(low <= offset < high for offset in passing("offset", list(range(21)), *filters))
