"""One Arrow IPC record-batch message, written by patching a template instead of through pyarrow.

Owns how rows become the bytes of a frame. Knows nothing of files, segments or delivery.
Invariant: what it writes reads back with pyarrow and Polars and passes full validation, and the frame of a batch
is the same whether the plain-Python way (up to SMALL rows) or the column way made it, apart from validity bitmaps.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fastcrc.crc32 import iscsi as crc32c

from penstock.columns import COLUMNS, SMALL, Buffer, Column
from penstock.errors import InvariantError
from penstock.log.layout import CRC_DIGITS, CRC_ZEROS, DIGITS, FIRST_AT, KEY, VALUE_BYTES, WEIGHT_AT, Layout, remember
from penstock.message import Batch

#: Version of the record's schema, kept in every segment's schema metadata.
VERSION = 1

#: Plans of small frames kept per template: 16 row counts times a few dialects and column sets.
PLANS_MAX = 512
#: Templates kept; each is a few KB, and a node has few schemas and sequence lengths.
TEMPLATES_MAX = 256
#: Wide enough for every column's share of absent rows, whatever its type.
ZERO_WIDTH = 8
#: Bodies smaller than this are copied into one piece: one CRC and one write instead of a dozen.
JOINED_BYTES = 16 << 10
#: Source columns kept per template, at most 11 bytes a row for the longest dialect's name.
CONSTANTS_MAX = 64
CONSTANT_ROWS_MAX = 4096

_I64 = struct.Struct("<q")
_PAIR = struct.Struct("<qq")
PADS = tuple(bytes(length) for length in range(8))
_ZEROS = bytes(1 << 20)

#: The buffers of one column as they go to disk: null count, then validity, values or cuts, data.
Pieces: TypeAlias = "tuple[int, list[Buffer | None]]"


def schema_of(columns: Sequence[str], compression: str = "none", *, sparse: bool = False) -> pa.Schema:
    """Return the Arrow schema of a segment that holds these columns; of a sparse one offsets are left out."""
    metadata = {"penstock.version": str(VERSION)}
    if sparse:
        metadata["penstock.sparse"] = "true"
    if compression != "none":
        metadata["penstock.compression"] = compression
    return pa.schema([(name, COLUMNS[name]) for name in columns], metadata=metadata)


_TEMPLATES: dict[tuple[tuple[str, ...], int], Template] = {}


def template_of(columns: tuple[str, ...], sequence_bytes: int = 0) -> Template:
    """Return the template for a segment's columns and a sequence of this length."""
    found = _TEMPLATES.get((columns, sequence_bytes))
    if found is None:
        if len(_TEMPLATES) >= TEMPLATES_MAX:
            _TEMPLATES.clear()
        found = _TEMPLATES[columns, sequence_bytes] = Template(schema_of(columns), sequence_bytes)
    return found


