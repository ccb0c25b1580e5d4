"""How a server is measured: CPU time, memory, rounds taken in turns, medians.

Knows processes and numbers, no protocol. Invariant: what a server still does after its last reply (write-back,
sealing, pumping) is waited for and counted as its CPU time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import msgspec

#: A server that used less than this in one look is idle: 2 % of a core, above the housekeeping of all peers.
IDLE_CPU_NS = 2_000_000
LOOK_SECONDS = 0.1
#: The unit of times in /proc.
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
SETTLE_SECONDS_MAX = 30.0


class Sample(msgspec.Struct, frozen=True):
    """One server in one round."""

    rate: float
    cpu_us: float
    p50_us: float = 0.0
    p99_us: float = 0.0


class Reading(msgspec.Struct, frozen=True):
    """One server over all rounds: medians, and how far the rate spread."""

    rate: float
    cpu_us: float
    p50_us: float
    p99_us: float
    rate_min: float
    rate_max: float
    rounds: int


def cpu_ns(pid: int) -> int:
    """Return the CPU time of a process and its children so far, those that have ended included.

    The kernel's clock of a process counts threads that have ended too; adding up the threads of /proc would lose
    those, and with them work such as a segment rewritten in a passing thread.
    """
    return sum(map(_spent_ns, family(pid)))


def rss_bytes(pid: int) -> int:
    """Return the resident memory of a process and its children."""
    return sum(_status_kib(member, "VmRSS") for member in family(pid)) * 1024


def pss_bytes(pid: int) -> int:
    """Return the memory of one process, with its part of what it shares with others; 0 if it has just ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    except (ProcessLookupError, FileNotFoundError):
        return 0


def rss_peak_bytes(pid: int) -> int:
    """Return the most that was ever resident."""
    return sum(_status_kib(member, "VmHWM") for member in family(pid)) * 1024


def settle(pid: int) -> None:
    """Wait until a server has nothing left to do."""
    end = time.monotonic() + SETTLE_SECONDS_MAX
    before = cpu_ns(pid)
    while time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
        after = cpu_ns(pid)
        if after - before < IDLE_CPU_NS:
            return
        before = after


def quiet() -> None:
    """Write back what the last server left dirty, so that the next one does not wait for its disk."""
    os.sync()


def interleaved(rounds: int, turns: Mapping[str, Callable[[], Sample]]) -> dict[str, Reading]:
    """Let every server have its turn in every round, and return the medians by name."""
    samples: dict[str, list[Sample]] = {name: [] for name in turns}
    for _ in range(rounds):
        for name, turn in turns.items():
            quiet()
            samples[name].append(turn())
    return {name: reading(taken) for name, taken in samples.items()}


def reading(samples: list[Sample]) -> Reading:
    """Return the medians of some samples."""
    rates = [sample.rate for sample in samples]
    return Reading(
        rate=median(rates),
        cpu_us=median(sample.cpu_us for sample in samples),
        p50_us=median(sample.p50_us for sample in samples),
        p99_us=median(sample.p99_us for sample in samples),
        rate_min=min(rates),
        rate_max=max(rates),
        rounds=len(samples),
    )


def family(pid: int) -> list[int]:
    """Return a process and its descendants; not every kernel lists children, so parents are asked."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(_parent(entry), []).append(int(entry.name))
    found = [pid]
    for member in found:
        found.extend(children.get(member, []))
    return found


def _spent_ns(pid: int) -> int:
    try:
        own_ns = time.clock_gettime_ns((~pid << 3) | 2)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended since it was listed; its parent has its time by now
        return 0
    return own_ns + (int(fields[13]) + int(fields[14])) * TICK_NS


def _parent(process: Path) -> int:
    try:
        text = (process / "stat").read_text()
    except OSError:  # it has ended since the directory was listed
        return 0
    return int(text.rpartition(")")[2].split()[1])


def _status_kib(pid: int, key: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1])
    return 0
