"""The columns of a table against those of a frame: what fits, what is added, what is refused.

Owns these rules, for all formats. Knows nothing of files. Invariant: a column of a table never changes its type, and is
never lost; what a frame lacks is null.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import ConfigError

#: Types that every reader of Delta and Parquet has.
_PLAIN = (
    BinaryType, BooleanType, ByteType, DateType, DecimalType, DoubleType, FloatType, IntegerType, LongType, ShortType,
    StringType, TimestampNTZType, TimestampType,
)  # fmt: skip
#: Types whose values are the same text in the name of a directory for every reader.
_NAMEABLE = (ByteType, DateType, IntegerType, LongType, ShortType, StringType)
#: What Parquet's and Delta's writers refuse in a name.
_FORBIDDEN = " ,;{}()\n\t="


def checked(path: str, schema: StructType, partition_by: Sequence[str]) -> None:
    """Refuse a schema that no table can have."""
    names = schema.fieldNames()
    for column in partition_by:
        if column not in names:
            raise ConfigError(
                f"table {path} is partitioned by {column}, which the rows lack: add that column, or name another one "
                f"in partition_by"
            )
        if not isinstance(schema[column].dataType, _NAMEABLE):
            raise ConfigError(
                f"table {path} cannot be partitioned by {column}, which is {schema[column].dataType.simpleString()}: "
                f"cast it to string, date or a whole number"
            )
    if len(names) == len(partition_by):
        raise ConfigError(f"table {path} would have no column but those it is partitioned by: {', '.join(names)}")
    lower: dict[str, str] = {}
    for field in schema.fields:
        if any(character in _FORBIDDEN for character in field.name):
            raise ConfigError(f"column {field.name!r} has a character that tables refuse: rename it for table {path}")
        if (other := lower.setdefault(field.name.lower(), field.name)) is not field.name:
            raise ConfigError(f"columns {other} and {field.name} are one to Spark: rename one for table {path}")
        if not _storable(field.dataType):
            raise ConfigError(
                f"column {field.name} is {field.dataType.simpleString()}, which table {path} cannot keep: cast it"
            )


def added(path: str, table: StructType, schema: StructType) -> list[StructField]:
    """Return the columns that a table lacks; one of another type is refused."""
    known = {field.name: field for field in table.fields}
    sure = {field.name for field in schema.fields if not field.nullable}
    if strict := [
        field.name for field in table.fields if schema.fields and not field.nullable and field.name not in sure
    ]:
        raise ConfigError(
            f"column {strict[0]} of table {path} may not be null, and the rows may have none: let it be null there"
        )
    by_lower = {name.lower(): name for name in known}
    found = []
    for field in schema.fields:
        own = known.get(field.name)
        if own is None:
            if (other := by_lower.get(field.name.lower())) is not None:
                raise ConfigError(f"table {path} has column {other}, and the rows have {field.name}: rename it")
            found.append(StructField(field.name, field.dataType, True))
        elif own.dataType.simpleString() != field.dataType.simpleString():
            raise ConfigError(
                f"column {field.name} is {own.dataType.simpleString()} in table {path} and "
                f"{field.dataType.simpleString()} in the rows: cast it, or write to another table"
            )
    return found


def grown(table: StructType, schema: StructType, path: str) -> StructType:
    """Return the columns of a table after rows of a schema came in."""
    return StructType([*table.fields, *added(path, table, schema)])


def nullable(schema: StructType) -> StructType:
    """Return the columns of a new table: any value may be missing."""
    return StructType([StructField(field.name, field.dataType, True) for field in schema.fields])


def _storable(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _storable(kind.elementType)
    if isinstance(kind, MapType):
        return _storable(kind.keyType) and _storable(kind.valueType)
    if isinstance(kind, StructType):
        return all(_storable(field.dataType) for field in kind.fields)
    return isinstance(kind, _PLAIN)
