"""Where other nodes come in: each connection says its preface, and is then the protocol of the door that it names.

Owns connections until then, and counts those that nobody lets in. Knows nothing of what is said behind a door.
Invariant: no byte reaches a door before its node has shown that it is one of the cluster.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, cast

from penstock.callers import Caller
from penstock.callers.carried import arrived
from penstock.clock import SECOND, Timer
from penstock.errors import Refusal
from penstock.peers.preface import NONCE_BYTES, Frames, Host, Refused, Welcome, written
from penstock.peers.standing import Standing
from penstock.wire.crowd import Crowd

if TYPE_CHECKING:
    from penstock.node.node import Node

#: A node that takes longer for its preface is none.
PREFACE_NS = 10 * SECOND

#: A way in, by the name of a listener: makes the protocol of a connection that another node brings, for whom, and what
#: it wants to know first. May refuse it.
Door: TypeAlias = Callable[[Caller, bytes], asyncio.Protocol]


class Reception:
    """The listener of one node."""

    def __init__(self, node: Node, name: str, secret: bytes, crowd: Crowd | None = None) -> None:
        self.node = node
        self.cluster = node.config.cluster.name
        self.name = name
        self.secret = secret
        self.crowd = crowd or Crowd()
        #: How long a preface may take.
        self.preface_ns = PREFACE_NS
        #: Connections that have not said their preface, and those that have, by the other node's name.
        self.arriving: set[Arrival] = set()
        self.visits: Counter[str] = Counter()
        self.refused = 0
        self._inside = Standing()
        self._closed = False

    def connect(self) -> Arrival:
        """Make the protocol of a new connection."""
        return Arrival(self)

    def close(self) -> None:
        """Hang up on everybody."""
        self._closed = True
        for arrival in list(self.arriving):
            arrival.hang_up()
        self._inside.abort()

    def refuse(self, refusal: Refusal, peer: str) -> None:
        """Count somebody who is not let in."""
        self.refused += 1
        self.node.count_fault("peers", refusal.code, str(refusal), peer)

    def let_in(self, transport: asyncio.Transport) -> None:
        """Know a connection that is a door's now."""
        self._inside.add(transport)


class Arrival(asyncio.Protocol):
    """One connection until its door has it."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception
        self._host = Host(reception.secret, reception.cluster, reception.name, os.urandom(NONCE_BYTES))
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._timer: Timer | None = None
        self._peer = self._address = ""
        self._greeted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first frame, not for long."""
        reception = self._reception
        self._transport = cast(asyncio.Transport, transport)
        found = transport.get_extra_info("peername")
        if isinstance(found, tuple):
            self._address, self._peer = found[0], f"{found[0]}:{found[1]}"
        if why := reception.crowd.refusal(self._address, transport):
            self._refuse(Refusal("too_many_connections", why))
            return
        reception.arriving.add(self)
        reception.crowd.enter(self._address)
        clock = reception.node.clock
        self._timer = clock.call_at(clock.monotonic() + reception.preface_ns, self._too_slow)

    def data_received(self, data: bytes) -> None:
        """Take the preface."""
        try:
            frame = self._frames.feed(data)
            if frame is not None and not self._greeted:
                self._write(written(self._host.challenge(frame)))
                self._greeted = True
                frame = self._frames.feed(b"")
            if frame is not None:
                self._enter(frame)
        except Refusal as refusal:
            self._refuse(refusal)

    def eof_received(self) -> bool:
        """Let asyncio close the other half, too."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._forget()
        self._transport = None

    def hang_up(self) -> None:
        """End it."""
        if self._transport is not None:
            self._transport.abort()

    def _enter(self, frame: object) -> None:
        reception, transport = self._reception, self._transport
        visit = self._host.visit(frame)  # type: ignore[arg-type]
        if transport is None:
            return
        door = reception.node.doors.get(visit.door)
        if door is None:
            raise Refusal("not_found", f"node {reception.name} has no door {visit.door[:64]}")
        if reception.node.stopping:
            raise Refusal("stopping", f"node {reception.name} is stopping")
        protocol = door(arrived(visit.caller, reception.node.gate, self._host.guest), visit.about)
        self._forget()
        reception.visits[self._host.guest] += 1
        reception.let_in(transport)
        transport.write(written(Welcome()))
        transport.set_protocol(protocol)
        self._transport = None
        protocol.connection_made(transport)
        if rest := self._frames.rest():
            protocol.data_received(rest)

    def _too_slow(self) -> None:
        self._timer = None
        self._refuse(Refusal("too_slow", f"no preface came for {self._reception.preface_ns / SECOND:g} s"))

    def _refuse(self, refusal: Refusal) -> None:
        self._reception.refuse(refusal, self._peer)
        self._forget()
        if self._transport is not None:
            self._write(written(Refused(refusal.code, str(refusal))))
            self._transport.close()
            self._transport = None

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _forget(self) -> None:
        if self in self._reception.arriving:
            self._reception.arriving.discard(self)
            self._reception.crowd.leave(self._address)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
