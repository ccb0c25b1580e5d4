"""How much of closed segments the local disk keeps beside Kafka: so much for all topics of a node.

Owns which bytes go first: those of the segment that nobody has read for longest. Growing ones stay, and so does what is
being read. Knows nothing of what is in them: whoever reads what went gets it from Kafka.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

from penstock.log.kafka.part import Inode

#: It is looked around after so many bytes came: at most this, and at most this part of what may be kept.
LOOK_BYTES = 64 << 20
LOOK_PART = 16


class Disk(Protocol):
    """The directory of one topic."""

    def segments(self) -> Sequence[Inode]:
        """Return its segment files."""

    def let_go(self, inode: Inode) -> int:
        """Keep nothing of a segment here, unless somebody needs it now; return how many bytes went."""


class Cache:
    """What all topics of a node keep."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._look_bytes = min(LOOK_BYTES, bytes_max // LOOK_PART)
        self._disks: dict[Disk, None] = {}
        self._looking = threading.Lock()
        self._counting = threading.Lock()
        self._came_bytes = 0
        self._reads = 0
        #: Bytes that came from Kafka because somebody read them, and that went from here, since the start.
        self.fetched_bytes = 0
        self.evicted_bytes = 0

    def add(self, disk: Disk) -> None:
        """Count a topic that is opened."""
        self._disks[disk] = None

    def discard(self, disk: Disk) -> None:
        """Count a topic no more."""
        self._disks.pop(disk, None)

    def read(self, inode: Inode) -> None:
        """Note that somebody reads a segment."""
        self._reads = inode.read_last = self._reads + 1

    def came(self, size: int, *, fetched: bool = False) -> None:
        """Note that bytes are here that were not; now and then some go for them. On any thread that may wait."""
        with self._counting:
            self._came_bytes += size
            self.fetched_bytes += size if fetched else 0
            is_due = self._came_bytes > self._look_bytes
            if is_due:
                self._came_bytes = 0
        if is_due and self._looking.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._looking.release()

    @property
    def bytes(self) -> int:
        """How much of closed segments is here."""
        return sum(inode.here_bytes for _, inode in self._closed())

    def _closed(self) -> Iterator[tuple[Disk, Inode]]:
        for disk in list(self._disks):
            for inode in disk.segments():
                if not inode.growers:
                    yield disk, inode

    def _look(self) -> None:
        found = [(inode.read_last, inode.here_bytes, disk, inode) for disk, inode in self._closed()]
        total = sum(size for _, size, _, _ in found)
        for _, size, disk, inode in sorted(found, key=lambda each: each[0]):
            if total <= self._bytes_max:
                return
            gone = disk.let_go(inode) if size else 0
            total -= gone
            self.evicted_bytes += gone
