"""The machine that a table was measured on, so that nobody compares numbers of two machines."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import msgspec


class Machine(msgspec.Struct, frozen=True):
    """Cores, memory, CPU, kernel, Python, and how busy it was before the run."""

    cores: int
    memory_bytes: int
    cpu: str
    kernel: str
    python: str
    load: float
    when: str

    def words(self) -> str:
        """Return the machine in one phrase."""
        memory = f"{self.memory_bytes / (1 << 30):.0f} GiB"
        system = f"Linux {self.kernel}, Python {self.python}, load {self.load:.1f} at the start"
        return f"{self.cores} cores ({self.cpu}), {memory}, {system}"


def this_machine() -> Machine:
    """Describe the machine this runs on."""
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        cpu=_cpu_model(),
        kernel=platform.release(),
        python=platform.python_version(),
        load=os.getloadavg()[0],
        when=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return platform.machine()
