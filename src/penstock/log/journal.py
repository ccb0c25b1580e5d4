"""The journal of one subscription's delivery state: a snapshot, then updates, in frames like the log's.

Owns the journal's files and their generations. Knows nothing of what the entries mean.
Invariant: recovery returns the newest snapshot that is whole and every whole update after it, in order; a file is
removed only once a newer snapshot survives a power loss. A file of which a sync failed is never synced again: it is
`suspect` until a snapshot made from memory is safe in a new one.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.clock import SECOND, Clock
from penstock.columns import SMALL, Buffer
from penstock.disk import Disk, File, TornFileError, is_full
from penstock.errors import CorruptionError, Refusal
from penstock.log.decode import frames
from penstock.log.frame import VERSION, Template
from penstock.log.layout import metadata_bytes_at
from penstock.log.run import Frame
from penstock.message import Done

SUFFIX = ".journal"
COLUMNS = ("op", "first", "last", "attempts", "due")
SCHEMA = pa.schema([(name, pa.int64()) for name in COLUMNS], metadata={"penstock.version": str(VERSION)})

#: A journal smaller than this is never worth compacting.
SMALL_BYTES = 256 << 10
#: Entries held back while the disk is full; beyond it the caller learns of it.
HELD_MAX = 1 << 20
#: A snapshot that a failing disk did not take is written again after this long.
RETRY_NS = SECOND
#: File names end here on common file systems, with room for generation and suffix.
NAME_BYTES_MAX = 180

Entry = tuple[int, int, int, int, int]
Entries = npt.NDArray[np.int64]

_SCHEMA_MESSAGE = SCHEMA.serialize().to_pybytes()
_TEMPLATE: Template | None = None

_log = logging.getLogger(__name__)


class Journal:
    """Updates appended to the newest generation's file."""

    def __init__(self, disk: Disk, clock: Clock, directory: str, name: str) -> None:
        self._disk = disk
        self._clock = clock
        self._directory = directory
        self._name = file_name(name)
        self._generation = 0
        self._file: File | None = None
        self._count = 0
        self._snapshot_bytes = 0
        self._held: list[Entry] = []
        self._named = False
        self._syncing = False
        self._waiting: list[Done] = []
        self._full_bytes = 0
        self._unsynced = False
        #: The newest generation of which a sync failed.
        self._failed = -1
        #: Bytes of a failed append remain at the end of the file: nothing can follow them.
        self._torn = False
        self._retry_ns = 0
        #: Files of older generations that go once a newer one is safe.
        self._old_paths: list[str] = []
        # The last sync, at closing, may meet one in a thread, and the kernel tells of a failure only once.
        self._lock = threading.Lock()
        self._unheard: OSError | None = None
        #: Closed or removed: nothing more is to be done for it.
        self.ended = False
        self._is_removed = False
        #: Bytes that recovery cut from the end because they were not whole.
        self.cut_bytes = 0
        #: Called before anything is written in this life; what it raises, whoever writes hears.
        self.before_first: Callable[[], None] | None = None

    @classmethod
    def open(
        cls, disk: Disk, clock: Clock, directory: str, name: str, *, suspect: bool = False
    ) -> tuple[Journal, Entries]:
        """Open a journal, or recover what is left of it; blocking.

        It is `suspect` from the start if a sync failed since the machine started.
        """
        journal = cls(disk, clock, directory, name)
        entries = journal._recover()
        if suspect and journal._file is not None:
            journal._failed = journal._generation
        return journal, entries

    @property
    def bytes(self) -> int:
        """The size of the newest generation."""
        return self._file.size() if self._file is not None else 0

    @property
    def bloated(self) -> bool:
        """Whether a compaction would pay."""
        return self.bytes > max(SMALL_BYTES, 2 * self._snapshot_bytes, self._full_bytes)

    @property
    def suspect(self) -> bool:
        """Whether what was written may not be on the disk, whatever a later sync says: a new generation is needed."""
        return self._torn or self._failed == self._generation

    @property
    def unsynced(self) -> bool:
        """Whether something was written that no sync has begun for."""
        return self._unsynced and not self.ended and not self.suspect

    @property
    def needs_snapshot(self) -> bool:
        """Whether only a snapshot makes what was written safe, and it is time to try."""
        return self.suspect and self._clock.monotonic() >= self._retry_ns

    def append(self, entries: Sequence[Entry] | Entries) -> None:
        """Write updates as one frame to the page cache; on a full disk they are held back and written later."""
        if self.ended:  # somebody is late; a file that was removed must not come back
            return
        if self._held:
            entries = [*self._held, *_tuples(entries)]
        if not len(entries):
            return
        self._begin_life()
        try:
            if self._torn:
                raise OSError(errno.EIO, "the file ends in the rest of a failed append")
            self._open_file().append(_encoded(self._count, entries))
        except OSError as error:
            self._torn = self._torn or isinstance(error, TornFileError)
            self._hold(error, entries)
            return
        self._held = []
        self._count += len(entries)
        self._unsynced = True

    def _begin_life(self) -> None:
        if self.before_first is not None:
            self.before_first()
            self.before_first = None

    def catch_up(self) -> None:
        """Write what a full disk held back, if there is space again."""
        if self._held and not self.ended:
            self.append([])

    def sync_soon(self) -> None:
        """Bring what was written since the last time to the disk; nobody waits for it."""
        if self._unsynced and not self._syncing and not self.ended and not self.suspect:
            self.sync(self._synced)

    def _synced(self, error: BaseException | None) -> None:
        self._unsynced = self._unsynced or error is not None

    def sync(self, done: Done) -> None:
        """Call back once everything appended so far survives a power loss; calls meanwhile share the next sync."""
        self._waiting.append(done)
        if not self._syncing:
            self._start_sync()

    def keep(self, done: Done) -> None:
        """Do as `sync` does, but call back at once where everything is safe already, or nothing is written any more."""
        if self.ended:  # what came since was not written, and nobody may believe that it was
            done(OSError(f"the journal {self._name} of {self._directory} is closed"))
        elif self._unsynced or self._syncing or self._held or self.suspect:
            self.sync(done)
        else:
            done(None)

    def compact(self, entries: Entries) -> None:
        """Begin a new generation with this snapshot; the old one goes once the new one is safe."""
        if self.ended:
            return
        self._begin_life()
        old = self._file
        try:
            file = self._begin_generation(entries)
        except OSError as error:
            if not is_full(error) and not self.suspect:
                raise
            # No room for a copy: go on with the old one, and try again later, or when it has grown by as much.
            self._full_bytes = 2 * self.bytes
            self._retry_ns = self._clock.monotonic() + RETRY_NS
            return
        generation = self._generation

        def work() -> None:
            file.sync()
            self._disk.sync_directory(self._directory)

        def finished(_: None, error: BaseException | None) -> None:
            if old is not None:
                old.close()
            if error is not None:
                self._fail(generation)
            elif generation == self._generation and not self.suspect:
                self._named = True
                self._remove_old()

        self._disk.submit("seal", work, finished)

    def _begin_generation(self, entries: Entries) -> File:
        """Go on in a new file that begins with this snapshot; after an OSError nothing has changed."""
        old_path, generation = self._path(), self._generation + 1
        path = self._path(generation)
        self._disk.remove(path)
        file = self._disk.open(path, create=True)
        try:
            size = file.append([_SCHEMA_MESSAGE, *_encoded(0, np.asarray(entries, np.int64).reshape(-1, 5))])
        except OSError:
            file.close()
            self._disk.remove(path)
            raise
        self._old_paths.append(old_path)
        self._file, self._generation, self._count = file, generation, len(entries)
        self._snapshot_bytes, self._full_bytes, self._named = size, 0, False
        self._held, self._torn, self._unsynced = [], False, True
        return file

    def _fail(self, generation: int) -> None:
        self._failed = max(self._failed, generation)
        self._retry_ns = self._clock.monotonic() + RETRY_NS

    def _remove_old(self) -> None:
        while self._old_paths:
            self._disk.remove(self._old_paths.pop())

    def close(self, snapshot: Callable[[], Entries]) -> None:
        """Sync and close; blocking. If that fails, all of it is written anew, as the snapshot tells it."""
        self.catch_up()
        self.ended = True
        if self._file is None:
            return
        try:
            if not self._is_safe():
                self._file.close()
                file = self._begin_generation(snapshot())
                file.sync()
                self._disk.sync_directory(self._directory)
                self._remove_old()
        except OSError as error:  # what was done since the last good sync may be done again after a power loss
            self._failed = self._generation
            # A disk that others share has said itself why it is given up, and has all that anybody was told of.
            level = logging.INFO if self._disk.is_shared else logging.ERROR
            _log.log(level, "the delivery journal %s is not safe on the disk: %s", self._path(), error)
        self._file.close()
        self._file = None

    def _is_safe(self) -> bool:
        with self._lock:
            if self.suspect or self._unheard is not None or self._file is None:
                return False
            if not self._unsynced and not self._syncing:
                return True
            try:
                self._file.sync()
            except OSError:
                return False
            return True

    def remove(self) -> None:
        """Remove the journal for good."""
        self.ended = self._is_removed = True
        if self._file is not None:
            self._file.close()
            self._file = None
        for generation in self._generations():
            self._disk.remove(self._path(generation))

    def _path(self, generation: int | None = None) -> str:
        number = self._generation if generation is None else generation
        return os.path.join(self._directory, f"{self._name}.{number}{SUFFIX}")

    def _open_file(self) -> File:
        if self._file is None:
            file = self._disk.open(self._path(), create=True)
            if file.size() == 0:
                try:
                    self._snapshot_bytes = file.append([_SCHEMA_MESSAGE, *_encoded(0, np.zeros((0, 5), np.int64))])
                except OSError:
                    file.close()
                    raise
            self._file = file
        return self._file

    def _hold(self, error: OSError, entries: Sequence[Entry] | Entries) -> None:
        if len(entries) > HELD_MAX:  # the caller keeps his, and tries again
            if not is_full(error):
                raise error
            raise Refusal(
                "disk_full", f"no space left in {self._directory} for the delivery journal. Free some space there."
            ) from error
        self._held = _tuples(entries)

    def _start_sync(self) -> None:
        group, self._waiting = self._waiting, []
        if self._held:
            self.append([])
        if self._held or self.suspect or self._file is None:
            error: OSError | None = None
            if self._is_removed:  # with what came behind the last sync, which whoever goes on has not
                error = OSError(f"the journal {self._name} of {self._directory} is gone")
            elif self._held or self.suspect:
                error = OSError("the journal's last entries are not written: the disk is full or failed")
            for done in group:
                done(error)
            return
        self._syncing, self._unsynced = True, False
        file, named, generation = self._file, self._named, self._generation

        def work() -> None:
            with self._lock:
                try:
                    file.sync()
                    if not named:
                        self._disk.sync_directory(self._directory)
                except OSError as error:
                    self._unheard = error
                    raise

        def finished(_: None, error: BaseException | None) -> None:
            self._syncing, self._unheard = False, None
            if error is not None:
                self._failed = max(self._failed, generation)
            if error is not None and generation != self._generation:
                # A compaction closed the file meanwhile; its snapshot holds what this group wrote.
                self._waiting = group + self._waiting
                group.clear()
            self._named = self._named or (error is None and generation == self._generation)
            for done in group:
                done(error)
            if self._waiting and not self._syncing:
                self._start_sync()

        self._disk.submit("sync", work, finished)

    def _generations(self) -> list[int]:
        """Return the generations on disk, newest first."""
        found = []
        for name in self._disk.list(self._directory):
            if name.startswith(self._name + ".") and name.endswith(SUFFIX):
                number = name[len(self._name) + 1 : -len(SUFFIX)]
                if number.isdigit():
                    found.append(int(number))
        return sorted(found, reverse=True)

    def _discard_above(self, generation: int) -> None:
        for number in self._generations():
            if number > generation:
                self._disk.remove(self._path(number))

    def _recover(self) -> Entries:
        entries: Entries | None = None
        for generation in self._generations():
            path = self._path(generation)
            if entries is not None:
                self._disk.remove(path)
                continue
            file = self._disk.open(path)
            data = file.read(0, file.size())
            found, good, snapshot_bytes = recovered(data)
            if found is None:
                # Its snapshot never became whole: the generation before it is still there, and goes on above it.
                self.cut_bytes += len(data)
                self._generation = max(self._generation, generation + 1)
                file.close()
                continue
            self.cut_bytes += len(data) - good
            file.truncate(good)
            self._file, self._generation, self._snapshot_bytes = file, generation, snapshot_bytes
            self._discard_above(generation)
            # The process before this one may have died before it synced the bytes, or the name.
            self._count, self._named, self._unsynced = len(found), False, True
            entries = found
        return np.zeros((0, 5), np.int64) if entries is None else entries


