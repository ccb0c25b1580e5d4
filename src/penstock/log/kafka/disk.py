"""A topic's directory on Kafka, with the local disk as a cache of it.

The log, its journals and all else run on it as on any disk. Owns which file has which name, where each goes, and what
is done when Kafka shuts this owner out or does not answer: nothing more is written then, and nobody hears otherwise.
Invariant: for whoever takes over it is as after a power loss: what was synced is there, the rest may be gone.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from penstock.disk import Disk
from penstock.errors import CorruptionError
from penstock.log.kafka.cache import Cache
from penstock.log.kafka.file import SharedFile
from penstock.log.kafka.files import Node, is_segment
from penstock.log.kafka.loading import Loaded, fetch, load_part
from penstock.log.kafka.part import Inode, Part
from penstock.log.kafka.record import Op
from penstock.log.kafka.store import Partition, Record, Store, Writer
from penstock.log.kafka.threads import POOLS, Threads
from penstock.log.label import CACHED

T = TypeVar("T")

#: What a topic keeps that is alone.
CACHE_BYTES = 1 << 30

_log = logging.getLogger(__name__)


class CacheDisk(Disk, Protocol):
    """A local disk that can hold parts of a file."""

    def patch(self, path: str, position: int, data: bytes) -> None:
        """Write over some bytes of a file, or behind its end."""


class SharedDisk:
    """The directory of one topic."""

    is_shared = True

    def __init__(
        self,
        local: CacheDisk,
        store: Store,
        writer: Writer,
        root: str,
        topic: str,
        threads: Threads,
        shards: int = 1,
        cache: Cache | None = None,
    ) -> None:
        self.root = os.path.normpath(root)
        self.store = store
        #: What ended it: nothing is written any more.
        self.failed: BaseException | None = None
        #: Called once, on the loop, when that happens.
        self.on_failed: Callable[[BaseException], None] = _nobody
        self._local = local
        self._writer = writer
        self._threads = threads
        self._log_topic, self._state_topic = f"{topic}.log", f"{topic}.state"
        self._shards = shards
        self._cache = cache if cache is not None else Cache(CACHE_BYTES)
        self._parts: dict[int, Part] = {}
        #: Files by name below the root.
        self._names: dict[str, Inode] = {}
        self._life = 0
        self._made = 0
        self._lock = threading.Lock()
        #: Shards may be made side by side; a partition has one owner here.
        self._growing = threading.Lock()

    # --- its life -------------------------------------------------------------------------------------------------

    def open_all(self, *, made: bool = False) -> None:
        """Make the directory what Kafka says it is; blocking.

        With `made` the topic was open before: then its topics in Kafka are there, or somebody has deleted them.
        """
        count = self._partitions(made=made)
        self._local.remove(self.root)
        self._local.make(self.root)
        self._local.open(os.path.join(self.root, CACHED), create=True).close()
        loaded = self._threads.map(self._load_part, range(count))
        if made and loaded[0].is_new:  # whoever opened it first wrote there
            raise CorruptionError(
                f"{self._log_topic} and {self._state_topic} are empty in Kafka: somebody deleted them, and they were "
                "made again. Restore them there from a copy, or delete the topic in Penstock and make it anew."
            )
        for number, each in enumerate(loaded):
            self._adopt(number, each)
        self._cache.add(self)
        part = self._parts[0]
        with part.mutex:
            part.change(Op("open"))
        # No life of a topic has the same; nothing that an earlier one wrote behind its end is taken for this one's.
        self._life = part.flush() or 0

    def close(self) -> None:
        """Write nothing more."""
        self._cache.discard(self)
        with self._lock:
            self.failed = self.failed or OSError(f"{self.root} was closed")

    def drop(self) -> None:
        """Remove all of it, in Kafka, too; blocking."""
        self.close()
        self.store.drop(self._log_topic)
        self.store.drop(self._state_topic)
        self._local.remove(self.root)

    def each(self, work: Callable[[int], T], shards: Iterable[int]) -> list[T]:
        """Return what blocking work makes of each shard, of several at once."""
        return self._threads.map(work, shards)

    def check(self) -> None:
        """Raise what ended it, if something did."""
        if self.failed is not None:
            raise OSError(errno.EIO, f"nothing is written to {self._log_topic} any more: {self.failed}")

    def send(self, partition: Partition, records: Sequence[Record]) -> Sequence[int]:
        """Return the offsets of records once they are kept; after an error nothing is sent any more."""
        self.check()
        try:
            return self._writer.send(partition, records)
        except BaseException as error:
            self._fail(error)
            raise

    def send_soon(self, partition: Partition, record: Record, told: Callable[[int | OSError], None]) -> bool:
        """Send a record without waiting; `told` hears on some thread. False where that cannot be: nothing is sent."""

        def answered(answer: int | OSError) -> None:
            if isinstance(answer, OSError):
                self._fail(answer)
            told(answer)

        return self.failed is None and self._writer.send_soon(partition, record, answered)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self.failed is not None:
                return
            self.failed = error
        _log.error("%s is given up: %s", self._log_topic, error)
        self._threads.tell(lambda: self.on_failed(error))

    def _partitions(self, *, made: bool) -> int:
        counts = [self.store.partitions(topic) for topic in (self._log_topic, self._state_topic)]
        # Whoever makes them begins with the log, and may have come no further.
        if not all(counts) and (made or counts[1]):
            missing = [
                topic for topic, count in zip((self._log_topic, self._state_topic), counts, strict=True) if not count
            ]
            raise CorruptionError(
                f"{' and '.join(missing)} is not in Kafka any more: somebody deleted it. "
                "Restore it there from a copy, or delete the topic in Penstock and make it anew."
            )
        count = max(*counts, self._shards)
        for topic in (self._log_topic, self._state_topic):  # also where it is there: it must be fit for a log
            self.store.make(topic, count)
        return count

    def _places(self, number: int) -> tuple[Partition, Partition]:
        return Partition(self._state_topic, number), Partition(self._log_topic, number)

    def _load_part(self, number: int) -> Loaded:
        return load_part(self.store, *self._places(number), self._local, self.root)

    def _adopt(self, number: int, loaded: Loaded) -> None:
        state, log = self._places(number)
        part = self._parts[number] = Part(self, state, log, loaded.files, is_new=loaded.is_new)
        part.bytes, part.log_end = loaded.bytes, loaded.log_end
        for name, file in loaded.files.names.items():
            node = loaded.files.nodes[file]
            inode = Inode(part, node, name, is_segment=is_segment(name))
            if inode.is_segment:
                inode.sent = inode.counted = inode.run_from = node.size
                inode.mark = (node.size, node.size)
                inode.missing = loaded.missing.get(file, [])
            else:
                inode.sent = len(node.content)
            part.inodes[file] = self._names[name] = inode

    # --- a disk ---------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SharedFile:
        """Open for appending and reading; FileNotFoundError unless it exists or `create`."""
        name = self._name(path)
        inode = self._names.get(name)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            local = self._local.open(path, create=True)
            inode = self._begun(name)
        else:
            with inode.guard:  # while its bytes go, it is shorter for a moment
                local = self._local.open(path)
        return SharedFile(local, inode, self._load, self._cache, self._threads.tell)

    def _begun(self, name: str) -> Inode:
        part = self._part(name)
        with self._lock:
            self._made += 1
            node = Node(f"{self._life:x}.{self._made:x}")
        with part.mutex:
            inode = self._names[name] = Inode(part, node, name, is_segment=is_segment(name))
            part.inodes[node.id] = inode
            part.change(Op("file", node.id, name))
        return inode

    def exists(self, path: str) -> bool:
        """Tell whether a file or directory is there."""
        return self._local.exists(path)

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; empty if it does not exist."""
        return [name for name in self._local.list(path) if name != CACHED]

    def make(self, path: str) -> None:
        """Make a directory and its parents; returns once Kafka has their names."""
        name = self._name(path)
        self._local.make(path)
        if name == os.curdir:
            return
        part = self._part(name, make=True)
        with part.mutex:
            known = name in part.files.directories or any(op.kind == "make" and op.name == name for op in part.pending)
            if not known:
                part.change(Op("make", name=name))
        if not known:
            part.flush()

    def rename(self, old: str, new: str) -> None:
        """Replace `new` by `old` in one step; files only, inside of one shard."""
        name, to = self._name(old), self._name(new)
        inode = self._names.get(name)
        if inode is None or self._part(to) is not inode.part:
            raise OSError(errno.EXDEV, "only files are renamed in a topic on Kafka, inside of one shard", old)
        with inode.part.mutex:
            self._local.rename(old, new)
            replaced = self._names.get(to)
            if replaced is not None:
                replaced.name = ""
            del self._names[name]
            self._names[to], inode.name = inode, to
            inode.part.change(Op("rename", name=name, to=to))

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with everything in it; nothing happens if it is gone already."""
        name = self._name(path)
        if name in self._names:
            part = self._part(name)
            with part.mutex:
                self._local.remove(path)
                self._names.pop(name).name = ""
                part.change(Op("remove", name=name))
            return
        if not self._local.exists(path):
            return
        below = "" if name == os.curdir else name + os.sep
        for each in [each for each in list(self._names) if each.startswith(below)]:
            self.remove(os.path.join(self.root, each))
        self._local.remove(path)
        if below:
            part = self._part(name)
            with part.mutex:
                part.change(Op("remove", name=name))

    def sync_directory(self, path: str) -> None:
        """Return once Kafka has the names made, renamed or removed there."""
        self._part(self._name(path)).flush()

    def boot_id(self) -> str:
        """Return a text that is another one after each take-over: what was not synced may be gone then."""
        return f"{self._log_topic} {self._life}"

    def submit(self, pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run blocking work on a pool, of threads that wait for Kafka where it may; then call `done` on the loop."""
        if pool in POOLS:
            self._threads.submit(pool, work, done)
        else:
            self._local.submit(pool, work, done)

    def _name(self, path: str) -> str:
        path = os.path.normpath(path)
        if path != self.root and not path.startswith(self.root + os.sep):
            raise ValueError(f"{path} is not below {self.root}")
        return os.path.relpath(path, self.root)

    def _part(self, name: str, *, make: bool = False) -> Part:
        """Return where a name goes: a shard's directory is its number, all else is beside the first shard."""
        head = name.split(os.sep, 1)[0]
        number = int(head) if head.isascii() and head.isdigit() else 0
        part = self._parts.get(number)
        if part is not None:
            return part
        if not make:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.path.join(self.root, name))
        with self._growing:
            for topic in (self._log_topic, self._state_topic):
                self.store.make(topic, number + 1)
            for each in range(number + 1):
                if each not in self._parts:
                    self._adopt(each, self._load_part(each))
        return self._parts[number]

    # --- what of segments is here ---------------------------------------------------------------------------------

    def segments(self) -> Sequence[Inode]:
        """Return the segment files."""
        return [inode for inode in tuple(self._names.values()) if inode.is_segment]

    def let_go(self, inode: Inode) -> int:
        """Keep nothing of a segment here, unless somebody needs it now; return how many bytes went."""
        with inode.part.mutex:
            if not inode.name or self.failed is not None:
                return 0
            file = self._local.open(os.path.join(self.root, inode.name))
        try:
            with inode.guard:
                size = inode.mark[0]
                if inode.readers or inode.growers or inode.cut is not None or inode.sent != size:
                    return 0
                gone = inode.here_bytes
                file.truncate(0)
                file.truncate(size)
                inode.missing = [(0, size)]
                return gone
        finally:
            file.close()

    def _load(self, inode: Inode, start: int, stop: int) -> None:
        """Bring bytes of a segment here that are in Kafka alone; blocking, on any thread."""
        with inode.loading:
            before = inode.here_bytes
            wanted = [each for each in inode.missing if each[0] < stop and each[1] > start]
            for within in wanted:
                low, high = fetch(
                    self.store,
                    inode.part.log,
                    inode.node,
                    within,
                    max(within[0], start),
                    min(within[1], stop),
                    partial(self._patch, inode),
                )
                rest = [
                    piece
                    for one in inode.missing
                    for piece in ((one[0], min(one[1], low)), (max(one[0], high), one[1]))
                ]
                inode.missing = [(first, end) for first, end in rest if first < end]
            came = inode.here_bytes - before
        if came:
            self._cache.came(came, fetched=True)

    def _patch(self, inode: Inode, position: int, data: bytes) -> None:
        with inode.part.mutex:
            if not inode.name:
                raise FileNotFoundError(errno.ENOENT, "the segment was removed while it was read")
            self._local.patch(os.path.join(self.root, inode.name), position, data)


def _nobody(_: BaseException) -> None:
    return


def drop_topic(store: Store, topic: str) -> None:
    """Remove what the store has of a topic that nobody has open; blocking."""
    store.drop(f"{topic}.log")
    store.drop(f"{topic}.state")
