"""Metadata of many messages that is written alike: the same fields, each number with as many bytes in every row.

Then rows are a table of bytes, and a field is a few columns of it: a third of what `varints` costs, which reads any
form. A stream has a handful of shapes: ids next to each other have one length, shards have one or two.
Invariant: it says what `varints` says, or nothing.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.varints import varint

Table: TypeAlias = npt.NDArray[np.uint8]
Numbers: TypeAlias = npt.NDArray[np.uint64]

#: A metadata has up to three numbers of ten bytes, and their tags.
_BYTES_MAX = 33
#: More shapes than this are read one number after the other.
_SHAPES_MAX = 4
_SEVEN = np.uint8(0x7F)


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
        if stop >= len(head) or stop - at > 9:  # a tenth byte says no more than one bit: `varints` knows
            return None
        spans.append((at + 1, stop + 1))
        at = stop + 1
    return spans if at == len(head) and not ((table ^ table[0]) & fixed).any() else None


def _numbers(table: Table) -> Numbers | int:
    values: Numbers = (table[:, 0] & _SEVEN).astype(np.uint64)
    if table.shape[1] > 4 and (table == table[0]).all():  # the time at which they were sent
        return int(sum((byte & 0x7F) << 7 * place for place, byte in enumerate(bytes(table[0]))))
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
