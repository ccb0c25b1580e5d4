"""NSQ over TCP: sockets, heartbeats, back-pressure and layers around a `Session`.

One connection gets one full read a turn (ruling 25), and a client that does not read is first not served any more
and then cut off. The loop has one buffer for all reads; a connection keeps only what is not decoded yet.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from functools import partial
from typing import cast

from penstock.budget import Wait
from penstock.callers import Caller
from penstock.clock import SECOND, Timer
from penstock.columns import Buffer
from penstock.dialects.nsq.codec import HEARTBEAT, MAGIC, error
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.lookup.address import crowd
from penstock.dialects.nsq.tcp.auth import Ask, Authenticator
from penstock.dialects.nsq.tcp.identify import Agreed
from penstock.dialects.nsq.tcp.service import Service
from penstock.dialects.nsq.tcp.session import Session
from penstock.dialects.nsq.tcp.splice import About, about
from penstock.dialects.nsq.tcp.upgrade import Upgrade
from penstock.errors import Refusal
from penstock.node.node import Node
from penstock.wire.layers import LayerError
from penstock.wire.reading import READ_BYTES_MAX, Reading
from penstock.wire.tls import TlsFacts

#: A client has this long to say which protocol it speaks.
MAGIC_TIMEOUT_NS = 60 * SECOND

#: A TLS handshake may take this long; nsqd gives as much.
HANDSHAKE_TIMEOUT_NS = 5 * SECOND

#: After a fatal error the peer may take this long to hang up as well.
LINGER_NS = SECOND

#: Closing with this leaves nothing behind and resets the connection.
_RESET = struct.pack("ii", 1, 0)

#: Why a connection is not read: it had its turn, its session waits for an answer, its layers hold more, it reads none.
_TURN, _WAIT, _MORE, _FULL = 1, 2, 4, 8
#: Or another node, which has its session, does not read.
_AWAY = 16

#: A consumer that does not read may still ack; if the answers to that make so many times the agreed output, it goes.
OUTPUT_TIMES_MAX = 4


class Server:
    """All NSQ connections of a node."""

    def __init__(self, node: Node, config: NsqConfig, ask: Ask | None = None) -> None:
        self.node = node
        self.config = config
        self._authenticator: Authenticator | None = None
        if ask is None and config.auth_http_addresses:
            self._authenticator = Authenticator(config.auth_http_addresses, config.auth_http_request_method)
            ask = self._authenticator.ask
        self.service = Service(node, config, ask)
        self.connections: set[Connection] = set()
        self.crowd = crowd(node.config)

    def connect(self) -> Connection:
        """Make the protocol of a new connection."""
        return Connection(self)

    def connect_node(self, caller: Caller, said: bytes) -> Connection:
        """Make the protocol of a connection over which another node brings a client's session."""
        told = about(said)
        told.agreed(self.config, Agreed())  # refused before the other node takes it for done
        return Connection(self, caller, told)

    def close(self) -> None:
        """Hang up on everybody."""
        if self._authenticator is not None:
            self._authenticator.close()
        for connection in list(self.connections):
            connection.hang_up()


