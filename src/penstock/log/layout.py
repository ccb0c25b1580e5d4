"""Where things stand inside one Arrow IPC record-batch message.

Owns the walk through the message's flatbuffer and the check of its CRC. Knows nothing of columns or rows' meaning.
Invariant: nothing is read at a position that was not found by the walk, so files of another writer version stay
readable, and damaged bytes raise `CorruptionError` instead of being misread.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from fastcrc.crc32 import iscsi as crc32c

from penstock.errors import CorruptionError

Bytes: TypeAlias = "bytes | bytearray | memoryview"

CONTINUATION = b"\xff\xff\xff\xff"
END_OF_STREAM = CONTINUATION + bytes(4)
#: Continuation marker and metadata length come before every message.
PREFIX_BYTES = 8

KEY = b"penstock"
#: crc, first offset, weight: fixed digits, so that every frame of a schema has the same shape; the sequence follows.
CRC_DIGITS = 8
DIGITS = 16
VALUE_BYTES = CRC_DIGITS + 1 + DIGITS + 1 + DIGITS + 1
FIRST_AT = CRC_DIGITS + 1
WEIGHT_AT = FIRST_AT + DIGITS + 1
CRC_ZEROS = b"0" * CRC_DIGITS

#: A message header larger than this is no message of ours (17 columns make about 1.5 KB).
METADATA_BYTES_MAX = 1 << 20
#: Up to here one copy with the digits zeroed is cheaper than a CRC in three steps.
COPIED_BYTES = 8 << 10

#: Layouts met so far by metadata length. A process meets few: one per schema, sequence length and writer version.
LAYOUTS_MAX = 4096

_U16 = struct.Struct("<H")
_PREFIX = struct.Struct("<4si")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")

_BATCH_HEADER = 3


class Layout:
    """The positions that matter in one kind of message, relative to its first byte."""

    __slots__ = (
        "_fixed",
        "_mask",
        "_skeleton",
        "_words",
        "aligned",
        "body_at",
        "body_bytes_at",
        "buffers",
        "buffers_at",
        "columns",
        "compressed",
        "known",
        "nodes",
        "nodes_at",
        "rows_at",
        "sequence_bytes",
        "value_at",
    )

    def __init__(self, data: Bytes, at: int) -> None:
        walk = _Walk(data, at)
        #: Later messages are compared with it before they are walked through.
        self.known = False
        #: Where the body begins, which is also the length of everything before it.
        self.body_at = walk.length
        message = walk.root()
        if walk.u8(walk.field(message, 1)) != _BATCH_HEADER:
            raise CorruptionError("the message is no record batch")
        self.body_bytes_at = walk.field(message, 3)
        batch = walk.follow(walk.field(message, 2))
        self.rows_at = walk.field(batch, 0)
        self.columns, self.nodes_at = walk.vector(walk.field(batch, 1), 16)
        buffers, self.buffers_at = walk.vector(walk.field(batch, 2), 16)
        self.compressed = walk.optional(batch, 3) != 0
        self.value_at, size = walk.value(walk.field(message, 4))
        self.sequence_bytes = size - VALUE_BYTES
        if self.sequence_bytes < 0:
            raise CorruptionError("the message's own metadata is too short")
        self.nodes = struct.Struct(f"<{2 * self.columns}q")
        self.buffers = struct.Struct(f"<{2 * buffers}q")
        holes = sorted(
            [
                (self.body_bytes_at, 8),
                (self.rows_at, 8),
                (self.nodes_at, self.nodes.size),
                (self.buffers_at, self.buffers.size),
                (self.value_at, size),
            ]
        )
        pattern, position = "<", 0
        for start, length in holes:
            if start < position:
                raise CorruptionError("parts of the message overlap")
            pattern += f"{start - position}s{length}x"
            position = start + length
        pattern += f"{self.body_at - position}s"
        #: Everything that is not patched; a message that agrees in it has this layout.
        self._skeleton = struct.Struct(pattern)
        self._fixed = self._skeleton.unpack_from(data, at)
        #: All numbers stand where an array of int64 has them.
        self.aligned = all(start % 8 == 0 for start, _ in holes if start != self.value_at) and self.body_at % 8 == 0
        mask = bytearray(b"\xff" * (self.body_at + -self.body_at % 8))
        for start, length in holes:
            mask[start : start + length] = bytes(length)
        self._mask = np.frombuffer(bytes(mask), "<i8")
        head = bytes(data[at : at + self.body_at]) + bytes(-self.body_at % 8)
        self._words = np.frombuffer(head, "<i8") & self._mask

    def matches(self, data: Bytes, at: int) -> bool:
        """Tell whether the message there has this layout; the caller knows that `body_at` bytes are there."""
        return self._skeleton.unpack_from(data, at) == self._fixed

    def all_match(self, heads: npt.NDArray[np.int64]) -> bool:
        """Tell whether all of these messages, one a row, `body_at` bytes as int64, have this layout."""
        return bool(((heads & self._mask) == self._words).all())

    def body_bytes(self, data: Bytes, at: int) -> int:
        """Return the length of the body."""
        return int(_I64.unpack_from(data, at + self.body_bytes_at)[0])

    def rows(self, data: Bytes, at: int) -> int:
        """Return the number of rows."""
        return int(_I64.unpack_from(data, at + self.rows_at)[0])

    def first(self, data: Bytes, at: int) -> int:
        """Return the offset of the first row."""
        start = at + self.value_at + FIRST_AT
        return int(bytes(data[start : start + DIGITS]), 16)

    def weight(self, data: Bytes, at: int) -> int:
        """Return what the records before this batch weigh."""
        start = at + self.value_at + WEIGHT_AT
        return int(bytes(data[start : start + DIGITS]), 16)

    def sequence(self, data: Bytes, at: int) -> bytes:
        """Return the producer sequence, empty for most batches."""
        start = at + self.value_at + VALUE_BYTES
        return bytes(data[start : start + self.sequence_bytes])

    def intact(self, data: Bytes, at: int, end: int) -> bool:
        """Tell whether the message's CRC is right."""
        digits = at + self.value_at
        if end - at < COPIED_BYTES:
            copy = bytearray(data[at:end])
            copy[self.value_at : self.value_at + CRC_DIGITS] = CRC_ZEROS
            crc = crc32c(copy)
        else:
            view = memoryview(data)
            crc = crc32c(view[digits + CRC_DIGITS : end], crc32c(CRC_ZEROS, crc32c(view[at:digits])))
        return b"%08x" % crc == data[digits : digits + CRC_DIGITS]


