"""Fields of a timeline's messages as columns of the record, both ways.

| Field | Column |
| id | message_id; a row without one is known by its own id as 16 hex digits |
| due_ms | due, in ns |
| body | body |
| producer_group_id | group |
| bucket_id | bucket; a row without one has that of its id |
| trace_id | trace |
"""

from __future__ import annotations

import os
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import COLUMNS, OFFSET_BITS, Column, Offsets
from penstock.dealing.buckets import of_ids
from penstock.message import Batch, int64s

SOURCE = "timeline"
_MS = 1_000_000
#: Which rows of a batch.
Picks: TypeAlias = "slice | Offsets"

#: Versions on the wire have 16 bits: 1 before the first lease, 2 with it, and after the last one comes 1 again.
VERSIONS = 0xFFFF
_COUNT_BITS = 19
_COUNT = (1 << _COUNT_BITS) - 1
#: The core counts anew with every start. A row that goes out again then gets versions far from those of before.
_STRIDE = 4099


def wire_versions(versions: Offsets, attempts: Offsets) -> Offsets:
    """Return what clients call versions of rows that went out so often: first 2, then as the core counts."""
    if len(attempts) and attempts.max() <= 1:
        return (versions & _COUNT) % VERSIONS + 1
    count, start = versions & _COUNT, versions >> _COUNT_BITS
    shift = np.where(attempts > 1, start * _STRIDE, 0)
    return np.where(versions == 0, 0, count + shift) % VERSIONS + 1


def made_ids(count: int) -> pa.BinaryArray:
    """Return new ids: random UUIDs (version 4) as 32 hex digits."""
    raw = np.frombuffer(os.urandom(16 * count), np.uint8).reshape(count, 16).copy()
    raw[:, 6] = raw[:, 6] & 0x0F | 0x40
    raw[:, 8] = raw[:, 8] & 0x3F | 0x80
    return _fixed(raw.tobytes().hex().encode(), count, 32)


def shown_ids(ids: Offsets) -> pa.BinaryArray:
    """Return rows' own ids as clients see them: 16 hex digits."""
    return _fixed(ids.astype(">i8").tobytes().hex().encode(), len(ids), 16)


def core_id(shown: bytes) -> int:
    """Return the row that 16 hex digits mean, 0 for any other text."""
    if len(shown) != 16 or shown.strip(b"0123456789abcdef"):
        return 0
    return int(shown, 16)


def _fixed(data: bytes, count: int, size: int) -> pa.BinaryArray:
    ends = pa.py_buffer(np.arange(0, (count + 1) * size, size, dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), count, [None, ends, pa.py_buffer(data)])


# --- of stored rows -----------------------------------------------------------------------------------------------


def picks(rows: Offsets) -> Picks:
    """Return rows that follow each other as a slice, which costs the same whatever their number."""
    count = len(rows)
    if count and int(rows[-1]) - int(rows[0]) == count - 1 and bool((rows[1:] > rows[:-1]).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def taken(batch: Batch, name: str, rows: Picks) -> pa.Array | None:
    """Return a copy of some rows of a column, None where the batch has none."""
    column = batch.columns.get(name)
    return None if column is None else _picked(_array(column, name), rows)


def message_ids(batch: Batch, shard: int, rows: Picks) -> pa.BinaryArray:
    """Return what clients call some rows."""
    found = taken(batch, "message_id", rows)
    if found is not None and found.null_count == 0:
        return found
    own = shown_ids(_ids(batch, shard, rows))
    return own if found is None else pc.coalesce(found, own)


def bodies(batch: Batch, rows: Picks) -> pa.BinaryArray:
    """Return the bodies of some rows."""
    cuts = pa.py_buffer(np.asarray(batch.cuts, np.int32))
    body = batch.body if isinstance(batch.body, pa.Buffer) else pa.py_buffer(batch.body)
    return _picked(pa.Array.from_buffers(pa.binary(), batch.count, [None, cuts, body], 0), rows)


def due_ms(batch: Batch, rows: Picks) -> Offsets:
    """Return when some rows were due as they were published: at once where nothing is said."""
    column = batch.columns.get("due")
    if isinstance(column, pa.Array) and not column.null_count:
        return np.asarray(column, np.int64)[rows] // _MS
    taken_ns = batch.timestamp
    times = np.broadcast_to(np.asarray(taken_ns, np.int64), batch.count)[rows]
    if column is not None:
        due_ns, valid = int64s(column)
        times = np.where(valid[rows], due_ns[rows], times)
    return times // _MS


def groups(batch: Batch, rows: Picks) -> pa.BinaryArray:
    """Return who owns some rows: nobody where nothing is said."""
    found = taken(batch, "group", rows)
    if found is None:
        return pa.array([b""] * len(np.arange(batch.count)[rows]), pa.binary())
    return found if found.null_count == 0 else found.fill_null(b"")


def buckets(batch: Batch, shard: int, rows: Picks, count: int) -> npt.NDArray[np.int64]:
    """Return the buckets of some rows; one without a bucket has that of its id."""
    column = batch.columns.get("bucket")
    if isinstance(column, pa.Array) and not column.null_count:
        return np.asarray(column)[rows] % count
    own = of_ids(_ids(batch, shard, rows), count).astype(np.int64)
    if column is None:
        return own
    known, valid = int64s(_array(column, "bucket").cast(pa.int64()))
    return np.where(valid[rows], known[rows] % count, own)


def _ids(batch: Batch, shard: int, rows: Picks) -> Offsets:
    offsets = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    return (shard << OFFSET_BITS) + batch.first + offsets + 1


def _picked(array: pa.Array, rows: Picks) -> pa.Array:
    """Return a copy of some rows: a view would keep the whole batch in memory for as long as a client does not read."""
    if not isinstance(rows, slice):
        return array.take(pa.array(rows))
    part = array.slice(rows.start, rows.stop - rows.start)
    if part.null_count or part.type != pa.binary():
        return part.take(pa.array(np.arange(len(part))))
    cuts, content = content_of(part)
    return pa.Array.from_buffers(
        pa.binary(), len(part), [None, pa.py_buffer(cuts - cuts[0]), pa.py_buffer(bytes(content))], 0
    )


# --- of bytes -----------------------------------------------------------------------------------------------------


def content_of(array: pa.BinaryArray) -> tuple[npt.NDArray[np.int32], memoryview]:
    """Return where the values of a column begin and end, and the bytes from the first to the last of them."""
    count = len(array)
    _, ends, data = array.buffers()
    cuts = np.frombuffer(ends, np.int32, count + 1, array.offset * 4) if count else np.zeros(1, np.int32)
    low, high = int(cuts[0]), int(cuts[-1])
    return cuts, memoryview(data)[low:high] if high > low else memoryview(b"")


def values(array: pa.BinaryArray) -> list[bytes]:
    """Return the values of a column; of a thousand in two thirds of the time that Arrow's own list takes."""
    found: list[bytes] = array.to_numpy(zero_copy_only=False).tolist()
    return found


def _array(column: Column, name: str) -> pa.Array:
    return column if isinstance(column, pa.Array) else pa.array(column, COLUMNS[name])
