"""Files, as the log, the journal and the registry see them: a seam the simulation replaces.

A `File` is append-only plus positioned reads. Blocking work goes through `submit`, which runs it on a named pool
of threads and calls back on the loop; the loop itself only ever writes to the page cache and reads small things.
Owns who may read what is made: its user, unless a disk is told to let the group read, too.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.errors import Refusal

if TYPE_CHECKING:
    from penstock.columns import Buffer

T = TypeVar("T")

#: Messages are nobody else's business: modes of files and directories.
PRIVATE = (0o600, 0o700)
#: For readers beside the writer that run as another user, as Spark's executors may.
GROUP = (0o640, 0o750)

#: One thread per kind of work: syncs must not queue behind reads, and never two fdatasyncs of one node at a time.
POOLS = ("sync", "read", "seal", "make", "secret", "sign")

#: A thread that has not heard yet may put a file into a directory on its way out; so often it is emptied again.
REMOVE_TRIES = 100

#: The kernel takes at most this many pieces in one writev.
WRITEV_PARTS_MAX = 1024


#: Linux only; ctypes lets go of the interpreter lock during the call, which may block when the queue is full.
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_SYNC_FILE_RANGE_WRITE = 2


#: No file has this descriptor; the system refuses to do anything with it.
CLOSED = -1


class TornFileError(OSError):
    """An append failed, and so did cutting off what it had written: bytes after the file's end must not be read."""


class File(Protocol):
    """One open file."""

    def append(self, parts: Sequence[Buffer]) -> int:
        """Write all parts at the end and return how many bytes; after an error nothing of them remains.

        After a `TornFileError` something may remain: nothing more may be appended.
        """

    def read(self, position: int, length: int) -> bytes:
        """Read at most this much."""

    def size(self) -> int:
        """Return the length in bytes."""

    def truncate(self, length: int) -> None:
        """Cut the file."""

    def sync(self) -> None:
        """Return once the data survives a power loss. Blocking: call it through `Disk.submit`, or at start."""

    def sync_soon(self, done: Callable[[BaseException | None], None]) -> bool:
        """Do the same without waiting, and call back on the loop; False where that cannot be: nothing is done then."""

    def write_back(self, position: int, length: int) -> None:
        """Start writing a range to the disk without waiting for it; a hint that may do nothing. Call it on a pool."""

    def close(self) -> None:
        """Close it."""


class Disk(Protocol):
    """A directory tree with the few operations the node needs."""

    @property
    def is_shared(self) -> bool:
        """Whether its files are kept elsewhere, and all that they show on opening was synced.

        What was appended to a small file is kept before any name that it got behind that.
        The paths then lead to a cache, which has not all of it: they are opened here, or not at all.
        """

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for appending and reading; FileNotFoundError unless it exists or `create`."""

    def exists(self, path: str) -> bool:
        """Tell whether a file or directory is there."""

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; empty if it does not exist."""

    def make(self, path: str) -> None:
        """Make a directory and its parents; returns once their names survive a power loss."""

    def rename(self, old: str, new: str) -> None:
        """Replace `new` by `old` in one step; a directory moves with everything in it, to a name that is free."""

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with everything in it; nothing happens if it is gone already."""

    def sync_directory(self, path: str) -> None:
        """Return once names made, renamed or removed there survive a power loss."""

    def boot_id(self) -> str:
        """Return a text that changes when the machine restarts and unsynced bytes may be gone."""

    def submit(self, pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run blocking work on a pool of POOLS, then call `done(result, error)` on the loop."""


