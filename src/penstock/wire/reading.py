"""Whether a connection is read: not while there is any reason against it.

The reasons are bits of whoever has the connection; knows none of them.
Invariant: its transport is paused while some reason stands, and read else.
"""

from __future__ import annotations

import asyncio

#: A read of this many bytes is a full one: uvloop's are never larger. Measured: larger ones delay the neighbours,
#: smaller ones cost throughput. Who fills a read is not read again before everybody else had a turn.
READ_BYTES_MAX = 256_000


class Reading:
    """The reasons why one connection is not read now."""

    __slots__ = ("_transport", "stopped")

    def __init__(self) -> None:
        #: The reasons that stand; 0 while it is read.
        self.stopped = 0
        self._transport: asyncio.Transport | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        """Have a connection."""
        self._transport = transport
        if self.stopped:
            transport.pause_reading()

    def end(self) -> None:
        """Have none any more."""
        self._transport = None

    def stop(self, why: int) -> None:
        """Read nothing while this reason stands."""
        if not self.stopped and self._transport is not None:
            self._transport.pause_reading()
        self.stopped |= why

    def start(self, why: int) -> None:
        """Read on, unless another reason stands."""
        if self.stopped:
            self.stopped &= ~why
            if not self.stopped and self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()
