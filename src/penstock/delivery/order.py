"""Order by key: at most one consumer has rows of a key, and they go out one after the other (ruling 9).

Knows keys and offsets, nothing of states or consumers beyond a holder's number. A key that is stuck holds back its
own rows and no others. Looks at every row by itself: about 1 us, the price of asking for order.
Invariant: a row is out, queued, parked or unknown here; of each key only queued rows can go out next, lowest first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable


class _Key:
    __slots__ = ("first", "holder", "out", "parked", "queued")

    def __init__(self) -> None:
        self.holder = -1
        #: Rows out at the holder, ascending.
        self.out: list[int] = []
        #: Rows that were let go or noted and stand in a queue, or wait for their time, ascending.
        self.queued: list[int] = []
        #: Rows that wait for those before them, ascending.
        self.parked: list[int] = []
        #: A row that came back and must go out before any other.
        self.first: int | None = None


class KeyOrder:
    """Who has which key, and which rows wait for it."""

    def __init__(self, run: int) -> None:
        #: So many rows of a key may be out at once, at one consumer.
        self.run = run
        #: Rows that a look at others let go; whoever looked queues them.
        self.freed: list[int] = []
        self._keys: dict[bytes, _Key] = {}
        self._key_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def admit(self, key: bytes, offset: int, holder: int) -> bool:
        """Tell whether a row may go to a holder now; if not, it is parked until it may."""
        state = self._keys.get(key)
        if state is None:
            state = self._keys[key] = _Key()
        self._key_of[offset] = key
        _take_out(state.queued, offset)
        if self._may_go(state, offset, holder):
            state.first = None
            state.holder = holder
            insort(state.out, offset)
            return True
        if offset not in state.parked:
            insort(state.parked, offset)
        self.freed += self._next(key, state)
        return False

    def _may_go(self, state: _Key, offset: int, holder: int) -> bool:
        if state.first is not None and offset != state.first:
            return False
        if state.parked and state.parked[0] < offset:
            return False
        if state.queued and state.queued[0] < offset:
            return False
        if not state.out:
            return True
        return holder == state.holder and len(state.out) < self.run and offset > state.out[-1]

    def note(self, key: bytes, offset: int) -> None:
        """Take note of a row that stands in a queue, where a later one of its key may be looked at before it."""
        if offset not in self._key_of:
            self._key_of[offset] = key
            insort(self._keys.setdefault(key, _Key()).queued, offset)

    def note_out(self, key: bytes, offset: int, holder: int) -> None:
        """Take note of a row that went out before order was asked for; several holders together are nobody."""
        if offset not in self._key_of:
            state = self._keys.setdefault(key, _Key())
            state.holder = holder if not state.out or state.holder == holder else -1
            self._key_of[offset] = key
            insort(state.out, offset)

    def finished(self, offsets: Iterable[int]) -> list[int]:
        """Take note of rows that are done; return those that may be queued now."""
        freed: list[int] = []
        for offset in offsets:
            key = self._key_of.pop(offset, None)
            if key is None:
                continue
            state = self._keys[key]
            _discard(state, offset)
            freed += self._next(key, state)
        return freed

    def parked(self) -> list[int]:
        """Return the rows that wait for others of their keys and stand in no queue, ascending."""
        return sorted(offset for state in self._keys.values() for offset in state.parked)

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
            if offset in state.parked:  # an earlier row of its key came back as well
                continue
            later = [other for other in state.out if other > offset]
            state.out = [other for other in state.out if other < offset]
            _put_in(state.queued, offset)
            state.first = offset
            queue.append(offset)
            for other in later:
                if other in back and delayed:
                    _put_in(state.queued, other)
                    queue.append(other)
                else:
                    insort(state.parked, other)
                if other not in back:
                    revoked.append(other)
            back.difference_update(later if delayed else ())
        return list(dict.fromkeys(queue)), revoked

    def _next(self, key: bytes, state: _Key) -> list[int]:
        """Let go what waits once nothing of the key is out, or on its way before it."""
        if state.out or (state.first is not None and state.first in state.queued):
            return []
        if state.queued and (not state.parked or state.queued[0] < state.parked[0]):
            return []
        freed, state.parked = state.parked[: self.run], state.parked[self.run :]
        if not freed:
            del self._keys[key]
            return []
        for offset in freed:
            _put_in(state.queued, offset)
        state.first = None
        return freed


def _discard(state: _Key, offset: int) -> None:
    if offset in state.out:
        state.out.remove(offset)
    elif offset in state.parked:
        state.parked.remove(offset)
    _take_out(state.queued, offset)
    if state.first == offset:
        state.first = None


def _put_in(rows: list[int], offset: int) -> None:
    at = bisect_left(rows, offset)
    if at == len(rows) or rows[at] != offset:
        rows.insert(at, offset)


def _take_out(rows: list[int], offset: int) -> None:
    at = bisect_left(rows, offset)
    if at < len(rows) and rows[at] == offset:
        del rows[at]
