"""Message frames that wait for company: for a client that asked for fewer and larger writes at the price of a delay.

Owns what one connection holds back, and for how long. Stands between the reply queue and the socket; clients that
did not ask have none, so the common way out does not pass here.
Invariant: nothing overtakes a frame that is held back, and none is held longer than was agreed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.clock import Clock, Timer
from penstock.columns import Buffer
from penstock.dialects.nsq.tcp.replies import Writer


class Gatherer:
    """One connection's output buffer."""

    __slots__ = ("_bytes", "_bytes_max", "_clock", "_held", "_hold_ns", "_timer", "_writer")

    def __init__(self, writer: Writer, clock: Clock, bytes_max: int, hold_ns: int) -> None:
        self._writer = writer
        self._clock = clock
        self._bytes_max = bytes_max
        self._hold_ns = hold_ns
        self._held: list[Buffer] = []
        self._bytes = 0
        self._timer: Timer | None = None

    def write(self, data: Buffer) -> None:
        """Send a frame that may not wait, behind those that do."""
        if self._held:
            self._held.append(data)
            self.flush()
        else:
            self._writer.write(data)

    def gather(self, data: Buffer) -> None:
        """Hold message frames until there is enough of them or their time is up."""
        self._held.append(data)
        self._bytes += len(memoryview(data))
        if self._bytes >= self._bytes_max:
            self.flush()
        elif self._timer is None:
            self._timer = self._clock.call_at(self._clock.monotonic() + self._hold_ns, self.flush)

    def flush(self) -> None:
        """Send everything that is held."""
        held = self._held
        self.forget()
        for piece in joined(held, self._bytes_max):
            self._writer.write(piece)

    def forget(self) -> None:
        """Send nothing of it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held = []
        self._bytes = 0


def joined(parts: Sequence[Buffer], bytes_max: int) -> Iterator[Buffer]:
    """Yield the parts in order, small neighbours as one of about `bytes_max`; what is large by itself is not copied."""
    few: list[Buffer] = []
    have = 0
    for part in parts:
        size = len(memoryview(part))
        if few and have + size > bytes_max:
            yield few[0] if len(few) == 1 else b"".join(few)
            few, have = [], 0
        few.append(part)
        have += size
    if few:
        yield few[0] if len(few) == 1 else b"".join(few)