class Template:
    """The message of one schema with everything in place but the numbers."""

    def __init__(self, schema: pa.Schema, sequence_bytes: int) -> None:
        self.schema = schema
        raw = _example(schema, sequence_bytes)
        self.layout = Layout(raw, 0)
        if self.layout.sequence_bytes != sequence_bytes or self.layout.compressed:
            raise InvariantError("pyarrow wrote a message of another shape than asked for")
        remember(self.layout)
        self._head = raw[: self.layout.body_at]
        self._fields = [(field.name, field.type) for field in schema]
        self._constants: dict[tuple[str, int], tuple[Buffer, Buffer]] = {}
        self._plans: dict[tuple[object, ...], _Plan] = {}
        #: Heads of frames that hold nothing but integers, by their rows: up to SMALL of them are given as sequences.
        self._integers: dict[int, tuple[bytes, struct.Struct]] = {}

    def encode(self, batch: Batch) -> list[Buffer]:
        """Return the frame of a batch as parts for one write. Budget: 3 us for a lone message, 10 ns a row in bulk."""
        if batch.count <= SMALL and type(batch.source) is str and len(batch.sequence) == self.layout.sequence_bytes:
            return [self.small(batch)]
        return self._large(batch)

    def encode_integers(self, first: int, columns: Sequence[Sequence[int]] | npt.NDArray[np.int64]) -> list[Buffer]:
        """Return a frame of int64 columns without nulls, as the journal writes them; one inner sequence a column."""
        rows = len(columns[0])
        if isinstance(columns, np.ndarray):
            pieces: list[Pieces] = [(0, [None, column.tobytes()]) for column in columns]
            return self._message(rows, first, 0, b"", pieces)
        head, body = self._integers.get(rows) or self._integer_plan(rows, len(columns))
        frame = bytearray(head)
        frame += body.pack(*chain.from_iterable(columns))
        return [self._signed(frame, first, 0)]

    def encode_row(self, first: int, row: Sequence[int]) -> list[Buffer]:
        """Return a frame of one row of such columns."""
        head, body = self._integers.get(1) or self._integer_plan(1, len(row))
        return [self._signed(bytearray(head + body.pack(*row)), first, 0)]

    def _integer_plan(self, rows: int, columns: int) -> tuple[bytes, struct.Struct]:
        """Return the head of a frame of int64 columns of so many rows, and how its body is packed."""
        layout = self.layout
        frame = bytearray(self._head)
        width = 8 * rows
        _I64.pack_into(frame, layout.rows_at, rows)
        _I64.pack_into(frame, layout.body_bytes_at, width * columns)
        nodes: list[int] = []
        buffers: list[int] = []
        for number in range(columns):
            nodes += (rows, 0)
            buffers += (0, 0, number * width, width)
        layout.nodes.pack_into(frame, layout.nodes_at, *nodes)
        layout.buffers.pack_into(frame, layout.buffers_at, *buffers)
        plan = self._integers[rows] = bytes(frame), struct.Struct(f"<{rows * columns}q")
        return plan

    def small(self, batch: Batch) -> bytearray:
        """Write up to SMALL rows with nothing but struct: a numpy or Arrow call costs more than the whole of this."""
        count = batch.count
        columns = batch.columns
        key: tuple[object, ...] = (count, batch.source, *columns) if columns else (count, batch.source)
        plan = self._plans.get(key) or self._plan(key, batch)
        frame = bytearray(plan.head)
        body = batch.body
        size = len(body)
        first = batch.first
        time = batch.timestamp
        if count == 1:
            moment = time if type(time) is int else int(time[0])  # type: ignore[index]
            plan.base.pack_into(frame, plan.base_at, first, moment, 0, size)
        else:
            times = (time,) * count if type(time) is int else time
            plan.base.pack_into(frame, plan.base_at, *range(first, first + count), *times, *batch.cuts)  # type: ignore[misc]
        _I64.pack_into(frame, plan.body_size_at, size)
        frame += body
        if size & 7:
            frame += PADS[-size & 7]
        for column in plan.optional:
            column.write(frame, columns[column.name], plan.body_at)
        _I64.pack_into(frame, plan.body_bytes_at, len(frame) - plan.body_at)
        if batch.sequence:
            frame[plan.sequence_at : plan.sequence_at + len(batch.sequence)] = batch.sequence
        # The CRC last, over everything with its own digits as zeros.
        frame[plan.first_at : plan.sequence_at - 1] = b"%016x %016x" % (first, batch.weight)
        frame[plan.crc_at : plan.crc_at + CRC_DIGITS] = b"%08x" % crc32c(frame)
        return frame

    def _signed(self, frame: bytearray, first: int, weight: int) -> bytearray:
        """Fill in the digits; the CRC last, over everything with its own digits as zeros."""
        at = self.layout.value_at
        frame[at + FIRST_AT : at + WEIGHT_AT + DIGITS] = b"%016x %016x" % (first, weight)
        frame[at : at + CRC_DIGITS] = b"%08x" % crc32c(frame)
        return frame

    def _plan(self, key: tuple[object, ...], batch: Batch) -> _Plan:
        if len(self._plans) >= PLANS_MAX:
            self._plans.clear()
        plan = self._plans[key] = _Plan(self.schema, self.layout, self._head, batch)
        return plan

    def _large(self, batch: Batch) -> list[Buffer]:
        count = batch.count
        pieces: list[Pieces | None] = []
        for name, type_ in self._fields:
            if name == "offset":
                pieces.append((0, [None, np.arange(batch.first, batch.first + count, dtype="<i8").tobytes()]))
            elif name == "timestamp":
                pieces.append((0, [None, _times(batch)]))
            elif name == "body":
                pieces.append((0, [None, *_body(batch)]))
            elif name == "source" and isinstance(batch.source, str):
                pieces.append((0, [None, *self._constant(batch.source, count)]))
            else:
                column = batch.source if name == "source" else batch.columns.get(name)
                pieces.append(None if column is None else _pieces(column, type_, count))
        return self._message(count, batch.first, batch.weight, batch.sequence, pieces)

    def _message(
        self, rows: int, first: int, weight: int, sequence: bytes, pieces: Sequence[Pieces | None]
    ) -> list[Buffer]:
        """Lay the columns' buffers one after another; all absent columns share one region of zeros at the front."""
        parts: list[Buffer] = [b""]
        nodes: list[int] = []
        buffers: list[int] = []
        at = 0
        if None in pieces:
            at = ZERO_WIDTH * rows
            parts.append(memoryview(_ZEROS)[:at] if at <= len(_ZEROS) else bytes(at))
        for number, piece in enumerate(pieces):
            if piece is None:
                nodes += (rows, rows)
                buffers += _absent(self._fields[number][1], rows)
                continue
            nodes += (rows, piece[0])
            for buffer in piece[1]:
                size = 0 if buffer is None else len(buffer)
                buffers += (at, size)
                if buffer is not None and size:
                    parts.append(buffer)
                    if size & 7:
                        parts.append(PADS[-size & 7])
                    at += (size + 7) & ~7
        head = self._patched(rows, at, first, weight, sequence, nodes, buffers)
        value_at = self.layout.value_at
        if at < JOINED_BYTES:
            for part in parts:
                head += part
            head[value_at : value_at + CRC_DIGITS] = b"%08x" % crc32c(head)
            return [head]
        parts[0] = head
        crc = 0
        for part in parts:
            crc = crc32c(part, crc)
        head[value_at : value_at + CRC_DIGITS] = b"%08x" % crc
        return parts

    def _constant(self, text: str, count: int) -> tuple[Buffer, Buffer]:
        """Return cuts and data of a text that all rows have; busy dialects come with the same counts again."""
        found = self._constants.get((text, count))
        if found is None:
            found = _constant(text, count)
            if count <= CONSTANT_ROWS_MAX:
                if len(self._constants) >= CONSTANTS_MAX:
                    self._constants.clear()
                self._constants[text, count] = found
        return found

    def _patched(
        self, rows: int, size: int, first: int, weight: int, sequence: bytes, nodes: list[int], buffers: list[int]
    ) -> bytearray:
        layout = self.layout
        head = bytearray(self._head)
        _I64.pack_into(head, layout.rows_at, rows)
        _I64.pack_into(head, layout.body_bytes_at, size)
        layout.nodes.pack_into(head, layout.nodes_at, *nodes)
        layout.buffers.pack_into(head, layout.buffers_at, *buffers)
        at = layout.value_at + FIRST_AT
        value = b"%016x %016x %b" % (first, weight, sequence)
        if len(value) != 2 * DIGITS + 2 + layout.sequence_bytes:
            raise InvariantError("a sequence of another length than the template's")
        head[at : at + len(value)] = value
        return head


