"""Memory that the process holds and nobody uses: how much is resident, and giving back what allocators keep.

Arrow's allocator keeps what a decoded batch took until it is asked, and the C library keeps freed blocks below one
that is in use. Neither is a leak, and both look like one: one batch that was refused cost 400 MB for good.
Knows nothing of the node. Invariant: nothing here changes what a program sees, only how much memory stands behind it.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa

from penstock.clock import SECOND, Clock, Timer

#: The memory is looked at this often; a look is one small file.
LOOK_NS = SECOND
#: It goes back once the process grew by this much since it last did: a full sweep of the allocators takes some ms.
GROWN_BYTES = 32 << 20
#: Everything that came since the last time is searched for cycles once it grew by this much, and whenever it grew and
#: nobody waits: 100,000 lone messages take 20 ms to look through.
SEARCHED_BYTES = 4 * GROWN_BYTES
#: A process that spends less than this share of a second working has nobody who waits.
QUIET = 0.2

#: Of <malloc.h>. A block from this size on is a mapping of its own, which goes back with its last user; the C library
#: by itself would raise that to 32 MiB after the first large block, and then keep what lies between two blocks.
_M_MMAP_THRESHOLD = -3
#: Somewhat more than what a connection reads at once.
_MAPPED_BYTES = 2 << 20
#: What is free at the end of a heap goes back from this size on. By itself the C library would follow the threshold
#: above, but not once that is chosen: it stays at 128 KiB then, so that each batch gave its arrays back and the next
#: one took them anew, page by page, which cost as much as everything else that was done with it.
_M_TRIM_THRESHOLD = -1
_TRIMMED_BYTES = 8 << 20
#: Threads share so many heaps: each keeps what its threads once needed.
_M_ARENA_MAX = -8
_ARENAS = 2

_PAGE_BYTES = resource.getpagesize()


def resident_bytes() -> int:
    """Return how much of the process is in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


def memory_bytes(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int:
    """Return how much memory the process may use: the machine's, or less where a control group says so.

    Both kinds of control groups are looked at, and every group above its own.
    """
    with open(f"{proc}/meminfo", encoding="ascii") as file:
        least = int(file.readline().split()[1]) << 10
    try:
        with open(f"{proc}/self/cgroup", encoding="utf-8") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:  # a kernel without them
        return least
    for number, kinds, path in lines:
        if number == "0":
            root, name = cgroups, "memory.max"
        elif "memory" in kinds.split(","):
            root, name = f"{cgroups}/memory", "memory.limit_in_bytes"
        else:
            continue
        names = path.strip("/").split("/")
        for depth in range(len(names), -1, -1):  # in a container its own group is often the root it sees
            with suppress(OSError, ValueError), open("/".join((root, *names[:depth], name)), encoding="ascii") as file:
                least = min(least, int(file.read()))  # "max" is no number, and no limit
    return least


def keep_little() -> None:
    """Have the C library keep a batch's worth of what is freed, and little more; before there are threads."""
    with suppress(OSError, AttributeError):  # another C library has other habits
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIMMED_BYTES)
        libc.mallopt(_M_ARENA_MAX, _ARENAS)


def without_pandas() -> None:
    """Have pyarrow do without pandas in this process: a node meets no DataFrame.

    With its first array pyarrow looks for pandas and loads it where it is installed, as it is beside PySpark: 0.3 s and
    30 MB of every node's start.
    """
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)


class _NoPandas:
    """Finds modules, and of pandas that there is none."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not wanted here")


def release_arrow() -> None:
    """Give back what Arrow's allocator keeps; under a millisecond, and on the main thread, or it does not look."""
    pa.default_memory_pool().release_unused()


def trim() -> None:
    """Give back what the C library keeps; some ms, on any thread."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Resident:
    """Gives memory back whenever the process has grown, and once what it grew by is free."""

    def __init__(
        self,
        clock: Clock,
        run: Callable[[Callable[[], None], Callable[[], None]], None],
        size: Callable[[], int] = resident_bytes,
        give: Callable[[], None] = trim,
        spent: Callable[[], int] = time.process_time_ns,
        search: Callable[[int], object] = gc.collect,
        used: Callable[[], int] = pa.total_allocated_bytes,
    ) -> None:
        self._clock = clock
        #: Runs the first in a thread, then the second on the loop.
        self._run = run
        self._size = size
        self._give = give
        #: Processor time of this process so far.
        self._spent = spent
        self._search = search
        #: What somebody holds of Arrow's memory, and what was held when the rest was last given back.
        self._used = used
        self._used_then = 0
        self._floor = size()
        #: Its size when everything was searched.
        self._searched = self._floor
        self._worked_ns = spent()
        self._busy = False
        self._timer: Timer = clock.call_at(clock.monotonic() + LOOK_NS, self._look)
        #: How often it was asked to.
        self.given = 0

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._clock.call_at(self._clock.monotonic() + LOOK_NS, self._look)
        size, before_ns = self._size(), self._worked_ns
        self._worked_ns = self._spent()
        if self._busy:
            return
        used = self._used()
        # What was in use when the process was seen to grow stays with Arrow after its end, and nothing grows then.
        if size < self._floor + GROWN_BYTES and used > self._used_then - GROWN_BYTES:
            self._floor = min(self._floor, size)
            return
        self._busy = True
        self._used_then = used
        # What connections held is gone without this; it is for whatever else made a cycle. Each object is looked at
        # once or twice, so that is bounded work.
        self._searched = min(self._searched, size)
        deep = size >= self._searched + SEARCHED_BYTES or self._worked_ns - before_ns < QUIET * LOOK_NS
        self._search(1 if deep else 0)
        if deep:
            self._searched = size
        release_arrow()
        self._run(self._give, self._given)

    def _given(self) -> None:
        self._busy = False
        self._floor = self._size()
        self.given += 1
