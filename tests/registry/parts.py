"""What the registry's tests stand on: a clock whose turns are taken by hand, and a disk that can fail."""

import errno
import os
from collections.abc import Callable, Sequence

from penstock.disk import LocalDisk, LocalFile
from penstock.message import Buffer


class NoTimer:
    def cancel(self) -> None:
        raise AssertionError("the registry sets no timers")


class TurnClock:
    """Time stands still; `turn` runs what was asked for since the last one."""

    def __init__(self) -> None:
        self.time_ns = 1_700_000_000_000_000_000
        self._calls: list[Callable[[], None]] = []

    def now(self) -> int:
        return self.time_ns

    def monotonic(self) -> int:
        return self.time_ns

    def call_soon(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def call_at(self, monotonic_ns: int, call: Callable[[], None]) -> NoTimer:
        raise AssertionError("the registry sets no timers")

    def turn(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            call()


class FaultyFile(LocalFile):
    """Fails where its disk says so."""

    def __init__(self, disk: "FaultyDisk", path: str, fd: int) -> None:
        super().__init__(path, fd)
        self._disk = disk

    def append(self, parts: Sequence[Buffer]) -> int:
        self._disk.reach("append")
        return super().append(parts)

    def sync(self) -> None:
        self._disk.reach("sync")
        super().sync()

    def truncate(self, length: int) -> None:
        self._disk.reach("truncate")
        super().truncate(length)


class FaultyDisk(LocalDisk):
    """The local disk, with errors on demand: `fail["sync"] = [ENOSPC, 0, EIO]` fails the first and third sync."""

    def __init__(self) -> None:
        super().__init__()
        self.fail: dict[str, list[int]] = {}
        self.done: list[str] = []

    def reach(self, what: str) -> None:
        self.done.append(what)
        planned = self.fail.get(what)
        number = planned.pop(0) if planned else 0
        if number:
            raise OSError(number, errno.errorcode[number])

    def open(self, path: str, *, create: bool = False) -> LocalFile:
        plain = super().open(path, create=create)
        return FaultyFile(self, path, os.dup(plain._fd))

    def rename(self, old: str, new: str) -> None:
        self.reach("rename")
        super().rename(old, new)

    def sync_directory(self, path: str) -> None:
        self.reach("sync_directory")
        super().sync_directory(path)
