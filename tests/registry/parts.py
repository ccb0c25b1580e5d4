"""What the registry's tests stand on: a clock whose turns are taken by hand, and a disk that can fail."""

import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.columns import Buffer
from penstock.disk import LocalDisk, LocalFile
from penstock.registry import Registry


def put(registry: Registry, key: str, value: bytes, if_revision: int | None = None) -> int:
    """Set one value in a registry that answers at once."""
    return registry.propose({key: value}, (), {} if if_revision is None else {key: if_revision}).now()


def delete(registry: Registry, key: str, if_revision: int | None = None) -> int:
    """Remove one key from a registry that answers at once."""
    return registry.propose({}, (key,), {} if if_revision is None else {key: if_revision}).now()


def change(
    registry: Registry, puts: Mapping[str, bytes], deletes: Iterable[str] = (), guards: Mapping[str, int] | None = None
) -> int:
    """Change several keys of a registry that answers at once."""
    return registry.propose(puts, deletes, guards).now()


class TurnTimer:
    """One call to come."""

    def __init__(self, time_ns: int, call: Callable[[], None]) -> None:
        self.time_ns = time_ns
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class TurnClock:
    """Time stands still until it is advanced; `turn` runs what was asked for since the last one."""

    def __init__(self) -> None:
        self.time_ns = 1_700_000_000_000_000_000
        self._calls: list[Callable[[], None]] = []
        self._timers: list[TurnTimer] = []

    def now(self) -> int:
        return self.time_ns

    def monotonic(self) -> int:
        return self.time_ns

    def call_soon(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def call_at(self, monotonic_ns: int, call: Callable[[], None]) -> TurnTimer:
        timer = TurnTimer(monotonic_ns, call)
        self._timers.append(timer)
        return timer

    def advance(self, ns: int) -> None:
        """Let time pass, stopping at each timer on the way."""
        end_ns = self.time_ns + ns
        self.turn()
        while due := [timer for timer in self._timers if timer.time_ns <= end_ns and not timer.cancelled]:
            first = min(due, key=lambda timer: timer.time_ns)
            self._timers.remove(first)
            self.time_ns = max(self.time_ns, first.time_ns)
            first.call()
            self.turn()
        self.time_ns = end_ns

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
