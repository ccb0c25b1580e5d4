"""Rows of bytes that are written alike: the same fields, each number and each text with as many bytes in every row.

Then rows are a table of bytes, and a field is a few columns of it: a third of what `varints` costs, which reads any
form. A stream has a handful of shapes: ids next to each other have one length, shards have one or two.
Budget: 10 ns a row of 100 bytes to know where rows are the same.
Invariant: it says what `varints` says, or nothing.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.varints import varint

Table: TypeAlias = npt.NDArray[np.uint8]
Numbers: TypeAlias = npt.NDArray[np.uint64]

#: A metadata has up to three numbers of ten bytes, and their tags.
_BYTES_MAX = 33
#: More shapes than this are read one number after the other.
_SHAPES_MAX = 4
_SEVEN = np.uint8(0x7F)
#: Of short rows several are looked at as one: a step of numpy's costs as much as some hundred bytes.
_LINE_BYTES = 2048
#: A tenth byte says no more than one bit: `varints` knows.
_NUMBER_BYTES_MAX = 9


class Alike:
    """Rows of one length, and in which places all of them have the same byte."""

    __slots__ = ("_all", "_any", "size", "table")

    def __init__(self, table: Table) -> None:
        """Take rows that stand one behind the other in memory."""
        self.table = table
        self.size = table.shape[1]
        #: The bits that all rows have in each place, and those that one has.
        self._all, self._any = _together(np.bitwise_and, table), _together(np.bitwise_or, table)

    def same(self, at: int, stop: int) -> bytes | None:
        """Return the bytes between two places, if they are the same in all rows."""
        found = self._all[at:stop]
        return found if found == self._any[at:stop] else None

    def tag(self, at: int, stop: int) -> int:
        """Return the byte that all rows have at a place; -1 if they have not, or it is not in front of `stop`."""
        return self._all[at] if at < stop and self._all[at] == self._any[at] else -1

    def optional(self, tag: int, at: int, stop: int) -> tuple[Numbers | int, int]:
        """Return the numbers of a field that all rows have here, or none (0), and where it ends.

        It ends where it began if rows are not alike in it; nothing else is there then.
        """
        if self.tag(at, stop) != tag:
            return 0, at
        end = self._end(at + 1, stop)
        if not end:
            return 0, at
        same = self.same(at + 1, end)
        return (_numbers(self.table[:, at + 1 : end]) if same is None else _number(same)), end

    def passed(self, tag: int, at: int, stop: int) -> int:
        """Return where such a field ends, for who does not ask what it says."""
        return (self._end(at + 1, stop) or at) if self.tag(at, stop) == tag else at

    def nested(self, tag: int, at: int, stop: int) -> tuple[int, int] | None:
        """Return from where to where the content stands of a field that all rows have here, in one length."""
        if self.tag(at, stop) != tag:
            return None
        start = self._end(at + 1, stop)
        size = self.same(at + 1, start)
        if not start or size is None:
            return None
        end = start + _number(size)
        return (start, end) if end <= stop else None

    def column(self, at: int, stop: int) -> pa.Array:
        """Return what stands between two places as an Arrow column."""
        part = np.ascontiguousarray(self.table[:, at:stop])
        edges = np.arange(len(part) + 1, dtype=np.int32) * np.int32(stop - at)
        return pa.Array.from_buffers(pa.binary(), len(part), [None, pa.py_buffer(edges), pa.py_buffer(part)])

    def _end(self, at: int, stop: int) -> int:
        """Return where numbers end that begin at a place; 0 if not all rows have one of as many bytes."""
        for place in range(at, min(at + _NUMBER_BYTES_MAX, stop)):
            if not self._any[place] & 0x80:
                return place + 1
            if not self._all[place] & 0x80:
                break
        return 0


def _together(what: np.ufunc, table: Table) -> bytes:
    """Return the bytes of all rows put together, place by place."""
    count, size = table.shape
    step = max(1, min(_LINE_BYTES // max(size, 1), count))
    lines = count // step
    found = what.reduce(table[: lines * step].reshape(lines, step * size), axis=0).reshape(step, size)
    return bytes(what.reduce(np.concatenate((found, table[lines * step :])), axis=0))


def _number(data: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data))


def first(raw: Table, starts: npt.NDArray[np.int64], sizes: Table, tags: bytes) -> Numbers | None:
    """Return the first number of contents at these places, 0 where it is left out; the others are only looked at.

    None if they are not written as everybody does, or in too many shapes.
    """
    found = np.zeros(len(starts), np.uint64)
    shapes = np.flatnonzero(np.bincount(sizes)).tolist()
    if len(shapes) > _SHAPES_MAX or shapes[-1] > _BYTES_MAX:
        return None
    for size in shapes:
        rows = slice(None) if len(shapes) == 1 else np.flatnonzero(sizes == size)
        if not size:
            continue
        windows = np.ndarray((len(raw) - size + 1, size), np.uint8, raw, 0, (1, 1))
        table = windows[starts[rows]]
        spans = _spans(table, tags)
        if spans is None:
            return None
        if spans[0] is not None:
            found[rows] = _numbers(table[:, slice(*spans[0])])
    return found


def columns(table: Table, tags: bytes) -> tuple[Numbers | int, ...] | None:
    """Return the number of each field of each row; None if rows are not alike, or not written as everybody does."""
    spans = _spans(table, tags)
    if spans is None:
        return None
    return tuple(0 if span is None else _numbers(table[:, slice(*span)]) for span in spans)


def _spans(table: Table, tags: bytes) -> list[tuple[int, int] | None] | None:
    """Return in which columns each number stands; None if rows are not alike, or not written as everybody does."""
    head = bytes(table[0])
    spans: list[tuple[int, int] | None] = []
    fixed = np.full(len(head), 0x80, np.uint8)
    at = 0
    for tag in tags:
        if at >= len(head) or head[at] != tag:
            spans.append(None)
            continue
        fixed[at] = 0xFF
        stop = at + 1
        while stop < len(head) and head[stop] & 0x80:
            stop += 1
        if stop >= len(head) or stop - at > _NUMBER_BYTES_MAX:
            return None
        spans.append((at + 1, stop + 1))
        at = stop + 1
    return spans if at == len(head) and not ((table ^ table[0]) & fixed).any() else None


def _numbers(table: Table) -> Numbers | int:
    values: Numbers = (table[:, 0] & _SEVEN).astype(np.uint64)
    if table.shape[1] > 4 and (table == table[0]).all():  # the time at which they were sent
        return _number(bytes(table[0]))
    for place in range(1, table.shape[1]):
        values |= (table[:, place] & _SEVEN).astype(np.uint64) << np.uint64(7 * place)
    return values


def write(table: Table, at: int, values: Numbers, width: int) -> None:
    """Write numbers that have so many bytes each into columns of a table."""
    for place in range(width):
        group = (values >> np.uint64(7 * place)).astype(np.uint8)
        table[:, at + place] = group | 0x80 if place < width - 1 else group


def width(values: Numbers) -> int:
    """Return how many bytes each number has; 0 if not all have as many."""
    least = len(varint(int(values.min())))
    return least if len(varint(int(values.max()))) == least else 0
