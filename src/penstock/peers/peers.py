"""The way to other nodes: connections that have said their preface, kept while a door lets them be used again.

Owns what is dialled and what lies idle. Knows nothing of what is said behind a door.
Invariant: whoever asks for a connection hears once: `connection_made`, or why there is none.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, cast

from penstock.callers import Caller
from penstock.callers.carried import Carried, carried
from penstock.clock import SECOND, Timer
from penstock.config import host_and_port
from penstock.errors import ConfigError, PenstockError, Refusal
from penstock.peers.line import Line
from penstock.peers.preface import NONCE_BYTES, Frames, Guest, Refused, Welcome, refusal_of, written
from penstock.peers.standing import Standing
from penstock.wire.dial import Dialler, Dialling

if TYPE_CHECKING:
    from penstock.node.node import Node
    from penstock.peers.far import FarTopic

#: A node that takes longer to answer is not there.
CONNECT_NS = 5 * SECOND

#: So often it is looked whether nodes are still there.
LOOK_NS = SECOND

#: A node whose machine says nothing for so long is gone: looked for after so many seconds, so often, so many times.
KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 15_000))

_log = logging.getLogger("penstock.peers")

#: Told why there is no connection.
Failed = Callable[[Refusal], None]


class Peers:
    """What one node knows of the way to the others."""

    def __init__(
        self, node: Node, name: str, secret: bytes, address_of: Callable[[str], str | None], dialler: Dialler
    ) -> None:
        """Take this node's own name, and who knows HOST:PORT of another."""
        self.node = node
        self.name = name
        self._secret = secret
        self._address_of = address_of
        self._dialler = dialler
        #: Connections that are being made, and those that stand, by node.
        self._coming: set[_Approach] = set()
        self._standing: dict[str, Standing] = {}
        #: How often another node could not be reached, or did not let this one in.
        self.failures: Counter[str] = Counter()
        self._said: dict[str, int] = {}
        self._lines: dict[str, Line] = {}
        #: Those of other nodes that somebody here publishes to.
        self.topics: dict[str, FarTopic] = {}
        self.closed = False
        self._timer: Timer = node.clock.call_at(node.clock.monotonic() + LOOK_NS, self._look)

    def connect(
        self,
        to: str,
        door: str,
        caller: Caller | Carried,
        about: bytes,
        protocol: asyncio.Protocol,
        failed: Failed,
    ) -> Dialling:
        """Go to a door of another node for somebody; the protocol hears `connection_made`, or `failed` is told."""
        told = caller if isinstance(caller, Carried) else carried(caller, self.node.gate)
        approach = _Approach(self, to, door, told, about, protocol, failed)
        self._coming.add(approach)
        try:
            approach.dial(*self._place(to), self._dialler)
        except Refusal as refusal:
            self.node.clock.call_soon(partial(approach.fail, refusal))
        return approach

    def line(self, to: str) -> Line:
        """Return the connection by which batches go to a node."""
        line = self._lines.get(to)
        if line is None or line.is_over:
            line = self._lines[to] = Line(self, to)
        return line

    def leave(self, to: str) -> None:
        """Break every connection to a node that is gone, or counts as gone: nobody waits for it any longer."""
        for approach in [each for each in self._coming if each.to == to]:
            approach.fail(Refusal("unavailable", f"node {to} is gone"))
        if (standing := self._standing.pop(to, None)) is not None:
            standing.abort()

    def close(self) -> None:
        """Go nowhere any more."""
        self.closed = True
        self._timer.cancel()
        for to in {*self._standing, *(each.to for each in self._coming)}:
            self.leave(to)

    def count(self, to: str) -> int:
        """Return how many connections to a node stand."""
        return len(self._standing.get(to, ()))

    def _look(self) -> None:
        """Wait for no node that the cluster counts as gone: its machine may answer while it stands still."""
        self._timer = self.node.clock.call_at(self.node.clock.monotonic() + LOOK_NS, self._look)
        for to in [to for to in self._standing if self._address_of(to) is None]:
            self.leave(to)

    def _place(self, to: str) -> tuple[str, int]:
        address = None if self.closed else self._address_of(to)
        if address is None:
            raise Refusal("unavailable", f"node {to} is not there")
        try:
            return host_and_port(address)
        except ConfigError as error:
            raise Refusal("unavailable", f"node {to} cannot be reached: {error}") from None

    # --- connections call these -----------------------------------------------------------------------------------

    @property
    def secret(self) -> bytes:
        """What all nodes know."""
        return self._secret

    def came(self, approach: _Approach, transport: asyncio.Transport | None, why: Refusal | None) -> None:
        """Take note of what came of going somewhere."""
        self._coming.discard(approach)
        if transport is not None:
            self._standing.setdefault(approach.to, Standing()).add(transport)
            self._said.pop(approach.to, None)
        elif why is not None and not self.closed:
            self.failures[approach.to] += 1
            now_ns = self.node.clock.monotonic()
            if now_ns - self._said.get(approach.to, now_ns - SECOND) >= SECOND:
                self._said[approach.to] = now_ns
                _log.warning("node %s cannot be used: %s", approach.to, why)


