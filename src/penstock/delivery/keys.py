"""Order by key: at most one consumer has rows of a key, and they go out one after the other (ruling 9).

Knows keys and offsets; of consumers a holder's number, of states what it is shown when it learns. A key that is stuck
holds back its own rows and no others. Looks at every row by itself: about 1 us, the price of asking for order, and no
more for a row of a key that a million others wait for.
Invariant: a row is out, queued, parked or unknown here; of each key only queued rows can go out next, lowest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

import numpy as np
import pyarrow as pa

from penstock.columns import Offsets
from penstock.delivery.page import LEASED, READY, WAITING
from penstock.delivery.pages import Pages
from penstock.message import Batch

#: A heap may hold so many numbers that are gone before it is made anew; a handful is not worth a look.
_STALE_MAX = 16

_NONE = np.empty(0, np.int64)


class _Rows:
    """A set of numbers that knows its lowest: every call costs the logarithm of their number at most."""

    __slots__ = ("_heap", "members")

    def __init__(self) -> None:
        self.members: set[int] = set()
        #: All members, and some that were taken out and are dropped when they come up.
        self._heap: list[int] = []

    def __bool__(self) -> bool:
        return bool(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, number: int) -> bool:
        return number in self.members

    def add(self, number: int) -> None:
        if number not in self.members:
            self.members.add(number)
            heappush(self._heap, number)

    def discard(self, number: int) -> None:
        members, heap = self.members, self._heap
        if number not in members:
            return
        members.remove(number)
        if not members:
            heap.clear()
        elif len(heap) > 2 * len(members) + _STALE_MAX:
            heap[:] = members
            heapify(heap)

    def lowest(self) -> int:
        """Return the lowest member; there must be one."""
        heap, members = self._heap, self.members
        while heap[0] not in members:
            heappop(heap)
        return heap[0]

    def pop(self) -> int:
        """Take out the lowest member; there must be one."""
        heap, members = self._heap, self.members
        while (number := heappop(heap)) not in members:
            pass
        members.remove(number)
        return number


class _Key:
    __slots__ = ("first", "holder", "out", "parked", "queued")

    def __init__(self) -> None:
        self.holder = -1
        #: Rows out at the holder, negated: what is asked for is the highest.
        self.out = _Rows()
        #: Rows that were let go or noted and stand in a queue, or wait for their time. Most keys never have one.
        self.queued: _Rows | None = None
        #: Rows that wait for those before them. Most keys never have one.
        self.parked: _Rows | None = None
        #: A row that came back and must go out before any other.
        self.first: int | None = None

    def queue(self, offset: int) -> None:
        if self.queued is None:
            self.queued = _Rows()
        self.queued.add(offset)

    def park(self, offset: int) -> None:
        if self.parked is None:
            self.parked = _Rows()
        self.parked.add(offset)

    def discard(self, offset: int) -> None:
        """Forget a row wherever it is."""
        self.out.discard(-offset)
        if self.queued:
            self.queued.discard(offset)
        if self.parked:
            self.parked.discard(offset)
        if self.first == offset:
            self.first = None


class KeyOrder:
    """Who has which key, and which rows wait for it."""

    def __init__(self, run: int, unknown: Offsets = _NONE) -> None:
        #: So many rows of a key may be out at once, at one consumer.
        self.run = run
        #: Rows held when order was asked for, of which nothing is known here yet.
        self.unknown: Offsets = unknown
        #: Rows that a look at others let go; whoever looked queues them.
        self.freed: list[int] = []
        #: Tells whether a row waits for others of its key in another shard; None where keys have not moved.
        self.holds: Callable[[bytes, int], bool] | None = None
        #: Told of keys that others may wait for, when one of their rows is done or comes back.
        self.touched: Callable[[bytes], None] | None = None
        self._keys: dict[bytes, _Key] = {}
        self._key_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def admitted(self, batch: Batch, offsets: Offsets, holder: int) -> Offsets:
        """Return which rows of a batch may go to a holder now; the others wait for those of their key before them."""
        values = keys_of(batch, offsets)
        if values is None:
            return offsets
        rows = zip(values, offsets.tolist(), strict=True)
        free = [key is None or self.admit(key, offset, holder) for key, offset in rows]
        return offsets[np.array(free, np.bool_)]

    def admit(self, key: bytes, offset: int, holder: int) -> bool:
        """Tell whether a row may go to a holder now; if not, it is parked until it may."""
        state = self._keys.get(key)
        if state is None:
            state = self._keys[key] = _Key()
        self._key_of[offset] = key
        if state.queued:
            state.queued.discard(offset)
        if self._may_go(state, offset, holder) and not (self.holds is not None and self.holds(key, offset)):
            if state.parked:
                state.parked.discard(offset)
            state.first = None
            state.holder = holder
            state.out.add(-offset)
            return True
        state.park(offset)
        self.freed += self._next(key, state)
        return False

    def _may_go(self, state: _Key, offset: int, holder: int) -> bool:
        if state.first is not None and offset != state.first:
            return False
        if state.parked and state.parked.lowest() < offset:
            return False
        if state.queued and state.queued.lowest() < offset:
            return False
        if not state.out:
            return True
        return holder == state.holder and len(state.out) < self.run and offset > -state.out.lowest()

    def note(self, key: bytes, offset: int) -> None:
        """Take note of a row that stands in a queue, where a later one of its key may be looked at before it."""
        if offset not in self._key_of:
            self._key_of[offset] = key
            self._keys.setdefault(key, _Key()).queue(offset)

    def note_rows(self, batch: Batch, offsets: Offsets) -> None:
        """Take note of rows of a batch that stand in queues which may be served in any order."""
        for key, offset in zip(keys_of(batch, offsets) or (), offsets.tolist(), strict=False):
            if key is not None:
                self.note(key, offset)

    def learn(self, batch: Batch, pages: Pages) -> None:
        """Take note of those unknown rows that a batch tells of; below it they cannot be read any more."""
        first = int(self.unknown[0])
        part = self.unknown[: int(np.searchsorted(self.unknown, max(batch.end, first + 1)))]
        self.unknown = self.unknown[len(part) :]
        part = part[part >= batch.first]
        state, attempts, _, holders = pages.details(part)
        # What was out and comes back later holds back its key as well.
        self.note_rows(batch, part[(state == READY) | ((state == WAITING) & (attempts > 0))])
        out = part[state == LEASED]
        found = zip(keys_of(batch, out) or (), out.tolist(), holders[state == LEASED].tolist(), strict=False)
        for key, offset, holder in found:
            if key is not None:
                self.note_out(key, offset, holder)

    def note_out(self, key: bytes, offset: int, holder: int) -> None:
        """Take note of a row that went out before order was asked for; several holders together are nobody."""
        if offset not in self._key_of:
            state = self._keys.setdefault(key, _Key())
            state.holder = holder if not state.out or state.holder == holder else -1
            self._key_of[offset] = key
            state.out.add(-offset)

    def finished(self, offsets: Iterable[int]) -> list[int]:
        """Take note of rows that are done; return those that may be queued now."""
        freed: list[int] = []
        for offset in offsets:
            key = self._key_of.pop(offset, None)
            if key is None:
                continue
            state = self._keys[key]
            state.discard(offset)
            freed += self._next(key, state)
            if self.touched is not None:
                self.touched(key)
        return freed

    def free(self, key: bytes | None) -> list[int]:
        """Return the rows of a key, or of all, that may be queued now because nothing elsewhere holds them back."""
        if key is None:
            return [offset for each, state in list(self._keys.items()) for offset in self._next(each, state)]
        state = self._keys.get(key)
        return self._next(key, state) if state is not None else []

    def has_out(self, key: bytes) -> bool:
        """Tell whether a row of a key is out."""
        state = self._keys.get(key)
        return state is not None and bool(state.out)

    def has_below(self, key: bytes, offset: int) -> bool:
        """Tell whether a row of a key below an offset is known and not done."""
        state = self._keys.get(key)
        if state is None:
            return False
        known = [rows.lowest() for rows in (state.queued, state.parked) if rows]
        return min([*known, *(-row for row in state.out.members)], default=offset) < offset

    def parked(self) -> list[int]:
        """Return the rows that wait for others of their keys and stand in no queue, ascending."""
        return sorted(offset for state in self._keys.values() if state.parked for offset in state.parked.members)

    def came_back(self, offsets: list[int], *, delayed: bool) -> tuple[list[int], list[int]]:
        """Take note of rows that were released; return those to be queued, and later rows of their keys to revoke."""
        queue: list[int] = []
        revoked: list[int] = []
        back = set(offsets)
        for offset in sorted(offsets):
            key = self._key_of.get(offset)
            if key is None:
                queue.append(offset)
                continue
            state = self._keys[key]
            if state.parked and offset in state.parked:  # an earlier row of its key came back as well
                continue
            later: list[int] = []
            while state.out and -state.out.lowest() >= offset:
                later.append(-state.out.pop())
            if later and later[-1] == offset:
                later.pop()
            state.queue(offset)
            state.first = offset
            queue.append(offset)
            if self.touched is not None:
                self.touched(key)
            for other in reversed(later):
                if other in back and delayed:
                    state.queue(other)
                    queue.append(other)
                else:
                    state.park(other)
                if other not in back:
                    revoked.append(other)
            back.difference_update(later if delayed else ())
        return list(dict.fromkeys(queue)), revoked

    def _next(self, key: bytes, state: _Key) -> list[int]:
        """Let go what waits once nothing of the key is out, or on its way before it."""
        queued, parked = state.queued, state.parked
        if state.out or (queued and state.first in queued.members):
            return []
        if queued and (not parked or queued.lowest() < parked.lowest()):
            return []
        if not parked:
            del self._keys[key]
            return []
        freed: list[int] = []
        while parked and len(freed) < self.run and not (self.holds and self.holds(key, parked.lowest())):
            freed.append(parked.pop())
        for offset in freed:
            state.queue(offset)
        if freed:
            state.first = None
        return freed


def keys_of(batch: Batch, offsets: Offsets) -> list[bytes | None] | None:
    """Return the keys of rows of a batch; None if none has one."""
    column = batch.columns.get("key")
    if column is None or len(offsets) == 0:
        return None
    rows = (offsets - batch.first).tolist()
    values = [column[row] for row in rows] if isinstance(column, list) else column.take(pa.array(rows)).to_pylist()
    return [None if key is None else bytes(key) for key in values]