class _Plan:
    """A small frame of one row count, dialect and set of columns, with all that does not depend on the rows' values."""

    __slots__ = (
        "base",
        "base_at",
        "body_at",
        "body_bytes_at",
        "body_size_at",
        "crc_at",
        "first_at",
        "head",
        "optional",
        "sequence_at",
    )

    def __init__(self, schema: pa.Schema, layout: Layout, head: bytes, batch: Batch) -> None:
        count = batch.count
        source = str(batch.source).encode() * count
        step = len(str(batch.source).encode())
        frame = bytearray(head)
        _I64.pack_into(frame, layout.rows_at, count)
        self.body_at, self.body_bytes_at = layout.body_at, layout.body_bytes_at
        self.crc_at = layout.value_at
        self.first_at = layout.value_at + FIRST_AT
        self.sequence_at = layout.value_at + VALUE_BYTES
        self.base = struct.Struct(f"<{2 * count}q{count + 1}i")
        self.base_at = len(frame)
        base = self.base_at - layout.body_at
        frame += bytes(_padded(self.base.size))
        source_cuts = len(frame) - layout.body_at
        frame += _aligned(
            struct.pack(f"<{count + 1}i", *range(0, step * (count + 1), step or 1)[: count + 1])
            if step
            else bytes(4 * (count + 1))
        )
        source_data = len(frame) - layout.body_at
        frame += _aligned(source)
        zeros = len(frame) - layout.body_at
        if len(schema) > 4 + len(batch.columns):
            frame += bytes(ZERO_WIDTH * count)
        self.optional: list[_Optional] = []
        nodes: list[int] = []
        buffers: list[int] = []
        self.body_size_at = 0
        for field in schema:
            name = field.name
            entry_at = layout.buffers_at + 8 * len(buffers)
            node_at = layout.nodes_at + 8 * len(nodes)
            nodes += (count, 0)
            if name == "offset":
                buffers += (0, 0, base, 8 * count)
            elif name == "timestamp":
                buffers += (0, 0, base + 8 * count, 8 * count)
            elif name == "body":
                self.body_size_at = entry_at + 40
                buffers += (0, 0, base + 16 * count, 4 * count + 4, 0, 0)
            elif name == "source":
                buffers += (0, 0, source_cuts, 4 * count + 4, source_data, len(source))
            elif name in batch.columns:
                column = _Optional(name, field.type, count, len(frame), node_at, entry_at)
                self.optional.append(column)
                buffers += column.entries(layout.body_at)
                frame += column.room()
            else:
                nodes[-1] = count
                buffers += _absent(field.type, count, zeros)
        layout.nodes.pack_into(frame, layout.nodes_at, *nodes)
        layout.buffers.pack_into(frame, layout.buffers_at, *buffers)
        _I64.pack_into(frame, self.body_size_at - 8, len(frame) - layout.body_at)
        self.head = bytes(frame)


