"""What a shard must know about its own past: the reserved offsets, how far it is synced, and how it ended.

Owns the file `state`: one checked line per change, the last good one counts; replaced as a whole when it grows.
Knows nothing of segments. Invariant: a line never claims more than was true when it was written, so losing the last
ones only makes recovery more careful; the reserved end alone must be synced before it is used.
"""

from __future__ import annotations

import os

import msgspec
from fastcrc.crc32 import iscsi as crc32c

from penstock.clock import MILLISECOND
from penstock.disk import Disk, replace_file

FILE = "state"
#: Offsets are reserved ahead in blocks of this many, with one fsync each.
RESERVED_BLOCK = 1 << 24
#: A line is about 150 bytes and comes every two seconds on a busy shard: about one replacement an hour.
STATE_BYTES_MAX = 256 << 10


#: Each start has so many versions of leases of its own, and after so many starts they come again.
VERSIONS = 1 << 19
STARTS = 1 << 12


class State(msgspec.Struct, kw_only=True):
    """One line of the state file."""

    #: No offset from here on was ever given out.
    reserved_end: int = 0
    #: Everything in segments before this one, and its bytes before the position, survives a power loss.
    synced_segment: int = 0
    synced_position: int = 0
    boot: str = ""
    clean: bool = False
    #: A sync failed and what it was for is not safe elsewhere yet: until the machine restarts the page cache may show
    #: bytes that are not on the disk, and a sync that succeeds says nothing about them.
    suspect: bool = False
    #: The last segment that has producers' sequences; kept only where a start does not look at all batches.
    sequenced_segment: int = -1
    #: How often the shard was opened, on top of a number that it began with.
    starts: int = 0


#: Made here, by one thread: msgspec learns a type when it first reads one, and dies where two threads do at once.
_decoder = msgspec.json.Decoder(State)


class StateFile:
    """The state of one shard, on disk."""

    __slots__ = ("_disk", "_path", "_spoiled", "found", "state")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = os.path.join(directory, FILE)
        self.found = False
        self.state = State()
        #: A write or sync of this file failed: lines before the next may be gone or torn, so it is made anew.
        self._spoiled = False
        try:
            file = disk.open(self._path)
        except FileNotFoundError:
            return
        try:
            self._recover(file.read(0, file.size()))
        finally:
            file.close()

    def start(self, now_ns: int) -> int:
        """Count a start, to be written by `replace`; return the number below the versions that are its own.

        No journal is asked: a power loss may have taken back what it said, and receipts are with clients still. A shard
        begins at some number, because one of the same name may have been deleted a moment ago.
        """
        self.state.starts = (self.state.starts if self.found else now_ns // MILLISECOND) + 1
        return self.state.starts % STARTS * VERSIONS

    def replace(self) -> None:
        """Write the state as the file's only line; synced when this returns."""
        replace_file(self._disk, self._path, line(self.state))
        self._spoiled = False

    def forget_boot(self) -> None:
        """Write down that offsets may be used up which no row tells of, as after another boot; synced."""
        if self.found:
            self.state.boot, self.state.clean = "", False
            self.replace()

    def note(self) -> None:
        """Add the state as a line to the page cache; losing it is harmless unless it is synced on purpose."""
        # Opened each time, every other second on a busy shard: a node of many shards needs its file descriptors.
        file = self._disk.open(self._path)
        try:
            full = self._spoiled or file.size() > STATE_BYTES_MAX
            if not full:
                file.append([line(self.state)])
        except OSError:
            self._spoiled = True  # half a line may be left, which the next one would be a part of
            raise
        finally:
            file.close()
        if full:
            self.replace()

    def sync(self) -> None:
        """Return once the last line survives a power loss; blocking, on any thread."""
        file = self._disk.open(self._path)
        try:
            file.sync()
        except OSError:
            self._spoiled = True
            raise
        finally:
            file.close()

    def _recover(self, content: bytes) -> None:
        for text in content.splitlines():
            try:
                if text[:9] == b"%08x " % crc32c(text[9:]):
                    self.state = _decoder.decode(text[9:])
                    self.found = True
            except msgspec.MsgspecError:
                continue


def line(state: State) -> bytes:
    """Return a state as a checked line of the file."""
    content = msgspec.json.encode(state)
    return b"%08x %b\n" % (crc32c(content), content)
