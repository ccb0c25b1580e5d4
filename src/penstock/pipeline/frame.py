"""What of a DataFrame becomes messages: which columns, of which types.

Owns the way from Spark's types to those the node takes. Knows nothing of nodes or tasks.
Invariant: a frame that passes is refused later only for what is in its rows, not for its columns.
"""

from __future__ import annotations

import json

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from penstock.columns import KINDS, OPTIONAL_COLUMNS
from penstock.errors import ConfigError, hint

_BY_KIND: dict[str, tuple[type[DataType], ...]] = {
    "bytes": (BinaryType, StringType),
    "text": (StringType,),
    "time": (TimestampType, LongType),
    "json": (StringType, BinaryType, MapType),
}
_NUMBER = (LongType, IntegerType, ShortType, ByteType)

#: What a frame may bring, and in which types; the first is what it is read as. `body` must be there.
TAKEN: dict[str, tuple[type[DataType], ...]] = {
    "topic": (StringType,),
    **{name: _BY_KIND.get(KINDS[name], _NUMBER) for name in ("body", *OPTIONAL_COLUMNS)},
}
#: What a frame read from a topic says of the place a row came from: where it goes, the node says it anew.
LEFT_OUT = ("shard", "offset", "timestamp", "timestamp_ns", "source")


#: Columns of Spark's Kafka source and sink, by what they are called here.
KAFKAS = {"value": "body", "partition": "shard"}


def chosen_columns(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """Return the columns of a frame that go to the node; ConfigError names one that cannot."""
    columns: list[str] = []
    for field in schema.fields:
        if field.name in LEFT_OUT or (field.name == "topic" and topic is not None):
            continue
        allowed = TAKEN.get(field.name)
        if allowed is None:
            raise ConfigError(f"a message has no column {field.name}; {_near(field.name)}")
        if isinstance(field.dataType, NullType) and field.name not in ("body", "topic"):
            continue
        if not isinstance(field.dataType, allowed) or not _is_text_map(field.dataType):
            kinds = " or ".join(_word(kind) for kind in allowed)
            raise ConfigError(f"column {field.name} is {field.dataType.simpleString()}; it must be {kinds}: cast it")
        if field.name in columns:
            raise ConfigError(f"the frame has two columns {field.name}")
        columns.append(field.name)
    if "body" not in columns:
        have = ", ".join(schema.fieldNames()) or "none"
        raise ConfigError(f"the frame needs a column body; it has {have}")
    if topic is None and "topic" not in columns:
        raise ConfigError("which topic? Set option topic, or give the frame a column topic")
    return tuple(columns)


def messages(batch: pa.RecordBatch, columns: tuple[str, ...]) -> pa.RecordBatch:
    """Return a batch as the node takes it: these columns, with maps as JSON."""
    chosen = batch if batch.schema.names == list(columns) else batch.select(list(columns))
    for number, field in enumerate(chosen.schema):
        if pa.types.is_map(field.type):
            chosen = chosen.set_column(number, field.name, _as_json(chosen.column(number)))
    return chosen


def _as_json(column: pa.Array) -> pa.Array:
    """Return maps as JSON objects. Slow: one by one, because Arrow has no such function."""
    return pa.array([None if row is None else json.dumps(dict(row)) for row in column.to_pylist()], pa.string())


def _is_text_map(kind: DataType) -> bool:
    """Tell whether a map is one of text to text; what is no map is none of its business."""
    if not isinstance(kind, MapType):
        return True
    return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)


def _word(kind: type[DataType]) -> str:
    return "map<string,string>" if kind is MapType else kind.typeName()


def _near(name: str) -> str:
    if name.lower() in KAFKAS:
        return (
            f'what Kafka calls so is {KAFKAS[name.lower()]} here: withColumnRenamed("{name}", "{KAFKAS[name.lower()]}")'
        )
    near = hint(name, TAKEN, f"there are {', '.join(TAKEN)};")
    return f"{near} Drop it, or put it into body or headers"