class _Optional:
    """The place of one optional column in a small frame: a bitmap of 8 bytes, then values or cuts."""

    __slots__ = ("_count", "_data_entry_at", "_full", "_node_at", "_validity_at", "_values", "_width", "name")

    def __init__(self, name: str, type_: pa.DataType, count: int, at: int, node_at: int, entry_at: int) -> None:
        self.name = name
        self._count = count
        self._validity_at = at
        self._node_at = node_at
        self._full = (1 << count) - 1
        #: 0 for columns of varying width, whose data goes behind the body.
        self._width = _width(type_)
        self._values = struct.Struct({8: f"<{count}q", 4: f"<{count}i", 0: f"<{count + 1}i"}[self._width])
        self._data_entry_at = entry_at + 32

    def entries(self, body_at: int) -> list[int]:
        at = self._validity_at - body_at
        found = [at, (self._count + 7) // 8, at + 8, self._values.size]
        return found if self._width else [*found, 0, 0]

    def room(self) -> bytes:
        return _I64.pack(self._full) + bytes(_padded(self._values.size))

    def write(self, frame: bytearray, values: Column, body_at: int) -> None:
        cells: list[Any] = values if isinstance(values, list) else values.to_pylist()
        if None in cells:
            nulls = cells.count(None)
            bits = sum(1 << row for row, cell in enumerate(cells) if cell is not None)
            _I64.pack_into(frame, self._validity_at, bits)
            _I64.pack_into(frame, self._node_at + 8, nulls)
            empty = 0 if self._width else b""
            cells = [empty if cell is None else cell for cell in cells]
        if self._width:
            self._values.pack_into(frame, self._validity_at + 8, *cells)
            return
        cells = [cell.encode() if isinstance(cell, str) else cell for cell in cells]
        data = cells[0] if self._count == 1 else b"".join(cells)
        self._values.pack_into(frame, self._validity_at + 8, 0, *accumulate(map(len, cells)))
        _PAIR.pack_into(frame, self._data_entry_at, len(frame) - body_at, len(data))
        frame += data
        frame += PADS[-len(data) & 7]


def _example(schema: pa.Schema, sequence_bytes: int) -> bytes:
    """Return a one-row message as pyarrow writes it, with a value of the right length."""
    arrays = [pa.array([b"x" if _width(field.type) == 0 else 1], field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    value = CRC_ZEROS + b" " + b"0" * DIGITS + b" " + b"0" * DIGITS + b" " + b"s" * sequence_bytes
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch, custom_metadata={KEY: value})
    raw: bytes = sink.getvalue().to_pybytes()
    return raw[len(schema.serialize().to_pybytes()) :]


def _width(type_: pa.DataType) -> int:
    return 0 if pa.types.is_binary(type_) or pa.types.is_string(type_) else type_.bit_width // 8


def _padded(size: int) -> int:
    return (size + 7) & ~7


def _aligned(data: bytes) -> bytes:
    return data + PADS[-len(data) & 7]


def _absent(type_: pa.DataType, rows: int, at: int = 0) -> list[int]:
    width = _width(type_)
    validity = [at, (rows + 7) // 8]
    return [*validity, at, width * rows] if width else [*validity, at, 4 * rows + 4 if rows else 0, 0, 0]


def _times(batch: Batch) -> bytes:
    if isinstance(batch.timestamp, int):
        return _I64.pack(batch.timestamp) * batch.count
    return np.asarray(batch.timestamp, "<i8").tobytes()


def _body(batch: Batch) -> tuple[Buffer, Buffer]:
    cuts = np.asarray(batch.cuts, "<i4")
    return cuts.tobytes(), batch.body


def _constant(text: str, count: int) -> tuple[Buffer, Buffer]:
    data = text.encode()
    step = len(data)
    cuts = np.arange(0, step * count + 1, step, dtype="<i4") if step else np.zeros(count + 1, "<i4")
    return cuts.tobytes(), data * count


def _pieces(column: Column, type_: pa.DataType, count: int) -> Pieces:
    """Return an Arrow column's buffers without what lies before and behind its slice."""
    array = column if isinstance(column, pa.Array) else pa.array(column, type_)
    if array.type != type_:
        array = array.cast(type_)
    start = array.offset
    nulls = array.null_count
    validity, *rest = array.buffers()
    bitmap = _bitmap(validity, start, count) if nulls else None
    width = _width(type_)
    if width:
        return nulls, [bitmap, memoryview(rest[0])[start * width : (start + count) * width]]
    cuts = np.frombuffer(rest[0], "<i4", count + 1, 4 * start) if rest[0] is not None else np.zeros(count + 1, "<i4")
    low, high = int(cuts[0]), int(cuts[-1])
    data: Buffer = memoryview(rest[1])[low:high] if high > low else b""
    return nulls, [bitmap, (cuts - low if low else cuts).tobytes(), data]


def _bitmap(validity: pa.Buffer, start: int, count: int) -> Buffer:
    low, skew = divmod(start, 8)
    used = memoryview(validity)[low : (start + count + 7) // 8]
    if skew == 0:
        return used
    bits = np.unpackbits(np.frombuffer(used, np.uint8), bitorder="little")
    return np.packbits(bits[skew : skew + count], bitorder="little").tobytes()
