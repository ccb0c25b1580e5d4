"""Record batches (magic 2) from columns, for a produce request.

Owns their layout. Up to FEW records a plain loop; above that numpy and Arrow, which make the same bytes.
Budget: 0.2 us a record of 100 bytes from 1,000 on, the checksum included.
Invariant: what is left of an empty key or value is null where its piece says so, as Dory has it, and empty elsewhere; a
tombstone that came from Kafka is one again.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import pairwise
from struct import Struct
from typing import TypeAlias, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from fastcrc.crc32 import iscsi as crc32c

from penstock.columns import SMALL, Buffer, Column, Cuts, Offsets
from penstock.kafka.compression import NUMBERS, PLAIN, CodecName, Compression, compressed
from penstock.kafka.headers import NONE, below, section, sections
from penstock.kafka.producer_id import NOBODY, Producer
from penstock.message import Batch
from penstock.varints import Writer, varint

#: What Dory counts of a message beyond its key and value.
MESSAGE_OVERHEAD_BYTES = 26
#: A record costs the loop a microsecond, and numpy and Arrow together take this many before they begin.
FEW = 64
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
_NOTHING = np.zeros(0, np.uint8)
#: Numbers of up to two bytes are looked up: sizes and offsets below 8 Ki, seconds between two records.
_KNOWN = 1 << 14
_VARINTS = [varint(number) for number in range(_KNOWN)]
#: As many offsets are kept ready.
_NUMBERED = 1 << 15
_WIDTHS = np.where(np.arange(_KNOWN) < 128, 1, 2)

Times: TypeAlias = "int | Sequence[int] | Offsets"
Bytes: TypeAlias = npt.NDArray[np.uint8]
Flags: TypeAlias = npt.NDArray[np.bool_]


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
    #: Whether keys and values that are empty are none at all; one for all, or one each.
    null_empty: bool | Flags = True

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.cuts) - 1

    @classmethod
    def of(cls, batch: Batch, rows: slice | Offsets, times_ms: Times, null_empty: bool | Flags = True) -> Piece:
        """Return rows of a batch of the log; a slice is not copied. Times and flags are of the rows that are meant."""
        key, headers = batch.columns.get("key"), batch.columns.get("headers")
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(batch.count)
            cuts: Cuts = batch.cuts[start : stop + 1]
            some = _slice(key, start, stop), _slice(headers, start, stop)
            return cls(cuts, batch.body, times_ms, *some, null_empty)
        cuts, body = _picked(batch, rows)
        return cls(cuts, body, times_ms, _take(key, rows), _take(headers, rows), null_empty)


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
    #: Why they go as they are although they were to be compressed: the codec failed.
    fault: str = ""

    @property
    def size(self) -> int:
        """How many bytes the batch has."""
        return HEAD_BYTES + self.sent_bytes


def laid_out(pieces: Sequence[Piece]) -> Records:
    """Return the records of messages, in order; there must be one at least."""
    count = sum([piece.count for piece in pieces])
    if count <= FEW:
        return _each(pieces, count)
    return _columns(pieces, count)


def sealed(
    records: Records, compression: Compression = PLAIN, producer: Producer = NOBODY, sequence: int = -1
) -> Sealed:
    """Return the batch that carries records, compressed if that is wanted, worth it, and can be done."""
    data: Buffer = records.data
    plain, codec, fault = len(data), compression.codec, ""
    if codec != "none" and records.weight < compression.bytes_min:
        codec = "none"
    if codec != "none":
        small: Buffer = b""
        try:
            small = compressed(codec, compression.level, memoryview(data))
        except (zlib.error, pa.ArrowException, MemoryError, OSError, ValueError) as error:
            fault = f"{codec}: {error!r}"
        if not fault and 100 * len(small) <= compression.percent * plain:
            data = small
        else:
            codec = "none"
    last = records.count - 1
    after = _AFTER.pack(
        NUMBERS[codec], last, records.first_ms, records.last_ms, producer.id, producer.epoch, sequence, records.count
    )
    crc = crc32c(data, crc32c(after))
    before = _BEFORE.pack(0, HEAD_BYTES - _LENGTH_FROM + len(data), -1, _MAGIC, crc)
    return Sealed([before + after, data], codec, plain, len(data), fault)


@cache
def _offsets() -> tuple[pa.Array, Offsets]:
    """Return the offsets of a batch's records, and how many bytes each takes."""
    writer = Writer(_NUMBERED)
    writer.numbers(np.arange(0, 2 * _NUMBERED, 2, dtype=np.uint64))
    return writer.column(), writer.sizes


@cache
def _known() -> pa.Array:
    return pa.array(_VARINTS, pa.binary())


