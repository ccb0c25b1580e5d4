"""Order by key where a topic was given more shards: a key's rows in its old shard go out before those in its new one.

Knows which shard a key had before each growth, and asks the cursors what is left there. Rows of keys that did not move
never wait here, and a key that is stuck holds back its own rows and no others. See decision 012.
Invariant: a row that was stored after a growth goes out when every row of its key that was stored before it, in
whatever shard, is finished or not yet due; rows of a key are out in one shard at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from penstock.delivery.cursor import Cursor

#: Tells the shard of a key among so many.
ShardOf = Callable[[bytes, int], int]


class Growth(Protocol):
    """A topic was given more shards."""

    @property
    def shards(self) -> int:
        """How many it had."""

    @property
    def ends(self) -> tuple[int, ...]:
        """Per shard it had: what was stored before lies below."""


class Moves:
    """Which rows of a subscription wait for others of their key elsewhere."""

    def __init__(self, cursors: Sequence[Cursor], grown: Sequence[Growth], shard_of: ShardOf) -> None:
        self._cursors = cursors
        self._shard_of = shard_of
        #: Those of which some cursor has not finished what was stored before.
        self._open = [growth for growth in grown if not self._is_over(growth)]
        #: How many shards there were after each.
        after = [*(growth.shards for growth in grown[1:]), len(cursors)]
        self._after = {id(growth): shards for growth, shards in zip(grown, after, strict=True)}
        #: (growth, shard): all that was stored there before it was read, so that all its keys are known.
        self._read: set[tuple[int, int]] = set()
        #: Keys with rows that wait, and in which shards those are.
        self._waiting: dict[bytes, set[int]] = {}
        #: Keys of which something was finished, or came back, since the last look.
        self._touched: set[bytes] = set()
        self._is_new = True
        for shard, cursor in enumerate(cursors):
            if self._open:
                cursor.use_moves(partial(self._holds, shard), self._touched.add)
            else:
                cursor.use_moves(None, None)
        self._see()

    def __bool__(self) -> bool:
        return bool(self._open)

    def look(self) -> bool:
        """Let go what need not wait any more; tell whether there was any."""
        keys = self._waiting.keys() & self._touched
        if self._see():
            keys = set(self._waiting)
        self._touched.clear()
        freed = False
        if self._is_new:
            self._is_new = False
            for cursor in self._cursors:
                freed = cursor.free(None) or freed
        for key in keys:
            for shard in self._waiting.pop(key, ()):
                freed = self._cursors[shard].free(key) or freed
        if not self._waiting:
            self._open = [growth for growth in self._open if not self._is_over(growth)]
            if not self._open:
                for cursor in self._cursors:
                    cursor.use_moves(None, None)
        return freed

    def _holds(self, shard: int, key: bytes, offset: int) -> bool:
        """Tell whether a row must wait for rows of its key in other shards."""
        for growth in self._open:
            if offset >= _end(growth, shard):
                old = self._shard_of(key, growth.shards)
                waits = old != shard and not self._is_finished(growth, old, key)
            else:  # it became due after later ones of its key, in their new shard, went out
                new = self._shard_of(key, self._after[id(growth)])
                waits = new != shard and self._cursors[new].has_out(key)
            if waits:
                self._waiting.setdefault(key, set()).add(shard)
                return True
        return False

    def _is_finished(self, growth: Growth, shard: int, key: bytes) -> bool:
        return (id(growth), shard) in self._read and not self._cursors[shard].has_below(key, growth.ends[shard])

    def _see(self) -> bool:
        """Take note of cursors that have read all that was stored before a growth; tell whether there are more."""
        before = len(self._read)
        for growth in self._open:
            for shard, end in enumerate(growth.ends):
                if (id(growth), shard) not in self._read and self._cursors[shard].knows_below(end):
                    self._read.add((id(growth), shard))
        return len(self._read) > before

    def _is_over(self, growth: Growth) -> bool:
        return all(self._cursors[shard].is_done_below(end) for shard, end in enumerate(growth.ends))


def _end(growth: Growth, shard: int) -> int:
    return growth.ends[shard] if shard < len(growth.ends) else 0
