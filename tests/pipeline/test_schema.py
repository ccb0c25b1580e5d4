"""Columns: what a DataFrame may have, and that its batches are exactly what Spark takes."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from penstock.columns import COLUMNS
from penstock.errors import ConfigError
from penstock.pipeline.schema import DEFAULT, TYPES, Shape, check, micros, struct


def a_batch(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(values, COLUMNS[name]) for name, values in columns.items()], names=list(columns)
    )


def test_default_columns_are_fixed_and_headers_may_be_left_out() -> None:
    assert tuple(struct(None).fieldNames()) == DEFAULT
    assert "headers" not in struct(None, headers=False).fieldNames()


def test_every_column_of_the_record_can_be_had() -> None:
    assert {*COLUMNS, "topic", "shard", "timestamp_ns"} == set(TYPES)
    assert struct(["*"]).fieldNames() == list(TYPES)


def test_batches_have_exactly_the_schema_spark_expects() -> None:
    schema = struct(["*"])
    columns: dict[str, list[Any]] = {name: [None, None] for name in COLUMNS}
    columns |= {"offset": [1, 2], "timestamp": [1_999, 2_000], "body": [b"a", b"b"], "source": ["nsq", "nsq"]}
    made = Shape(schema).shaped(a_batch(**columns), "t", 3)
    assert made.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    made.validate(full=True)
    row = made.to_pylist()[0]
    assert (row["topic"], row["shard"], row["offset"], row["timestamp_ns"], row["due"]) == ("t", 3, 1, 1_999, None)
    assert row["timestamp"].microsecond == 1


@given(st.lists(st.one_of(st.none(), st.integers(-(1 << 62), 1 << 62)), max_size=20), st.integers(0, 5))
def test_times_lose_what_is_finer_than_a_microsecond(values: list[int | None], skipped: int) -> None:
    array = pa.array(values, pa.int64()).slice(min(skipped, len(values)))
    expected = [None if value is None else value // 1000 for value in values[skipped:]]
    assert micros(array).cast(pa.int64()).to_pylist() == expected


def test_only_what_is_needed_is_asked_for() -> None:
    assert Shape(struct(["topic", "shard"])).wanted() == ["offset"]
    assert Shape(struct(["body", "timestamp_ns", "timestamp"])).wanted() == ["body", "timestamp"]


def test_headers_are_text_unless_a_map_is_asked_for() -> None:
    batch = a_batch(headers=[b'{"a":"b","n":1,"o":{"x":[1]},"z":null}', None, b"no json", b"[1]", b"\xff"])
    text = Shape(StructType([StructField("headers", StringType())])).shaped(batch, "t", 0)
    assert text.column(0).to_pylist() == ['{"a":"b","n":1,"o":{"x":[1]},"z":null}', None, "no json", "[1]", "\ufffd"]
    schema = StructType([StructField("headers", MapType(StringType(), StringType()))])
    maps = Shape(schema).shaped(batch, "t", 0)
    assert maps.column(0).to_pylist() == [
        [("a", "b"), ("n", "1"), ("o", '{"x":[1]}'), ("z", None)], None, None, None, None,
    ]  # fmt: skip
    raw = Shape(StructType([StructField("headers", BinaryType())])).shaped(batch, "t", 0)
    assert raw.column(0).to_pylist()[4] == b"\xff"


def test_a_column_that_is_never_null_may_be_declared_so() -> None:
    schema = StructType([StructField("offset", LongType(), nullable=False)])
    made = Shape(schema).shaped(a_batch(offset=[1]), "t", 0)
    assert made.schema.equals(to_arrow_schema(schema, timezone="UTC"))


def test_wrong_names_and_types_are_told_with_the_right_ones() -> None:
    with pytest.raises(ConfigError, match="option columns names ofset; did you mean offset"):
        struct(["ofset"])
    with pytest.raises(ConfigError, match="column value, which no topic has"):
        check(StructType([StructField("value", BinaryType())]))
    with pytest.raises(ConfigError, match="column offset is bigint, not int"):
        check(StructType([StructField("offset", IntegerType())]))
    with pytest.raises(ConfigError, match=r"column body is binary, not string.*cast it in Spark"):
        check(StructType([StructField("body", StringType())]))
    with pytest.raises(ConfigError, match="column headers is string or map<string,string> or binary"):
        check(StructType([StructField("headers", ArrayType(StringType()))]))


def test_a_shape_travels() -> None:
    shape = Shape(struct(None))
    shape.shaped(a_batch(offset=[1], timestamp=[1], key=[None], headers=[None], body=[b""]), "t", 0)
    other = pickle.loads(pickle.dumps(shape))
    assert (other.names, other.schema) == (shape.names, shape.schema)
