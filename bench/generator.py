"""The load generator as a Python call: options in, what it saw out.

Owns the command line and the JSON of `load/`. Knows nothing of servers or rows.
"""

from __future__ import annotations

import subprocess
from typing import Final

import msgspec

from bench import supply

#: Longer than any row needs, so that a generator which waits for ever fails its row instead of the whole run.
RUN_SECONDS_MAX: Final = 900


class LoadFailed(Exception):
    """The generator stopped with an error: a refused command, a closed connection, a stall."""


class Run(msgspec.Struct, frozen=True):
    """What one run of the generator saw; fields that its mode does not print stay 0, others are ignored."""

    messages: int
    seconds: float
    published: int = 0
    redelivered: int = 0
    #: Monotonic seconds, the clock of `time.monotonic`.
    first_at: float = 0.0
    ended_at: float = 0.0
    min_us: float = 0.0
    p50_us: float = 0.0
    p99_us: float = 0.0
    p999_us: float = 0.0
    #: Datagrams sent beside the messages, and what one, or a message, cost the generator itself.
    fired: int = 0
    cpu_us: float = 0.0

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds


def load(mode: str, **options: str | float) -> Run:
    """Run one mode to its end."""
    return finished(started(mode, **options))


def started(mode: str, **options: str | float) -> subprocess.Popen[str]:
    """Start one mode and leave it running."""
    words = [f"{key}={value}" for key, value in options.items()]
    command = [str(supply.load()), mode, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> Run:
    """Wait for a started mode and return what it saw."""
    try:
        out, error = process.communicate(timeout=RUN_SECONDS_MAX)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    if process.returncode:
        raise LoadFailed(error.strip() or f"exit status {process.returncode}")
    return msgspec.json.decode(out, type=Run)
