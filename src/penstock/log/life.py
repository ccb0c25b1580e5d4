"""What one shard writes down about itself: that it is in use, how far it is synced, and how it ended.

Owns the state file and the offsets reserved in it. Knows nothing of rows or of why a sync failed.
Invariant: the file says that the shard is in use before its first row, or a lease that outlives connections, is there.
"""

from __future__ import annotations

from penstock.clock import Clock
from penstock.disk import Disk
from penstock.log.manifest import ManifestWriter
from penstock.log.refusal import refusal
from penstock.log.reserve import Reserve
from penstock.log.segment import Segment
from penstock.log.state import StateFile


class Life:
    """One life of a shard, from its opening to its end."""

    __slots__ = ("_clock", "_file", "_manifest", "_path", "reserve", "resting", "state", "was_suspect")

    def __init__(self, disk: Disk, clock: Clock, path: str, file: StateFile, manifest: ManifestWriter) -> None:
        self._clock = clock
        self._manifest = manifest
        self._path = path
        self._file = file
        #: What the next line of the file will say.
        self.state = file.state
        self.reserve = Reserve(disk, file)
        #: It is as its last life left it, and the files say so: what a start writes down waits for the first change.
        self.resting = False
        #: A sync failed in another life, and the machine has not restarted since: what files show may not be there.
        self.was_suspect = file.state.suspect

    def begin(self, boot: str, end: int, *, unchanged: bool) -> int:
        """Begin at an offset; return the number below the versions of leases that are this life's own. Blocking.

        Nothing is written yet where the last life ended well and left the files as they are.
        """
        state = self.state
        self.resting = state.clean and not state.suspect and unchanged
        state.boot, state.clean = boot, False
        self.reserve.begin(end)
        last_version = self._file.start(self._clock.now())
        if not self.resting:
            self._manifest.write()
            self._write()
        return last_version

    def _write(self) -> None:
        self._file.replace()
        self.resting = False
        self.reserve.synced(self.state.reserved_end)

    def rise(self) -> None:
        """Write down that the shard is in use, before its first row or a lease that outlives connections.

        Until then a crash leaves what the last life did, which ended cleanly. Retention and rewriting need none of
        this: what they make is synced before the manifest names it.
        """
        if self.resting:
            try:
                self._write()
            except OSError as error:
                raise refusal(self._path, error) from error

    def refill(self, end: int) -> None:
        """Reserve more offsets, if those below `end` may not be given out yet or few are left."""
        self.rise()
        if end <= self.reserve.refill_at:
            return
        try:
            self.reserve.refill(end)
        except OSError as error:
            raise refusal(self._path, error) from error

    def place(self, oldest: Segment | None, end: int) -> None:
        """Say how far the log is synced: `oldest` is the first segment that may not wholly be, if there is one."""
        self.state.synced_segment = oldest.first if oldest is not None else end
        self.state.synced_position = oldest.synced_bytes if oldest is not None else 0

    def sequenced(self, segment: Segment) -> None:
        """Write down that a segment has producers' sequences, before its index tells of the batch that has one."""
        if self.state.sequenced_segment != segment.first:
            self.state.sequenced_segment = segment.first
            self.note()

    def note(self) -> None:
        """Add a line to the file; losing it is harmless."""
        self._file.note()

    def end(self) -> None:
        """Write down how it ended, where the files do not say so already; blocking."""
        if not self.resting or self._manifest.is_used:
            self._manifest.write()
        if not self.resting or not self.state.clean or self.state.suspect:
            self._file.replace()
