"""Disks for the tests of the log: real files, and pools that run at once, on demand, or out of room."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from penstock.columns import Buffer
from penstock.disk import LocalDisk, LocalFile

T = TypeVar("T")


class UnsyncedFile(LocalFile):
    """A file whose syncs take no time; no test here pulls the plug."""

    def sync(self) -> None:
        """Return at once."""


class InlineDisk(LocalDisk):
    """The local file system, with pools that do their work at once and syncs that take no time."""

    def __init__(self, boot: str = "boot-1") -> None:
        super().__init__(None)
        self.boot = boot

    def open(self, path: str, *, create: bool = False) -> LocalFile:
        """Open a file whose syncs take no time."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return UnsyncedFile(path, os.open(path, flags, 0o644))

    def sync_directory(self, path: str) -> None:
        """Return at once."""

    def boot_id(self) -> str:
        """Return the boot id the test chose."""
        return self.boot

    def submit(self, pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Do the work and call back before returning."""
        try:
            result = work()
        except Exception as error:
            done(None, error)
        else:
            done(result, None)


class ManualDisk(InlineDisk):
    """The local file system, with pools that wait until the test runs them."""

    def __init__(self, boot: str = "boot-1") -> None:
        super().__init__(boot)
        self.queued: list[tuple[str, Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def submit(self, pool: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Keep the work for `run`."""
        self.queued.append((pool, work, done))

    def pending(self, pool: str) -> int:
        """Return how much work a pool has."""
        return sum(1 for name, _, _ in self.queued if name == pool)

    def run(self, pool: str | None = None, *, error: BaseException | None = None) -> int:
        """Do what is queued now (of one pool), or fail it with an error; return how many that were."""
        chosen = [item for item in self.queued if pool in (None, item[0])]
        self.queued = [item for item in self.queued if item not in chosen]
        for _, work, done in chosen:
            if error is not None:
                done(None, error)
            else:
                InlineDisk.submit(self, "", work, done)
        return len(chosen)

    def run_all(self) -> None:
        """Work until nothing is queued any more."""
        while self.queued:
            self.run()


class FullFile(UnsyncedFile):
    """A file on a disk that may be full."""

    def __init__(self, path: str, fd: int, disk: FullDisk) -> None:
        super().__init__(path, fd)
        self._disk = disk

    def append(self, parts: Sequence[Buffer]) -> int:
        """Write, or fail as a full disk does, with nothing written."""
        wanted = sum(len(part) for part in parts)
        room = self._disk.room_bytes
        if room is not None and wanted > room:
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        written = super().append(parts)
        if room is not None:
            self._disk.room_bytes = room - written
        return written


class FullDisk(InlineDisk):
    """The local file system with a chosen amount of room; None is plenty."""

    def __init__(self, room_bytes: int | None = None) -> None:
        super().__init__()
        self.room_bytes = room_bytes

    def open(self, path: str, *, create: bool = False) -> LocalFile:
        """Open a file that counts against the room."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return FullFile(path, os.open(path, flags, 0o644), self)


class BrokenFile(UnsyncedFile):
    """A file on a disk whose syncs, and cuts after a failed append, may fail."""

    def __init__(self, path: str, fd: int, disk: BrokenDisk) -> None:
        super().__init__(path, fd)
        self._disk = disk

    def sync(self) -> None:
        """Return at once, or fail."""
        if self._disk.failing and ".arrows" in self.path:
            self._disk.failing -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)


class BrokenDisk(InlineDisk):
    """The local file system, where some of the next syncs of segments fail and lose nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = 0

    def open(self, path: str, *, create: bool = False) -> LocalFile:
        """Open a file whose syncs may fail."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return BrokenFile(path, os.open(path, flags, 0o644), self)


@contextmanager
def torn_appends(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let appends fail half-way, and the cut that would take the half back as well."""

    def half(fd: int, parts: Sequence[Buffer] | Buffer) -> int:
        data = bytes(parts) if isinstance(parts, bytes | bytearray | memoryview) else b"".join(map(bytes, parts))
        write(fd, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def refuse(fd: int, length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        patch.setattr(os, "writev", half)
        patch.setattr(os, "ftruncate", refuse)
        yield
