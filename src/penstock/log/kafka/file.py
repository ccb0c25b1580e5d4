"""One open file of a topic on Kafka: written to the local disk at once, and to Kafka when it is synced.

Owns nothing: what is sent and what waits is its `Inode`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.columns import Buffer
from penstock.disk import File
from penstock.log.kafka.cache import Cache
from penstock.log.kafka.part import Inode
from penstock.message import Done

#: The cache hears of what was sent at the latest after so much.
COUNT_BYTES = 1 << 20


class SharedFile:
    """A file of a shared disk."""

    __slots__ = ("_cache", "_grows", "_inode", "_load", "_local", "_tell")

    def __init__(
        self,
        local: File,
        inode: Inode,
        load: Callable[[Inode, int, int], None],
        cache: Cache,
        tell: Callable[[Callable[[], None]], None],
    ) -> None:
        self._local = local
        self._inode = inode
        self._load = load
        self._cache = cache
        self._tell = tell
        #: It was appended to, and is open.
        self._grows = False

    def append(self, parts: Sequence[Buffer]) -> int:
        """Write all parts at the end and return how many bytes; after an error nothing of them remains."""
        inode = self._inode
        if inode.is_segment:
            if not self._grows:
                self._begin_to_grow()
            size = self._local.append(parts)
            inode.grown(size, parts)
            return size
        data = b"".join(parts)
        size = self._local.append([data])
        inode.add(data)
        return size

    def read(self, position: int, length: int) -> bytes:
        """Read at most this much; what is in Kafka alone is brought here first."""
        inode = self._inode
        if not inode.is_segment:
            return self._local.read(position, length)
        with inode.guard:
            inode.readers += 1
        try:
            self._cache.read(inode)
            if inode.missing:
                self._load(inode, position, position + length)
            return self._local.read(position, length)
        finally:
            with inode.guard:
                inode.readers -= 1

    def size(self) -> int:
        """Return the length in bytes."""
        return self._local.size()

    def truncate(self, length: int) -> None:
        """Cut the file."""
        if self._inode.is_segment and not self._grows:
            self._begin_to_grow()
        before = self._local.size()
        self._local.truncate(length)
        if length < before:
            self._inode.shorten(length)
        elif length > before:  # as the local one does: zeros
            if self._inode.is_segment:
                self._inode.grown(length - before)
            else:
                self._inode.add(bytes(length - before))

    def sync(self) -> None:
        """Return once Kafka has all of it; blocking."""
        inode = self._inode
        if inode.is_segment:
            inode.part.send(inode, self._whole)
            counted, inode.counted = inode.counted, inode.sent
            self._cache.came(inode.sent - counted)
        else:
            inode.part.flush()

    def sync_soon(self, done: Done) -> bool:
        """Have Kafka get the few bytes that are new, and call `done` on the loop once it has; on the loop.

        False where a thread must do it: nothing is done then. A lone message does not change threads four times so.
        """
        inode = self._inode
        if not inode.is_segment or inode.sent - inode.counted > COUNT_BYTES:
            return False
        return inode.part.send_soon(inode, lambda error: self._tell(lambda: done(error)))

    def write_back(self, position: int, length: int) -> None:
        """Start writing a range to the local disk, which is a cache, but a full one stops whoever writes."""
        self._local.write_back(position, length)

    def close(self) -> None:
        """Close it."""
        self._local.close()
        if self._grows:
            self._grows = False
            with self._inode.guard:
                self._inode.growers -= 1

    def _begin_to_grow(self) -> None:
        self._grows = True
        with self._inode.guard:
            self._inode.growers += 1

    def _whole(self, position: int, length: int) -> bytes:
        data = self._local.read(position, length)
        while len(data) < length:
            more = self._local.read(position + len(data), length - len(data))
            if not more:
                raise OSError(f"{self._inode.name} ends at {position + len(data)}, before what was written to it")
            data += more
        return data
