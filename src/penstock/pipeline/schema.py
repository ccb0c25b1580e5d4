"""The columns a DataFrame may have, their Spark types, and how a batch of the log becomes a batch of these.

Owns the way from the record's types to Spark's. Knows nothing of where batches come from.
Invariant: the batches it makes have exactly the Arrow schema that Spark derives from the DataFrame's, or Spark refuses
them; a row stays a row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.columns import KINDS
from penstock.errors import ConfigError, hint

DEFAULT = ("topic", "shard", "offset", "timestamp", "key", "headers", "body")
_SPARK = {"time": TimestampType(), "bucket": IntegerType(), "bytes": BinaryType(), "text": StringType()}

#: Every column, in the order they are listed in. Headers are the text of a JSON object.
TYPES: dict[str, DataType] = {"topic": StringType(), "shard": IntegerType()}
for _name, _kind in KINDS.items():
    TYPES[_name] = StringType() if _kind == "json" else _SPARK.get(_kind, LongType())
    if _name == "timestamp":
        TYPES["timestamp_ns"] = LongType()
HEADERS_MAP = MapType(StringType(), StringType())

MICROSECOND = pa.timestamp("us", "UTC")
#: Columns with one value are slices of one array of at least this many rows.
CONSTANT_ROWS = 65_536


def struct(names: Sequence[str] | None, *, headers: bool = True) -> StructType:
    """Return the schema of a DataFrame with these columns, or with the default ones."""
    if names is None:
        names = [name for name in DEFAULT if headers or name != "headers"]
    elif tuple(names) in (("*",), ("all",)):
        names = tuple(TYPES)
    for name in names:
        if name not in TYPES:
            raise ConfigError(f"option columns names {name}; {hint(name, TYPES)}")
    return StructType([StructField(name, TYPES[name]) for name in names])


def check(schema: StructType) -> None:
    """Refuse a schema with a column that a topic does not have, or one of another type."""
    for field in schema.fields:
        if field.name not in TYPES:
            raise ConfigError(f"the schema has column {field.name}, which no topic has; {hint(field.name, TYPES)}")
        allowed = [TYPES[field.name]] + ([HEADERS_MAP, BinaryType()] if field.name == "headers" else [])
        if not any(_alike(field.dataType, each) for each in allowed):
            types = " or ".join(each.simpleString() for each in allowed)
            raise ConfigError(
                f"column {field.name} is {types}, not {field.dataType.simpleString()}: "
                f"leave it so in the schema and cast it in Spark"
            )


def _alike(one: DataType, other: DataType) -> bool:
    if isinstance(one, MapType) and isinstance(other, MapType):
        return one.keyType == other.keyType and one.valueType == other.valueType
    return one == other


class Shape:
    """How batches of the log become batches of one DataFrame; sent to executors."""

    def __init__(self, schema: StructType) -> None:
        check(schema)
        self.names = tuple(schema.fieldNames())
        self.schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._constants: dict[tuple[str, object], pa.Array] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"names": self.names, "schema": self.schema, "_constants": {}}

    def wanted(self) -> list[str]:
        """Return the columns of the log that are needed; one at least, because rows must be counted."""
        found = {"timestamp" if name == "timestamp_ns" else name: None for name in self.names if name != "topic"}
        found.pop("shard", None)
        return list(found) or ["offset"]

    def shaped(self, batch: pa.RecordBatch, topic: str, shard: int) -> pa.RecordBatch:
        """Return a batch as Spark takes it. Budget: 3 ns a row for the default columns."""
        rows = len(batch)
        arrays = []
        for name, type_ in zip(self.names, self.schema.types, strict=True):
            if name == "topic":
                arrays.append(self._constant(name, topic, rows, type_))
            elif name == "shard":
                arrays.append(self._constant(name, shard, rows, type_))
            elif name == "timestamp_ns":
                arrays.append(batch.column("timestamp"))
            elif KINDS.get(name) == "time":
                arrays.append(micros(batch.column(name)))
            elif name == "headers" and pa.types.is_map(type_):
                arrays.append(_maps(batch.column(name), type_))
            elif name == "headers" and pa.types.is_string(type_):
                arrays.append(texts(batch.column(name)))
            else:
                arrays.append(batch.column(name))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _constant(self, name: str, value: object, rows: int, type_: pa.DataType) -> pa.Array:
        found = self._constants.get((name, value))
        if found is None or len(found) < rows:
            found = self._constants[name, value] = pa.repeat(pa.scalar(value, type_), max(rows, CONSTANT_ROWS))
        return found.slice(0, rows)


def micros(array: pa.Array) -> pa.Array:
    """Return times in ns as Spark's, which have microseconds; what is finer is cut off, towards the past."""
    rows = len(array)
    if array.null_count == rows:
        return pa.nulls(rows, MICROSECOND)
    values = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + rows] // 1000
    if array.null_count:
        return pa.array(values, pa.int64(), mask=~np.asarray(array.is_valid())).view(MICROSECOND)
    return pa.Array.from_buffers(MICROSECOND, rows, [None, pa.py_buffer(values)])


def texts(array: pa.Array) -> pa.Array:
    """Return bytes as text; a byte that is none in UTF-8 becomes the replacement character."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if cell is None else cell.decode("utf-8", "replace") for cell in array.to_pylist()])


def _maps(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return JSON objects as maps; a value that is no string stays JSON. Slow: one by one."""
    return pa.array([_pairs(cell) for cell in array.to_pylist()], type_)


def _pairs(cell: bytes | None) -> list[tuple[str, str | None]] | None:
    if cell is None:
        return None
    try:
        values = json.loads(cell)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    return [(name, _text(value)) for name, value in values.items()]


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, separators=(",", ":"))
