"""NSQ over TCP: sockets, heartbeats and back-pressure around a `Session`.

One connection gets one full read a turn (ruling 25), all of them read into one shared buffer, and a client that
does not read is first not served any more and then cut off.
"""

from __future__ import annotations

import asyncio
from typing import cast

from penstock.clock import SECOND, Timer
from penstock.config import NsqConfig
from penstock.dialects.nsq.codec import HEARTBEAT, MAGIC, error
from penstock.dialects.nsq.session import Session
from penstock.message import Buffer
from penstock.node import Node

#: One read takes at most this; measured: larger ones delay the neighbours, smaller ones cost throughput.
READ_BYTES_MAX = 256 * 1024

#: A client has this long to say which protocol it speaks.
MAGIC_TIMEOUT_NS = 60 * SECOND

#: After a fatal error the peer may take this long to hang up as well.
LINGER_NS = SECOND


class Server:
    """All NSQ connections of a node."""

    def __init__(self, node: Node, config: NsqConfig) -> None:
        self.node = node
        self.config = config
        self.connections: set[Connection] = set()
        self.receive_buffer = memoryview(bytearray(READ_BYTES_MAX))

    def connect(self) -> Connection:
        """Make the protocol of a new connection."""
        return Connection(self)

    def close(self) -> None:
        """Hang up on everybody."""
        for connection in list(self.connections):
            connection.hang_up()


class Connection(asyncio.BufferedProtocol):
    """One socket."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._clock = server.node.clock
        self._transport: asyncio.Transport | None = None
        self._greeting = b""
        self._greeted = False
        self._out: list[Buffer] = []
        self._inside = False
        self._closing = False
        self._paused = False
        self._last_read_ns = 0
        self._blocked_ns = 0
        self._timer: Timer | None = None
        self.session: Session

    # --- asyncio calls these --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._server.config.max_client_output_size)
        peer = transport.get_extra_info("peername")
        name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else str(peer)
        self.session = Session(self._server.node, self._server.config, self, name)
        self._server.connections.add(self)
        self._last_read_ns = self._clock.monotonic()
        self._arm_beat()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Lend the shared buffer for one read."""
        return self._server.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Handle one read."""
        data = bytes(self._server.receive_buffer[:nbytes])
        self._last_read_ns = self._clock.monotonic()
        if nbytes == READ_BYTES_MAX and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
            self._clock.call_soon(self._resume)
        self.receive(data)

    def receive(self, data: bytes) -> None:
        """Handle bytes, whatever their way here was."""
        if not self._greeted:
            data = self._greet(data)
        if self._closing or not data:
            return
        self._inside = True
        try:
            self.session.receive(data)
        except Exception as failure:  # a bug must cost one connection, not the node
            self._server.node.report_bug("nsq", failure)
            self.hang_up()
        finally:
            self._inside = False
            if self._out:
                self._flush()

    def _greet(self, data: bytes) -> bytes:
        """Look for the magic bytes and return what came after them."""
        self._greeting += data
        if self._greeting.startswith(MAGIC):
            self._greeted = True
            return self._greeting[len(MAGIC) :]
        if not MAGIC.startswith(self._greeting):
            self._server.node.count_fault("nsq", "E_BAD_PROTOCOL", repr(self._greeting[:16]), self.session.name)
            self.write(error("E_BAD_PROTOCOL", "this port speaks NSQ V2: send two spaces, V, 2 first"))
            self.hang_up()
        return b""

    def eof_received(self) -> bool:
        """Let asyncio close the other half too."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._closing = True
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._server.connections.discard(self)
        self.session.close()

    def pause_writing(self) -> None:
        """Stop producing: the client does not read."""
        self._blocked_ns = self._clock.monotonic()
        if self.session.consumer is not None:
            self.session.consumer.blocked = True

    def resume_writing(self) -> None:
        """Go on producing."""
        self._blocked_ns = 0
        session = self.session
        if session.consumer is not None and session.subscription is not None and session.topic is not None:
            session.consumer.blocked = False
            session.subscription.queue(session.consumer)
            session.topic.pump(session.subscription)

    # --- the session calls these ----------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Send bytes; what one read leads to leaves in one write."""
        if self._inside:
            self._out.append(data)
        elif self._transport is not None and not self._closing:
            self._transport.write(data)

    def retime(self) -> None:
        """Beat at the interval that was just agreed on."""
        if self._timer is not None and not self._closing:
            self._timer.cancel()
            self._arm_beat()

    def hang_up(self) -> None:
        """Close once everything sent has left."""
        if self._closing:
            return
        self._flush()
        self._closing = True
        self.session.close()
        if self._transport is not None:
            # Closing with unread input would reset the connection, and the peer might never see the last frame:
            # so close our half, let the rest of its input run out, and end when it does or does not.
            self._transport.write_eof()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._clock.call_at(self._clock.monotonic() + LINGER_NS, self._abort)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        if self._out:
            out, self._out = self._out, []
            if self._transport is not None and not self._closing:
                self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _resume(self) -> None:
        self._paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _beat_ns(self) -> int:
        return self.session.agreed.heartbeat_ns or self._server.config.heartbeat_interval_ns

    def _arm_beat(self) -> None:
        self._timer = self._clock.call_at(self._clock.monotonic() + self._beat_ns(), self._beat)

    def _beat(self) -> None:
        if self._transport is None:
            return
        now_ns = self._clock.monotonic()
        interval_ns = self._beat_ns()
        silent_ns = now_ns - self._last_read_ns
        if not self._greeted and silent_ns >= MAGIC_TIMEOUT_NS:
            self._cut_off("said nothing for 60 s after connecting")
        elif self.session.agreed.heartbeat_ns and silent_ns >= 2 * interval_ns:
            self._cut_off(f"silent for {silent_ns // SECOND} s, two heartbeats")
        elif self._blocked_ns and now_ns - self._blocked_ns >= interval_ns:
            self._cut_off(f"did not read for {(now_ns - self._blocked_ns) // SECOND} s")
        else:
            if self._greeted and self.session.agreed.heartbeat_ns and not self._closing:
                self.session.send(HEARTBEAT)
            self._arm_beat()

    def _cut_off(self, why: str) -> None:
        self._server.node.count_fault("nsq", "cut_off", why, self.session.name)
        self._closing = True
        if self._transport is not None:
            self._transport.abort()