class MemoryJournal(Journal):
    """A journal that keeps nothing, for topics that keep nothing."""

    @property
    def bloated(self) -> bool:
        """Whether a compaction would pay: never."""
        return False

    def append(self, entries: Sequence[Entry] | Entries) -> None:
        """Forget the entries."""

    def sync(self, done: Done) -> None:
        """Call back at once."""
        done(None)

    keep = sync

    def compact(self, entries: Entries) -> None:
        """Do nothing."""

    def remove(self) -> None:
        """Do nothing."""


def recovered(data: bytes) -> tuple[Entries | None, int, int]:
    """Return (entries, good bytes, bytes of the snapshot) of a journal file; None if its snapshot is not whole."""
    # The schema is for other readers; the frames tell their own columns and are checked.
    starts = [len(_SCHEMA_MESSAGE)]
    try:
        starts.insert(0, metadata_bytes_at(data, 0))
    except CorruptionError:
        pass
    for start in starts:
        pieces: list[Entries] = []
        good, snapshot_bytes = start, 0
        try:
            for frame in frames(data, start):
                pieces.append(_decoded(data, frame))
                good = frame.end
                snapshot_bytes = snapshot_bytes or good
        except CorruptionError:
            pass  # a torn tail: what comes after the last whole frame was never promised
        if pieces:
            return np.concatenate(pieces), good, snapshot_bytes
    return None, 0, 0


