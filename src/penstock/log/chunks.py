"""Batches read back from disk, kept in pieces of about a megabyte, the least used dropped first.

Owns the read cache. Knows nothing of files. Invariant: a chunk holds every readable row between its `start` and its
`end`, so an offset inside it that no batch holds is known to be a hole.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence

from penstock.log.tail import cost
from penstock.message import Batch


class Chunk:
    """The batches between two offsets."""

    __slots__ = ("_firsts", "batches", "bytes", "end", "start")

    def __init__(self, start: int, end: int, batches: Sequence[Batch]) -> None:
        self.start = start
        self.end = end
        self.batches = batches
        self.bytes = sum(map(cost, batches))
        self._firsts = [batch.first for batch in batches]

    def at(self, offset: int) -> Batch | None:
        """Return the batch that holds an offset, or the first one after it."""
        number = bisect_right(self._firsts, offset) - 1
        if number >= 0 and offset < self.batches[number].end:
            return self.batches[number]
        number += 1
        return self.batches[number] if number < len(self.batches) else None


class Chunks:
    """Chunks by offset, bounded in bytes."""

    __slots__ = ("_by_start", "_bytes_max", "_starts", "bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        #: The last used is last.
        self._by_start: dict[int, Chunk] = {}
        self._starts: list[int] = []

    def at(self, offset: int) -> Chunk | None:
        """Return the chunk that covers an offset."""
        number = bisect_right(self._starts, offset) - 1
        if number < 0:
            return None
        start = self._starts[number]
        chunk = self._by_start[start]
        if offset >= chunk.end:
            return None
        self._by_start[start] = self._by_start.pop(start)
        return chunk

    def add(self, chunk: Chunk) -> None:
        """Keep a chunk; it takes the place of those that begin inside it, and of the least used if memory is short."""
        low = bisect_right(self._starts, chunk.start - 1)
        while low < len(self._starts) and self._starts[low] < max(chunk.end, chunk.start + 1):
            self._drop(self._starts[low])
        self._by_start[chunk.start] = chunk
        insort(self._starts, chunk.start)
        self.bytes += chunk.bytes
        while self.bytes > self._bytes_max and len(self._by_start) > 1:
            self._drop(next(iter(self._by_start)))

    def trim(self, bytes_max: int) -> None:
        """Keep no more than this, the most used."""
        while self.bytes > bytes_max and self._by_start:
            self._drop(next(iter(self._by_start)))

    def drop_between(self, first: int, end: int) -> None:
        """Forget chunks that hold any of these offsets."""
        for start in [start for start, chunk in self._by_start.items() if chunk.start < end and first < chunk.end]:
            self._drop(start)

    def _drop(self, start: int) -> None:
        self.bytes -= self._by_start.pop(start).bytes
        self._starts.remove(start)
