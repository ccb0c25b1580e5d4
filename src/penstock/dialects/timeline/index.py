"""Which row has which message id, for rows that are not deleted: a table of 64-bit hashes and core ids.

Open addressing in two arrays, filled and asked by whole batches: 19 to 25 bytes a row. The hash is keyed anew with
every start, so nobody can choose ids that fall together; whoever finds a row compares its id all the same.
Invariant: what was put and not dropped is found; what was never put is found by one in 2^64 at most.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes: TypeAlias = npt.NDArray[np.uint64]
Ids: TypeAlias = npt.NDArray[np.int64]

#: Found nowhere; and put before it is known where its row is.
ABSENT, COMING = -1, 0

_EMPTY, _TOMB = np.uint64(0), np.uint64(1)
_SIZE_MIN = 1024
#: A table fuller than this is made anew, so that it is so full then.
_FULL, _FRESH = 0.85, 0.65

#: Odd numbers without a pattern, as of the golden ratio.
_MIX, _STEP = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_HALF = np.uint64(32)


class Index:
    """Message ids of one timeline."""

    def __init__(self, key: int) -> None:
        self._key = np.uint64(key & 0xFFFFFFFFFFFFFFFF | 1)
        self._clear(_SIZE_MIN)

    def __len__(self) -> int:
        return self._live

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self._hashes.nbytes + self._ids.nbytes

    def hashes(self, ids: pa.BinaryArray) -> Hashes:
        """Return the hash of each id. Budget: 50 ns an id where many are of one length."""
        return hashes_of(ids, self._key)

    def find(self, hashes: Hashes) -> Ids:
        """Return the row of each, ABSENT where there is none, COMING where it is not known yet."""
        found = np.full(len(hashes), ABSENT, np.int64)
        slots = self._slots(hashes)
        good = slots >= 0
        found[good] = self._ids[slots[good]]
        return found

    def put(self, hashes: Hashes, ids: Ids) -> None:
        """Note rows; one that is there already gets the new place. The hashes are distinct."""
        if not len(hashes):
            return
        slots = self._slots(hashes)
        known = slots >= 0
        if known.any():
            self._ids[slots[known]] = ids[known]
            hashes, ids = hashes[~known], ids[~known]
        if self._used + len(hashes) > _FULL * len(self._hashes):
            self._rebuild(self._live + len(hashes))
        self._insert(hashes, ids)

    def drop(self, hashes: Hashes) -> None:
        """Forget rows; those that are not there are passed over."""
        slots = self._slots(hashes)
        slots = np.unique(slots[slots >= 0])
        self._hashes[slots] = _TOMB
        self._live -= len(slots)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _clear(self, size: int) -> None:
        self._hashes = np.zeros(size, np.uint64)
        self._ids = np.zeros(size, np.int64)
        self._live = self._used = 0

    def _home(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """Return where each is looked for first: its upper half as a fraction of the table."""
        return ((hashes >> _HALF) * np.uint64(len(self._hashes)) >> _HALF).astype(np.int64)

    def _slots(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """Return where each stands, -1 where it does not."""
        slots = np.full(len(hashes), -1, np.int64)
        left = np.arange(len(hashes))
        at = self._home(hashes)
        size = len(self._hashes)
        while len(left):
            there = self._hashes[at]
            hit = there == hashes[left]
            slots[left[hit]] = at[hit]
            on = ~hit & (there != _EMPTY)
            left, at = left[on], (at[on] + 1) % size
        return slots

    def _insert(self, hashes: Hashes, ids: Ids) -> None:
        at = self._home(hashes)
        size = len(self._hashes)
        self._live += len(hashes)
        self._used += len(hashes)
        while len(hashes):
            free = self._hashes[at] == _EMPTY
            # Of several that come to one free place, one has it afterwards; the others go on.
            self._hashes[at[free]] = hashes[free]
            placed = free & (self._hashes[at] == hashes)
            self._ids[at[placed]] = ids[placed]
            hashes, ids, at = hashes[~placed], ids[~placed], (at[~placed] + 1) % size

    def _rebuild(self, rows: int) -> None:
        live = self._hashes > _TOMB
        hashes, ids = self._hashes[live], self._ids[live]
        self._clear(max(_SIZE_MIN, int(rows / _FRESH)))
        self._insert(hashes, ids)


def hashes_of(ids: pa.BinaryArray, key: np.uint64) -> Hashes:
    """Return a 64-bit hash of each of some bytes; all lengths alike are done at once."""
    _, ends, data = ids.buffers()
    count = len(ids)
    if count == 0:
        return np.empty(0, np.uint64)
    cuts = np.frombuffer(ends, np.int32, count + 1, ids.offset * 4).astype(np.int64)
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    sizes = np.diff(cuts)
    out = np.empty(count, np.uint64)
    for size in np.unique(sizes).tolist():
        rows = np.flatnonzero(sizes == size)
        padded = np.zeros((len(rows), -(-max(size, 1) // 8) * 8), np.uint8)
        if size:
            padded[:, :size] = content[cuts[rows][:, None] + np.arange(size)]
        out[rows] = _mixed(padded.view(np.uint64), np.uint64(size), key)
    np.maximum(out, np.uint64(2), out=out)
    return out


def _mixed(words: npt.NDArray[np.uint64], size: np.uint64, key: np.uint64) -> Hashes:
    with np.errstate(over="ignore"):
        state = np.full(len(words), key ^ size * _MIX, np.uint64)
        for column in range(words.shape[1]):
            state = (state ^ words[:, column]) * key
            state = (state ^ state >> np.uint64(29)) * _MIX
            state ^= state >> np.uint64(32)
        state = (state ^ state >> np.uint64(30)) * _STEP
        return np.asarray(state ^ state >> np.uint64(27), np.uint64)
