"""How safe the rows of one shard are: when they are synced, and what is done about a sync that fails.

Owns the syncs, the repair under way, and what the next process must know of both; it ticks the journals beside the
log as well. Knows nothing of who publishes or reads. Invariant: rows become readable here and nowhere else where the
topic promises a sync, and nothing is appended between a failed sync and its repair.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from penstock.clock import MILLISECOND, SECOND, Clock
from penstock.disk import Disk
from penstock.errors import CorruptionError
from penstock.log import seal
from penstock.log.journal import Journal
from penstock.log.life import Life
from penstock.log.manifest import ManifestWriter
from penstock.log.repair import Repair
from penstock.log.rewrite import Rewrites
from penstock.log.segment import Segment
from penstock.log.segments import Segments
from penstock.log.sync import GroupSync
from penstock.log.tail import Tail
from penstock.settings import TopicSettings

#: What a power loss may cost an `os` topic beyond what the kernel wrote by itself.
SYNC_EVERY_NS = 2 * SECOND
#: ... and what is written down of deliveries so often, where another node may go on with the topic at any moment: what
#: is not synced then goes out again.
SHARED_SYNC_NS = 50 * MILLISECOND
#: How often the synced position is written down at most.
NOTE_EVERY_NS = SECOND

_log = logging.getLogger(__name__)


class Guarded(Protocol):
    """The shard, as far as the safety of its rows goes."""

    path: str
    end: int
    readable_end: int
    weight: int
    on_readable: Callable[[], None]
    on_taken_back: Callable[[int], None]

    @property
    def settings(self) -> TopicSettings:
        """How the topic keeps messages."""


class Safety:
    """The syncs and repairs of one shard."""

    __slots__ = (
        "_clock",
        "_disk",
        "_fresh",
        "_is_shared",
        "_journals_ns",
        "_life",
        "_manifest",
        "_noted_ns",
        "_position_noted",
        "_repair",
        "_rewrites",
        "_rows",
        "_segments",
        "_stopped",
        "_synced_ns",
        "_tail",
        "errors",
        "group_sync",
        "grouped",
        "journals",
        "read_only",
    )

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        rows: Guarded,
        segments: Segments,
        tail: Tail,
        life: Life,
        manifest: ManifestWriter,
        rewrites: Rewrites,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._rows = rows
        self._segments = segments
        self._tail = tail
        self._life = life
        self._manifest = manifest
        self._rewrites = rewrites
        self.group_sync = GroupSync(disk, rows.end, self._synced, self._failed)
        #: Rows are readable once they are synced, and not before.
        self.grouped = rows.settings.durability == "fsync"
        self._is_shared = rows.settings.log != "local"
        #: Syncs that failed since the start.
        self.errors = 0
        #: Why nothing can be appended, until the disk takes what it lost; empty while all is well.
        self.read_only = ""
        #: Journals of delivery state beside the log.
        self.journals: list[Journal] = []
        self._repair: Repair | None = None
        #: What a repair made, until it is all over.
        self._fresh: list[Segment] = []
        self._synced_ns = self._noted_ns = self._journals_ns = clock.monotonic()
        self._position_noted = True
        self._stopped = False

    @property
    def journals_suspect(self) -> bool:
        """Whether a sync of some journal failed, so that whoever writes it must write all of it anew."""
        return any(journal.suspect for journal in self.journals)

    @property
    def journals_wait(self) -> bool:
        """Whether journals are to be synced soon, because another node may go on with the topic."""
        return self._is_shared and any(journal.unsynced for journal in self.journals)

    @property
    def safe_end(self) -> int:
        """The offset below which rows can be read back from the disk, whatever happens to memory."""
        return min(self._rows.readable_end, self.group_sync.synced_end)

    def tick(self, monotonic_ns: int) -> None:
        """Sync what nobody waits for, now and then."""
        if monotonic_ns - self._synced_ns >= SYNC_EVERY_NS:
            self._synced_ns = monotonic_ns
            self.group_sync.start(self._rows.end)
            self._note_synced()
            if self._manifest.failed:
                self._manifest.start()
            self.journals = [journal for journal in self.journals if not journal.ended]
            self._sync_journals(monotonic_ns)
            self._note_suspect()
        elif self._is_shared and monotonic_ns - self._journals_ns >= SHARED_SYNC_NS:
            self._sync_journals(monotonic_ns)
        for journal in self.journals:
            journal.catch_up()

    def _sync_journals(self, monotonic_ns: int) -> None:
        self._journals_ns = monotonic_ns
        for journal in self.journals:
            journal.sync_soon()

    def torn(self, error: OSError) -> None:
        """Write nothing more behind a write that was cut short and could not be taken back."""
        self._close_suspect(error)
        self.group_sync.suspend(self._start_repair)

    def settle(self) -> bool:
        """Sync everything, elsewhere if it must be; False if the next start has to recover as after a crash.

        Blocking, and the last thing before `stop`.
        """
        try:
            if self._repair is None:
                self.group_sync.now(self._rows.end)
                return True
        except OSError as error:
            self.errors += 1
            self._close_suspect(error)
            self._repair = self._new_repair()
        try:
            if self._repair is not None:
                self._repair.finish()
        except (OSError, CorruptionError):
            self.errors += 1
            return False
        return True

    def stop(self) -> None:
        """Let nothing that a thread still does change the files any more."""
        self._stopped = True
        if self._repair is not None:
            self._repair.stop()
            self.group_sync.fail(self._closed())

    def _closed(self) -> OSError:
        return OSError(f"{self._rows.path} was closed before its rows were safe")

    def place(self) -> None:
        """Say in the state how far the log is synced."""
        dirty = self.group_sync.dirty
        self._life.place(dirty[0] if dirty else self._segments.open, self._rows.end)

    def _synced(self, clean: list[Segment]) -> None:
        """A sync has returned: rows become readable, closed segments become sealed."""
        if self._stopped:
            return
        rows = self._rows
        moved = self.grouped and self.group_sync.synced_end > rows.readable_end
        if moved:
            rows.readable_end = self.group_sync.synced_end
        settled = [segment for segment in clean if segment is not self._segments.open]
        for segment in settled:
            self._seal(segment)
        self._position_noted = False
        self._note_synced()
        if settled:
            self._rewrites.wanted = True
            self._manifest.start()
        if moved:
            rows.on_readable()

    def _seal(self, segment: Segment) -> None:
        segment.update_index(self._rows.readable_end)
        segment.sealed = True
        segment.close()
        if seal.worthwhile(segment, self._rows.settings.compression):
            self._segments.keep_index(segment)  # its rewrite needs it soon
        else:
            segment.forget_index()

    def _note_synced(self) -> None:
        """Write down how far the log is synced, at most once a second: group syncs come by the thousand."""
        monotonic_ns = self._clock.monotonic()
        if self._position_noted or self._life.resting or monotonic_ns - self._noted_ns < NOTE_EVERY_NS:
            return
        if self._disk.is_shared:  # all that is there when it is opened again was synced
            return
        self._position_noted, self._noted_ns = True, monotonic_ns
        self.place()
        try:
            self._life.note()
        except OSError:
            return  # a hint only: recovery is more careful without it

    # --- after a failed sync --------------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        self.errors += 1
        if self._stopped:  # whatever it failed by: the files were closed under it
            self.group_sync.fail(self._closed())
        else:
            self._close_suspect(error)
            self._start_repair()

    def _close_suspect(self, error: BaseException) -> None:
        """Write nothing more to a file whose pages may be lost; the next append would need another, and is refused."""
        self._say_read_only(error)
        self._life.state.suspect = True
        segment = self._segments.open
        try:
            self._life.note()
            self._segments.abandon_open()
        except OSError:
            self.errors += 1
        if segment is not None and segment.batches:
            self._segments.close_open()
            self.group_sync.touch(segment)
        self._segments.open = None

    def _say_read_only(self, error: BaseException) -> None:
        self.read_only = self._why_read_only(error)
        # A disk that others share has said itself why it is given up, with all that is on it.
        _log.log(logging.INFO if self._disk.is_shared else logging.ERROR, "%s", self.read_only)

    def _why_read_only(self, error: BaseException) -> str:
        if self._disk.is_shared:
            return f"{self._rows.path} is read-only: {error}. It is opened again by the node that has it next."
        return (
            f"{self._rows.path} is read-only: its disk failed ({error}). What may be lost with that is written again "
            "elsewhere, and publishing goes on by itself once this succeeds. Look at the disk if it does not."
        )

    def _note_suspect(self) -> None:
        """Let the next process know if it must not trust what files show."""
        suspect = bool(self.read_only) or self.journals_suspect
        if self._life.state.suspect != suspect:
            self._life.state.suspect = suspect
            self._note()

    def _note(self) -> None:
        try:
            self._life.note()
        except OSError:
            self.errors += 1

    def _start_repair(self) -> None:
        self._repair = self._new_repair()
        self._repair.start()

    def _new_repair(self) -> Repair:
        return Repair(
            self._disk,
            self._clock,
            self._rows.path,
            self.group_sync.dirty,
            self._tail,
            self._manifest,
            self._written_again,
            self._repair_failed,
            self._healed,
        )

    def _written_again(self, old: list[Segment], new: list[Segment]) -> None:
        """Rows are in new files, which the manifest does not name yet."""
        self._segments.swap(old, new)
        self._fresh = new
        for segment in old:
            segment.close()
        kept = {segment.path() for segment in new}
        self._rewrites.doom_segments([segment for segment in old if segment.path() not in kept])

    def _repair_failed(self, error: BaseException) -> None:
        """The rows are nowhere but here: nothing is taken in before they are safe. What nobody was promised goes."""
        self.errors += 1
        if self._why_read_only(error) != self.read_only:
            self._say_read_only(error)
        if self.grouped and self._repair is not None and self._rows.readable_end < self._rows.end:
            self._repair.drop_rows()
            self._take_back(self._rows.readable_end)
        self.group_sync.fail(error)

    def _take_back(self, start: int) -> None:
        """Forget rows from an offset on; the offsets stay used up, and the state says so before files go that do."""
        self._life.state.boot = ""  # gates and growths were told of them
        self._note()
        gone = [segment for segment in self._segments.closed if segment.first >= start]
        self._segments.swap(gone, [])
        self._fresh = [segment for segment in self._fresh if segment not in gone]
        self._rewrites.doom_segments(gone)
        first = self._tail.at(start) if start >= self._tail.start else None
        if first is not None:
            self._rows.weight = first.weight
        self._tail.drop_from(start)
        self._rows.on_taken_back(start)

    def _healed(self) -> None:
        """Everything is synced, and the manifest says where."""
        rows = self._rows
        moved = self.grouped and rows.readable_end < rows.end
        if moved:
            rows.readable_end = rows.end
        for segment in self._fresh:
            self._seal(segment)
        self._fresh, self._repair, self.read_only = [], None, ""
        self.group_sync.dirty.clear()
        self._life.state.suspect = self.journals_suspect
        self._position_noted, self._noted_ns = False, 0
        self._note_synced()
        self._rewrites.wanted = True
        if moved:
            rows.on_readable()
        self.group_sync.resume(rows.end)
        _log.warning("%s takes messages again: what a failed sync may have lost is safe in new files", rows.path)
