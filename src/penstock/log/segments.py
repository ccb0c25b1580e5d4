"""The segments of one shard in order: the closed ones, and the one that grows.

Owns which segment holds an offset and which indexes are in memory. Knows nothing of caches, syncs or callbacks.
Invariant: segments ascend and do not overlap; only the last may be open.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from penstock.columns import BASE_COLUMNS, COLUMNS
from penstock.errors import Refusal
from penstock.log.index import Index
from penstock.log.manifest import Manifest
from penstock.log.segment import Segment

#: Indexes of closed segments kept in memory: a few KB each once a segment is rewritten, up to 6 MB before.
INDEXES_MAX = 8


class Segments:
    """Closed segments and at most one open one."""

    __slots__ = ("_ends", "_loaded", "closed", "closed_bytes", "open")

    def __init__(self, closed: list[Segment], growing: Segment | None) -> None:
        self.closed = closed
        self.open = growing
        #: What the closed ones hold together.
        self.closed_bytes = sum(segment.bytes for segment in closed)
        self._ends = [segment.end for segment in closed]
        #: The last used is last.
        self._loaded: dict[int, Segment] = {}

    def __iter__(self) -> Iterator[Segment]:
        yield from self.closed
        if self.open is not None:
            yield self.open

    @property
    def last(self) -> Segment | None:
        """The newest segment."""
        return self.open or (self.closed[-1] if self.closed else None)

    @property
    def first(self) -> Segment | None:
        """The oldest segment."""
        return self.closed[0] if self.closed else self.open

    @property
    def bytes(self) -> int:
        """What all of them hold together."""
        return self.closed_bytes + (self.open.bytes if self.open is not None else 0)

    @property
    def last_ns(self) -> int:
        """When the last row was taken; 0 if there is none."""
        return max((segment.ts_max for segment in self if segment.batches), default=0)

    def first_from(self, offset: int, end: int) -> int:
        """Return the first offset at or after one that may be stored, `end` if there is none."""
        return next((max(one.first, offset) for one in self if one.end > offset), end)

    def at(self, offset: int) -> Segment | None:
        """Return the first segment that ends after an offset."""
        number = bisect_right(self._ends, offset)
        if number < len(self.closed):
            segment = self.closed[number]
            self.keep_index(segment)
            return segment
        return self.open if self.open is not None and self.open.end > offset else None

    def keep_index(self, segment: Segment) -> None:
        """Let a closed segment's index stay in memory while it is among the last used."""
        self._loaded.pop(segment.first, None)
        self._loaded[segment.first] = segment
        while len(self._loaded) > INDEXES_MAX:
            self._loaded.pop(next(iter(self._loaded))).forget_index()

    def rows_between(self, start: int, end: int) -> int:
        """Return how many readable rows lie in a range of offsets."""
        total = 0
        for number in range(bisect_right(self._ends, start), len(self.closed)):
            segment = self.closed[number]
            if segment.first >= end:
                return total
            total += segment.rows_between(start, end)
        return total + (self.open.rows_between(start, end) if self.open is not None else 0)

    def stretches(self, start: int, end: int) -> list[tuple[int, int, int, int]]:
        """Return (first, end, rows, bytes) of each segment with rows between two offsets: holes lie between them."""
        found = []
        for segment in self:
            reach = min(segment.end, end)
            if reach > max(segment.first, start):
                found.append((segment.first, reach, segment.rows_between(segment.first, reach), segment.bytes))
        return found

    def unwritten_indexes(self, end: int) -> dict[int, Index]:
        """Bring index files up to an offset; return what a full disk did not take, by the segment's first offset."""
        found = {}
        for segment in self:
            if not segment.sealed:
                segment.update_index(end)
                index = segment.index
                if index is not None and segment.indexed < index.at(end):
                    found[segment.first], _ = Index.decoded(index.encoded(0, index.at(end)))
        return found

    def columns_with(self, columns: Iterable[str]) -> list[str]:
        """Return the columns of the next segment, such that rows with these fit in and the last ones would have."""
        used = self.last.used if self.last is not None else set()
        wanted = {*used, *columns, *BASE_COLUMNS}
        unknown = wanted - COLUMNS.keys()
        if unknown:
            raise Refusal("bad_column", f"there is no column {sorted(unknown)[0]!r} in a message")
        return [name for name in COLUMNS if name in wanted]

    def manifest(self, shard: int, start: int, end: int, weight: int) -> Manifest:
        """Return what the shard's manifest says; end and weight are those of the first segment not yet sealed."""
        pending = next((segment for segment in self if not segment.sealed), None)
        if pending is not None:
            end, weight = pending.first, pending.weight
        infos = [segment.info() for segment in self]
        return Manifest(shard=shard, start=start, end=end, weight=weight, segments=infos)

    def close_open(self) -> None:
        """Count the open segment among the closed ones."""
        if self.open is not None:
            self.closed.append(self.open)
            self.closed_bytes += self.open.bytes
            self._ends.append(self.open.end)
            self.open = None

    def abandon_open(self) -> None:
        """Make room for a segment of the same name where nothing was written to the open one."""
        if self.open is not None and not self.open.batches:
            self.open.close()
            self.open.disk.remove(self.open.path())
            self.open = None

    def drop(self, segments: Sequence[Segment]) -> None:
        """Forget closed segments."""
        gone = {segment.first for segment in segments}
        self.closed[:] = [segment for segment in self.closed if segment.first not in gone]
        self._ends[:] = [segment.end for segment in self.closed]
        for segment in segments:
            self.closed_bytes -= segment.bytes
            self._loaded.pop(segment.first, None)

    def replace(self, old: Segment, new: Segment) -> None:
        """Put a new generation in the place of a closed segment."""
        self.closed[self.closed.index(old)] = new
        self.closed_bytes += new.bytes - old.bytes
        self._loaded.pop(old.first, None)

    def swap(self, old: list[Segment], new: list[Segment]) -> None:
        """Put other segments in the place of some, none of which is open any more."""
        kept = [segment for segment in self.closed if segment not in old]
        self.closed[:] = sorted([*kept, *new], key=lambda segment: segment.first)
        self.closed_bytes = sum(segment.bytes for segment in self.closed)
        self._ends[:] = [segment.end for segment in self.closed]
        for segment in old:
            self._loaded.pop(segment.first, None)
