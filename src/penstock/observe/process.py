"""What the operating system says of this process, under the names Prometheus' own clients use."""

from __future__ import annotations

import os
import resource
import time

from penstock.observe.exposition import Exposition

_PAGE_BYTES = resource.getpagesize()


def describe(out: Exposition) -> None:
    """Add memory, processor time and open files of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = file.read().split()
    out.one("process_resident_memory_bytes", "gauge", "Resident memory size.", int(pages[1]) * _PAGE_BYTES)
    out.one("process_virtual_memory_bytes", "gauge", "Virtual memory size.", int(pages[0]) * _PAGE_BYTES)
    out.one("process_cpu_seconds_total", "counter", "User and system CPU time spent.", time.process_time())
    out.one("process_open_fds", "gauge", "Open file descriptors.", len(os.listdir("/proc/self/fd")))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    out.one("process_max_fds", "gauge", "Open file descriptors allowed.", limit)
