"""Real processes for tests of those who look after them, and a way to wait for what they do without sleeping long."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.cli.program import SECONDS_MAX


def until(condition: Callable[[], bool], what: str = "it") -> None:
    """Wait until something outside this process holds; nobody tells, so it is looked at often."""
    end = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < end, f"{what} never came true"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and was not let go yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")


def descendants(pid: int) -> list[int]:
    """Return every process below one, as /proc tells it at this moment."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_bytes().rpartition(b")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def pids(path: Path) -> list[int]:
    """Return the numbers that processes wrote to a file, a line each."""
    try:
        return [int(line) for line in path.read_text().split()]
    except OSError:
        return []


def text(path: Path) -> str:
    """Return what is in a file, nothing if there is none."""
    return path.read_text() if path.exists() else ""


#: A command that starts a child, and that one another, some in sessions of their own, all deaf to SIGTERM.
FAMILY = """
import os, signal, subprocess, sys, time
depth, path = int(sys.argv[1]), sys.argv[2]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(path, "a") as file:
    file.write(f"{os.getpid()}\\n")
if depth:
    os.setsid() if depth < 2 else None
    subprocess.Popen([sys.executable, __file__, str(depth - 1), path])
print("born", depth, flush=True)
time.sleep(600)
"""


def script(directory: Path, content: str, name: str = "program.py") -> str:
    """Write a program."""
    path = directory / name
    path.write_text(content)
    return os.fspath(path)
