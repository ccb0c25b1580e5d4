"""Record batches (magic 2) from columns, for a produce request.

Owns their layout. Up to SMALL records a plain loop; above that numpy and Arrow, which make the same bytes.
Budget: 0.2 us a record of 100 bytes from 1,000 on, the checksum included.
Invariant: what is left of an empty key or value is null, as Dory has it, unless one asks for empty ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from struct import Struct
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from fastcrc.crc32 import iscsi as crc32c

from penstock.columns import SMALL, Buffer, Column, Cuts, Offsets
from penstock.kafka.compression import NUMBERS, PLAIN, CodecName, Compression, compressed
from penstock.kafka.headers import NONE, section, sections
from penstock.kafka.producer_id import NOBODY, Producer
from penstock.message import Batch
from penstock.varints import Writer, varint

#: What Dory counts of a message beyond its key and value.
MESSAGE_OVERHEAD_BYTES = 26
#: What stands before the records of a batch.
HEAD_BYTES = 61

#: From the leader's epoch on to the checksum; then what the checksum is of: attributes, the last offset, first and last
#: time, producer, epoch, sequence, count.
_BEFORE = Struct(">qiibI")
_AFTER = Struct(">hiqqqhii")
#: What follows the fields that the length counts: all but the offset and itself.
_LENGTH_FROM = 12
_MAGIC = 2
_NULL = varint(1)  # a length of -1, zigzag
#: Records of one width next to each other that are worth a matrix of their own.
_RUN = 64

Times: TypeAlias = "int | Sequence[int] | Offsets"
Bytes: TypeAlias = npt.NDArray[np.uint8]


class Piece(msgspec.Struct, eq=False):
    """Messages that follow each other, by columns; a batch is made of one or several such."""

    #: Values, and where each begins in them; the first need not begin at 0.
    cuts: Cuts
    body: Buffer
    #: One time for all, or one each.
    times_ms: Times
    key: Column | None = None
    #: JSON objects.
    headers: Column | None = None

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.cuts) - 1

    @classmethod
    def of(cls, batch: Batch, rows: slice | Offsets, times_ms: Times) -> Piece:
        """Return rows of a batch of the log; a slice is not copied. `times_ms` has one for each row that is meant."""
        key, headers = batch.columns.get("key"), batch.columns.get("headers")
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(batch.count)
            cuts: Cuts = batch.cuts[start : stop + 1]
            return cls(cuts, batch.body, times_ms, _slice(key, start, stop), _slice(headers, start, stop))
        cuts, body = _picked(batch, rows)
        return cls(cuts, body, times_ms, _take(key, rows), _take(headers, rows))


class Records(msgspec.Struct, eq=False):
    """Records, laid out; without the head that says who sends them."""

    count: int
    data: Buffer
    first_ms: int
    last_ms: int
    #: What Dory holds against its limits: keys and values, and 26 bytes for each record.
    weight: int


class Sealed(msgspec.Struct, eq=False):
    """A whole record batch, in pieces, and what compression came to."""

    pieces: list[Buffer]
    codec: CodecName
    #: The records' bytes, as they are and as they go.
    plain_bytes: int
    sent_bytes: int

    @property
    def size(self) -> int:
        """How many bytes the batch has."""
        return HEAD_BYTES + self.sent_bytes


def laid_out(pieces: Sequence[Piece], *, null_empty: bool = True) -> Records:
    """Return the records of messages, in order; there must be one at least."""
    count = sum([piece.count for piece in pieces])
    if count <= SMALL:
        return _each(pieces, count, null_empty)
    return _columns(pieces, count, null_empty)


def sealed(
    records: Records, compression: Compression = PLAIN, producer: Producer = NOBODY, sequence: int = -1
) -> Sealed:
    """Return the batch that carries records, compressed if that is wanted and worth it."""
    data: Buffer = records.data
    plain, codec = len(data), compression.codec
    if codec != "none" and records.weight < compression.bytes_min:
        codec = "none"
    if codec != "none":
        small = compressed(codec, compression.level, memoryview(data))
        if 100 * len(small) <= compression.percent * plain:
            data = small
        else:
            codec = "none"
    last = records.count - 1
    after = _AFTER.pack(
        NUMBERS[codec], last, records.first_ms, records.last_ms, producer.id, producer.epoch, sequence, records.count
    )
    crc = crc32c(data, crc32c(after))
    before = _BEFORE.pack(0, HEAD_BYTES - _LENGTH_FROM + len(data), -1, _MAGIC, crc)
    return Sealed([before + after, data], codec, plain, len(data))


# --- a few, one by one ------------------------------------------------------------------------------------------------


def _each(pieces: Sequence[Piece], count: int, null_empty: bool) -> Records:
    out: list[bytes] = []
    first_ms = last_ms = _time(pieces[0].times_ms, 0)
    weight = row = 0
    for piece in pieces:
        view = memoryview(piece.body)
        for at, (start, stop) in enumerate(pairwise(piece.cuts)):
            time_ms = _time(piece.times_ms, at)
            last_ms = max(last_ms, time_ms)
            key, value = _cell(piece.key, at), bytes(view[start:stop])
            weight += len(key or b"") + len(value)
            body = b"".join(
                (
                    b"\0",
                    _zigzag(time_ms - first_ms),
                    _zigzag(row),
                    _sized(None if null_empty and not key else key),
                    _sized(None if null_empty and not value else value),
                    section(_cell(piece.headers, at)),
                )
            )
            out += _zigzag(len(body)), body
            row += 1
    return Records(count, b"".join(out), first_ms, last_ms, weight + MESSAGE_OVERHEAD_BYTES * count)


def _time(times: Times, row: int) -> int:
    return times if isinstance(times, int) else int(times[row])


def _cell(column: Column | None, row: int) -> bytes | None:
    if column is None:
        return None
    value = column[row] if isinstance(column, list) else column[row].as_py()
    return value if isinstance(value, bytes) else None


def _sized(data: bytes | None) -> bytes:
    return _NULL if data is None else varint(len(data) << 1) + data


def _zigzag(number: int) -> bytes:
    return varint((number << 1) ^ (number >> 63))


# --- many, by columns -------------------------------------------------------------------------------------------------


def _columns(pieces: Sequence[Piece], count: int, null_empty: bool) -> Records:
    times = _times(pieces)
    first_ms = int(times[0])
    sizes = np.concatenate([np.diff(np.asarray(piece.cuts, np.int64)) for piece in pieces])
    key = _joined_column(pieces, "key")
    headers = _joined_column(pieces, "headers")
    deltas = times - first_ms
    head = Writer(count)
    head.constant(b"\0")
    head.numbers(((deltas << 1) ^ (deltas >> 63)).view(np.uint64))
    head.numbers(np.arange(0, 2 * count, 2, dtype=np.uint64))
    parts: list[pa.Array] = []
    weight = int(sizes.sum()) + MESSAGE_OVERHEAD_BYTES * count
    inside = head.sizes
    if key is None:
        head.constant(_NULL)
        value_size = _lengths(sizes, None, null_empty)
        head.take(value_size)
        inside = head.sizes + sizes
    else:
        key_sizes = np.asarray(pc.binary_length(key).fill_null(0), np.int64)
        weight += int(key_sizes.sum())
        head.take(_lengths(key_sizes, key, null_empty))
        value_size = _lengths(sizes, None, null_empty)
        inside = head.sizes + key_sizes + value_size.sizes + sizes
        parts = [key.fill_null(b"") if key.null_count else key, value_size.column()]
    tail = None if headers is None else sections(headers)
    inside = inside + (1 if tail is None else np.asarray(pc.binary_length(tail), np.int64))
    whole = Writer(count)
    whole.numbers((inside << 1).view(np.uint64))
    whole.take(head)
    if tail is None and key is None:
        data = _woven(whole, sizes, pieces)
    else:
        values = _values(pieces)
        end = tail if tail is not None else NONE
        joined = pc.binary_join_element_wise(whole.column(), *parts, values, end, b"")
        data = _bytes_of(joined)
    return Records(count, data, first_ms, int(times.max()), weight)


def _times(pieces: Sequence[Piece]) -> Offsets:
    return np.concatenate(
        [
            np.full(piece.count, piece.times_ms, np.int64)
            if isinstance(piece.times_ms, int)
            else np.asarray(piece.times_ms, np.int64)
            for piece in pieces
        ]
    )


def _lengths(sizes: Offsets, column: pa.Array | None, null_empty: bool) -> Writer:
    """Return lengths as they stand before keys or values."""
    if null_empty:
        null = sizes == 0
    else:
        null = np.asarray(column.is_null()) if column is not None else np.zeros(len(sizes), np.bool_)
    writer = Writer(len(sizes))
    writer.numbers(np.where(null, 1, sizes << 1).view(np.uint64))
    return writer


def _woven(heads: Writer, sizes: Offsets, pieces: Sequence[Piece]) -> Buffer:
    """Return heads and values in turn, each followed by no headers."""
    values = _values(pieces)
    return _bytes_of(pc.binary_join_element_wise(heads.column(), values, NONE, b""))


def _values(pieces: Sequence[Piece]) -> pa.Array:
    columns = [_binary(piece.cuts, piece.body) for piece in pieces]
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)


def _binary(cuts: Cuts, body: Buffer) -> pa.Array:
    edges = pa.py_buffer(np.ascontiguousarray(cuts, np.int32))
    return pa.Array.from_buffers(pa.binary(), len(cuts) - 1, [None, edges, pa.py_buffer(body)])


def _joined_column(pieces: Sequence[Piece], name: str) -> pa.Array | None:
    """Return one column of all pieces; None where no piece has it."""
    found = [getattr(piece, name) for piece in pieces]
    if all(column is None for column in found):
        return None
    columns = []
    for piece, column in zip(pieces, found, strict=True):
        if column is None:
            column = pa.nulls(piece.count, pa.binary())
        elif isinstance(column, list):
            column = pa.array(column, pa.binary())
        elif column.type != pa.binary():
            column = column.cast(pa.binary())
        columns.append(column)
    whole = columns[0] if len(columns) == 1 else pa.concat_arrays(columns)
    return None if whole.null_count == len(whole) else whole


def _bytes_of(column: pa.Array) -> Buffer:
    """Return a column's bytes, one cell behind the other."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    _, edges, data = column.buffers()
    cuts = np.frombuffer(edges, np.int32, len(column) + 1, column.offset * 4)
    return memoryview(data)[int(cuts[0]) : int(cuts[-1])]


def _slice(column: Column | None, start: int, stop: int) -> Column | None:
    return None if column is None else column[start:stop]


def _take(column: Column | None, rows: Offsets) -> Column | None:
    if column is None:
        return None
    if isinstance(column, list):
        return [column[row] for row in rows.tolist()]
    return column.take(pa.array(rows))


def _picked(batch: Batch, rows: Offsets) -> tuple[Cuts, Buffer]:
    """Return the values of some rows, back to back."""
    if batch.count <= SMALL or len(rows) <= SMALL:
        bodies = [batch.row_body(row) for row in rows.tolist()]
        cuts = [0]
        for body in bodies:
            cuts.append(cuts[-1] + len(body))
        return cuts, b"".join(bodies)
    taken = _binary(batch.cuts, batch.body).take(pa.array(rows))
    _, edges, data = taken.buffers()
    return np.frombuffer(edges, np.int32, len(rows) + 1, taken.offset * 4), data
