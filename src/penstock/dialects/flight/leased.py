"""Leased rows as the record batches of an exchange: id, attempts and shard, then columns of the record.

Owns that form. Deliveries of a few rows, as a quiet topic makes them, are put together before they become arrays.
Invariant: every delivered row is in the answer once, in the order of the deliveries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.columns import COLUMNS, OFFSET_BITS, SMALL
from penstock.delivery.source import Delivery
from penstock.log.record import array_of, integers

LEASE = (("id", pa.int64()), ("attempts", pa.int32()), ("shard", pa.int32()))
#: Rows of one message to a client.
ROWS_MAX = 16_384


def schema_of(names: Sequence[str]) -> pa.Schema:
    """Return the schema of an exchange."""
    return pa.schema([*LEASE, *((name, COLUMNS[name]) for name in names)])


def record_batches(deliveries: Sequence[Delivery], names: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield deliveries as record batches of the exchange's schema."""
    parts: list[pa.RecordBatch] = []
    few: list[Delivery] = []
    rows = 0
    for delivery in deliveries:
        if rows and rows + delivery.count > ROWS_MAX:
            yield from _whole([*parts, *_few(few, names, schema)])
            parts, few, rows = [], [], 0
        rows += delivery.count
        if delivery.batch.count <= SMALL:
            few.append(delivery)
        else:
            parts += [*_few(few, names, schema), _many(delivery, names, schema)]
            few = []
    yield from _whole([*parts, *_few(few, names, schema)])


def _whole(parts: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(parts) == 1:
        yield parts[0]
    elif parts:
        yield pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


def _many(delivery: Delivery, names: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    batch, rows, count = delivery.batch, delivery.rows, delivery.count
    first_id = (delivery.shard << OFFSET_BITS) + 1 + batch.first
    picked = np.arange(rows.start, rows.stop, dtype=np.int64) if isinstance(rows, slice) else rows.astype(np.int64)
    attempts = np.broadcast_to(np.asarray(delivery.attempts, np.int32), (count,))
    arrays = [integers(picked + first_id), pa.array(attempts), pa.array(np.full(count, delivery.shard, np.int32))]
    for name in names:
        column = array_of(batch, name)
        if isinstance(rows, slice):
            column = column.slice(rows.start, count)
        else:
            column = column.take(integers(picked))
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _few(deliveries: Sequence[Delivery], names: Sequence[str], schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return batches of few rows as one, cell by cell."""
    if not deliveries:
        return []
    cells: dict[str, list[object]] = {field.name: [] for field in schema}
    for delivery in deliveries:
        batch = delivery.batch
        rows = range(delivery.rows.start, delivery.rows.stop) if isinstance(delivery.rows, slice) else delivery.rows
        picked = [int(row) for row in rows]
        first_id = (delivery.shard << OFFSET_BITS) + 1 + batch.first
        many = delivery.attempts
        cells["id"] += [first_id + row for row in picked]
        cells["attempts"] += [many] * len(picked) if isinstance(many, int) else many.tolist()
        cells["shard"] += [delivery.shard] * len(picked)
        for name in names:
            if name == "offset":
                cells[name] += [batch.first + row for row in picked]
            elif name == "timestamp":
                cells[name] += [batch.row_time(row) for row in picked]
            elif name == "body":
                cells[name] += [batch.row_body(row) for row in picked]
            elif name == "source":
                cells[name] += [batch.row_source(row) for row in picked]
            else:
                cells[name] += [batch.row_value(name, row) for row in picked]
    arrays = [pa.array(cells[field.name], field.type) for field in schema]
    return [pa.RecordBatch.from_arrays(arrays, schema=schema)]
