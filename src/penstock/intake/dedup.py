"""Idempotent publish: which messages of a topic were taken before, and where the first one lies.

Owns the keys of one topic: of single rows (the `dedup` column) and of whole batches (the producer's sequence). Knows
nothing of how keys are made or stored; time is that of appends, so a topic at rest forgets nothing.
Invariant: a key is a duplicate exactly if it was stored within the window before the topic's last append, so live
keys and keys rebuilt from the log give the same answers.

Memory: 150 to 190 bytes for a key of 16 bytes, and the rest of a longer key; see `KEYS_MAX`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columns import SMALL, Column, id_of, place_of
from penstock.message import Batch, Rows, shaped

#: Keys of one topic at most, 700 MB; then the oldest are forgotten before their time and counted. Refusing publishes
#: instead would never end, because only appends move the window.
KEYS_MAX = 4 * 1024 * 1024
#: Keys leave in slices of the window: this keeps 8 bytes a key of bookkeeping, and keys 2 % longer than needed.
SLICES = 64
#: An append may remove this many keys beyond twice what it adds, so that its cost stays bounded and memory shrinks.
EXPIRE_MIN = 64

#: A known key maps to one integer: the time it was stored above the id of the row. A tuple would double its cost.
_ID_BITS = 64
_ID_MASK = (1 << _ID_BITS) - 1


class Duplicates(msgspec.Struct, frozen=True):
    """What a check found in a group of rows."""

    #: The id of the first row of the batch that had the same sequence; then nothing of the group is to be stored.
    batch: int | None = None
    #: Row of the group -> id of the stored row it repeats.
    stored: dict[int, int] = {}
    #: Row of the group -> earlier row of the same group that it repeats.
    inside: dict[int, int] = {}

    def __bool__(self) -> bool:
        return self.batch is not None or bool(self.stored) or bool(self.inside)

    def unique(self, rows: Rows) -> Rows:
        """Return the rows that are to be stored."""
        if self.batch is not None:
            return _without(rows, list(range(rows.count)))
        if not self:
            return rows
        return _without(rows, sorted([*self.stored, *self.inside]))

    def among(self, first: int, count: int) -> int:
        """Return how many of these rows of the group were taken before."""
        if self.batch is not None:
            return count
        return sum(first <= row < first + count for row in (*self.stored, *self.inside))

    def places(self, count: int, shard: int, first: int) -> list[tuple[int, int]]:
        """Return the (shard, offset) to answer for each row, if the unique rows were stored from `first` on."""
        if self.batch is not None:
            shard, first = place_of(self.batch)
            return [(shard, first + row) for row in range(count)]
        places: list[tuple[int, int]] = []
        for row in range(count):
            if row in self.stored:
                places.append(place_of(self.stored[row]))
            elif row in self.inside:
                places.append(places[self.inside[row]])
            else:
                places.append((shard, first))
                first += 1
        return places


NO_DUPLICATES = Duplicates()


class Dedup:
    """The keys that one topic took within its window."""

    def __init__(self, window_ns: int, keys_max: int = KEYS_MAX, sequence_window_ns: int | None = None) -> None:
        self._rows = _Keys(window_ns, keys_max)
        self._batches = _Keys(window_ns if sequence_window_ns is None else sequence_window_ns, keys_max)

    def __len__(self) -> int:
        return len(self._rows) + len(self._batches)

    @property
    def forgotten(self) -> int:
        """Keys dropped inside their window because there were too many."""
        return self._rows.forgotten + self._batches.forgotten

    def resize(self, window_ns: int, sequence_window_ns: int | None = None) -> None:
        """Change the window; keys that already left it stay gone."""
        self._rows.window_ns = window_ns
        self._batches.window_ns = window_ns if sequence_window_ns is None else sequence_window_ns

    def check(self, rows: Rows) -> Duplicates:
        """Return which rows were taken before; the first of several within the group is none. Budget: 0.6 us a key."""
        if rows.sequence:
            batch = self._batches.get(rows.sequence)
            if batch is not None:
                return Duplicates(batch=batch)
        column = rows.columns.get("dedup")
        if column is None:
            return NO_DUPLICATES
        stored: dict[int, int] = {}
        inside: dict[int, int] = {}
        firsts: dict[bytes, int] = {}
        for row, key in enumerate(_values(column)):
            if key is None:
                continue
            found = self._rows.get(key)
            if found is not None:
                stored[row] = found
            elif (first := firsts.setdefault(key, row)) != row:
                inside[row] = first
        return Duplicates(stored=stored, inside=inside) if stored or inside else NO_DUPLICATES

    def sequence(self, sequence: bytes) -> int | None:
        """Return the id of the first row of the batch that had this sequence; None if none is known."""
        return self._batches.get(sequence)

    def sequences(self, prefix: bytes) -> list[bytes]:
        """Return the sequences that begin so. Budget: 0.05 us for each that is known."""
        return self._batches.beginning(prefix)

    def add(self, keys: Sequence[bytes | None], shard: int, first: int, time_ns: int | Sequence[int]) -> None:
        """Remember the keys of rows stored from offset `first` on, at one time or at one time per row."""
        self.advance(time_ns if isinstance(time_ns, int) else max(time_ns, default=0))
        id_ = id_of(shard, first)
        for row, key in enumerate(keys):
            if key is not None:
                self._rows.add(key, id_ + row, time_ns if isinstance(time_ns, int) else time_ns[row])
        self.expire(2 * len(keys) + EXPIRE_MIN)

    def add_sequence(self, sequence: bytes, shard: int, first: int, time_ns: int) -> None:
        """Remember the sequence of a batch whose first row has this offset."""
        self.advance(time_ns)
        self._batches.add(sequence, id_of(shard, first), time_ns)

    def advance(self, time_ns: int) -> None:
        """Move the window to an append; those without keys count too."""
        self._rows.advance(time_ns)
        self._batches.advance(time_ns)

    def pass_time(self, time_ns: int) -> None:
        """Move the window of rows' keys to a time; batches are known by the last append alone."""
        self._rows.advance(time_ns)

    def stored(self, shard: int, batch: Batch) -> None:
        """Take in a batch that was appended, or that is read again at start."""
        times = batch.timestamp
        self.advance(times if isinstance(times, int) else int(max(times, default=0)))
        if batch.sequence:
            self.add_sequence(batch.sequence, shard, batch.first, batch.row_time(0))
        column = batch.columns.get("dedup")
        if column is None:
            self.expire(EXPIRE_MIN)
        else:
            self.add(_values(column), shard, batch.first, times.tolist() if isinstance(times, np.ndarray) else times)

    def forget(self, shard: int, from_offset: int) -> None:
        """Take no row of a shard from an offset on for stored: they were taken back."""
        bounds = id_of(shard, 0), id_of(shard, from_offset), id_of(shard + 1, 0)
        self._rows.forget(*bounds)
        self._batches.forget(*bounds)

    def expire(self, keys_max: int) -> int:
        """Free the memory of at most this many keys that left the window; return how many."""
        freed = self._rows.expire(keys_max)
        return freed + self._batches.expire(keys_max - freed)


