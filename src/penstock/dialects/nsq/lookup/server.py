"""The lookup service over TCP: sockets around a `Session`.

A node that does not read its replies is not read from either, one that says nothing at all is cut off after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from penstock.budget import Waiting
from penstock.callers import Gate
from penstock.clock import SECOND, Clock, Timer
from penstock.dialects.nsq.lookup.codec import Identity, error
from penstock.dialects.nsq.lookup.directory import Directory
from penstock.dialects.nsq.lookup.session import Fault, Session
from penstock.wire.crowd import Crowd

#: A node has this long to say which protocol it speaks.
MAGIC_TIMEOUT_NS = 60 * SECOND

#: After an error the peer may take this long to hang up as well.
LINGER_NS = SECOND

#: Told about a failure that should not exist.
Bug = Callable[[str, BaseException], None]


class Server:
    """All nodes that are connected."""

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        me: Callable[[], Identity],
        fault: Fault,
        report_bug: Bug,
        bodies: Waiting,
        gate: Gate,
        crowd: Crowd | None = None,
    ) -> None:
        self.directory = directory
        self.clock = clock
        self.me = me
        self.fault = fault
        self.report_bug = report_bug
        #: Commands that are not all there are held in it.
        self.bodies = bodies
        self.gate = gate
        self.crowd = crowd or Crowd()
        self.connections: set[Connection] = set()

    def connect(self) -> Connection:
        """Make the protocol of a new connection."""
        return Connection(self)

    def close(self) -> None:
        """Hang up on everybody."""
        for connection in list(self.connections):
            connection.hang_up()


class Connection(asyncio.Protocol):
    """One socket."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._clock = server.clock
        self._transport: asyncio.Transport | None = None
        self._timer: Timer | None = None
        self._closing = False
        self._address = ""
        self.session: Session

    # --- asyncio calls these --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else str(peer)
        server = self._server
        self.session = Session(
            server.directory, server.clock, server.me, self, name, server.fault, server.bodies, server.gate
        )
        address = name.rpartition(":")[0]
        if why := server.crowd.refusal(address, transport):
            server.fault("too_many_connections", why, name)
            self._closing = True
            self._transport.write(error("E_TOO_MANY_CONNECTIONS", why))
            self._transport.close()
            return
        server.crowd.enter(address)
        self._address = address
        server.connections.add(self)
        self._timer = self._clock.call_at(self._clock.monotonic() + MAGIC_TIMEOUT_NS, self._late)

    def data_received(self, data: bytes) -> None:
        """Handle one read."""
        if self._closing:
            return
        try:
            self.session.receive(data)
        except Exception as failure:  # a bug must cost one connection, not the service
            self._server.report_bug("nsq lookup", failure)
            self.hang_up()

    def eof_received(self) -> bool:
        """Let asyncio close the other half too."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._closing = True
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self in self._server.connections:
            self._server.connections.discard(self)
            self._server.crowd.leave(self._address)
        self.session.close()
        del self.session  # it knows this one, and the collector comes by only some day

    def pause_writing(self) -> None:
        """Take nothing more in: the node does not read."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # --- the session calls these ----------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self._transport is not None and not self._closing:
            self._transport.write(data)

    def hang_up(self) -> None:
        """Close once everything sent has left."""
        if self._closing:
            return
        self._closing = True
        self.session.close()
        if self._transport is not None:
            # Closing with unread input would reset the connection, and the peer might never see the last reply.
            self._transport.write_eof()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._clock.call_at(self._clock.monotonic() + LINGER_NS, self._abort)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _late(self) -> None:
        if not self.session.greeted:
            self._server.fault("cut_off", "said nothing for 60 s after connecting", self.session.name)
            self._abort()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
