"""A stored batch as an Arrow record batch.

Owns how the columns a batch holds, in whichever shape, become arrays of the record's types. Knows nothing of files.
Invariant: the rows are the batch's rows, in order; a column it lacks is null. Large columns are views, not copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa

from penstock.columns import COLUMNS
from penstock.message import Batch

#: Null columns are slices of one array of this many rows per type.
NULLS_ROWS = 65_536


@cache
def schema_of(names: tuple[str, ...]) -> pa.Schema:
    """Return the schema of some columns of the record."""
    return pa.schema([(name, COLUMNS[name]) for name in names])


def record_batch(batch: Batch, names: Sequence[str]) -> pa.RecordBatch:
    """Return the named columns of a batch."""
    names = tuple(names)
    return pa.RecordBatch.from_arrays([array_of(batch, name) for name in names], schema=schema_of(names))


def array_of(batch: Batch, name: str) -> pa.Array:
    """Return one column of a batch."""
    count = batch.count
    if name == "offset":
        return integers(np.arange(batch.first, batch.first + count, dtype=np.int64))
    if name == "timestamp":
        times = batch.timestamp
        return integers(np.full(count, times, np.int64) if isinstance(times, int) else np.asarray(times, np.int64))
    if name == "body":
        cuts = np.asarray(batch.cuts, np.int32)
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(cuts), pa.py_buffer(batch.body)])
    if name == "source" and isinstance(batch.source, str):
        return pa.repeat(batch.source, count)
    column = batch.source if name == "source" else batch.columns.get(name)
    if column is None:
        return nulls(name, count)
    return column if isinstance(column, pa.Array) else pa.array(column, COLUMNS[name])


def integers(values: np.typing.NDArray[np.int64]) -> pa.Array:
    """Return int64 values as an array, without a copy."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def chosen(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Return the named columns of a record batch; what it lacks is null."""
    names = tuple(names)
    present = {name: number for number, name in enumerate(batch.schema.names)}
    arrays = [batch.column(present[name]) if name in present else nulls(name, len(batch)) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(names))


def nulls(name: str, count: int) -> pa.Array:
    """Return a column without a value."""
    return _nulls(name).slice(0, count) if count <= NULLS_ROWS else pa.nulls(count, COLUMNS[name])


@cache
def _nulls(name: str) -> pa.Array:
    return pa.nulls(NULLS_ROWS, COLUMNS[name])
