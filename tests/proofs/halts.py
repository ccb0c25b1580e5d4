"""Places where a process stands still until it is killed or told to go on; agreed on through files in a directory.

Both sides use it: a proof arms a place and waits until somebody stands there, and a process passes by its places. A
place that is not armed costs one look for a file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

LOOK_S = 0.005
#: More than a Spark driver needs to start and to get to any place, on however busy a machine.
DEADLINE_S = 180.0


class NotReached(Exception):
    """Nobody came to a place in time."""


class Halts:
    """The places below one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def arm(self, place: str) -> None:
        """Let the next one who comes to a place stand still there."""
        (self._directory / f"{place}.armed").touch()

    def reached(self, place: str, alive: Callable[[], None] = lambda: None) -> int:
        """Wait until somebody stands at a place and return his process id; `alive` raises if nobody will come."""
        path = self._directory / f"{place}.reached"
        end = time.monotonic() + DEADLINE_S
        while not (path.exists() and (pid := path.read_text())):
            alive()
            if time.monotonic() > end:
                raise NotReached(f"nobody came to {place} within {DEADLINE_S:.0f} s")
            time.sleep(LOOK_S)
        return int(pid)

    def release(self, place: str) -> None:
        """Let whoever stands at a place go on."""
        (self._directory / f"{place}.reached").unlink(missing_ok=True)

    def passing(self, place: str) -> None:
        """Come to a place: stand still there if it was armed."""
        reached = self._directory / f"{place}.reached"
        try:
            (self._directory / f"{place}.armed").rename(reached)
        except FileNotFoundError:
            return
        reached.write_text(str(os.getpid()))
        while reached.exists():
            time.sleep(LOOK_S)
