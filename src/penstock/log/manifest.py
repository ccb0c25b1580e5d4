"""The manifest of a shard: which files, in which generation, hold which offsets.

Owns the file `manifest` and the names of segment files. Knows nothing of what is in them.
Invariant: it is replaced by rename, and a file it names is only removed long after it stopped naming it, so a
reader that trusts it finds what it names.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec
from fastcrc.crc32 import iscsi as crc32c

from penstock.disk import Disk, replace_file
from penstock.errors import CorruptionError
from penstock.log.index import Index
from penstock.message import Done

FILE = "manifest"
DATA_SUFFIX = ".arrows"
INDEX_SUFFIX = ".index"
NEW_SUFFIX = ".new"
#: Of files beside the shards with rows that are no messages yet: what Spark's tasks staged.
STAGED_SUFFIX = ".staged"
_ZEROS = "0" * 8
#: What follows the check in the file.
_END = b'"\n}'


class Damage(NamedTuple):
    """Rows that were stored and cannot be read any more."""

    first: int
    end: int
    reason: str


class SegmentInfo(msgspec.Struct, kw_only=True):
    """What a reader must know of one segment before it opens it."""

    first: int
    #: The offset after the last row; for the open segment the index file knows better.
    end: int
    generation: int
    #: Closed and synced: the file never changes again.
    sealed: bool
    columns: list[str]
    rows: int
    batches: int
    bytes: int
    ts_min: int
    ts_max: int
    due_max: int
    #: What stands before the first row.
    weight: int
    sequences: bool = False
    compression: str = "none"
    #: Damaged ranges; the segment's other offsets from `first` to `end` are all there, unless it is sparse.
    holes: list[Damage] = []
    #: Only rows that somebody still needed were kept.
    sparse: bool = False


class Manifest(msgspec.Struct, kw_only=True):
    """All segments of a shard in order."""

    version: int = 1
    shard: int = 0
    #: Everything that was stored from here on is kept; segments before it hold what subscriptions still need.
    start: int = 0
    #: What the next segment begins with, as far as closed segments tell.
    end: int = 0
    weight: int = 0
    segments: list[SegmentInfo] = []
    #: The CRC-32C of the file with zeros here, at its end; empty in those of versions that wrote none.
    check: str = ""

    def encoded(self) -> bytes:
        """Return the file's content."""
        content = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(self, check=_ZEROS)), indent=1)
        return _checked(content, _sum(content))


class View(NamedTuple):
    """A shard as its own process sees it: newer than the files are where a thread has yet to write them."""

    manifest: Manifest
    #: Indexes that are not in their files, by the first offset of their segment.
    indexes: dict[int, Index]
    #: What opens the files, where paths do not lead to all of them.
    disk: Disk | None = None


def _checked(content: bytes, check: str) -> bytes:
    """Return a manifest's content with another check, which is its last value."""
    end = len(content) - len(_END)
    return content[: end - len(check)] + check.encode() + content[end:]


def _sum(content: bytes) -> str:
    return f"{crc32c(content):08x}"


#: Made here, by one thread: msgspec learns a type when it first reads one, and dies where two threads do at once.
_decoder = msgspec.json.Decoder(Manifest)


def decoded(content: bytes, path: str) -> Manifest:
    """Return the manifest in a file's content."""
    try:
        manifest = _decoder.decode(content)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptionError(f"{path} is not a manifest: {error}") from error
    if manifest.check and manifest.check != _sum(_checked(content, _ZEROS)):
        raise CorruptionError(f"{path} is damaged: its check is wrong")
    if manifest.version != 1:
        raise CorruptionError(f"{path} has version {manifest.version}; this Penstock reads version 1. Upgrade it.")
    return manifest


def load(disk: Disk, directory: str) -> Manifest | None:
    """Return a shard's manifest, None if it has none."""
    path = os.path.join(directory, FILE)
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return decoded(file.read(0, file.size()), path)
    finally:
        file.close()


def stem(first: int, generation: int) -> str:
    """Return a segment's file name without its suffix."""
    return f"{first:020d}.{generation}"


def parsed(name: str) -> tuple[int, int, str] | None:
    """Return (first, generation, suffix) of a segment's data or index file, None for any other name."""
    head, dot, suffix = name.rpartition(".")
    first, _, generation = head.partition(".")
    if not dot or "." + suffix not in (DATA_SUFFIX, INDEX_SUFFIX) or not (first.isdigit() and generation.isdigit()):
        return None
    return int(first), int(generation), "." + suffix


class ManifestWriter:
    """Replaces a shard's manifest from a thread, the newest content last; a burst of changes makes two writes."""

    __slots__ = ("_again", "_busy", "_content", "_disk", "_lock", "_path", "_stopped", "_version", "_written", "failed")

    def __init__(self, disk: Disk, directory: str, content: Callable[[], bytes]) -> None:
        self._disk = disk
        self._path = os.path.join(directory, FILE)
        self._content = content
        # A write in a thread and the last one at closing may meet; the newer content must win.
        self._lock = threading.Lock()
        self._version = 0
        self._written = 0
        self._busy = False
        self._again = False
        self._stopped = False
        #: The last write did not succeed; the manifest on disk is older than the shard.
        self.failed = False

    @property
    def is_used(self) -> bool:
        """Whether the manifest was written, or was to be, in this life."""
        return self._version > 0

    @property
    def settled(self) -> bool:
        """Whether the file on disk says what the shard does."""
        return not (self._busy or self._again or self.failed)

    def start(self) -> None:
        """Have the manifest written soon."""
        if self._busy or self._stopped:
            self._again = True
            return
        self._busy = True
        self._version += 1
        version, content = self._version, self._content()
        self._disk.submit("sync", lambda: self._write(version, content), self._finished)

    def write(self) -> None:
        """Write the manifest now; blocking."""
        self._version += 1
        self._write(self._version, self._content())

    def ensure(self, done: Done) -> None:
        """Call back once the manifest on disk is this one, or a newer."""
        self._version += 1
        version, content = self._version, self._content()
        self._disk.submit("sync", lambda: self._write(version, content), lambda _, error: done(error))

    def _write(self, version: int, content: bytes) -> None:
        with self._lock:
            if version > self._written:
                replace_file(self._disk, self._path, content)
                self._written = version

    def stop(self) -> None:
        """Let no write start any more."""
        self._stopped = True

    def _finished(self, _: object, error: BaseException | None) -> None:
        self._busy = False
        self.failed = error is not None
        if self._again and not self._stopped:
            self._again = False
            self.start()
