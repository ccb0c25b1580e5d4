"""When appended rows are safe: one sync in flight per shard, and everybody who comes meanwhile in the next group.

Owns the segments that are not wholly synced and the callers who wait for them. Knows nothing of rows.
Invariant: a caller is told success only after a sync that began after its rows were written has returned, or after a
repair has brought them elsewhere: a sync that failed is never tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from penstock.disk import Disk
from penstock.log.segment import Segment
from penstock.message import Done


class GroupSync:
    """The syncs of one shard."""

    __slots__ = (
        "_again",
        "_disk",
        "_failure",
        "_lock",
        "_on_failed",
        "_on_synced",
        "_suspending",
        "_unheard",
        "_waiting",
        "busy",
        "dirty",
        "synced_end",
    )

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
        #: What is to be done once the sync under way has returned: nothing is synced then before `resume`.
        self._suspending: Callable[[], None] | None = None
        self._failure: BaseException | None = None
        # The last sync, at closing, may meet one in a thread.
        self._lock = threading.Lock()
        self._unheard: OSError | None = None

    def touch(self, segment: Segment) -> None:
        """Note that a segment got new bytes."""
        if not self.dirty or self.dirty[-1] is not segment:
            self.dirty.append(segment)

    def wait(self, end: int, done: Done) -> None:
        """Call back once everything below `end`, the log's end, is synced."""
        if end <= self.synced_end:
            done(None)
            return
        if not self.busy:
            self._waiting.append(done)
            self.start(end)
        elif self._failure is None:
            self._waiting.append(done)
        else:
            done(self._failure)

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
            with self._lock:
                try:
                    for segment, _ in marks:
                        segment.sync()
                except OSError as error:
                    self._unheard = error
                    raise

        def finished(_: None, error: BaseException | None) -> None:
            if error is not None:
                # What was lost with this sync cannot be told apart: those who came later wait for the repair, too.
                self._waiting = group + self._waiting
                self._suspending = self._unheard = None
                self._on_failed(error)
                return
            then, self._suspending = self._suspending, None
            self.busy = then is not None
            self._settle(marks, end)
            if then is not None:
                then()
            elif not self.dirty:
                group.extend(self._waiting)
                self._waiting = []
            for done in group:
                done(None)
            if not self.busy and self.dirty and (self._waiting or self._again):
                self.start(self.dirty[-1].end)

        if len(marks) > 1 or not marks[0][0].sync_soon(partial(finished, None)):
            self._disk.submit("sync", work, finished)

    def suspend(self, then: Callable[[], None]) -> None:
        """Sync nothing before `resume`, and call `then` once no sync is under way."""
        if self.busy:
            self._suspending = then
        else:
            self.busy = True
            then()

    def fail(self, error: BaseException) -> None:
        """Tell everybody who waits, and whoever comes before `resume`, that nothing is synced."""
        self._failure = error
        self._tell(error)

    def resume(self, end: int) -> None:
        """Go on after a repair: everything below `end`, the log's end, is synced elsewhere."""
        self.busy, self._failure = False, None
        self.dirty.clear()
        self.synced_end = end
        self._tell(None)

    def _tell(self, error: BaseException | None) -> None:
        group, self._waiting = self._waiting, []
        for done in group:
            done(error)

    def now(self, end: int) -> None:
        """Sync everything before returning, for a clean end; blocking."""
        with self._lock:
            if self._unheard is not None:  # a thread was told, and the kernel tells only once
                raise self._unheard
            for segment in self.dirty:
                segment.sync()
        self._settle([(segment, segment.bytes) for segment in self.dirty], end)
        self._tell(None)

    def _settle(self, marks: list[tuple[Segment, int]], end: int) -> None:
        for segment, size in marks:
            segment.synced_bytes = max(segment.synced_bytes, size)
        clean = [segment for segment, size in marks if segment.bytes == size]
        self.dirty = [segment for segment in self.dirty if segment not in clean]
        self.synced_end = max(self.synced_end, end)
        self._on_synced(clean)
