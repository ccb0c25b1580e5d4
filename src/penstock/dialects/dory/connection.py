"""One connection of a sender, over a UNIX stream or TCP: messages in, and never a byte out.

Owns its framing and its end. It gets one full read a turn (ruling 25) and is otherwise read as fast as it sends: what
the node cannot keep is thrown away and counted, its sender is not made to wait. A message may take any time to come:
programs write what they have when they have it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from penstock.budget import Wait
from penstock.dialects.dory.codec import Stream
from penstock.errors import Refusal
from penstock.wire.reading import READ_BYTES_MAX

if TYPE_CHECKING:
    from penstock.dialects.dory.door import Door
    from penstock.dialects.dory.running import Dory


class Connection(asyncio.Protocol):
    """What asyncio calls, and what becomes of it."""

    __slots__ = (
        "__weakref__",
        "_door",
        "_held",
        "_is_over",
        "_service",
        "_stream",
        "_transport",
        "connected_ns",
        "name",
    )

    def __init__(self, service: Dory, door: Door) -> None:
        self._service = service
        self._door = door
        self._stream = Stream(service.config.max_stream_msg_size)
        self._transport: asyncio.Transport | None = None
        #: A part of a message, while there is only that.
        self._held: Wait | None = None
        #: How it ended is counted.
        self._is_over = False
        self.name = ""
        self.connected_ns = 0

    @property
    def listener(self) -> str:
        """The key of the endpoint it came to."""
        return self._door.listener

    # --- asyncio calls these --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else "unix"
        node = self._service.node
        self.connected_ns = node.clock.now()
        why = self._service.crowd.refusal(self._door.listener, transport)
        if why:
            node.count_fault("dory", "too_many_connections", why, self.name)
            self._is_over = True
            self._transport.abort()
            return
        self._service.enter(self, self._door)

    def data_received(self, data: bytes) -> None:
        """Handle one read."""
        if self._is_over:
            return
        if len(data) >= READ_BYTES_MAX and self._transport is not None:
            self._transport.pause_reading()
            self._service.node.clock.call_soon(self._next_turn)
        stream = self._stream
        try:
            data, starts, stops = stream.cut(data)
            if len(starts):
                self._door.take(data, starts, stops, self)
            if stream.fault:
                self._give_up()
            elif stream.held or self._held is not None:
                self._hold()
        except Exception as failure:  # a bug must cost one connection, not the node
            self._service.node.report_bug("dory", failure)
            self._end("SocketError")

    def eof_received(self) -> bool:
        """Take note of how its sender ended; asyncio closes the other half."""
        if not self._is_over:
            if self._stream.held:
                kind = "unclean_tcp" if self._door.prefix == "TcpInput" else "unclean_unix"
                self._door.tell(kind, [self._stream.rest()])  # type: ignore[arg-type]
            self._count("UncleanDisconnect" if self._stream.held else "CleanDisconnect")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if not self._is_over:
            self._count("SocketError" if exc is not None else "CleanDisconnect")
        self._transport = None
        self._stream.forget()
        self._hold()
        self._service.leave(self, self._door)

    # --- the end --------------------------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """End it because the node does."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()

    def _give_up(self) -> None:
        """End it at once: nobody knows where its next message begins."""
        self._door.tell("malformed", [self._stream.rest()])
        self._end("InvalidSizeField" if self._stream.fault == "size" else "MsgBodyTooLarge")

    def _end(self, how: str) -> None:
        self._count(how)
        self._stream.forget()
        self._hold()
        if self._transport is not None:
            self._transport.abort()

    def _count(self, how: str) -> None:
        self._is_over = True
        self._service.counters[self._door.prefix + how] += 1

    # --- what is held ---------------------------------------------------------------------------------------------

    def _hold(self) -> None:
        """Count what came of a message that is not all there."""
        bodies, held = self._service.node.budget.body, self._stream.held
        self._held = bodies.keep(self._held, held, self._door.listener, self._cut, paced=False)

    def _cut(self, why: Refusal) -> None:
        """Give way: too much memory is held for messages that are not all there."""
        self._service.node.count_fault("dory", why.code, str(why), self.name)
        kind = "unclean_tcp" if self._door.prefix == "TcpInput" else "unclean_unix"
        self._door.tell(kind, [self._stream.rest()])  # type: ignore[arg-type]
        self._end("UncleanDisconnect")

    def _next_turn(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