class _Approach(asyncio.Protocol):
    """One connection until it is the door's."""

    def __init__(
        self,
        peers: Peers,
        to: str,
        door: str,
        caller: Carried,
        about: bytes,
        protocol: asyncio.Protocol,
        failed: Failed,
    ) -> None:
        self.to = to
        self._peers = peers
        self._door = door
        self._caller = caller
        self._about = about
        self._protocol = protocol
        self._failed: Failed | None = failed
        self._guest = Guest(peers.secret, peers.node.config.cluster.name, peers.name, to, os.urandom(NONCE_BYTES))
        self._frames = Frames()
        self._visited = False
        self._transport: asyncio.Transport | None = None
        self._dialling: Dialling | None = None
        self._timer: Timer | None = None

    def dial(self, host: str, port: int, dialler: Dialler) -> None:
        """Connect."""
        clock = self._peers.node.clock
        late = partial(self._break, f"it did not answer for {CONNECT_NS // SECOND} s")
        self._timer = clock.call_at(clock.monotonic() + CONNECT_NS, late)
        self._dialling = dialler.dial(host, port, self, self._break)

    def cancel(self) -> None:
        """Go there no more; nobody hears of it."""
        self._failed = None
        self._end(None)

    def fail(self, why: Refusal) -> None:
        """Tell that it came to nothing."""
        failed = self._failed
        self._failed = None
        self._end(why)
        if failed is not None:
            failed(why)

    # --- the transport calls these --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say who comes."""
        self._transport, self._dialling = cast(asyncio.Transport, transport), None
        if self._failed is None:
            self._transport.abort()
            return
        keep_alive(transport)
        self._transport.write(written(self._guest.hello))

    def data_received(self, data: bytes) -> None:
        """Take the other side's half of the preface."""
        if self._failed is None or self._transport is None:
            return
        try:
            frame = self._frames.feed(data)
            if frame is not None and not self._visited:
                self._visited = True
                visit = self._guest.visit(frame, self._door, self._caller, self._about)
                self._transport.write(written(visit))
                frame = self._frames.feed(b"")
            if isinstance(frame, Refused):
                raise refusal_of(frame)
            if isinstance(frame, Welcome):
                self._stand(self._transport)
            elif frame is not None:
                raise Refusal("bad_request", f"a {type(frame).__name__} came instead of a welcome")
        except PenstockError as error:
            self._break(str(error), error.code if isinstance(error, Refusal) else "unavailable")

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up."""
        self._break(str(exc) or type(exc).__name__ if exc is not None else "it hung up")

    # --- inside ---------------------------------------------------------------------------------------------------

    def _stand(self, transport: asyncio.Transport) -> None:
        self._failed = None
        self._transport = None
        self._cancel_timer()
        self._peers.came(self, transport, None)
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(transport)
        if rest := self._frames.rest():
            self._protocol.data_received(rest)

    def _break(self, why: str, code: str = "unavailable") -> None:
        if self._failed is not None:
            # Whoever asked did nothing wrong, whatever the other node thinks of this one.
            kind = code if code == "stopping" else "unavailable"
            self.fail(Refusal(kind, f"node {self.to} cannot be used: {why}"))

    def _end(self, why: Refusal | None) -> None:
        self._cancel_timer()
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        self._peers.came(self, None, why)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let the kernel find out that the other machine is gone; where there is no such socket, nobody does."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE:
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
