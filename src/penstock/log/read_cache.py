"""What of one shard is in memory and could be read back: the newest rows, and what was fetched from the disk.

Owns the bound on it and the fetches. Knows nothing of what is synced. Invariant: what it has at an offset is what is
stored there, or nothing.
"""

from __future__ import annotations

from typing import Protocol

from penstock.clock import Clock
from penstock.columns import SMALL
from penstock.disk import Disk
from penstock.log.chunks import Chunk, Chunks
from penstock.log.fetch import Fetches
from penstock.log.manifest import Damage
from penstock.log.segment import Segment
from penstock.log.segments import Segments
from penstock.log.tail import Tail
from penstock.message import Batch, joined

#: Of what everybody has read, the newest rows stay in memory: for whoever looks at the end, or gets them again.
READ_BYTES = 2 << 20
#: Batches of it that go in one go, at least: a quarter of a millisecond if they are lone messages.
LET_GO_BATCHES = 256


class Stored(Protocol):
    """The shard, as far as what is stored where goes."""

    kept_from: int
    readable_end: int

    def damage_found(self, segment: Segment, damaged: list[Damage]) -> None:
        """Take note of batches that cannot be read."""


class ReadCache:
    """The rows of one shard that need no disk."""

    __slots__ = ("_chunks", "_stored", "bytes_max", "fetches", "tail")

    def __init__(self, disk: Disk, clock: Clock, stored: Stored, segments: Segments, bytes_max: int) -> None:
        self._stored = stored
        self.bytes_max = bytes_max
        self.tail = Tail(stored.readable_end)
        self._chunks = Chunks(bytes_max)
        self.fetches = Fetches(disk, clock, stored, segments, self._chunks, self.find, bytes_max)

    @property
    def bytes(self) -> int:
        """How much memory it takes."""
        return self.tail.bytes + self._chunks.bytes

    def find(self, offset: int) -> Batch | int:
        """Return the batch at an offset if it is in memory, else the first offset that must be read from disk."""
        tail, stored = self.tail, self._stored
        offset = max(offset, stored.kept_from)
        while offset < stored.readable_end:
            if offset >= tail.start:
                batch = tail.at(offset)
                return batch if batch is not None and batch.first < stored.readable_end else stored.readable_end
            chunk = self._chunks.at(offset)
            if chunk is None:
                return offset
            batch = chunk.at(offset)
            if batch is not None:
                return batch
            offset = chunk.end
        return offset

    def joined(self, first: Batch, below: int) -> Batch:
        """Return a batch together with those behind it, where that pays; kept like what is read back."""
        chunk = self._chunks.at(first.first)
        if chunk is not None or first.first < self.tail.start:
            return first if chunk is None else chunk.at(first.first) or first
        run = self.tail.run(first.first, self._stored.readable_end, below)
        rows = sum([batch.count for batch in run])
        if rows <= SMALL or rows < 2 * first.count:
            return first
        batch = joined(run)
        self._chunks.add(Chunk(batch.first, batch.end, [batch]))
        return batch

    def trim(self, bytes_max: int, below: int) -> None:
        """Keep no more than this, as far as rows below an offset go; what was read back goes first."""
        tail = self.tail
        self._chunks.trim(max(bytes_max - tail.bytes, 0))
        while tail.bytes > bytes_max and len(tail) > 1 and next(iter(tail)).end <= below:
            tail.drop_oldest()

    def let_go(self, below: int) -> bool:
        """Forget most rows below an offset; False if there is more than can be forgotten in one go."""
        tail = self.tail
        return tail.drop_below(below, READ_BYTES, max(LET_GO_BATCHES, len(tail) // 32))

    def drop(self, segment: Segment) -> None:
        """Let nobody find rows that are not stored any more."""
        self._chunks.drop_between(segment.first, segment.end)
        tail = self.tail
        while len(tail) and tail.start < segment.end:
            tail.drop_oldest()