_LAYOUTS: dict[int, tuple[Layout, ...]] = {}


def checked(data: Bytes, at: int, limit: int) -> tuple[Layout, int]:
    """Return the layout and the end of the intact message that begins at a position and ends before `limit`."""
    layout = layout_at(data, at)
    end: int = at + layout.body_at + _I64.unpack_from(data, at + layout.body_bytes_at)[0]
    if not at + layout.body_at <= end <= limit:
        raise CorruptionError("the message is cut short")
    if not layout.intact(data, at, end):
        raise CorruptionError("the CRC is wrong")
    if not layout.known:
        remember(layout)
    return layout, end


def layout_at(data: Bytes, at: int) -> Layout:
    """Return the layout of the message at this position."""
    length = metadata_bytes_at(data, at)
    if length == 0 or len(data) < at + length:
        raise CorruptionError("the message is cut short")
    for layout in _LAYOUTS.get(length, ()):
        if layout.matches(data, at):
            return layout
    try:
        return Layout(data, at)
    except (struct.error, IndexError, OverflowError) as error:
        raise CorruptionError("the message's metadata cannot be read") from error


def remember(layout: Layout) -> None:
    """Let later messages of this layout be recognised without a walk; only for layouts of intact messages."""
    if len(_LAYOUTS) >= LAYOUTS_MAX:
        _LAYOUTS.clear()
    layout.known = True
    _LAYOUTS[layout.body_at] = (layout, *_LAYOUTS.get(layout.body_at, ())[:7])


def metadata_bytes_at(data: Bytes, at: int) -> int:
    """Return how many bytes come before the message's body, its prefix included; 0 for the end-of-stream marker."""
    if len(data) < at + PREFIX_BYTES:
        raise CorruptionError("the message is cut short")
    marker, length = _PREFIX.unpack_from(data, at)
    if marker != CONTINUATION:
        raise CorruptionError("no message begins here")
    if length == 0:
        return 0
    if length < 0 or length % 8 or length > METADATA_BYTES_MAX:
        raise CorruptionError("the message's length is impossible")
    return PREFIX_BYTES + int(length)


class _Walk:
    """Reads a flatbuffer field by field; every position is checked against the metadata's end."""

    def __init__(self, data: Bytes, at: int) -> None:
        self.length = metadata_bytes_at(data, at)
        if self.length == 0 or len(data) < at + self.length:
            raise CorruptionError("the message is cut short")
        self._data = bytes(data[at : at + self.length])

    def root(self) -> int:
        return self._checked(PREFIX_BYTES + self._u32(PREFIX_BYTES))

    def u8(self, at: int) -> int:
        return self._data[at]

    def optional(self, table: int, number: int) -> int:
        """Return where a field's value stands, 0 if the table lacks it."""
        vtable = self._checked(table - _I32.unpack_from(self._data, table)[0])
        slot = 4 + 2 * number
        if slot >= _U16.unpack_from(self._data, vtable)[0]:
            return 0
        inside: int = _U16.unpack_from(self._data, vtable + slot)[0]
        return self._checked(table + inside) if inside else 0

    def field(self, table: int, number: int) -> int:
        at = self.optional(table, number)
        if not at:
            raise CorruptionError("the message lacks a field")
        return at

    def follow(self, at: int) -> int:
        return self._checked(at + self._u32(at))

    def vector(self, at: int, width: int) -> tuple[int, int]:
        """Return (count, position of the first element)."""
        start = self.follow(at)
        count = self._u32(start)
        if start + 4 + count * width > self.length:
            raise CorruptionError("a vector leaves the message")
        return count, start + 4

    def value(self, at: int) -> tuple[int, int]:
        """Return (position, length) of our own key's value in the custom metadata."""
        count, start = self.vector(at, 4)
        for number in range(count):
            pair = self.follow(start + 4 * number)
            key_bytes, key_at = self.vector(self.field(pair, 0), 1)
            if self._data[key_at : key_at + key_bytes] == KEY:
                length, value_at = self.vector(self.field(pair, 1), 1)
                return value_at, length
        raise CorruptionError("the message carries no CRC")

    def _u32(self, at: int) -> int:
        return int(_U32.unpack_from(self._data, at)[0])

    def _checked(self, at: int) -> int:
        if not PREFIX_BYTES <= at <= self.length - 4:
            raise CorruptionError("a position leaves the message")
        return at