class _Keys:
    """Keys of one kind, with their ids and times."""

    __slots__ = ("_known", "_last_ns", "_slices", "forgotten", "keys_max", "window_ns")

    def __init__(self, window_ns: int, keys_max: int) -> None:
        self.window_ns = window_ns
        self.keys_max = keys_max
        self.forgotten = 0
        self._last_ns = 0
        self._known: dict[bytes, int] = {}
        #: Keys in the order they came, cut where a slice of the window ends.
        self._slices: deque[_Slice] = deque()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: bytes) -> int | None:
        value = self._known.get(key)
        if value is None or value >> _ID_BITS < self._last_ns - self.window_ns:
            return None
        return value & _ID_MASK

    def beginning(self, prefix: bytes) -> list[bytes]:
        return [key for key in self._known if key.startswith(prefix)]

    def advance(self, time_ns: int) -> None:
        self._last_ns = max(self._last_ns, time_ns)

    def add(self, key: bytes, id_: int, time_ns: int) -> None:
        oldest_ns = self._last_ns - self.window_ns
        if time_ns < oldest_ns:
            return
        value = time_ns << _ID_BITS | id_
        known = self._known.get(key)
        if known is not None and oldest_ns <= known >> _ID_BITS and known <= value:
            return
        self._known[key] = value
        slices = self._slices
        if not slices or time_ns > slices[-1].end_ns:
            slices.append(_Slice(time_ns + self.window_ns // SLICES))
        slices[-1].keys.append(key)
        while len(self._known) > self.keys_max:
            self._forget()

    def forget(self, start: int, first: int, end: int) -> None:
        """Drop the keys of a shard's ids from `first` on, which came last; all its ids are `start` to `end` - 1."""
        for piece in reversed(self._slices):
            for key in reversed(piece.keys):
                value = self._known.get(key)
                if value is None or not start <= value & _ID_MASK < end:
                    continue
                if value & _ID_MASK < first:
                    return
                del self._known[key]

    def expire(self, keys_max: int) -> int:
        """Drop keys of slices that ended before the window; a key that was stored again since is of a later slice."""
        oldest_ns = self._last_ns - self.window_ns
        visited = freed = 0
        while self._slices and self._slices[0].end_ns < oldest_ns and visited < keys_max:
            keys = self._slices[0].keys
            while keys and visited < keys_max:
                visited += 1
                freed += self._drop(keys.popleft(), oldest_ns)
            if not keys:
                self._slices.popleft()
        return freed

    def _drop(self, key: bytes, before_ns: int) -> bool:
        value = self._known.get(key)
        if value is None or value >> _ID_BITS >= before_ns:
            return False
        del self._known[key]
        return True

    def _forget(self) -> None:
        """Drop the oldest key, unless it was stored again since."""
        oldest = self._slices[0]
        if not oldest.keys:
            self._slices.popleft()
        else:
            self.forgotten += self._drop(oldest.keys.popleft(), oldest.end_ns + 1)


class _Slice:
    __slots__ = ("end_ns", "keys")

    def __init__(self, end_ns: int) -> None:
        self.end_ns = end_ns
        self.keys: deque[bytes] = deque()


def _values(column: Column) -> list[bytes | None]:
    return column if isinstance(column, list) else column.to_pylist()  # type: ignore[return-value]


def _without(rows: Rows, dropped: list[int]) -> Rows:
    """Return rows without some of them, in the shape that the lesser count asks for."""
    count = rows.count - len(dropped)
    view = memoryview(rows.body)
    starts, ends = [0, *(row + 1 for row in dropped)], [*dropped, rows.count]
    # Few rows are dropped, so most of the body moves in long pieces.
    body = b"".join([view[int(rows.cuts[a]) : int(rows.cuts[b])] for a, b in zip(starts, ends, strict=True)])
    keep = np.ones(rows.count, np.bool_)
    keep[dropped] = False
    cuts = np.zeros(count + 1, np.int32)
    np.cumsum(np.diff(np.asarray(rows.cuts, np.int32))[keep], out=cuts[1:])
    columns = {name: shaped(_filtered(column, keep), count, name) for name, column in rows.columns.items()}
    return Rows(count, cuts.tolist() if count <= SMALL else cuts, body, rows.source, columns, rows.sequence)


def _filtered(column: Column, keep: npt.NDArray[np.bool_]) -> Column:
    if isinstance(column, list):
        return [value for value, kept in zip(column, keep.tolist(), strict=True) if kept]
    return column.filter(pa.array(keep))