def file_name(name: str) -> str:
    """Return a journal's name as part of a file name."""
    safe = quote(name, safe="")
    if len(safe) <= NAME_BYTES_MAX:
        return safe
    return safe[: NAME_BYTES_MAX - 40] + "~" + hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def _encoded(first: int, entries: Sequence[Entry] | Entries) -> list[Buffer]:
    global _TEMPLATE
    template = _TEMPLATE
    if template is None:
        template = _TEMPLATE = Template(SCHEMA, 0)
    if isinstance(entries, np.ndarray):
        return template.encode_integers(first, entries.T)
    if len(entries) == 1:  # mostly it is so: a range that went out, a range that came back
        return template.encode_row(first, entries[0])
    if len(entries) > SMALL:
        return template.encode_integers(first, np.array(entries, np.int64).T)
    return template.encode_integers(first, list(zip(*entries, strict=True)))


def _decoded(data: bytes, frame: Frame) -> Entries:
    layout = frame.layout
    if layout.columns != len(COLUMNS):
        raise CorruptionError("the journal's frame has other columns")
    table = np.empty((frame.rows, len(COLUMNS)), np.int64)
    entries = layout.buffers.unpack_from(data, frame.at + layout.buffers_at)
    base = frame.at + layout.body_at
    for number in range(len(COLUMNS)):
        table[:, number] = np.frombuffer(data, "<i8", frame.rows, base + entries[4 * number + 2])
    return table


def _tuples(entries: Sequence[Entry] | Entries) -> list[Entry]:
    return [tuple(entry) for entry in (entries.tolist() if isinstance(entries, np.ndarray) else entries)]