class Connection(asyncio.Protocol):
    """One socket."""

    def __init__(self, server: Server, caller: Caller | None = None, told: About | None = None) -> None:
        self._server = server
        #: Whose session another node brings, and what is to be known of it.
        self._caller = caller
        self._told = told
        self._clock = server.node.clock
        self._transport: asyncio.Transport | None = None
        self._greeting = b""
        self._greeted = False
        self._layers: Upgrade | None = None
        #: Bytes for the layers that came before they were there.
        self._early = b""
        self._out: list[Buffer] = []
        self._inside = False
        self._closing = False
        self._reading = Reading()
        self._stop, self._start = self._reading.stop, self._reading.start
        self._made_ns = 0
        self._last_read_ns = 0
        self._blocked_ns = 0
        self._timer: Timer | None = None
        self._handshake: Timer | None = None
        self._address = ""
        #: What it does not read, while that is much.
        self._unread: Wait | None = None
        #: Another node has the session: bytes are passed on as they are.
        self._passes = False
        self.session: Session

    # --- asyncio calls these --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._reading.begin(self._transport)
        self._transport.set_write_buffer_limits(high=self._server.config.max_client_output_size)
        peer = transport.get_extra_info("peername")
        name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else str(peer)
        if self._caller is not None:
            name = self._caller.address
        self.session = Session(self._server.service, self, name, self._caller)
        if self._told is not None:
            self._greeted = True
            self.session.identified, self.session.hops = self._told.identify, self._told.hops
            self.session.agreed = self._told.agreed(self._server.config, self.session.agreed)
        server, address = self._server, name.rpartition(":")[0]
        why = server.crowd.refusal(address, transport)
        if why:
            server.node.count_fault("nsq", "too_many_connections", why, name)
            self._closing = True
            self._transport.write(error("E_TOO_MANY_CONNECTIONS", why))
            self._transport.close()
            return
        server.connections.add(self)
        server.crowd.enter(address)
        self._address = address
        self._made_ns = self._last_read_ns = self._clock.monotonic()
        self._arm_beat()

    def data_received(self, data: bytes) -> None:
        """Handle one read."""
        self._last_read_ns = self._clock.monotonic()
        if self._passes:
            self._pass(data)
            return
        if self._blocked_ns:
            self._count_unread()
            if self._is_flooded():
                self._cut_off("asked for more and more without reading any of it")
                return
        if len(data) >= READ_BYTES_MAX and not self._reading.stopped & _TURN:
            self._stop(_TURN)
            self._clock.call_soon(partial(self._start, _TURN))
        if not self._greeted or self._layers is not None:
            self.receive(data)
        elif not self._closing:
            self._carry_out(data)

    def receive(self, data: bytes) -> None:
        """Handle bytes, whatever their way here was."""
        if self._closing:
            return
        if self._layers is not None:
            data = self._unwrapped(self._layers, data)
        if not self._greeted:
            data = self._greet(data)
        if data and not self._closing:
            self._carry_out(data)
        if self._layers is not None and self._layers.ended:
            self.hang_up()

    def _carry_out(self, data: bytes | None) -> None:
        """Let the session carry out what a read brought, or what it held back; the outcome leaves in one write."""
        self._inside = True
        try:
            if data is not None:
                self.session.receive(data)
            else:
                self.session.go_on()
        except Exception as failure:  # a bug must cost one connection, not the node
            self._server.node.report_bug("nsq", failure)
            self.hang_up()
        finally:
            self._inside = False
            out = self._out
            if out:
                if len(out) == 1 and self._layers is None and self._transport is not None and not self._closing:
                    self._transport.write(out.pop())
                else:
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

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._closing = True
        self._transport = None
        self._reading.end()
        for timer in (self._timer, self._handshake):
            if timer is not None:
                timer.cancel()
        self._timer = self._handshake = None
        self._count_unread(0)
        server = self._server
        if self in server.connections:
            server.connections.discard(self)
            server.crowd.leave(self._address)
        self.session.end()

    def pause_writing(self) -> None:
        """Stop producing: the client does not read."""
        self._blocked_ns = self._clock.monotonic()
        self._count_unread()
        if self._passes and self.session.spliced is not None:
            self.session.spliced.block()
        elif self.session.seat is not None:
            self.session.seat.block()
        else:  # every command would make one more reply that waits
            self._stop(_FULL)

    def resume_writing(self) -> None:
        """Go on producing."""
        self._blocked_ns = 0
        self._count_unread(0)
        self._start(_FULL)
        if self._passes and self.session.spliced is not None:
            self.session.spliced.unblock()
        elif self.session.seat is not None:
            self.session.seat.unblock()

    # --- the session calls these ----------------------------------------------------------------------------------

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.facts is not None

    @property
    def layered(self) -> bool:
        """Whether it went through an upgrade already."""
        return self._layers is not None

    @property
    def facts(self) -> TlsFacts | None:
        """What TLS agreed on, None without TLS."""
        return self._layers.facts if self._layers is not None else None

    @property
    def common_name(self) -> str:
        """The name in the client's certificate, "" if it showed none."""
        return self._layers.common_name if self._layers is not None else ""

    def write(self, data: Buffer) -> None:
        """Send bytes; what one read leads to leaves in one write."""
        if self._inside:
            self._out.append(data)
        elif self._layers is None and self._transport is not None and not self._closing:
            self._transport.write(data)
        else:
            self._send(data)

    def retime(self) -> None:
        """Beat at the interval that was just agreed on."""
        if self._timer is not None and not self._closing:
            self._timer.cancel()
            self._arm_beat()

    def upgrade(self, agreed: Agreed, rest: bytes) -> None:
        """Put the granted layers in and read on; `rest` is what came for them already."""
        if self._closing or self._transport is None:
            return
        self._flush()
        level = agreed.deflate_level if agreed.deflate else 0
        context = self._server.service.tls if agreed.tls else None
        layers = self._layers = Upgrade(context, snappy=agreed.snappy, deflate_level=level)
        if agreed.tls:
            self._handshake = self._clock.call_at(self._clock.monotonic() + HANDSHAKE_TIMEOUT_NS, self._too_slow)
        else:
            self._transport.write(layers.begin())
        if rest:
            self._early = rest
            self._clock.call_soon(self._more)
        self._start(_WAIT)

    def pause(self) -> None:
        """Read nothing more for now."""
        self._stop(_WAIT)

    def resume(self) -> None:
        """Call the session's `go_on` in the next turn, and read on."""
        self._clock.call_soon(self._go_on)

    def hang_up(self) -> None:
        """Close once everything sent has left."""
        if self._closing:
            return
        self._flush()
        self._closing = True
        self.session.close()
        if self._transport is not None:
            if self._layers is not None and (last := self._layers.close()):
                self._transport.write(last)
            # Closing with unread input would reset the connection, and the peer might never see the last frame:
            # so close our half, let the rest of its input run out, and end when it does or does not.
            if self._caller is not None and not self._transport.can_write_eof():  # another node, over TLS
                self._transport.close()
                return
            self._transport.write_eof()
            self._start(_TURN | _WAIT | _MORE | _FULL | _AWAY)
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._clock.call_at(self._clock.monotonic() + LINGER_NS, self._abort)

    # --- a session that another node has --------------------------------------------------------------------------

    def pass_on(self) -> None:
        """Leave everything to the session's splice from now on; the other node beats, too."""
        if self._closing or self.session.spliced is None:
            return
        self._flush()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._passes = True
        self._stop(_AWAY)
        self.session.spliced.begin()

    def hold(self, full: bool) -> None:
        """Read nothing while the other node does not."""
        if full:
            self._stop(_AWAY)
        else:
            self._start(_AWAY | _WAIT)
            if self._layers is not None and self._layers.pending:
                self._clock.call_soon(self._more)

    def passed_back(self, data: bytes) -> None:
        """Send what the other node said."""
        self._send(data)
        if self._blocked_ns:
            self._count_unread()

    def _pass(self, data: bytes) -> None:
        if self._closing or self.session.spliced is None:
            return
        if self._layers is not None:
            data = self._unwrapped(self._layers, data)
        if data:
            self.session.spliced.write(data)
        if self._layers is not None and self._layers.ended:
            self.hang_up()

    # --- layers ---------------------------------------------------------------------------------------------------

    def _unwrapped(self, layers: Upgrade, data: bytes) -> bytes:
        """Take bytes of the wire through the layers."""
        if self._early:
            data, self._early = self._early + data, b""
        try:
            plain, answer = layers.receive(data)
        except LayerError as broken:
            self._server.node.count_fault("nsq", "bad_layer", str(broken), self.session.name)
            if self._transport is not None and broken.last:
                self._transport.write(broken.last)
            self.hang_up()
            return b""
        if answer and self._transport is not None:
            self._transport.write(answer)
        if layers.ready and self._handshake is not None:
            self._handshake.cancel()
            self.session.login.certified(self.common_name)
            self._handshake = None
        if layers.pending:
            self._stop(_MORE)
            self._clock.call_soon(self._more)
        return plain

    def _more(self) -> None:
        """Handle what the layers hold; while the session waits, they keep it."""
        if not self._closing and not self._reading.stopped & (_WAIT | _AWAY):
            self._start(_MORE)
            if self._passes:
                self._pass(b"")
            else:
                self.receive(b"")

    def _too_slow(self) -> None:
        self._cut_off("TLS handshake took more than 5 s")

    # --- inside ---------------------------------------------------------------------------------------------------

    def _send(self, data: Buffer) -> None:
        if self._transport is None or self._closing:
            return
        if self._layers is None:
            self._transport.write(data)
        elif self._layers.ready:
            self._transport.write(self._layers.send(data))

    def _flush(self) -> None:
        if self._out:
            out, self._out = self._out, []
            self._send(out[0] if len(out) == 1 else b"".join(out))

    def _is_flooded(self) -> bool:
        most = OUTPUT_TIMES_MAX * self._server.config.max_client_output_size
        return self._transport is not None and self._transport.get_write_buffer_size() > most

    def _count_unread(self, size_bytes: int | None = None) -> None:
        if size_bytes is None:
            size_bytes = self._transport.get_write_buffer_size() if self._transport is not None else 0
        output = self._server.node.budget.output
        self._unread = output.keep(self._unread, size_bytes, self._address, self._unread_too_much)

    def _unread_too_much(self, why: Refusal) -> None:
        self._cut_off(f"did not read: {why}")

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _go_on(self) -> None:
        """Let the session carry out what it held back."""
        if self._closing:
            return
        self._start(_WAIT)
        self._carry_out(None)
        if self._layers is not None and self._layers.pending and self._reading.stopped & _MORE:
            self._clock.call_soon(self._more)

    def _beat_ns(self) -> int:
        return self.session.agreed.heartbeat_ns or self._server.config.heartbeat_interval_ns

    def _arm_beat(self) -> None:
        at_ns = self._clock.monotonic() + self._beat_ns()
        if not self._greeted:
            at_ns = min(at_ns, self._made_ns + MAGIC_TIMEOUT_NS)
        self._timer = self._clock.call_at(at_ns, self._beat)

    def _beat(self) -> None:
        if self._transport is None:
            return
        now_ns = self._clock.monotonic()
        interval_ns = self._beat_ns()
        silent_ns = now_ns - self._last_read_ns
        if not self._greeted and now_ns - self._made_ns >= MAGIC_TIMEOUT_NS:
            self._cut_off("did not say which protocol it speaks for 60 s after connecting")
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
            # The kernel would go on offering what is unsent to a peer that does not read.
            wire = self._transport.get_extra_info("socket")
            if wire is not None:
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._transport.abort()
