"""The rows of a table's files as Arrow, in this process: what merges write, and what little data is read by.

Owns how a file's columns become the table's. Knows nothing of formats. Invariant: the rows are those that Spark reads
of the same files; a file that cannot be read is an error that names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from penstock.pipeline.lake.faults import reading

BATCH_ROWS = 16_384

Partition = Mapping[str, str | None]


def arrow(schema: StructType, without: Iterable[str] = ()) -> pa.Schema:
    """Return a table's columns as its files have them: Spark and delta-rs let each be null, and write times in UTC."""
    gone = set(without)
    kept = [StructField(field.name, field.dataType, True) for field in schema.fields if field.name not in gone]
    return to_arrow_schema(StructType(kept), timezone="UTC")


def batches(paths: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files, one after the other; a column that a file lacks is null."""
    for path in paths:
        with reading(path), pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            for batch in file.iter_batches(BATCH_ROWS):
                arrays = [
                    _cast(batch.column(field.name), field.type)
                    if field.name in batch.schema.names
                    else pa.nulls(len(batch), field.type)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def read(root: str, files: Iterable[tuple[str, Partition]], schema: StructType) -> pa.Table:
    """Return the rows of files below a directory, with the columns that their partitions stand for."""
    whole = arrow(schema)
    found = []
    for path, partition in files:
        own = arrow(schema, partition)
        for batch in batches([os.path.join(root, path)], own):
            constant = {
                name: pa.repeat(pa.scalar(text, pa.string()).cast(whole.field(name).type), len(batch))
                for name, text in partition.items()
            }
            arrays = [constant[name] if name in constant else batch.column(name) for name in whole.names]
            found.append(pa.RecordBatch.from_arrays(arrays, schema=whole))
    return pa.Table.from_batches(found, whole)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as the table has it; a time of somebody else's may be finer than tables keep."""
    return array if array.type == kind else array.cast(kind, safe=not pa.types.is_timestamp(kind))
