"""Filling the index of message ids: from the log at a start, and with what other dialects publish.

A piece in each turn of the loop, so that deliveries go on meanwhile. Rows that were released are found on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.columns import OFFSET_BITS, Offsets
from penstock.delivery.page import WAITING
from penstock.dialects.timeline import columns
from penstock.dialects.timeline.index import Index
from penstock.message import Batch
from penstock.registry.answer import Answer

if TYPE_CHECKING:
    from penstock.delivery.subscription import Subscription
    from penstock.log.shard import Shard
    from penstock.node.topic import Topic

#: So many rows are looked at in one turn.
ROWS = 65_536
_MS = 1_000_000


class Filling:
    """One index that learns which rows there are."""

    def __init__(
        self, topic: Topic, subscription: Subscription, index: Index, released: dict[int, tuple[int, int]]
    ) -> None:
        self._topic = topic
        self._subscription = subscription
        self._index = index
        self._released = released
        #: Per shard: what is stored from there on is heard of as it comes.
        self._ends: list[int] = []
        self._left: list[tuple[Shard, Offsets]] = []
        self._answer: Answer[None] = Answer()
        self._unfollow = topic.follow(self._follow)

    def begin(self) -> Answer[None]:
        """Answer once all rows of now are in the index."""
        for cursor, shard in zip(self._subscription.cursors, self._topic.shards, strict=True):
            end = shard.readable_end
            self._ends.append(end)
            held = cursor.states.pages.held()
            rows = np.concatenate((held, np.arange(min(cursor.position.offset, end), end)))
            self._note_released(shard.number, cursor.states.pages.details(held), held, cursor.states.pages.versions)
            if len(rows):
                self._left.append((shard, rows))
        if self._left:
            self._index.reserve(sum(len(rows) for _, rows in self._left))
            self._topic.call_soon(self._step)
        else:
            self._answer.give(None)
        return self._answer

    def close(self) -> None:
        """Learn nothing more."""
        self._left.clear()
        self._unfollow()

    def _note_released(self, shard: int, details: tuple[Offsets, ...], held: Offsets, versions: object) -> None:
        state, attempts, due_ns, _ = details
        back = held[(state == WAITING) & (attempts > 0)]
        if len(back):
            times = due_ns[(state == WAITING) & (attempts > 0)] // _MS
            known = versions(back)  # type: ignore[operator]
            for offset, time_ms, version in zip(back.tolist(), times.tolist(), known.tolist(), strict=True):
                self._released[(shard << OFFSET_BITS) + offset + 1] = (time_ms, version)

    # --- from the log ---------------------------------------------------------------------------------------------

    def _step(self) -> None:
        looked = 0
        while self._left and looked < ROWS:
            shard, rows = self._left[0]
            batch = shard.read(int(rows[0]))
            if batch is None:
                shard.fetch(int(rows[0]), self._fetched)
                return
            looked += self._pass(shard, rows, batch)
        self._go_on()

    def _fetched(self) -> None:
        if not self._left:
            return
        shard, rows = self._left[0]
        batch = shard.read(int(rows[0]))
        if batch is None:  # nothing is stored from there on
            self._left.pop(0)
        self._go_on()

    def _go_on(self) -> None:
        if self._left:
            self._topic.call_soon(self._step)
        elif not self._answer.is_given:
            self._answer.give(None)

    def _pass(self, shard: Shard, rows: Offsets, batch: Batch) -> int:
        """Take in the rows of a batch; return how many they were."""
        stop = int(np.searchsorted(rows, batch.end))
        here = rows[:stop]
        self._note(shard.number, batch, here[here >= batch.first] - batch.first)
        if stop < len(rows):
            self._left[0] = (shard, rows[stop:])
        else:
            self._left.pop(0)
        return stop

    def _note(self, shard: int, batch: Batch, rows: Offsets) -> None:
        found = columns.taken(batch, "message_id", rows)
        if found is None or not len(rows):
            return
        ids = (shard << OFFSET_BITS) + batch.first + rows + 1
        if found.null_count:
            valid = np.asarray(found.is_valid())
            found, ids = found.drop_null(), ids[valid]
        hashes, first = np.unique(self._index.hashes(found), return_index=True)
        self._index.put(hashes, ids[first])

    # --- from others ----------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Look at what was stored since; what was created here is known already."""
        self._ends += [0] * (len(self._topic.shards) - len(self._ends))
        for shard in self._topic.shards:
            at = self._ends[shard.number]
            while at < shard.readable_end:
                batch = shard.read(at)
                if batch is None:
                    at = shard.readable_end
                    break
                if "message_id" in batch.columns and batch.source != columns.SOURCE:
                    self._note(shard.number, batch, np.arange(max(at - batch.first, 0), batch.count))
                at = batch.end
            self._ends[shard.number] = at
