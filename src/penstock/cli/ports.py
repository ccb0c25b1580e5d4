"""Who listens on a port of this machine, as the kernel tells it under /proc.

Knows nothing of Penstock's own listeners. Reads only; a process of another user stays unnamed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: Connection state "listening" in /proc/net/tcp.
LISTEN = "0A"


class Holder(NamedTuple):
    """The process behind a port."""

    name: str
    pid: int

    def __str__(self) -> str:
        """Return it as errors name it: nsqd (pid 812)."""
        return f"{self.name} (pid {self.pid})"


def holder(port: int, proc: Path = Path("/proc")) -> Holder | None:
    """Return who listens on a port, or None if nobody does or it may not be known."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port, proc)}
    if not sockets:
        return None
    for process in _processes(proc):
        if any(link in sockets for link in _links(process / "fd")):
            return Holder(name_of(process), int(process.name))
    return None


def name_of(process: Path) -> str:
    """Return a process's name; that of the program where an interpreter runs one."""
    try:
        name = (process / "comm").read_text().strip()
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "a process"
    if not name.startswith("python"):
        return name
    if "-m" in words[:-1]:  # `python -m penstock.cli` is penstock
        return words[words.index("-m") + 1].partition(".")[0]
    return next((os.path.basename(word) for word in words[1:] if word and not word.startswith("-")), name)


def _listening(port: int, proc: Path) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == LISTEN and int(words[1].rpartition(":")[2], 16) == port:
                yield words[9]


def _processes(proc: Path) -> list[Path]:
    try:
        return [proc / name for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return []


def _links(directory: Path) -> Iterator[str]:
    try:
        names = os.listdir(directory)
    except OSError:  # it ended just now, or belongs to somebody else
        return
    for name in names:
        try:
            yield os.readlink(directory / name)
        except OSError:
            continue