# --- a few, one by one ------------------------------------------------------------------------------------------------


def _each(pieces: Sequence[Piece], count: int) -> Records:
    out: list[bytes] = []
    first_ms = last_ms = _time(pieces[0].times_ms, 0)
    weight = row = 0
    for piece in pieces:
        view, keys, headers = memoryview(piece.body), _listed(piece.key), _listed(piece.headers)
        cuts = piece.cuts.tolist() if isinstance(piece.cuts, np.ndarray) else piece.cuts
        times = piece.times_ms.tolist() if isinstance(piece.times_ms, np.ndarray) else piece.times_ms
        nulls = piece.null_empty if isinstance(piece.null_empty, bool) else piece.null_empty.tolist()
        for at, (start, stop) in enumerate(pairwise(cuts)):
            time_ms = times if isinstance(times, int) else times[at]
            if time_ms > last_ms:
                last_ms = time_ms
            null_empty = nulls if isinstance(nulls, bool) else nulls[at]
            key = None if keys is None else keys[at]
            value = bytes(view[start:stop])
            said = None if headers is None else headers[at]
            rest = below(said) if said and not value else None
            weight += len(value)
            if key:
                weight += len(key)
            body = b"".join(
                (
                    b"\0",
                    _zigzag(time_ms - first_ms),
                    _zigzag(row),
                    _NULL if key is None or (null_empty and not key) else _zigzag(len(key)) + key,
                    _NULL if rest is not None or (null_empty and not value) else _zigzag(len(value)) + value,
                    section(said if rest is None else rest),
                )
            )
            out += _zigzag(len(body)), body
            row += 1
    return Records(count, b"".join(out), first_ms, last_ms, weight + MESSAGE_OVERHEAD_BYTES * count)


def _time(times: Times, row: int) -> int:
    return times if isinstance(times, int) else int(times[row])


def _listed(column: Column | None) -> list[bytes | None] | None:
    if column is None:
        return None
    return cast("list[bytes | None]", column if isinstance(column, list) else column.to_pylist())


