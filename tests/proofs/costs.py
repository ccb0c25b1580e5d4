"""What a process costs, as the kernel counts it: memory, CPU time, open files."""

from __future__ import annotations

import time
from pathlib import Path

#: A process that used less CPU than this between two looks has nothing left to do.
IDLE_NS = 2_000_000
LOOK_S = 0.1
SETTLE_S_MAX = 30.0


def pss_bytes(pid: int) -> int:
    """Return the memory of a process, what it shares with others counted in parts."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"the kernel does not tell the memory of process {pid}")


def cpu_ns(pid: int) -> int:
    """Return the CPU time of a process so far."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def open_files(pid: int) -> int:
    """Return how many files and sockets a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def settle(pid: int) -> None:
    """Wait until a process is idle, so that what it does later is not counted as memory."""
    end = time.monotonic() + SETTLE_S_MAX
    before = cpu_ns(pid)
    while time.monotonic() < end:
        time.sleep(LOOK_S)
        after = cpu_ns(pid)
        if after - before < IDLE_NS:
            return
        before = after
