"""The index of one segment: where each batch begins, how long it is, and the times it spans.

Owns the index file's format. Knows nothing of frames; it is a cache that a scan of the segment can always rebuild.
Invariant: every entry in the file carries its own check, so a flipped bit is seen and never followed.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

#: first, count, position, length, ts_min, ts_max, check: seven little-endian int64.
FIELDS = 7
ENTRY_BYTES = 8 * FIELDS

#: Up to so many entries plain Python beats numpy; a shard with little traffic writes one at a time.
FEW = 8

SEED = 0x50454E53544F434B
MASK = (1 << 64) - 1
#: Odd numbers: multiplying by them is a bijection, so one changed field always changes the check.
_FACTORS = (
    0x9E3779B97F4A7C15,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0xD6E8FEB86659FD93,
    0xA0761D6478BD642F,
    0xE7037ED1A0B428DB,
)
_MIX = np.array(_FACTORS, np.uint64)
_ENTRY = struct.Struct(f"<{FIELDS}q")


class Entry(NamedTuple):
    """One batch: its offsets, its bytes in the segment, its times."""

    first: int
    rows: int
    position: int
    length: int
    ts_min: int
    ts_max: int

    @property
    def end(self) -> int:
        """The offset after the last row."""
        return self.first + self.rows


class Index:
    """Entries in the order of the segment, as six plain arrays: 48 bytes a batch."""

    __slots__ = ("counts", "firsts", "lengths", "positions", "ts_max", "ts_min")

    def __init__(self) -> None:
        self.firsts = array("q")
        self.counts = array("q")
        self.positions = array("q")
        self.lengths = array("q")
        self.ts_min = array("q")
        self.ts_max = array("q")

    def __len__(self) -> int:
        return len(self.firsts)

    def __getitem__(self, number: int) -> Entry:
        return Entry(
            self.firsts[number],
            self.counts[number],
            self.positions[number],
            self.lengths[number],
            self.ts_min[number],
            self.ts_max[number],
        )

    def add(self, first: int, count: int, position: int, length: int, ts_min: int, ts_max: int) -> None:
        """Append one entry."""
        self.firsts.append(first)
        self.counts.append(count)
        self.positions.append(position)
        self.lengths.append(length)
        self.ts_min.append(ts_min)
        self.ts_max.append(ts_max)

    def extend(self, columns: Sequence[npt.NDArray[np.int64]]) -> None:
        """Append many entries, given as six arrays."""
        for column, values in zip(self._columns(), columns, strict=True):
            column.frombytes(np.ascontiguousarray(values, np.int64).tobytes())

    def _columns(self) -> tuple[array[int], ...]:
        return self.firsts, self.counts, self.positions, self.lengths, self.ts_min, self.ts_max

    def at(self, offset: int) -> int:
        """Return the number of the entry that holds an offset, or of the first one after it."""
        number = bisect_right(self.firsts, offset) - 1
        if number < 0:
            return 0
        return number if offset < self.firsts[number] + self.counts[number] else number + 1

    def since(self, time_ns: int) -> int:
        """Return the number of the first entry that has a row at or after a time."""
        late = np.frombuffer(self.ts_max, np.int64) >= time_ns if len(self) else np.zeros(0, bool)
        return int(late.argmax()) if late.any() else len(self)

    def rows_between(self, start: int, end: int) -> int:
        """Return how many rows lie in a range of offsets."""
        firsts, counts = np.frombuffer(self.firsts, np.int64), np.frombuffer(self.counts, np.int64)
        inside = np.minimum(firsts + counts, end) - np.maximum(firsts, start)
        return int(inside[inside > 0].sum())

    def earliest(self) -> int:
        """Return the earliest time of any row; there is at least one."""
        return int(np.frombuffer(self.ts_min, np.int64).min())

    def first(self, length: int) -> Index:
        """Return the first `length` entries as an index of their own."""
        index = Index()
        for mine, theirs in zip(self._columns(), index._columns(), strict=True):
            theirs.extend(mine[:length])
        return index

    def leading(self, first: int, position: int, end: int) -> Index:
        """Return the entries from the start on that follow each other, in offsets and bytes, up to a position."""
        if not len(self):
            return self
        firsts, counts = np.array(self.firsts), np.array(self.counts)
        starts, lengths = np.array(self.positions), np.array(self.lengths)
        follow = np.append(first, firsts + counts)[:-1] == firsts
        follow &= (np.append(position, starts + lengths)[:-1] == starts) & (starts + lengths <= end)
        return self.first(len(follow) if follow.all() else int(follow.argmin()))

    def cut(self, length: int) -> None:
        """Forget all entries but the first `length`."""
        for column in self._columns():
            del column[length:]

    def encoded(self, start: int = 0, stop: int | None = None) -> bytes:
        """Return entries as the bytes of an index file."""
        stop = len(self) if stop is None else stop
        if stop - start <= FEW:
            return b"".join([_encoded(self[number]) for number in range(start, stop)])
        table = np.array([column[start:stop] for column in self._columns()], np.int64).reshape(FIELDS - 1, -1)
        return np.vstack([table, _checks(table)]).T.astype("<i8").tobytes()

    @classmethod
    def decoded(cls, data: bytes) -> tuple[Index, bool]:
        """Return the good entries from the start of an index file, and whether that is all of it."""
        usable = len(data) // ENTRY_BYTES
        table = np.frombuffer(data, "<i8", usable * FIELDS).reshape(-1, FIELDS).T
        good = _checks(table[:-1]) == table[-1]
        count = usable if good.all() else int(good.argmin())
        index = cls()
        index.extend(list(table[:-1, :count]))
        return index, count * ENTRY_BYTES == len(data)

    @classmethod
    def salvaged(cls, data: bytes) -> Index:
        """Return every good entry of an index file, whatever lies between them."""
        usable = len(data) // ENTRY_BYTES
        table = np.frombuffer(data, "<i8", usable * FIELDS).reshape(-1, FIELDS)
        good = table[_checks(table.T[:-1]) == table.T[-1]]
        index, _ = cls.decoded(good.tobytes())
        return index


def _encoded(entry: Entry) -> bytes:
    """Return one entry as bytes: what `_checks` does for many, without numpy."""
    check = SEED
    for field, factor in zip(entry, _FACTORS, strict=True):
        check = (check ^ (field & MASK)) * factor & MASK
        check ^= check >> 29
    return _ENTRY.pack(*entry, check - (check >> 63 << 64))


def _checks(table: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    check = np.full(table.shape[1], SEED, np.uint64)
    for field, factor in zip(table, _MIX, strict=True):
        check = (check ^ field.astype(np.uint64)) * factor
        check ^= check >> np.uint64(29)
    return check.astype(np.int64)
