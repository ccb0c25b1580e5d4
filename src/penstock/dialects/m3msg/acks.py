"""The acks of one connection that have not left: gathered by number, by size and by time, in the order they came.

Owns when an Ack frame is made. Knows nothing of messages or of what stored them.
Invariant: every entry leaves once, in a frame that its producer can read, unless the connection ends first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from penstock.clock import Clock, Timer
from penstock.m3 import acks

#: Held entries leave when they weigh this much, however many may be held: they are memory, and a large write is no
#: cheaper than this.
HELD_BYTES_MAX = 256 * 1024

Entries: TypeAlias = "list[bytes] | pa.Array"


class Acks:
    """What is still to be acked on one connection."""

    __slots__ = (
        "_bytes",
        "_clock",
        "_count",
        "_count_max",
        "_frame_bytes_max",
        "_interval_ns",
        "_pieces",
        "_timer",
        "_write",
    )

    def __init__(
        self, clock: Clock, write: Callable[[bytes, int], None], count_max: int, interval_ns: int, frame_bytes_max: int
    ) -> None:
        """Take where frames go, with how many acks are in them, and how many may wait, for how long."""
        self._clock = clock
        self._write = write
        self._count_max = count_max
        self._interval_ns = interval_ns
        self._frame_bytes_max = frame_bytes_max
        self._pieces: list[Entries] = []
        self._count = self._bytes = 0
        self._timer: Timer | None = None

    def add(self, entries: Entries) -> None:
        """Ack messages: now, if enough wait, or a moment later."""
        while self._count + len(entries) > self._count_max:
            room = self._count_max - self._count
            self._hold(entries[:room])
            self.flush()
            entries = entries[room:]
        self._hold(entries)
        if self._count >= self._count_max or self._bytes >= HELD_BYTES_MAX:
            self.flush()
        elif self._count and self._timer is None:
            self._timer = self._clock.call_at(self._clock.monotonic() + self._interval_ns, self.flush)

    def flush(self) -> None:
        """Send everything that waits."""
        pieces, count = self._pieces, self._count
        self.forget()
        if count:
            self._write(acks.acks(pieces, self._frame_bytes_max).wire, count)

    def forget(self) -> None:
        """Send nothing of it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pieces = []
        self._count = self._bytes = 0

    def _hold(self, entries: Entries) -> None:
        if len(entries):
            self._pieces.append(entries)
            self._count += len(entries)
            self._bytes += sum(map(len, entries)) if isinstance(entries, list) else entries.nbytes
