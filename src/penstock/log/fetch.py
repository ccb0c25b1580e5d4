"""Reading back from disk: chunks of about a megabyte, one at a time per shard, and the next one ahead of need.

Owns who waits for which offset. Knows nothing of how a segment finds its batches.
Invariant: a caller is called once, and by then its rows are in memory, or nothing readable is left at its offset.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol

from penstock.clock import SECOND, Clock
from penstock.disk import Disk
from penstock.log.chunks import Chunk, Chunks
from penstock.log.manifest import Damage
from penstock.log.segment import Segment, decoder_of
from penstock.log.segments import Segments
from penstock.message import Batch

#: Batches that begin in the same stretch of a segment of this length are read together.
CHUNK_BITS = 20
#: A disk that cannot be read is asked again this much later.
RETRY_NS = SECOND


class Stored(Protocol):
    """What the shard offers to its fetches."""

    readable_end: int

    def damage_found(self, segment: Segment, damaged: list[Damage]) -> None:
        """Take note of batches that cannot be read."""


class Fetches:
    """The reads of one shard."""

    __slots__ = (
        "_busy",
        "_bytes_max",
        "_chunks",
        "_clock",
        "_disk",
        "_find",
        "_segments",
        "_stopped",
        "_stored",
        "_waiting",
        "errors",
    )

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        stored: Stored,
        segments: Segments,
        chunks: Chunks,
        find: Callable[[int], Batch | int],
        bytes_max: int,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._stored = stored
        self._segments = segments
        self._chunks = chunks
        #: Finds a batch in memory, or the first offset that must be read.
        self._find = find
        self._bytes_max = bytes_max
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._busy = False
        self._stopped = False
        self.errors = 0

    def want(self, offset: int, done: Callable[[], None]) -> None:
        """Load what is stored at an offset, then call back."""
        if self._stopped:
            self._clock.call_soon(done)
            return
        self._waiting.append((offset, done))
        if self._busy:
            return
        if self._at(offset) is None:
            self._clock.call_soon(self._serve)
        else:
            self._serve()

    def stop(self) -> None:
        """Read nothing any more, and let nobody wait for it."""
        self._stopped = True
        waiting, self._waiting = self._waiting, []
        for _, done in waiting:
            done()

    def _at(self, offset: int) -> int | None:
        """Return where the disk must be read for an offset, None if it need not be."""
        found = self._find(offset)
        return found if isinstance(found, int) and found < self._stored.readable_end else None

    def _serve(self) -> None:
        """Call those whose rows are there, and read for the first of the others."""
        if self._busy or self._stopped:
            return
        served: list[Callable[[], None]] = []
        kept: list[tuple[int, Callable[[], None]]] = []
        needed: int | None = None
        for offset, done in self._waiting:
            at = self._at(offset)
            if at is None:
                served.append(done)
            else:
                needed = at if needed is None else needed
                kept.append((offset, done))
        self._waiting = kept
        if needed is not None and not self._read(needed, ahead=False):
            served += [done for _, done in self._waiting]
            self._waiting = []
        for done in served:
            done()

    def _read(self, offset: int, *, ahead: bool) -> bool:
        segment = self._segments.at(offset)
        if segment is None:
            return False
        self._busy = True
        limit, end = _bounds(segment, self._stored.readable_end)

        def finished(result: tuple[Chunk, list[Damage]] | None, error: BaseException | None) -> None:
            self._busy = False
            if self._stopped:
                return
            if result is None:
                self._failed(segment, offset)
                return
            chunk, damaged = result
            if self._segments.at(offset) is not segment:  # what was read may be there no more
                self._serve()
                return
            self._chunks.add(chunk)
            if damaged:
                self._stored.damage_found(segment, damaged)
            self._serve()
            if not ahead and not self._busy and self._chunks.bytes + 2 * chunk.bytes <= self._bytes_max:
                following = self._at(chunk.end)
                if following is not None:
                    self._read(following, ahead=True)

        self._disk.submit("read", lambda: load(segment, offset, limit, end), finished)
        return True

    def _failed(self, segment: Segment, offset: int) -> None:
        self.errors += 1
        if self._segments.at(offset) is not segment:
            self._serve()  # it was rewritten or dropped meanwhile
        elif self._waiting:
            self._clock.call_at(self._clock.monotonic() + RETRY_NS, self._serve)


def load(segment: Segment, offset: int, limit: int | None, end: int) -> tuple[Chunk, list[Damage]]:
    """Read the chunk that holds an offset; `limit` bounds the entries of a segment that still grows."""
    index = segment.entries()
    count = len(index) if limit is None else limit
    number = min(index.at(offset), count)
    if number == count:
        last = index[count - 1].end if count else segment.first
        return Chunk(min(offset, last), max(end, offset + 1), []), segment.load(0, 0)[2]
    stretch = index.positions[number] >> CHUNK_BITS
    start = bisect_left(index.positions, stretch << CHUNK_BITS, 0, count)
    stop = bisect_left(index.positions, (stretch + 1) << CHUNK_BITS, 0, count)
    data, runs, damaged = segment.load(start, stop)
    batches = decoder_of(segment.columns).batches(data, runs)
    low = min(offset, segment.first) if start == 0 else index[start - 1].end
    high = end if stop == count else index.firsts[stop]
    return Chunk(low, high, batches), damaged


def _bounds(segment: Segment, readable_end: int) -> tuple[int | None, int]:
    """Return how many entries may be read now and the offset they reach."""
    index = segment.index
    if segment.file is None or index is None:
        return None, segment.end
    limit = len(index) if segment.end <= readable_end else index.at(readable_end)
    return limit, index[limit - 1].end if limit else segment.first
