"""Which columns of a frame become messages, and what the others are told."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.columns import OPTIONAL_COLUMNS
from penstock.errors import ConfigError
from penstock.pipeline.frame import TAKEN, chosen_columns, messages
from penstock.pipeline.schema import TYPES, struct


def frame(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_every_column_of_the_record_is_taken() -> None:
    assert set(TAKEN) == {"topic", "body", *OPTIONAL_COLUMNS}


def test_what_is_read_can_be_written_as_it_is() -> None:
    columns = chosen_columns(struct(["*"]), None)
    assert set(columns) == {"topic", "body", *OPTIONAL_COLUMNS}
    assert chosen_columns(struct(None), "t") == ("key", "headers", "body")
    assert set(TYPES) - set(columns) == {"shard", "offset", "timestamp", "timestamp_ns", "source"}


def test_column_that_is_null_throughout_is_left_out() -> None:
    assert chosen_columns(frame(body=StringType(), key=NullType()), "t") == ("body",)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (
            frame(value=BinaryType()),
            'no column value; what Kafka calls so is body here: withColumnRenamed("value", "body")',
        ),
        (frame(body=BinaryType(), partition=IntegerType()), "no column partition; what Kafka calls so is shard here"),
        (frame(body=BinaryType(), amount=IntegerType()), "a message has no column amount; there are topic, body"),
        (frame(body=BinaryType(), tags=StringType()), "a message has no column tags; did you mean tag?"),
        (frame(body=BinaryType(), Body=StringType()), "no column Body; did you mean body?"),
        (frame(body=DoubleType()), "column body is double; it must be binary or string: cast it"),
        (frame(body=NullType()), "column body is void"),
        (frame(body=StringType(), due=TimestampNTZType()), "due is timestamp_ntz; it must be timestamp or long"),
        (frame(body=StringType(), due=IntegerType()), "column due is int; it must be timestamp or long"),
        (frame(body=StringType(), traffic=ArrayType(StringType())), "column traffic is array<string>; it must be long"),
        (
            frame(body=StringType(), headers=MapType(StringType(), IntegerType())),
            "column headers is map<string,int>; it must be string or binary or map<string,string>: cast it",
        ),
        (frame(key=BinaryType()), "the frame needs a column body; it has key"),
        (StructType(), "the frame needs a column body; it has none"),
        (StructType([StructField("body", BinaryType())] * 2), "the frame has two columns body"),
    ],
)
def test_frame_that_cannot_be_written_is_told_which_column(schema: StructType, text: str) -> None:
    with pytest.raises(ConfigError) as told:
        chosen_columns(schema, "t")
    assert text in str(told.value)


def test_rows_need_a_topic() -> None:
    with pytest.raises(ConfigError, match="Set option topic, or give the frame a column topic"):
        chosen_columns(frame(body=StringType()), None)
    assert chosen_columns(frame(body=StringType(), topic=StringType()), None) == ("body", "topic")


def test_maps_become_json() -> None:
    kind = pa.map_(pa.string(), pa.string())
    pairs = [[("a", "1"), ("ü", None)], None, []]
    batch = pa.record_batch({"body": ["x", "y", "z"], "headers": pa.array(pairs, kind), "offset": [1, 2, 3]})
    made = messages(batch, ("body", "headers"))
    assert made.schema.names == ["body", "headers"]
    found = made.column("headers").to_pylist()
    assert [None if cell is None else json.loads(cell) for cell in found] == [{"a": "1", "ü": None}, None, {}]


def test_times_and_numbers_may_come_in_either_form() -> None:
    times: list[DataType] = [TimestampType(), LongType()]
    numbers: list[DataType] = [LongType(), IntegerType()]
    for name, kinds in (("due", times), ("bucket", numbers)):
        for kind in kinds:
            assert chosen_columns(frame(body=BinaryType(), **{name: kind}), "t") == ("body", name)