def _zigzag(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    return _VARINTS[number] if number < _KNOWN else varint(number)


# --- many, by columns -------------------------------------------------------------------------------------------------


def _columns(pieces: Sequence[Piece], count: int) -> Records:
    times, first_ms, last_ms = _times(pieces)
    sizes = _sizes(pieces)
    key, headers = _joined_column(pieces, "key"), _joined_column(pieces, "headers")
    null_empty = _nulls(pieces)
    weight = int(sizes.sum()) + MESSAGE_OVERHEAD_BYTES * count
    if key is None and headers is None and times is None:
        size = int(sizes[0])
        if (size or isinstance(null_empty, bool)) and (sizes == size).all():
            data: Buffer = _alike(pieces, count, size, not size and bool(null_empty))
            return Records(count, data, first_ms, last_ms, weight)
    #: What every record has one behind the other, and how many bytes of it stand in each.
    inside: Offsets = sizes + 1
    columns: list[pa.Array | bytes] = [b"\0"]
    if times is None:
        columns.append(b"\0")
        inside += 1
    else:
        deltas = times - first_ms
        inside += _add(columns, (deltas << 1) ^ (deltas >> 63))
    if count <= _NUMBERED:
        offsets, widths = _offsets()
        columns.append(offsets.slice(0, count))
        inside += widths[:count]
    else:
        inside += _add(columns, np.arange(0, 2 * count, 2))
    if key is None:
        columns.append(_NULL)
        inside += 1
    else:
        key_sizes = np.asarray(pc.binary_length(key).fill_null(0), np.int64)
        weight += int(key_sizes.sum())
        nulls = np.asarray(key.is_null()) | ((key_sizes == 0) & null_empty)
        inside += _add(columns, np.where(nulls, 1, key_sizes << 1)) + key_sizes
        columns.append(key.fill_null(b"") if key.null_count else key)
    empty = sizes == 0
    gone, headers = _tombstones(empty, headers)
    gone = gone | (empty & null_empty)
    inside += _add(columns, np.where(gone, 1, sizes << 1))
    columns.append(_values(pieces))
    if headers is None:
        columns.append(NONE)
        inside += 1
    else:
        tail = sections(headers)
        columns.append(tail)
        inside += np.asarray(pc.binary_length(tail), np.int64)
    first: list[pa.Array | bytes] = []
    _add(first, inside << 1)
    joined = pc.binary_join_element_wise(*_fewer([*first, *columns]), _scalar(b""))
    return Records(count, _bytes_of(joined), first_ms, last_ms, weight)


def _nulls(pieces: Sequence[Piece]) -> bool | Flags:
    """Return whether what is empty is null: one for all where they agree, else one each."""
    said = [piece.null_empty for piece in pieces]
    first = said[0]
    if isinstance(first, bool) and all(isinstance(each, bool) and each == first for each in said):
        return first
    return np.concatenate(
        [
            np.full(piece.count, each) if isinstance(each, bool) else each
            for piece, each in zip(pieces, said, strict=True)
        ]
    )


def _tombstones(empty: Flags, headers: pa.Array | None) -> tuple[Flags, pa.Array | None]:
    """Return which of the empty values are none at all, and the headers without what says so."""
    if headers is None or not empty.any():
        return np.zeros(len(empty), np.bool_), headers
    said = headers.to_pylist()
    gone = np.zeros(len(empty), np.bool_)
    for row in np.flatnonzero(empty).tolist():
        rest = below(said[row]) if said[row] else None
        if rest is not None:
            said[row], gone[row] = rest, True
    return gone, pa.array(said, headers.type) if gone.any() else headers


def _add(columns: list[pa.Array | bytes], numbers: Offsets) -> Offsets | int:
    """Write numbers that are not negative, one in each record; return how many bytes each takes."""
    low, high = int(numbers.min()), int(numbers.max())
    if low == high:
        columns.append(varint(low))
        return len(varint(low))
    if low >= 0 and high < _KNOWN:
        columns.append(_known().take(pa.array(numbers)))
        return _WIDTHS[numbers]
    writer = Writer(len(numbers))
    writer.numbers(numbers.view(np.uint64))
    columns.append(writer.column())
    return writer.sizes


def _fewer(columns: list[pa.Array | bytes]) -> list[pa.Array | pa.Scalar]:
    """Return columns with what is the same in all records, and stands side by side, as one."""
    out: list[pa.Array | pa.Scalar] = []
    same = b""
    for column in columns:
        if isinstance(column, bytes):
            same += column
            continue
        if same:
            out.append(_scalar(same))
            same = b""
        out.append(column)
    return [*out, _scalar(same)] if same else out


@lru_cache(256)
def _scalar(data: bytes) -> pa.Scalar:
    return pa.scalar(data, pa.binary())


def _alike(pieces: Sequence[Piece], count: int, size: int, is_null: bool) -> Buffer:
    """Return records that differ in their offsets and values alone: a matrix for all offsets of one width."""
    value_size = _NULL if is_null else varint(size << 1)
    middle = np.frombuffer(_NULL + value_size, np.uint8)
    values = np.concatenate([_matrix(piece, size) for piece in pieces]) if len(pieces) > 1 else _matrix(pieces[0], size)
    out: list[Bytes] = []
    start, width = 0, 1
    while start < count:
        stop = min(count, 1 << (7 * width - 1))
        inside = 2 + width + len(middle) + size + 1
        head = np.frombuffer(varint(inside << 1) + b"\0\0", np.uint8)
        at = len(head)
        rows = np.empty((stop - start, at + inside - 2), np.uint8)
        rows[:, :at] = head
        numbers = np.arange(2 * start, 2 * stop, 2)
        for place in range(width):
            more = 0x80 if place + 1 < width else 0
            rows[:, at + place] = (numbers >> 7 * place) & 0x7F | more
        at += width
        rows[:, at : at + len(middle)] = middle
        rows[:, at + len(middle) : -1] = values[start:stop]
        rows[:, -1] = 0
        out.append(rows.reshape(-1))
        start, width = stop, width + 1
    return (out[0] if len(out) == 1 else np.concatenate(out)).data


def _matrix(piece: Piece, size: int) -> Bytes:
    flat: Bytes = np.frombuffer(piece.body, np.uint8, piece.count * size, int(piece.cuts[0])) if size else _NOTHING
    return flat.reshape(piece.count, size)


def _times(pieces: Sequence[Piece]) -> tuple[Offsets | None, int, int]:
    """Return the times, None where all are the same; the first; the last."""
    said = [piece.times_ms for piece in pieces]
    first = _time(said[0], 0)
    if all(isinstance(each, int) and each == first for each in said):
        return None, first, first
    times = np.concatenate(
        [
            np.full(piece.count, each, np.int64) if isinstance(each, int) else np.asarray(each, np.int64)
            for piece, each in zip(pieces, said, strict=True)
        ]
    )
    last = int(times.max())
    return (None if first == last == int(times.min()) else times), first, last


def _sizes(pieces: Sequence[Piece]) -> Offsets:
    found: list[Offsets] = []
    for piece in pieces:
        cuts = np.asarray(piece.cuts, np.int64)
        found.append(cuts[1:] - cuts[:-1])
    return found[0] if len(found) == 1 else np.concatenate(found)


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
