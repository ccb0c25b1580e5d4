"""One node at the lookup service: commands in, replies out, the directory between them. No sockets.

A node introduces itself once, then says what it has and that it lives. Every error is fatal, as the protocol wants it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import msgspec

from penstock.budget import Wait, Waiting
from penstock.callers import Caller, Gate
from penstock.callers.identity import Identity as Vouched
from penstock.clock import Clock
from penstock.dialects.nsq.lookup.codec import (
    OK,
    Command,
    Decoder,
    Faulty,
    Identity,
    described,
    error,
    identity,
    reply,
    target,
)
from penstock.dialects.nsq.lookup.directory import Directory, Peer
from penstock.errors import Refusal

#: The endpoint of these connections.
LISTENER = "nsq.lookup_tcp_port"

#: What a refusal is called here.
CODES = {
    "unauthorized": "E_AUTH_FIRST",
    "forbidden": "E_UNAUTHORIZED",
    "too_many_connections": "E_TOO_MANY_CONNECTIONS",
}

#: Commands that a node may send before it is answered who it is.
LATER_MAX = 100_000

#: Told (code, text, who) about what a client did wrong.
Fault = Callable[[str, str, str], None]


class Link(Protocol):
    """The way back to the node."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def hang_up(self) -> None:
        """Close once everything sent has left."""


class Session:
    """The protocol's state: unknown -> identified."""

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        me: Callable[[], Identity],
        link: Link,
        name: str,
        fault: Fault,
        bodies: Waiting,
        gate: Gate,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._me = me
        self._link = link
        self._fault = fault
        self._bodies = bodies
        #: What came of a command that is not all there, if anything did.
        self._held: Wait | None = None
        self._decoder = Decoder()
        self._names_partitions = False
        self._gate = gate
        self.caller = Caller(gate, name, LISTENER)
        #: Commands that came while it is seen who the node is.
        self._later: list[Command] | None = None
        self.name = name
        self.peer: Peer | None = None
        self.closed = False

    @property
    def greeted(self) -> bool:
        """Whether the node said which protocol it speaks."""
        return self._decoder.greeted

    def receive(self, data: bytes) -> None:
        """Carry out what one read brought."""
        commands = self._decoder.feed(data)
        if self._later is None:
            self._carry_out(commands)
        else:
            self._later += commands
            if len(self._later) > LATER_MAX:
                self.fail("E_INVALID", "too much was said before AUTH was answered")
        self._hold(fresh=bool(commands))

    def _carry_out(self, commands: list[Command]) -> None:
        for at, command in enumerate(commands):
            if self.closed:
                return
            if self._later is not None:
                self._later = commands[at:]
                return
            try:
                self.COMMANDS[str(command[0])](self, *command[1:])
            except Faulty as faulty:
                self.fail(faulty.code, str(faulty))
            except Refusal as refusal:
                self.fail(CODES.get(refusal.code, "E_INVALID"), str(refusal))

    def _hold(self, *, fresh: bool) -> None:
        """Count what came of a command that is not all there; a fresh one has its own time, from its first byte on."""
        held = self._decoder.held if self.greeted and not self.closed else 0
        self._held = self._bodies.keep(self._held, held, self.name.rpartition(":")[0], self._cut, fresh=fresh)

    def _cut(self, why: Refusal) -> None:
        self.fail("E_INVALID", f"command did not come whole: {why}")

    def close(self) -> None:
        """Forget the node; the names it had stay."""
        self.closed = True
        self._hold(fresh=True)
        self.caller.on_change = None
        self._gate.leave(self.caller)
        if self.peer is not None:
            self._directory.leave(self.peer.id)
            self.peer = None

    # --- commands -------------------------------------------------------------------------------------------------

    def identify(self, body: bytes) -> None:
        """Learn who this is, and say who we are."""
        said = identity(body)
        self._names_partitions = said.names_partitions
        self.peer = Peer(
            id=self.name,
            remote_address=self.name,
            hostname=said.hostname or "",
            broadcast_address=said.broadcast_address or "",
            tcp_port=said.tcp_port or 0,
            http_port=said.http_port or 0,
            version=said.version or "",
            topology_zone=said.topology_zone or "",
            topology_region=said.topology_region or "",
            distributed_id=said.distributed_id or "",
        )
        if self.caller.is_known:
            self._directory.identify(self.peer, self._clock.monotonic())
        me = self._me() if self.caller.is_known else msgspec.structs.replace(self._me(), auth_required=True)
        self._link.write(reply(msgspec.json.encode(me)))

    def auth(self, body: bytes) -> None:
        """Learn who vouches for the node."""
        self._identified()
        if self.caller.identity.how != "nothing":
            raise Faulty("E_INVALID", "AUTH already set")
        self._later = []
        self._gate.identify(body, self.name).then(self._authenticated)

    def _authenticated(self, identity: Vouched | None, _: Exception | None) -> None:
        later, self._later = self._later or [], None
        if self.closed or identity is None:
            return
        self._gate.leave(self.caller)
        caller = self.caller = self._gate.noted(self.caller.showing(identity))
        if not caller.is_known:
            self.fail("E_AUTH_FAILED", "AUTH failed")
            return
        caller.on_change = self._changed
        self._gate.follow(caller)
        if self.peer is not None:
            self._directory.identify(self.peer, self._clock.monotonic())
        self._link.write(OK)
        self._carry_out(later)

    def _changed(self) -> None:
        """Forget a node that nobody vouches for any more."""
        if not self.closed and not self.caller.is_known:
            self.fail("E_UNAUTHORIZED", "what was shown does not count any more")

    def _check(self, topic: str) -> None:
        """Refuse to hear of a topic from a node that may not change it."""
        if not self.caller.may("change", topic):  # the audit shall not have every topic of every node
            self.caller.check("change", topic)
        self.caller.enter()

    def register(self, args: list[bytes]) -> None:
        """Take note of a topic or channel."""
        peer = self._identified()
        named = target("REGISTER", args, names_partitions=self._names_partitions)
        self._check(named.topic)
        self._directory.register(peer.id, *named)
        self._link.write(OK)

    def describe(self, args: list[bytes]) -> None:
        """Take note of what a topic was made with."""
        peer = self._identified()
        topic, meta = described(args)
        self._check(topic)
        self._directory.describe(peer.id, topic, meta)
        self._link.write(OK)

    def unregister(self, args: list[bytes]) -> None:
        """Take note that a topic or channel is gone."""
        peer = self._identified()
        named = target("UNREGISTER", args, names_partitions=self._names_partitions)
        self._check(named.topic)
        self._directory.unregister(peer.id, *named)
        self._link.write(OK)

    def ping(self, args: list[bytes]) -> None:
        """Take note that the node lives; one that did not introduce itself gets its reply as well."""
        if self.peer is not None:
            self._directory.ping(self.peer.id, self._clock.monotonic())
        self._link.write(OK)

    def fail(self, code: str, text: str) -> None:
        """Send an error and hang up."""
        self._fault(code, text, self.name)
        self._link.write(error(code, text))
        self.hang_up()

    def hang_up(self) -> None:
        """End without a word."""
        self.close()
        self._link.hang_up()

    def _identified(self) -> Peer:
        if self.peer is None:
            raise Faulty("E_INVALID", "client must IDENTIFY")
        return self.peer

    COMMANDS: ClassVar[dict[str, Callable[..., Any]]] = {
        "IDENTIFY": identify,
        "AUTH": auth,
        "REGISTER": register,
        "UNREGISTER": unregister,
        "DESCRIBE": describe,
        "PING": ping,
        "fault": fail,
        "hang up": hang_up,
    }