class LocalFile:
    """A file of the local file system."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._end = os.lseek(fd, 0, os.SEEK_END)

    def append(self, parts: Sequence[Buffer]) -> int:
        """Write all parts at the end and return how many bytes; after an error nothing of them remains."""
        before = self._end
        try:
            if len(parts) == 1:
                written = os.write(self._fd, parts[0])
                self._end += written
                if written == len(parts[0]):  # the way of a lone message
                    return written
            else:
                for at in range(0, len(parts), WRITEV_PARTS_MAX):
                    self._end += os.writev(self._fd, parts[at : at + WRITEV_PARTS_MAX])
            written = self._end - before
            wanted = sum(len(part) for part in parts)
            if written < wanted:  # a full disk or a signal: finish, or learn why not
                rest = memoryview(b"".join(bytes(part) for part in parts))[written:]
                while rest:
                    count = os.write(self._fd, rest)
                    self._end += count
                    rest = rest[count:]
            return wanted
        except OSError as error:
            self._end = before
            try:
                os.ftruncate(self._fd, before)
            except OSError as second:
                raise TornFileError(error.errno, f"{error.strerror}, nor cut again ({second})", self.path) from error
            raise

    def read(self, position: int, length: int) -> bytes:
        """Read at most this much."""
        return os.pread(self._fd, length, position)

    def size(self) -> int:
        """Return the length in bytes."""
        return self._end

    def truncate(self, length: int) -> None:
        """Cut the file."""
        os.ftruncate(self._fd, length)
        self._end = length

    def sync(self) -> None:
        """Return once the data survives a power loss."""
        os.fdatasync(self._fd)

    def sync_soon(self, done: Callable[[BaseException | None], None]) -> bool:
        """Return False: a disk is waited for."""
        return False

    def write_back(self, position: int, length: int) -> None:
        """Start writing a range to the disk without waiting for it; a hint that may do nothing. Call it on a pool."""
        if _sync_file_range is not None:
            _sync_file_range(self._fd, position, length, _SYNC_FILE_RANGE_WRITE)

    def close(self) -> None:
        """Close it."""
        fd, self._fd = self._fd, CLOSED
        os.close(fd)

    def __del__(self) -> None:
        """Whoever forgets a file keeps its bytes, but not its descriptor."""
        if self._fd != CLOSED:
            self.close()


class LocalDisk:
    """The local file system, with one thread per pool."""

    is_shared = False

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, *, group: bool = False) -> None:
        self._loop = loop
        self._file_mode, self._directory_mode = GROUP if group else PRIVATE
        self._pools: dict[str, ThreadPoolExecutor] = {}

    def open(self, path: str, *, create: bool = False) -> LocalFile:
        """Open for appending and reading; FileNotFoundError unless it exists or `create`."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return LocalFile(path, os.open(path, flags, self._file_mode))

    def patch(self, path: str, position: int, data: bytes) -> None:
        """Write over some bytes of a file that is a cache, or behind its end; it is made if it is not there."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, self._file_mode)
        try:
            while data:
                written = os.pwrite(fd, data, position)
                position, data = position + written, data[written:]
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        """Tell whether a file or directory is there."""
        return os.path.exists(path)

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; empty if it does not exist."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def make(self, path: str) -> None:
        """Make a directory and its parents; returns once their names survive a power loss."""
        missing = []
        while path and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for name in reversed(missing):
            try:
                os.mkdir(name, self._directory_mode)
            except FileExistsError:
                if not os.path.isdir(name):
                    raise
            self.sync_directory(os.path.dirname(name) or ".")

    def rename(self, old: str, new: str) -> None:
        """Replace `new` by `old` in one step."""
        os.replace(old, new)

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with everything in it; nothing happens if it is gone already."""
        for left in reversed(range(REMOVE_TRIES)):
            try:
                if os.path.isdir(path) and not os.path.islink(path):
                    for name in os.listdir(path):
                        self.remove(os.path.join(path, name))
                    os.rmdir(path)
                else:
                    os.unlink(path)
                return
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY or not left:
                    raise

    def sync_directory(self, path: str) -> None:
        """Return once names made, renamed or removed there survive a power loss."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def boot_id(self) -> str:
        """Return a text that changes when the machine restarts and unsynced bytes may be gone."""
        return _boot_id()

    def submit(self, pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run blocking work on a pool of POOLS, then call `done(result, error)` on the loop."""
        loop = self._loop
        if loop is None:
            raise RuntimeError("this disk was opened without a loop, for reading")
        executor = self._pools.get(pool)
        if executor is None:
            executor = self._pools[pool] = ThreadPoolExecutor(1, thread_name_prefix=f"penstock-{pool}")

        def deliver(future: Future[Any]) -> None:
            error = future.exception()
            result = None if error else future.result()
            try:
                loop.call_soon_threadsafe(done, result, error)
            except RuntimeError:  # the loop is closed: the process is on its way out
                return

        executor.submit(work).add_done_callback(deliver)

    def close(self, *, wait: bool = True) -> None:
        """Take no more work, and wait for what the pools have."""
        for executor in self._pools.values():
            executor.shutdown(wait=wait, cancel_futures=not wait)


def private(path: str, flags: int) -> int:
    """Open a file that only its user may read, for `open(opener=...)`."""
    return os.open(path, flags, PRIVATE[0])


def is_full(error: BaseException | None) -> bool:
    """Tell whether an error means that no more can be written for now."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@cache
def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:  # no such file outside Linux: every start then counts as a new boot
        return os.urandom(16).hex()


def unmade(what: str, error: Exception) -> Exception:
    """Return what to tell those who asked for a thing whose files could not be made."""
    if not isinstance(error, OSError):
        return error
    code = "disk_full" if is_full(error) else "unavailable"
    return Refusal(code, f"{what} could not be made ({error.strerror or error}); free some of that and try again")


def replace_file(disk: Disk, path: str, content: bytes) -> None:
    """Put a small file in place so that a crash leaves either the old or the new one, synced."""
    temporary = path + ".new"
    disk.remove(temporary)
    file = disk.open(temporary, create=True)
    try:
        file.append([content])
        if not disk.is_shared:  # there what a file holds goes before its name, in one go
            file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(os.path.dirname(path))
