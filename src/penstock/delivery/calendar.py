"""Waiting rows by due time: a radix calendar that never does much at once.

Owns when a waiting row may be ready. Knows nothing of subscriptions, pages, or why a row waits, and reads no clock.

Rows lie unsorted in slots, coarse slots for far times and fine ones for near times. Before a slot's time comes it is
split into the finer ones, a block per call, so that no call pays for a backlog. What the finest slots gave up lies
in sorted runs and, if few, in a heap; so do rows that just came, until they are worth filing.
Invariant: a row leaves when its time has come, never before, and a call touches the rows it returns plus one block.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.columns import SMALL, Offsets

#: Rows split early in one call: 0.5 ms of CPU to file them, 0.3-1.5 ms to sort them.
BLOCK_ROWS = 16 * 1024
#: Single rows wait in a heap until there are this many: below, array calls cost more than the heap.
STAGED_ROWS_MAX = 256
#: Small batches wait until there are this many rows (or one is due): filing costs 2 us for each slot it reaches.
LOOSE_ROWS_MAX = 8 * 1024
#: Pause between two early splits when nothing is due: a tenth of the CPU, and still 1.6 M rows/s.
EARLY_PAUSE_NS = 10_000_000

#: Slot widths as powers of two of a nanosecond: 0.13 s, 8.6 s, 9.2 min, 9.8 h, 26 days. Each slot has 64 of the level
#: below; the last level has at most 8,192 slots over all of int64, so there is nothing beyond.
SHIFTS = (27, 33, 39, 45, 51)
#: How many slots ahead each level is split. The finest looks 1 s ahead: at EARLY_PAUSE_NS that takes in a burst of
#: 1.7 M rows due at one moment.
AHEAD = (8, 1, 1, 1, 1)

_NEVER_NS = 1 << 63
_SLOT_ROWS_MIN = 64
_EMPTY: Offsets = np.empty(0, np.int64)

#: Due times in row 0, offsets in row 1: one slice or one take moves both.
_Pairs: TypeAlias = npt.NDArray[np.int64]


class Calendar:
    """The waiting rows of a subscription, given back in order of due time."""

    def __init__(self, now_ns: int) -> None:
        self._levels = [_Level(shift, ahead, now_ns) for shift, ahead in zip(SHIFTS, AHEAD, strict=True)]
        self._runs: list[_Run] = []
        self._staged: list[tuple[int, int]] = []
        self._loose: list[_Pairs] = []
        self._loose_rows = 0
        self._loose_ns = _NEVER_NS
        self._rows = 0
        self._popped_ns = now_ns
        self._wake_ns = _NEVER_NS
        #: Rows moved so far by all calls; what a call costs is counted in these.
        self.touched = 0

    def __len__(self) -> int:
        return self._rows

    def put(self, due_ns: npt.NDArray[np.int64], offsets: Offsets) -> None:
        """Add rows. Budget: 4 M rows/s from batches of 100 on."""
        count = len(due_ns)
        if count <= SMALL:
            for due, offset in zip(due_ns.tolist(), offsets.tolist(), strict=True):
                self.put_one(due, offset)
            return
        self._rows += count
        self._add_loose(np.stack((due_ns, offsets)))

    def put_one(self, due_ns: int, offset: int) -> None:
        """Add one row, in plain Python."""
        self._rows += 1
        heappush(self._staged, (due_ns, offset))
        if due_ns < self._wake_ns:
            self._wake_ns = due_ns
        if len(self._staged) >= STAGED_ROWS_MAX:
            pairs = np.array(self._staged, np.int64).T
            self._staged = []
            self._add_loose(pairs)

    def pop(self, now_ns: int) -> Offsets:
        """Remove and return every row due by now, by due time and then offset."""
        return self.take(now_ns)[1]

    def take(self, now_ns: int) -> tuple[Offsets, Offsets]:
        """Do as `pop`, and return also when each row was due."""
        if now_ns < self._wake_ns:
            return _EMPTY, _EMPTY
        self._popped_ns = now_ns
        self._catch_up(now_ns)
        if self._loose_ns <= now_ns:
            self._file_loose()
        self._split_early(now_ns)
        due_ns, offsets = self._take_due(now_ns)
        self._rows -= len(offsets)
        self._wake_ns = self._next_wake()
        return due_ns, offsets

    def next_ns(self) -> int | None:
        """Return when to call `pop` again, None if nothing waits; never later than the earliest due time."""
        return None if self._wake_ns == _NEVER_NS else self._wake_ns

    def between(self, first: int, end: int) -> int:
        """Return how many rows with first <= offset < end wait; looks at every row, so it is for who asks for stats."""
        total = sum(first <= offset < end for _, offset in self._staged)
        slots = [block for level in self._levels for slot in level.slots.values() for block in slot.blocks()]
        for pairs in (*self._loose, *(run.rest() for run in self._runs), *slots):
            total += int(np.count_nonzero((pairs[1] >= first) & (pairs[1] < end)))
        return total

    def coming(self, until_ns: int) -> _Pairs:
        """Return the rows due before a time, their times in row 0; looks only at what may hold such."""
        staged = [pair for pair in self._staged if pair[0] < until_ns]
        parts = [np.array(staged, np.int64).reshape(-1, 2).T]
        for level in self._levels:
            last = until_ns >> level.shift
            slots = [slot for key, slot in level.slots.items() if key <= last]
            parts += [block for slot in slots for block in slot.blocks()]
        parts += [*self._loose, *(run.rest() for run in self._runs)]
        return np.concatenate([pairs[:, pairs[0] < until_ns] for pairs in parts], axis=1)

    def _add_loose(self, pairs: _Pairs) -> None:
        self._loose.append(pairs)
        self._loose_rows += pairs.shape[1]
        self._loose_ns = min(self._loose_ns, int(pairs[0].min()))
        self._wake_ns = min(self._wake_ns, self._loose_ns)
        if self._loose_rows >= LOOSE_ROWS_MAX:
            self._file_loose()
            self._wake_ns = self._next_wake()

    def _file_loose(self) -> None:
        pairs = np.concatenate(self._loose, axis=1)
        self._loose, self._loose_rows, self._loose_ns = [], 0, _NEVER_NS
        self._place(pairs, len(SHIFTS))

    def _catch_up(self, now_ns: int) -> None:
        """Empty the slots whose time has come, which early splitting left nothing in unless time has jumped."""
        late: list[tuple[_Slot, int]] = []
        for index, level in enumerate(self._levels):
            if level.opened < now_ns >> level.shift:
                late.extend((slot, index) for slot in level.open(now_ns >> level.shift))
        # Only now is every level open up to this moment, so each block goes straight to where it belongs.
        for slot, index in late:
            while slot.rows:
                self._place(slot.take(BLOCK_ROWS), index)

    def _split_early(self, now_ns: int) -> None:
        """Split at most one block of the slots that come next; the finest are the most urgent."""
        budget = BLOCK_ROWS
        for index, level in enumerate(self._levels):
            last = (now_ns >> level.shift) + level.ahead
            while level.opened < last:
                slot = level.slots.get(level.opened + 1)
                while slot is not None and slot.rows:
                    if not budget:
                        return
                    pairs = slot.take(budget)
                    budget -= pairs.shape[1]
                    self._place(pairs, index)
                level.open(level.opened + 1)

    def _place(self, pairs: _Pairs, below: int) -> None:
        """File rows in the levels under `below`; those of open slots go down, in the end to the runs."""
        self.touched += pairs.shape[1]
        if not below:
            self._add_run(pairs)
            return
        low, high = int(pairs[0].min()), int(pairs[0].max())
        for level in reversed(self._levels[:below]):
            if high >> level.shift <= level.opened:
                continue
            if low >> level.shift > level.opened:
                level.file(pairs)
                return
            down = pairs[0] >> level.shift <= level.opened
            level.file(pairs[:, ~down])
            pairs = pairs[:, down]
            high = int(pairs[0].max())
        self._add_run(pairs)

    def _add_run(self, pairs: _Pairs) -> None:
        if pairs.shape[1] <= SMALL:
            for pair in zip(*pairs.tolist(), strict=True):
                heappush(self._staged, pair)
            return
        # Like sizes are merged, so that few runs are looked at; above a block merging would be a long step.
        while self._runs and len(self._runs[-1]) <= min(2 * pairs.shape[1], BLOCK_ROWS - pairs.shape[1]):
            pairs = np.concatenate((self._runs.pop().rest(), pairs), axis=1)
            self.touched += pairs.shape[1]
        self._runs.append(_Run(pairs))

    def _take_due(self, now_ns: int) -> tuple[Offsets, Offsets]:
        staged = self._staged
        singles: list[tuple[int, int]] = []
        while staged and staged[0][0] <= now_ns:
            singles.append(heappop(staged))
        parts = [run.take(now_ns) for run in self._runs if run.first_ns <= now_ns]
        if not parts:
            if not singles:
                return _EMPTY, _EMPTY
            due_ns, offsets = np.array(singles, np.int64).T
            return due_ns, offsets
        self._runs = [run for run in self._runs if len(run)]
        if singles:
            parts.append(np.array(singles, np.int64).T)
        pairs = parts[0] if len(parts) == 1 else _sorted(np.concatenate(parts, axis=1))
        self.touched += pairs.shape[1]
        # Copies, so that the caller does not keep a whole run in memory.
        return pairs[0].copy(), pairs[1].copy()

    def _next_wake(self) -> int:
        wake = min(self._staged[0][0], self._loose_ns) if self._staged else self._loose_ns
        for run in self._runs:
            wake = min(wake, run.first_ns)
        paused = self._popped_ns + EARLY_PAUSE_NS
        for level in self._levels:
            if level.slots:
                early = (level.first - level.ahead) << level.shift
                wake = min(wake, level.first << level.shift, max(early, paused))
        return wake


class _Level:
    """Slots of one width. Rows of slots up to `opened` lie in finer levels."""

    __slots__ = ("ahead", "first", "opened", "shift", "slots")

    def __init__(self, shift: int, ahead: int, now_ns: int) -> None:
        self.shift = shift
        self.ahead = ahead
        self.opened = (now_ns >> shift) + ahead
        self.slots: dict[int, _Slot] = {}
        #: The least key of `slots`, kept because finding it costs more than a lone row may.
        self.first = 0

    def file(self, pairs: _Pairs) -> None:
        """Put rows into their slots, all of which lie after `opened`."""
        keys = pairs[0] >> self.shift
        first = int(keys.min())
        # At most 8,192 keys; 16 bits make the sort a radix sort.
        keys = (keys - first).astype(np.uint16)
        if not keys.any():
            self._slot(first).add(pairs)
            return
        order = np.argsort(keys, kind="stable")
        pairs, keys = pairs.take(order, axis=1), keys[order]
        cuts = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(keys)]
        for key, start, end in zip(keys[cuts[:-1]].tolist(), cuts[:-1], cuts[1:], strict=True):
            self._slot(first + key).add(pairs[:, start:end])

    def open(self, key: int) -> list[_Slot]:
        """Open the slots up to this later one and return those in use, without a look at empty ones."""
        self.opened = key
        if not self.slots or self.first > key:
            return []
        slots = [self.slots.pop(passed) for passed in sorted(self.slots) if passed <= key]
        self.first = min(self.slots, default=0)
        return slots

    def _slot(self, key: int) -> _Slot:
        slot = self.slots.get(key)
        if slot is None:
            self.first = min(self.first, key) if self.slots else key
            slot = self.slots[key] = _Slot()
        return slot


class _Slot:
    """Unsorted rows in blocks. They are copied in: a view would keep the whole batch it came with in memory."""

    __slots__ = ("_full", "_tail", "_used", "rows")

    def __init__(self) -> None:
        self._full: list[_Pairs] = []
        self._tail: _Pairs = np.empty((2, _SLOT_ROWS_MIN), np.int64)
        self._used = 0
        self.rows = 0

    def add(self, pairs: _Pairs) -> None:
        """Copy rows in."""
        count = pairs.shape[1]
        self.rows += count
        used = self._used + count
        if used < BLOCK_ROWS and used <= self._tail.shape[1]:
            self._tail[:, self._used : used] = pairs
            self._used = used
            return
        start = 0
        while start < count:
            end = min(count, start + BLOCK_ROWS - self._used)
            used = self._used + end - start
            if used > self._tail.shape[1]:
                self._grow(used)
            self._tail[:, self._used : used] = pairs[:, start:end]
            self._used, start = used, end
            if used == BLOCK_ROWS:
                self._full.append(self._tail)
                self._tail, self._used = np.empty((2, _SLOT_ROWS_MIN), np.int64), 0

    def blocks(self) -> list[_Pairs]:
        """Return all rows, as they lie."""
        return [*self._full, self._tail[:, : self._used]]

    def take(self, rows_max: int) -> _Pairs:
        """Remove and return some rows, at least one and at most one block."""
        if not self._used:
            self._tail, self._used = self._full.pop(), BLOCK_ROWS
        start = max(0, self._used - rows_max)
        pairs = self._tail[:, start : self._used].copy()
        self._used = start
        self.rows -= pairs.shape[1]
        return pairs

    def _grow(self, rows: int) -> None:
        tail = np.empty((2, min(BLOCK_ROWS, 1 << (rows - 1).bit_length())), np.int64)
        tail[:, : self._used] = self._tail[:, : self._used]
        self._tail = tail


class _Run:
    """Sorted rows that are taken from the front."""

    __slots__ = ("_at", "_pairs", "first_ns")

    def __init__(self, pairs: _Pairs) -> None:
        self._pairs = _sorted(pairs)
        self._at = 0
        self.first_ns = int(self._pairs[0, 0])

    def __len__(self) -> int:
        return int(self._pairs.shape[1]) - self._at

    def rest(self) -> _Pairs:
        """Return what was not taken."""
        return self._pairs[:, self._at :]

    def take(self, now_ns: int) -> _Pairs:
        """Remove and return the rows due by now."""
        start = self._at
        end = start + int(np.searchsorted(self._pairs[0, start:], now_ns, side="right"))
        self._at = end
        self.first_ns = int(self._pairs[0, end]) if end < self._pairs.shape[1] else _NEVER_NS
        return self._pairs[:, start:end]


def _sorted(pairs: _Pairs) -> _Pairs:
    """Return rows by due time and then offset."""
    ordered = pairs.take(np.argsort(pairs[0]), axis=1)
    if bool((ordered[0, 1:] == ordered[0, :-1]).any()):
        # Only ties need the second key, and that sort is four times dearer.
        return pairs.take(np.lexsort((pairs[1], pairs[0])), axis=1)
    return ordered
