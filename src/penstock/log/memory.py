"""A shard of a `memory` topic: the newest rows, in memory only.

Owns the bound on rows, and takes part in the bound on the bytes of all of them. Of the disk it uses the state file
alone, so that its offsets are never used twice.
Invariant: it never holds more than `memory_rows` rows, except for one batch that is larger by itself.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from penstock.budget import Share
from penstock.clock import Clock
from penstock.columns import Offsets
from penstock.disk import Disk
from penstock.log.cached import level
from penstock.log.journal import Journal, MemoryJournal
from penstock.log.manifest import Damage, View
from penstock.log.refusal import refusal
from penstock.log.reserve import Reserve
from penstock.log.shape import shaped_rows
from penstock.log.state import StateFile
from penstock.log.tail import Tail
from penstock.log.weight import Measures, weigh
from penstock.message import Batch, Done, Rows, int64s
from penstock.settings import TopicSettings

#: When the memory for all of them is full, this part of it is made free.
ROOM_PART = 16


class MemoryShard:
    """An ordered piece of a topic that nobody asked to keep."""

    # Nothing is ever written, so nothing of it can fail or be damaged.
    sync_errors = 0
    read_only = ""
    journals_suspect = journals_wait = False
    damaged: ClassVar[list[Damage]] = []
    cut_bytes = 0
    #: What is in memory is all there is: nothing could be read back.
    cached_bytes = 0

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        path: str,
        number: int,
        settings: TopicSettings,
        state: StateFile,
        measures: Measures,
        memory: Share | None = None,
    ) -> None:
        """Start empty, beyond every offset that was ever given out; blocking."""
        self.number = number
        self.path = path
        #: How the topic keeps messages; may be changed, but not to files.
        self.settings = settings
        self.start = self.kept_from = self.readable_end = self.end = state.state.reserved_end
        self.weight = 0
        #: What its rows weigh, and weighed; the last is that of the next row.
        self.measures: Measures = measures
        self.measure = measures[-1][1]
        #: Rows dropped because it was full.
        self.dropped_rows = 0
        #: The same by reason, since somebody last asked.
        self.dropped: Counter[str] = Counter()
        #: Told when the memory for all `memory` topics is full; it makes room.
        self.on_full: Callable[[], None] = _nothing
        #: As of a shard that has files, and never called: rows are readable at once, and room is made by dropping some.
        self.on_readable: Callable[[], None] = _nothing
        self.on_taken_back: Callable[[int], None]
        self.waiting: Callable[[int, int], Offsets | None]
        self.make_room: Callable[[int], None]
        self._disk = disk
        self._clock = clock
        self._tail = Tail(self.end)
        #: What all of them hold together, and what of that is ours.
        self._memory = memory or Share("topic", sys.maxsize)
        self._held = 0
        #: Rows come in just now: the newest are about to be handed out.
        self._appending = False
        self._reserve = Reserve(disk, state)
        self._reserve.begin(self.end)
        #: The highest version that a lease of its rows had in this life, as far as nobody else knows it.
        self.last_version = state.start(clock.now())
        state.replace()
        self._reserve.synced(state.state.reserved_end)

    def weigh_by(self, measures: Measures) -> None:
        """Measure rows by the last of these from now on; nothing that is stored changes its weight."""
        self.measures, self.measure = measures, measures[-1][1]

    def append(self, rows: Rows, now_ns: int) -> Batch:
        """Keep rows, and drop the oldest beyond the bound."""
        first, count = self.end, rows.count
        if first + count > self._reserve.refill_at:
            try:
                self._reserve.refill(first + count)
            except OSError as error:
                raise refusal(self.path, error) from error
        columns, cuts, body = shaped_rows(rows)
        batch = Batch(first, count, now_ns, cuts, body, rows.source, columns, self.weight, rows.sequence)
        self.weight += weigh(self.measure, count, len(body), columns.get("headers"))
        tail = self._tail
        tail.add(batch)
        self.end = self.readable_end = first + count
        while tail.rows > self.settings.memory_rows and len(tail) > 1:
            self._drop_batch("memory_rows")
        self.start = self.kept_from = tail.start
        memory = self._memory
        memory.used += tail.bytes - self._held
        self._held = tail.bytes
        if memory.used > memory.bytes_max:
            self._appending = True
            self.on_full()
            self._appending = False
        return batch

    @property
    def held_bytes(self) -> int:
        """How much memory its rows take."""
        return self._held

    def squeeze(self, bytes_max: int) -> None:
        """Hold no more than this; what comes in just now stays."""
        tail = self._tail
        while tail.bytes > bytes_max and len(tail) > self._appending:
            self._drop_batch("memory_bytes")
        self.start = self.kept_from = tail.start
        self._memory.give(self._held - tail.bytes)
        self._held = tail.bytes

    def _drop_batch(self, reason: str) -> None:
        rows = self._tail.drop_oldest().count
        self.dropped_rows += rows
        self.dropped[reason] += rows

    def when_durable(self, done: Done) -> None:
        """Call back at once: nothing was promised."""
        done(None)

    def sync(self, done: Done) -> None:
        """Call back at once: there is no safer place for the rows than this."""
        done(None)

    def fetch(self, offset: int, done: Callable[[], None]) -> None:
        """Call back in the next turn: what is not in memory is gone."""
        self._clock.call_soon(done)

    def read(self, offset: int, joined_below: int = 0) -> Batch | None:
        """Return the batch that holds an offset, or the first after it; never joined: copies would be nobody's."""
        return self._tail.at(max(offset, self._tail.start))

    def offset_at(self, time_ns: int) -> int:
        """Return the first offset whose row was taken at or after a time."""
        return next((batch.first for batch in self.recent(time_ns)), self.end)

    def due_rows(self, from_offset: int, after_ns: int) -> tuple[Offsets, Offsets]:
        """Return (offsets, due times) of rows from an offset on that are due after a time."""
        offsets, times = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for batch in self._tail:
            if "due" in batch.columns:
                due, valid = int64s(batch.columns["due"])
                rows = np.arange(batch.first, batch.end)
                chosen = valid & (due > after_ns) & (rows >= from_offset)
                offsets.append(rows[chosen])
                times.append(due[chosen])
        return np.concatenate(offsets), np.concatenate(times)

    def recent(self, since_ns: int) -> Iterator[Batch]:
        """Yield the batches with rows at or after a time."""
        return (b for b in self._tail if isinstance(b.timestamp, int) and b.timestamp >= since_ns)

    def roll(self) -> None:
        """Do nothing: there are no segments."""

    def tick(self, now_ns: int) -> None:
        """Do nothing: there is nothing to write."""

    def retain(self, needed_from: int | None, now_ns: int, room: int = 0) -> int:
        """Drop nothing: only the bound on rows counts."""
        return 0

    def oldest(self) -> tuple[int, int, int] | None:
        """Return None: there are no segments that could be dropped."""
        return None

    def drop_oldest(self) -> int:
        """Drop nothing, as there are no segments."""
        return 0

    @property
    def last_ns(self) -> int:
        """When the last row was taken; 0 if none is held."""
        times = [batch.timestamp for batch in self._tail if isinstance(batch.timestamp, int)]
        return times[-1] if times else 0

    def trim(self, bytes_max: int) -> None:
        """Drop nothing: it could not be read back."""

    def let_go(self, end: int) -> bool:
        """Forget nothing: it could not be read back."""
        return True

    def stored_bytes(self) -> int:
        """Return about how much memory the rows take."""
        return self._tail.bytes

    def rows_between(self, start: int, end: int) -> int:
        """Return how many rows with start <= offset < end are held: there are no holes in memory."""
        return max(0, min(end, self.end) - max(start, self.start))

    def stretches(self) -> list[tuple[int, int, int, int]]:
        """Return the one stretch there is."""
        rows = self.rows_between(self.start, self.end)
        return [(self.start, self.end, rows, self.stored_bytes())] if rows else []

    def journal(self, name: str) -> tuple[Journal, Offsets]:
        """Return a journal that keeps nothing."""
        return MemoryJournal(self._disk, self._clock, self.path, name), np.zeros((0, 5), np.int64)

    def view(self) -> View | None:
        """Return None: there are no files that another thread could read."""
        return None

    def syncs(self) -> list[Callable[[Done], None]]:
        """Return what brings rows to a safer place."""
        return [self.sync]

    def close_later(self, done: Done) -> None:
        """End; the rows are gone with it."""
        self.close()
        done(None)

    def close(self) -> None:
        """End; the rows are gone with it."""
        self.drop()

    def delete(self) -> None:
        """Remove everything; blocking."""
        self.drop()
        self._disk.remove(self.path)

    def drop(self) -> None:
        """Hold nothing any more."""
        self._memory.give(self._held)
        self._held = 0


def squeeze(shards: Sequence[MemoryShard], bytes_max: int) -> None:
    """Have the largest shards drop rows until all fit, and something more: the next append must not come back here."""
    bytes_max -= bytes_max // ROOM_PART
    most = level([shard.held_bytes for shard in shards], bytes_max)
    for shard in shards:
        if shard.held_bytes > most:
            shard.squeeze(most)


def _nothing() -> None:
    return
