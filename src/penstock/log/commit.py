"""When appended rows are safe: one sync in flight per shard, and everybody who comes meanwhile in the next group.

Owns the segments that are not wholly synced and the callers who wait for them. Knows nothing of rows.
Invariant: a caller is told success only after a sync that began after its rows were written has returned.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.disk import Disk
from penstock.log.segment import Segment
from penstock.message import Done


class Commit:
    """The syncs of one shard."""

    def __init__(
        self,
        disk: Disk,
        synced_end: int,
        on_synced: Callable[[list[Segment]], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._disk = disk
        #: Rows below this offset survive a power loss.
        self.synced_end = synced_end
        #: Segments with bytes that are not synced, oldest first.
        self.dirty: list[Segment] = []
        self.busy = False
        self._again = False
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._waiting: list[Done] = []

    def touch(self, segment: Segment) -> None:
        """Note that a segment got new bytes."""
        if not self.dirty or self.dirty[-1] is not segment:
            self.dirty.append(segment)

    def wait(self, end: int, done: Done) -> None:
        """Call back once everything below `end`, the log's end, is synced."""
        if end <= self.synced_end:
            done(None)
            return
        self._waiting.append(done)
        if not self.busy:
            self.start(end)

    def start(self, end: int) -> None:
        """Sync what is dirty, now or right after the sync that is under way."""
        if self.busy:
            self._again = True
        if self.busy or not self.dirty:
            return
        self.busy, self._again = True, False
        group, self._waiting = self._waiting, []
        marks = [(segment, segment.bytes) for segment in self.dirty]

        def work() -> None:
            for segment, _ in marks:
                segment.sync()

        def finished(_: None, error: BaseException | None) -> None:
            self.busy = False
            if error is not None:
                # What was lost with this sync cannot be told apart: those who came later fail with it.
                group.extend(self._waiting)
                self._waiting = []
                self._on_failed(error)
            else:
                self._settle(marks, end)
            if not self.dirty:
                group.extend(self._waiting)
                self._waiting = []
            for done in group:
                done(error)
            if self.dirty and (self._waiting or self._again):
                self.start(self.dirty[-1].end)

        self._disk.submit("sync", work, finished)

    def now(self, end: int) -> None:
        """Sync everything before returning, for a clean end; blocking."""
        for segment in self.dirty:
            segment.sync()
        group, self._waiting = self._waiting, []
        self._settle([(segment, segment.bytes) for segment in self.dirty], end)
        for done in group:
            done(None)

    def _settle(self, marks: list[tuple[Segment, int]], end: int) -> None:
        for segment, size in marks:
            segment.synced_bytes = max(segment.synced_bytes, size)
        clean = [segment for segment, size in marks if segment.bytes == size]
        self.dirty = [segment for segment in self.dirty if segment not in clean]
        self.synced_end = max(self.synced_end, end)
        self._on_synced(clean)
