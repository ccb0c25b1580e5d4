"""A disk in memory that keeps what was synced and may lose the rest.

`Platter` is the machine's disk and outlives the process; `SimDisk` is what one life of the node sees of it. A file
knows how much of it is synced, a directory which of its names are. The process may die inside an operation, which
then happens in part or not at all; afterwards nothing the dead process does has any effect.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import TypeVar

from penstock.clock import MILLISECOND
from penstock.columns import Buffer
from tests.simulation.clock import Scheduler, SimClock

T = TypeVar("T")

#: What a disk writes whole.
SECTOR_BYTES = 512

#: How long work takes, by pool: mostly about this, sometimes twenty times as long.
WORK_NS = {"sync": 300_000, "read": 60_000, "seal": 2 * MILLISECOND}


class Died(BaseException):
    """The process is dead; nothing may catch this but the world."""


class Inode:
    """What a file holds: `data` as the kernel shows it, of which the first `synced` bytes are on the platter."""

    __slots__ = ("data", "ghosts", "old", "synced")

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = 0
        #: What is on the platter, if the file was cut below it since the last sync.
        self.old: bytes | None = None
        #: Ranges that the kernel still shows and will never write: a sync failed, and it forgot that they are dirty.
        self.ghosts: list[tuple[int, int]] = []

    def sync(self) -> None:
        """Bring everything to the platter."""
        self.synced = len(self.data)
        self.old = None

    def truncate(self, length: int) -> None:
        """Cut the file, or lengthen it with zeros."""
        if length < self.synced:
            if self.old is None:
                self.old = bytes(self.data[: self.synced])
            self.synced = length
        self.ghosts = [(start, min(stop, length)) for start, stop in self.ghosts if start < length]
        if length < len(self.data):
            del self.data[length:]
        else:
            self.data.extend(bytes(length - len(self.data)))

    def fail(self, random: Random, shown: bool | None) -> None:
        """Fail a sync: some sectors are not written, none is dirty any more, and the next sync finds nothing to do.

        What was lost is gone from the page cache as well, or is `shown` there until the power goes.
        """
        shown, odds = random.random() < 0.5 if shown is None else shown, random.choice((1.0, 0.6))
        for start, stop in sectors(self.synced, len(self.data)):
            if random.random() >= odds:
                continue
            if shown:
                self.ghosts.append((start, stop))
            else:
                self.data[start:stop] = bytes(stop - start)
        self.sync()

    def lose_power(self, random: Random) -> None:
        """Keep what was synced and any part of the rest, in any order."""
        for start, stop in self.ghosts:
            self.data[start:stop] = bytes(stop - start)
        self.ghosts.clear()
        if self.old is not None and random.random() < 0.5:
            self.data = bytearray(self.old)
        else:
            self._keep_some(random)
        self.sync()

    def _keep_some(self, random: Random) -> None:
        size = len(self.data)
        draw = random.random()
        if size == self.synced or draw < 0.2:
            return
        if draw < 0.5:
            del self.data[self.synced :]
            return
        if draw < 0.7:
            del self.data[random.randint(self.synced, size) :]
            return
        # Sectors are written in any order; those that were not read as zeros, and the length is one of its moments.
        for start, stop in sectors(self.synced, size):
            if random.random() < 0.4:
                self.data[start:stop] = bytes(stop - start)
        del self.data[random.randint(self.synced, size) if random.random() < 0.5 else size :]


def sectors(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the pieces of a range that a disk writes whole."""
    while start < end:
        stop = min((start // SECTOR_BYTES + 1) * SECTOR_BYTES, end)
        yield start, stop
        start = stop


#: A change of a directory: a name now means this file, or nothing.
Change = tuple[str, Inode | None]


class Platter:
    """The machine's disk: files by path, and per directory the changes that a power loss may undo."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.files: dict[str, Inode] = {}
        self.directories: dict[str, None] = {}
        self.boot = 1
        self.used_bytes = 0
        self.capacity_bytes = 1 << 40
        #: The process dies inside the operation that brings this to 0.
        self.fuse: int | None = None
        self.syncs = 0
        #: Tells whether the next sync of a file fails.
        self.fails: Callable[[str], bool] = _never
        #: Whether the page cache still shows what a failed sync lost; None is now and then.
        self.shows: bool | None = None
        #: Directories removed, whose parent was not synced since.
        self.doomed: dict[str, None] = {}
        self._named: dict[str, Inode] = {}
        #: Steps of each directory not synced yet; a step is one rename, one create or one remove.
        self._steps: dict[str, list[list[Change]]] = {}

    def change(self, directory: str, changes: list[Change]) -> None:
        """Change names of one directory in one step."""
        for path, inode in changes:
            before = self.files.pop(path, None)
            if before is not None:
                self.used_bytes -= len(before.data)
            if inode is not None:
                self.files[path] = inode
                self.used_bytes += len(inode.data)
        self._steps.setdefault(directory, []).append(changes)

    def move(self, old: str, new: str) -> None:
        """Give a directory another name, for good: that a power loss may undo it makes no difference to anybody."""

        def moved(path: str) -> str:
            return new + path[len(old) :] if path == old or path.startswith(old + "/") else path

        self.files = {moved(path): inode for path, inode in self.files.items()}
        self._named = {moved(path): inode for path, inode in self._named.items()}
        self.directories = {moved(path): None for path in self.directories}
        self._steps = {
            moved(directory): [[(moved(path), inode) for path, inode in step] for step in steps]
            for directory, steps in self._steps.items()
        }

    def sync_directory(self, directory: str) -> None:
        """Bring the names of a directory to the platter."""
        for step in self._steps.pop(directory, ()):
            self._apply(step)
        gone = [path for path in self.doomed if os.path.dirname(path) == directory]
        # What was removed below goes with it: nothing is found there again without it.
        self.doomed = {path: None for path in self.doomed if not any(f"{path}/".startswith(f"{g}/") for g in gone)}

    def _apply(self, step: list[Change]) -> None:
        for path, inode in step:
            self._named.pop(path, None)
            if inode is not None:
                self._named[path] = inode

    def lose_power(self) -> None:
        """Undo any number of the last unsynced steps of each directory, and lose unsynced bytes."""
        for steps in self._steps.values():
            for step in steps[: self.random.randint(0, len(steps))]:
                self._apply(step)
        self._steps.clear()
        for path in sorted(self.doomed):
            if self.random.random() < 0.5 and os.path.dirname(path) in self.directories:
                self.directories[path] = None
        self.doomed.clear()
        self.files = {path: inode for path, inode in self._named.items() if os.path.dirname(path) in self.directories}
        self._named = dict(self.files)
        for path in sorted(self.files):
            self.files[path].lose_power(self.random)
        self.used_bytes = sum(len(inode.data) for inode in self.files.values())
        self.boot += 1

    def flip(self, path: str) -> int:
        """Turn one bit of a file around and return where."""
        inode = self.files[path]
        at = self.random.randrange(len(inode.data))
        inode.data[at] ^= 1 << self.random.randrange(8)
        return at


class SimFile:
    """One open file."""

    def __init__(self, disk: SimDisk, inode: Inode, path: str) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._closed = False

    def append(self, parts: Sequence[Buffer]) -> int:
        """Write all parts at the end and return how many bytes; after an error nothing of them remains."""
        self._check()
        data = b"".join(parts)
        platter = self._disk.platter
        if self._disk.step():
            torn = platter.random.randint(0, len(data))
            self._grow(data[:torn])
            self._disk.die()
        if platter.used_bytes + len(data) > platter.capacity_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        self._grow(data)
        return len(data)

    def _grow(self, data: bytes) -> None:
        self._inode.data += data
        if self._disk.platter.files.get(self.path) is self._inode:
            self._disk.platter.used_bytes += len(data)

    def read(self, position: int, length: int) -> bytes:
        """Read at most this much."""
        self._check()
        return bytes(self._inode.data[position : position + length])

    def size(self) -> int:
        """Return the length in bytes."""
        self._check()
        return len(self._inode.data)

    def truncate(self, length: int) -> None:
        """Cut the file."""
        self._check()
        self._disk.reach()
        before = len(self._inode.data)
        self._inode.truncate(length)
        if self._disk.platter.files.get(self.path) is self._inode:
            self._disk.platter.used_bytes += length - before

    def sync(self) -> None:
        """Return once the data survives a power loss."""
        self._check()
        self._disk.reach()
        platter = self._disk.platter
        platter.syncs += 1
        if platter.fails(self.path):
            self._inode.fail(platter.random, platter.shows)
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)
        self._inode.sync()

    def sync_soon(self, done: Callable[[BaseException | None], None]) -> bool:
        """Return False: a disk is waited for."""
        return False

    def write_back(self, position: int, length: int) -> None:
        """Start writing a range to the disk: nobody can tell whether that came to anything."""

    def close(self) -> None:
        """Close it."""
        self._closed = True

    def _check(self) -> None:
        self._disk.check()
        if self._closed:
            raise OSError(errno.EBADF, "this file was closed", self.path)


class _Pool:
    """One thread: works in order, one piece at a time."""

    def __init__(self) -> None:
        self.queue: deque[Callable[[], None]] = deque()
        self.busy = False


class SimDisk:
    """The disk as one life of the node sees it."""

    is_shared = False

    def __init__(self, platter: Platter, scheduler: Scheduler, clock: SimClock, slowness: float) -> None:
        self.platter = platter
        self._scheduler = scheduler
        self._clock = clock
        self._slowness = slowness
        self._pools: dict[str, _Pool] = {}

    # --- death ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Let a dead process do nothing any more."""
        if not self._clock.alive:
            raise Died

    def step(self) -> bool:
        """Count an operation that changes something; True if the process dies inside it."""
        self.check()
        platter = self.platter
        if platter.fuse is None:
            return False
        platter.fuse -= 1
        return platter.fuse <= 0

    def die(self) -> None:
        """End the process here and now."""
        self.platter.fuse = None
        self._clock.alive = False
        raise Died

    def reach(self) -> None:
        """Come to an operation that happens whole or not at all."""
        if self.step():
            self.die()

    # --- files ----------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimFile:
        """Open for appending and reading; FileNotFoundError unless it exists or `create`."""
        self.check()
        path = os.path.normpath(path)
        inode = self.platter.files.get(path)
        if inode is None:
            directory = os.path.dirname(path)
            if not create or directory not in self.platter.directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self.reach()
            inode = Inode()
            self.platter.change(directory, [(path, inode)])
        return SimFile(self, inode, path)

    def patch(self, path: str, position: int, data: bytes) -> None:
        """Write over some bytes of a file that is a cache, or behind its end; it is made if it is not there."""
        file = self.open(path, create=True)
        self.reach()
        held = file._inode.data
        before = len(held)
        held.extend(bytes(max(0, position - before)))
        held[position : position + len(data)] = data
        self.platter.used_bytes += len(held) - before

    def exists(self, path: str) -> bool:
        """Tell whether a file or directory is there."""
        self.check()
        path = os.path.normpath(path)
        return path in self.platter.files or path in self.platter.directories

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; empty if it does not exist."""
        self.check()
        head = os.path.normpath(path) + "/"
        names = {name[len(head) :].split("/")[0] for name in self.platter.files if name.startswith(head)}
        names |= {name[len(head) :].split("/")[0] for name in self.platter.directories if name.startswith(head)}
        return sorted(names)

    def make(self, path: str) -> None:
        """Make a directory and its parents; like the real one it returns once they survive a power loss."""
        self.check()
        path = os.path.normpath(path)
        while path and path not in self.platter.directories:
            self.reach()
            self.platter.directories[path] = None
            self.platter.doomed.pop(path, None)
            path = os.path.dirname(path)

    def rename(self, old: str, new: str) -> None:
        """Replace `new` by `old` in one step."""
        self.check()
        old, new = os.path.normpath(old), os.path.normpath(new)
        inode = self.platter.files.get(old)
        if inode is None and old in self.platter.directories:
            self.reach()
            self.platter.move(old, new)
            return
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
        if os.path.dirname(old) != os.path.dirname(new):
            raise OSError(errno.EXDEV, "the simulation renames inside one directory only", old)
        self.reach()
        self.platter.change(os.path.dirname(old), [(old, None), (new, inode)])

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with everything in it; nothing happens if it is gone already."""
        self.check()
        path = os.path.normpath(path)
        if path in self.platter.files:
            self.reach()
            self.platter.change(os.path.dirname(path), [(path, None)])
        elif path in self.platter.directories:
            for name in self.list(path):
                self.remove(f"{path}/{name}")
            self.reach()
            del self.platter.directories[path]
            self.platter.doomed[path] = None

    def sync_directory(self, path: str) -> None:
        """Return once names made, renamed or removed there survive a power loss."""
        self.check()
        path = os.path.normpath(path)
        if path not in self.platter.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.reach()
        self.platter.sync_directory(path)

    def free_bytes(self, path: str) -> int:
        """Return how much may still be written."""
        self.check()
        return max(0, self.platter.capacity_bytes - self.platter.used_bytes)

    def boot_id(self) -> str:
        """Return a text that changes when the machine restarts and unsynced bytes may be gone."""
        return f"boot {self.platter.boot}"

    # --- work beside the loop -------------------------------------------------------------------------------------

    def submit(self, pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run blocking work later, as a thread would, then call `done(result, error)` on the loop later still."""
        self.check()
        thread = self._pools.setdefault(pool, _Pool())
        thread.queue.append(partial(self._work, pool, work, done))
        self._next(pool)

    def _next(self, pool: str) -> None:
        thread = self._pools[pool]
        if thread.busy or not thread.queue:
            return
        thread.busy = True
        self._scheduler.at(self._scheduler.time_ns + self._time_ns(pool), thread.queue.popleft(), self._clock)

    def _work(self, pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except Exception as error:
            failure = error
        # A thread's work takes effect at one moment; what the loop writes until `done` is not part of it.
        self._scheduler.at(
            self._scheduler.time_ns + self._time_ns(pool), lambda: self._done(pool, done, result, failure), self._clock
        )

    def _done(
        self,
        pool: str,
        done: Callable[[T | None, BaseException | None], None],
        result: T | None,
        failure: BaseException | None,
    ) -> None:
        self._pools[pool].busy = False
        self._next(pool)
        done(result, failure)

    def _time_ns(self, pool: str) -> int:
        draw = self.platter.random.random()
        return int(WORK_NS.get(pool, MILLISECOND) * self._slowness * (draw if draw < 0.95 else 20 * draw))


def _never(_: str) -> bool:
    return False
