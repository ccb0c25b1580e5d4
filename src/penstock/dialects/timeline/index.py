"""Which row has which message id, for rows that are not deleted: a table of 64-bit hashes and core ids.

Groups of eight places in two arrays, filled and asked by whole batches: 21 to 32 bytes a row; what finds its group full
goes to the next one. A full table moves into a larger one a little with every batch, so nobody waits for that. The hash
is keyed anew with every start, so nobody can choose ids that fall together; whoever finds a row compares its id.
Invariant: what was put and not dropped is found; what was never put is found by one in 2^64 at most.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columns import SMALL

Hashes: TypeAlias = npt.NDArray[np.uint64]
Ids: TypeAlias = npt.NDArray[np.int64]

#: Found nowhere; and put before it is known where its row is.
ABSENT, COMING = -1, 0

#: What stands in a place that no row has: none ever had it, or one did.
_EMPTY, _TOMB = 0, 1
_GROUP = 8
_SIZE_MIN = 1024
#: A table fuller than this moves into one that is so full then, so many rows for each that is added.
_FULL, _FRESH, _MOVED = 0.75, 0.5, 4
#: So many ids are kept to be forgotten together.
_GONE_MAX = 4096
#: What is known to come fills a table up to this.
_RESERVED = 0.7

#: Odd numbers without a pattern, as of the golden ratio.
_MIX, _STEP = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_HALF = np.uint64(32)
#: A free place of a group for each row in turn, by its free places as bits: rows side by side want different ones.
_PLACES = np.zeros((1 << _GROUP, _GROUP), np.int64)
for _bits in range(1, 1 << _GROUP):
    _PLACES[_bits] = np.resize([each for each in range(_GROUP) if _bits >> _GROUP - 1 - each & 1], _GROUP)
#: Below the first place.
_BEFORE = np.full(1, -1)


class Index:
    """Message ids of one timeline."""

    def __init__(self, key: int) -> None:
        self._key = np.uint64(key & 0xFFFFFFFFFFFFFFFF | 1)
        self._table = _Table(_SIZE_MIN)
        #: What is moved from, and its next group.
        self._old: _Table | None = None
        self._next = 0
        #: Ids to be forgotten before anybody asks or adds, and how many.
        self._gone: list[pa.BinaryArray] = []
        self._gone_rows = 0

    def __len__(self) -> int:
        self._catch_up()
        return self._table.live + (self._old.live if self._old is not None else 0)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self._table.nbytes + (self._old.nbytes if self._old is not None else 0)

    def hashes(self, ids: pa.BinaryArray) -> Hashes:
        """Return the hash of each id. Budget: 0.2 us an id where many are of one length."""
        return hashes_of(ids, self._key)

    def reserve(self, rows: int) -> None:
        """Have room for so many rows before the first of them comes."""
        if not len(self) and rows > _FRESH * _SIZE_MIN:
            self._table = _Table(int(rows / _RESERVED))

    def find(self, hashes: Hashes) -> Ids:
        """Return the row of each, ABSENT where there is none, COMING where it is not known yet."""
        self._catch_up()
        found = self._table.find(hashes)
        if self._old is not None:
            missing = np.flatnonzero(found == ABSENT)
            found[missing] = self._old.find(hashes[missing])
        return found

    def put(self, hashes: Hashes, ids: Ids) -> None:
        """Note rows; one that is there already gets the new place. The hashes are distinct."""
        self._catch_up()
        unknown = self._table.update(hashes, ids)
        if self._old is not None and unknown.any():
            unknown[unknown] = self._old.update(hashes[unknown], ids[unknown])
        if unknown.any():
            self.add(hashes[unknown], ids[unknown])

    def expect(self, hashes: Hashes) -> Expected:
        """Note rows that are not there and whose places are not known yet; their hashes are distinct."""
        return self.add(hashes, np.full(len(hashes), COMING))

    def settle(self, expected: Expected, hashes: Hashes, ids: Ids) -> None:
        """Give the places of rows that were expected."""
        if expected[0] is self._table:  # they are where they were put
            self._table.set(expected[1], ids)
        else:
            self.put(hashes, ids)

    def add(self, hashes: Hashes, ids: Ids) -> Expected:
        """Note rows that are not there; their hashes are distinct. Budget: 1.5 us a row."""
        self._catch_up()
        if self._table.is_full(len(hashes)):
            while self._old is not None:  # more came at once than it was made for
                self._move(self._old.live)
            self._old, self._next = self._table, 0
            self._table = _Table(max(_SIZE_MIN, int((self._old.live + len(hashes)) / _FRESH)))
        if self._old is not None:
            self._move(_MOVED * len(hashes))
        return self._table, self._table.insert(hashes, ids)

    def drop(self, hashes: Hashes) -> None:
        """Forget rows; those that are not there are passed over."""
        self._catch_up()
        self._table.drop(hashes)
        if self._old is not None:
            self._old.drop(hashes)

    def drop_soon(self, ids: pa.BinaryArray) -> None:
        """Forget ids by the time somebody asks or adds: a few cost nearly what thousands do."""
        self._gone.append(ids)
        self._gone_rows += len(ids)
        if self._gone_rows > _GONE_MAX:
            self._catch_up()

    def _catch_up(self) -> None:
        if self._gone_rows:
            hashes = self.hashes(pa.concat_arrays(self._gone))
            self._gone, self._gone_rows = [], 0
            self.drop(hashes)

    def _move(self, rows: int) -> None:
        """Move about so many rows on."""
        if self._old is not None:
            stop = self._next + max(rows // _GROUP, 1)
            self._table.insert(*self._old.taken(self._next, stop))
            self._next = stop
            if stop >= len(self._old.hashes):
                self._old = None


class _Table:
    """So many places."""

    def __init__(self, size: int) -> None:
        groups = -(-size // _GROUP)
        self.hashes = np.zeros((groups, _GROUP), np.uint64)
        self.ids = np.zeros((groups, _GROUP), np.int64)
        self._flat, self._flat_ids = self.hashes.reshape(-1), self.ids.reshape(-1)
        #: Rows, and places that hold one or held one.
        self.live = self._used = 0

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.hashes.nbytes + self.ids.nbytes

    def is_full(self, more: int) -> bool:
        """Tell whether so many more rows are too many."""
        return self._used + more > _FULL * self._flat.size

    def find(self, hashes: Hashes) -> Ids:
        """Return the row of each, ABSENT where there is none."""
        places = self._places(hashes)
        found = self._flat_ids[places]
        found[places < 0] = ABSENT
        return found

    def update(self, hashes: Hashes, ids: Ids) -> npt.NDArray[np.bool_]:
        """Give rows that are there their places, and tell which are not."""
        places = self._places(hashes)
        known = places >= 0
        self._flat_ids[places[known]] = ids[known]
        return ~known

    def drop(self, hashes: Hashes) -> None:
        """Forget rows."""
        places = np.sort(self._places(hashes))
        places = places[places > np.concatenate((_BEFORE, places[:-1]))]  # each of those that are there, once
        self._flat[places] = _TOMB
        self.live -= len(places)

    def taken(self, first: int, stop: int) -> tuple[Hashes, Ids]:
        """Take out what is in some groups."""
        groups = self.hashes[first:stop]
        live = groups > _TOMB
        hashes, ids = groups[live], self.ids[first:stop][live]
        groups[live] = _TOMB
        self.live -= len(hashes)
        return hashes, ids

    def set(self, places: npt.NDArray[np.int64], ids: Ids) -> None:
        """Give rows by where they stand."""
        self._flat_ids[places] = ids

    def insert(self, hashes: Hashes, ids: Ids) -> npt.NDArray[np.int64]:
        """Put in rows that are not there, and return where; there must be room."""
        self.live += len(hashes)
        places = np.empty(len(hashes), np.int64)
        left, group = np.arange(len(hashes)), self._home(hashes)
        while len(left) > SMALL:
            free = np.packbits(self.hashes.take(group, 0) <= _TOMB)
            fits = np.flatnonzero(free)
            rows = left[fits]
            at = group[fits] * _GROUP + _PLACES[free[fits], fits % _GROUP]
            fresh, wanted = self._flat[at] == _EMPTY, hashes[rows]
            self._flat[at], self._flat_ids[at], places[rows] = wanted, ids[rows], at
            # Of rows that want the same place one has it now. Those others try again, of full groups in the next one.
            stays = self._flat[at] == wanted
            self._used += int(np.count_nonzero(fresh & stays))
            group = (group + (free == 0)) % len(self.hashes)
            on = np.ones(len(left), np.bool_)
            on[fits[stays]] = False
            left, group = left[on], group[on]
        for row, home in zip(left.tolist(), group.tolist(), strict=True):
            places[row] = place = self._free_place(home)
            self._flat[place], self._flat_ids[place] = hashes[row], ids[row]
        return places

    def _free_place(self, group: int) -> int:
        while True:
            there: list[int] = self.hashes[group].tolist()
            if _TOMB in there:
                return group * _GROUP + there.index(_TOMB)
            if _EMPTY in there:
                self._used += 1
                return group * _GROUP + there.index(_EMPTY)
            group = (group + 1) % len(self.hashes)

    def _home(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """Return the group in which each is looked for first: its upper half as a fraction of the table."""
        return ((hashes >> _HALF) * np.uint64(len(self.hashes)) >> _HALF).view(np.int64)

    def _places(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """Return where each stands, -1 where it does not."""
        places = np.full(len(hashes), -1, np.int64)
        left, group = np.arange(len(hashes)), self._home(hashes)
        while len(left) > SMALL:
            there = self.hashes.take(group, 0)
            on = np.packbits(there == _EMPTY) == 0
            hits = np.flatnonzero(there == hashes[left][:, None])
            if len(hits):
                rows = hits // _GROUP
                places[left[rows]] = group[rows] * _GROUP + hits % _GROUP
                on[rows] = False
            left, group = left[on], (group[on] + 1) % len(self.hashes)
        for row, home, wanted in zip(left.tolist(), group.tolist(), hashes[left].tolist(), strict=True):
            places[row] = self._place(home, wanted)
        return places

    def _place(self, group: int, wanted: int) -> int:
        while True:
            there: list[int] = self.hashes[group].tolist()
            if wanted in there:
                return group * _GROUP + there.index(wanted)
            if _EMPTY in there:
                return -1
            group = (group + 1) % len(self.hashes)


#: Where rows stand whose places are not known yet.
Expected: TypeAlias = "tuple[_Table, npt.NDArray[np.int64]]"


def hashes_of(ids: pa.BinaryArray, key: np.uint64) -> Hashes:
    """Return a 64-bit hash of each of some bytes; all lengths alike are done at once."""
    _, ends, data = ids.buffers()
    count = len(ids)
    if count == 0:
        return np.empty(0, np.uint64)
    cuts = np.frombuffer(ends, np.int32, count + 1, ids.offset * 4).astype(np.int64)
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    sizes = np.diff(cuts)
    size = int(sizes[0])
    if size and (sizes == size).all():
        padded = np.zeros((count, -(-size // 8) * 8), np.uint8)
        padded[:, :size] = content[cuts[0] : cuts[-1]].reshape(count, size)
        return np.maximum(_mixed(padded.view(np.uint64), np.uint64(size), key), np.uint64(2))
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
