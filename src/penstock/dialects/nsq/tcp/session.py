"""One NSQ connection: commands in, frames out. No sockets, no clock of its own, no delivery rules.

Owns the protocol's state, init -> subscribed (SUB) -> closing (CLS), who may say what in it, IDENTIFY and AUTH. The
publishing half is in `publisher`, the consuming half in `receiver`; replies leave in the order of the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import msgspec

from penstock.budget import Wait
from penstock.callers import Caller
from penstock.callers.identity import Identity
from penstock.clock import MILLISECOND, Timer
from penstock.columns import Buffer
from penstock.delivery.seat import Seat
from penstock.dialects.nsq.codec import OK, RESPONSE, SOURCE, Command, Decoder, Limits, error, frame
from penstock.dialects.nsq.tcp.auth import Guard, Query
from penstock.dialects.nsq.tcp.gatherer import Gatherer
from penstock.dialects.nsq.tcp.identify import Agreed, Faulty, Offer, agree, reply
from penstock.dialects.nsq.tcp.publisher import Publisher, failed
from penstock.dialects.nsq.tcp.receiver import Receiver
from penstock.dialects.nsq.tcp.replies import Replies
from penstock.dialects.nsq.tcp.service import Service
from penstock.dialects.nsq.topics import EPHEMERAL
from penstock.errors import Refusal
from penstock.message import Rows
from penstock.registry.answer import Answer

__all__ = ["EPHEMERAL", "Link", "Session"]

T = TypeVar("T")

#: Commands that need the auth server's word, where there is one: these name their topic first ...
_PUBLISHING = frozenset(("PUB", "MPUB", "DPUB", "PUB_EXT", "MPUB_EXT", "PUB_TRACE", "MPUB_TRACE"))
#: ... and these a topic and a channel among their words.
_SUBSCRIBING = frozenset(("SUB", "SUB_ADVANCED", "SUB_ORDERED"))
#: What a client may say before TLS where TLS is required.
_IN_CLEAR = frozenset(("IDENTIFY", "fault", "hang up"))


#: No word of the protocol is longer.
WORD_BYTES_MAX = 32

#: The endpoint of these connections.
LISTENER = "nsq.tcp_port"


class Link(Protocol):
    """The way back to the client."""

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""

    @property
    def layered(self) -> bool:
        """Whether it went through an upgrade already."""

    @property
    def common_name(self) -> str:
        """The name in the client's certificate, "" if it showed none."""

    def write(self, data: Buffer) -> None:
        """Send bytes."""

    def retime(self) -> None:
        """Beat at the interval that was just agreed on."""

    def upgrade(self, agreed: Agreed, rest: bytes) -> None:
        """Put the granted layers in and read on; `rest` came behind the command that asked for them: it is theirs."""

    def pause(self) -> None:
        """Read nothing more for now."""

    def resume(self) -> None:
        """Call the session's `go_on` in the next turn, and read on."""

    def hang_up(self) -> None:
        """Close once everything sent has left."""


class _Nobody:
    """The link of a session that is over."""

    tls = layered = False
    common_name = ""

    def write(self, data: Buffer) -> None:
        """Send nothing."""

    def upgrade(self, agreed: Agreed, rest: bytes) -> None:
        """Put nothing in."""

    def retime(self) -> None:
        """Do nothing."""

    pause = resume = hang_up = retime


NOBODY = _Nobody()


class Session:
    """The protocol's state."""

    __slots__ = (
        "_again",
        "_decoder",
        "_held",
        "_host",
        "_later",
        "_link",
        "_resting",
        "_stepping",
        "_waiting",
        "agreed",
        "caller",
        "closed",
        "connected_ns",
        "gated",
        "guard",
        "name",
        "publisher",
        "receiver",
        "replies",
        "service",
        "state",
    )

    def __init__(self, service: Service, link: Link, name: str) -> None:
        config = service.config
        self.service = service
        self._link = link
        self._decoder = Decoder(
            Limits(config.max_msg_size, config.max_body_size, config.max_req_timeout_ns // MILLISECOND)
        )
        #: Commands that were decoded and must wait for an answer from outside.
        self._waiting = False
        self._later: list[Command] = []
        #: The command that waits shall be carried out again.
        self._again = False
        #: Ends a rest that a quota asked for.
        self._resting: Timer | None = None
        #: In the middle of the commands of one read.
        self._stepping = False
        self.name = name
        self.caller = Caller(service.node.gate, name, LISTENER)
        self.caller.on_change = self._changed
        service.node.gate.follow(self.caller)
        #: What came of a command that is not all there, if anything did.
        self._held: Wait | None = None
        self._host = host = name.rpartition(":")[0]  # its name, too, until it says who it is
        self.agreed = Agreed(host, host, heartbeat_ns=config.heartbeat_interval_ns, lease_ns=config.msg_timeout_ns)
        self.state: Literal["init", "subscribed", "closing"] = "init"
        self.closed = False
        self.connected_ns = service.node.clock.now()
        self.guard = Guard(service.ask, service.node.clock) if service.ask is not None else None
        #: Not every command may pass: AUTH or TLS is asked for.
        self.gated = self.guard is not None or config.tls_required
        self.replies = Replies(link)
        self.publisher = Publisher(self)
        self.receiver = Receiver(self)

    # --- what the connection and others look at -------------------------------------------------------------------

    @property
    def seat(self) -> Seat | None:
        """Its part in the channel it is subscribed to."""
        return self.receiver.seat

    @property
    def pub_counts(self) -> dict[str, int]:
        """Messages published to each topic."""
        return self.publisher.counts

    # --- in -------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Carry out what one read brought."""
        decoder = self._decoder
        if self._waiting:
            decoder.hold(data)
            decoder.stopped = True
            self._hold()
            return
        if decoder.plain and not (self.gated or self.closed) and (body := decoder.again(data)):
            rows = Rows(1, [0, len(body)], body, SOURCE)
            self.publisher.pub(decoder.topic, rows, 1, decoder.shard)
            if self._again:  # as below
                self._later = [("PUB", decoder.topic, rows, 1, decoder.shard)]
                self._hold(fresh=True)
            return
        commands = decoder.feed(data)
        if len(commands) == 1 and not (self.gated or self.closed or decoder.stopped):
            command = commands[0]
            part, method = self.COMMANDS[command[0]]  # type: ignore[index]
            method(getattr(self, part) if part else self, *command[1:])
            if self._again:  # it waits, and is carried out again
                self._later = [command]
        else:
            self._run(commands)
        if decoder.held or self._held is not None or self._later:
            self._hold(fresh=bool(commands))

    def _hold(self, *, fresh: bool = False) -> None:
        """Count what came of commands that are not all there, or that wait; a fresh one has its own time."""
        bodies, held = self.service.node.budget.body, 0 if self.closed else self._decoder.held
        if self._later and not self.closed:  # for a topic that is being made, say
            held += sum([len(part.body) for command in self._later for part in command if isinstance(part, Rows)])
        if self._held is not None and (fresh or not held):
            bodies.end(self._held)
            self._held = None
        if held:
            if self._held is None:
                self._held = bodies.begin(self._host, self._cut)
            self._held.paced = not self._waiting
            bodies.hold(self._held, held)

    def _cut(self, why: Refusal) -> None:
        """Hold nothing more of a command that comes too slowly, or where too much is held."""
        self._held = None
        word = self._decoder.forget()[:WORD_BYTES_MAX].partition(b"\n")[0].partition(b" ")[0].decode("latin-1")
        if self._later:
            word, self._later = str(self._later[0][0]), []
        if word not in self.COMMANDS:
            self.fail("E_INVALID", f"command came too slowly: {why}")
        elif why.code == "too_slow":
            self.fail("E_BAD_BODY", f"{word} came too slowly: {why}")
        else:
            self.fail(failed(word), f"{word} failed {why}")

    def _run(self, commands: Iterable[Command]) -> None:
        """Carry out several commands as one step: none can mean a message that another of them brings."""
        self._stepping = True
        if self.receiver.seat is not None:
            self.receiver.seat.begin()
        try:
            self._each(commands)
        finally:
            self._stepping = False
            if self.receiver.seat is not None:
                self.receiver.seat.end()

    def _each(self, commands: Iterable[Command]) -> None:
        while True:
            left = iter(commands)
            for command in left:
                if self.closed:
                    return
                word: Any = command[0]
                if self.gated and not self._passes(command):
                    if self._waiting:
                        self._later = [command, *left]
                    return
                part, method = self.COMMANDS[word]
                method(getattr(self, part) if part else self, *command[1:])
                if self._waiting:
                    self._later = [command, *left] if self._again else list(left)
                    return
            if not self._decoder.stopped or self.closed:
                break
            commands = self._decoder.go_on()

    def wait(self) -> None:
        """Carry out nothing more until `resume`: an answer from outside must come first."""
        self._waiting = True
        self._link.pause()

    def resume(self) -> None:
        """Say that the answer has come; the link calls `go_on`, not from inside the command that waited."""
        self._link.resume()

    def rest_until(self, monotonic_ns: int) -> None:
        """Carry out nothing more, and read nothing, until then."""
        self.wait()
        if self._resting is not None:
            self._resting.cancel()
        self._resting = self.service.node.clock.call_at(monotonic_ns, self._rested)

    def _rested(self) -> None:
        self._resting = None
        self.resume()

    def need(self, answer: Answer[T], refused: Callable[[Exception], None]) -> T | None:
        """Return what a command needs, or raise why it cannot be.

        None means later: the command is then carried out again, or `refused`, and those behind it wait for that.
        """
        if answer.is_given:
            return answer.now()

        def told(_: T | None, error: Exception | None) -> None:
            self._again = False
            if self.closed:
                return
            if error is not None:
                del self._later[0]
                refused(error)
            self.resume()

        self._again = True
        self.wait()
        answer.then(told)
        return None

    def go_on(self) -> None:
        """Carry out what was sent meanwhile."""
        if self._waiting and not self.closed:
            self._waiting = False
            later, self._later = self._later, []
            self._decoder.stopped = True
            self._run(later)
            self._hold(fresh=True)

    def _passes(self, command: Command) -> bool:
        """Tell whether a command may be carried out now; if not, the client was told or will be."""
        word = str(command[0])
        if self.service.config.tls_required and not self._link.tls and word not in _IN_CLEAR:
            self.fail("E_INVALID", f"cannot {word} in current state (TLS required)")
            return False
        guard = self.guard
        if guard is None:
            return True
        if word in _PUBLISHING:
            topic, channel = str(command[1]), ""
        elif word in _SUBSCRIBING and len(command[1]) >= 2:  # type: ignore[arg-type]
            topic, channel = (name.decode("latin-1") for name in command[1][:2])  # type: ignore[index]
        elif word == "INTERNAL_CREATE_TOPIC" and command[1]:
            topic, channel = command[1][0].decode("latin-1"), ""  # type: ignore[index]
        else:
            return True
        if guard.grants is None or not len(guard.grants):
            self.fail("E_AUTH_FIRST", f"AUTH required before {word}")
        elif not guard.fresh:
            self.wait()
            guard.refresh(self._refreshed)
        elif not guard.grants.allow(topic, channel):
            self.fail("E_UNAUTHORIZED", f'AUTH failed for {word} on "{topic}" "{channel}"')
        else:
            return True
        return False

    def _refreshed(self) -> None:
        """Go on after the auth server was asked again, with the command that made it necessary."""
        if self.closed:
            return
        if self.guard is None or self.guard.grants is None:
            self.fail("E_AUTH_FAILED", "AUTH failed")
        else:
            self.resume()

    # --- commands -------------------------------------------------------------------------------------------------

    def identify(self, args: list[bytes], body: bytes) -> None:
        """Agree on timeouts, buffers, filters and layers."""
        if self.state != "init":
            self.fail("E_INVALID", "cannot IDENTIFY in current state")
            return
        config = self.service.config
        fresh = not self._link.layered
        offer = Offer(
            tls=fresh and self.service.tls is not None,
            snappy=fresh and config.snappy,
            deflate=fresh and config.deflate,
            auth_required=self.guard is not None or not self.caller.is_known,
        )
        try:
            agreed = self.agreed = agree(body, config, offer)
            if self.guard is None and agreed.tls and config.tls_client_auth_policy != "none":
                offer = offer._replace(auth_required=False)  # the certificate says who it is
        except Faulty as faulty:
            self.fail(faulty.code, str(faulty))
            return
        self._link.retime()
        self.replies.send(frame(RESPONSE, reply(agreed, config, offer)) if agreed.negotiated else OK)
        if agreed.tls or agreed.snappy or agreed.deflate:
            self.wait()
            self.replies.then(self._upgrade)

    def _upgrade(self) -> None:
        """Hand over to the layers; whatever was sent behind IDENTIFY is for them."""
        rest = self._decoder.rest()
        self._hold()
        self._decoder.stopped = False
        self._waiting = False
        self._link.upgrade(self.agreed, rest)

    def auth(self, args: list[bytes], body: bytes) -> None:
        """Learn who the client is, and what it may do: from the auth server, where there is one."""
        guard, gate = self.guard, self.service.node.gate
        if self.state != "init":
            self.fail("E_INVALID", "cannot AUTH in current state")
        elif guard is None and not gate.takes_secrets:
            self.fail("E_AUTH_DISABLED", "AUTH disabled")
        elif (
            guard.known if guard is not None else self.caller.identity.how not in ("nothing", "certificate", "vouched")
        ):
            self.fail("E_INVALID", "AUTH already set")
        elif guard is None:
            self.wait()
            gate.identify(body, self.name).then(self._identified)
        else:
            address = self.name.rpartition(":")[0]
            query = Query(address, self._link.tls, body.decode("utf-8", "replace"), self._link.common_name)
            self.wait()
            guard.authenticate(query, self._authenticated)

    def _authenticated(self) -> None:
        if self.closed or self.guard is None:
            return
        grants = self.guard.grants
        if grants is None:
            self.fail("E_AUTH_FAILED", "AUTH failed")
        elif not len(grants):
            self.fail("E_UNAUTHORIZED", "AUTH no authorizations found")
        else:
            # What it may do is asked of the auth server's grants, command by command.
            self._turn_into(Identity(grants.identity, "server"))
            self._welcome(grants.identity, len(grants), grants.identity_url)

    def _identified(self, identity: Identity | None, _: Exception | None) -> None:
        if self.closed or identity is None:
            return
        self._turn_into(identity)
        permissions = len(self.service.node.gate.rules(self.caller))
        if not self.caller.is_known:
            self.fail("E_AUTH_FAILED", "AUTH failed")
        elif not permissions:
            self.fail("E_UNAUTHORIZED", "AUTH no authorizations found")
        else:
            try:
                self.caller.enter()
            except Refusal as refusal:
                self.fail("E_TOO_MANY_CONNECTIONS", f"AUTH failed {refusal}")
                return
            self._welcome(identity.user, permissions)

    def _welcome(self, name: str, permissions: int, url: str = "") -> None:
        told = {"identity": name, "identity_url": url, "permission_count": permissions}
        self.replies.send(frame(RESPONSE, msgspec.json.encode(told)))
        self.resume()

    def certified(self, common_name: str) -> None:
        """Take note whose certificate the client showed."""
        identity = self.service.node.gate.certified(common_name)
        if identity.user and self.guard is None:
            self._turn_into(identity)

    def _turn_into(self, identity: Identity) -> None:
        """Be somebody from now on; whatever was allowed to nobody in particular is asked for again."""
        gate = self.service.node.gate
        gate.leave(self.caller)
        caller = self.caller = gate.noted(self.caller.showing(identity))
        caller.on_change = self._changed
        gate.follow(caller)
        self.publisher.forget()

    def _changed(self) -> None:
        """See what is left of the client's rights: one that is known no more, or may not receive, has to go."""
        self.publisher.forget()
        topic = self.receiver.topic
        if self.closed or self.caller.identity.how == "nothing":  # which may still show something
            return
        if not self.caller.is_known:
            self.fail("E_UNAUTHORIZED", "AUTH failed: what was shown does not count any more")
        elif self.receiver.seat is not None and topic is not None and not self.caller.may("receive", topic.name):
            self.fail("E_UNAUTHORIZED", f'AUTH failed for SUB on "{topic.name}"')

    def refuse(self, word: str, topic: str, channel: str, why: Refusal) -> None:
        """Tell that somebody may not, as nsqd does, and hang up."""
        if why.code == "unauthorized" and self.caller.identity.how == "nothing":
            self.fail("E_AUTH_FIRST", f"AUTH required before {word}")
        else:
            self.fail("E_UNAUTHORIZED", f'AUTH failed for {word} on "{topic}" "{channel}"')

    def nop(self, args: list[bytes]) -> None:
        """Show life."""

    def subscribed(self, seat: Seat, *, raw_ids: bool) -> None:
        """Take note that SUB succeeded, and in which form ids come from now on."""
        self.state = "subscribed"
        if self._stepping:
            seat.begin()
        self._decoder.raw_ids = raw_ids

    def gathered(self, bytes_max: int, hold_ns: int) -> Gatherer:
        """Put a buffer for message frames in the way of everything that is sent from now on."""
        gatherer = Gatherer(self._link, self.service.node.clock, bytes_max, hold_ns)
        self.replies.through(gatherer)
        return gatherer

    # --- out ------------------------------------------------------------------------------------------------------

    def send(self, data: Buffer) -> None:
        """Send a frame behind every reply that is still waited for."""
        self.replies.send(data)

    def fail(self, code: str, text: str) -> None:
        """Send a fatal error and hang up."""
        self.closed = True
        self.receiver.leave()
        self.service.node.count_fault("nsq", code, text, self.name)
        self.replies.send(error(code, text))
        self.replies.then(self._link.hang_up)

    def hang_up(self) -> None:
        """Close without a word once all replies are out."""
        if not self.closed:
            self.closed = True
            self.replies.then(self._link.hang_up)

    def close(self) -> None:
        """Forget the connection; what it held goes to the others."""
        self.closed = True
        self.replies.forget()
        self.receiver.leave()
        self._decoder.forget()
        self._hold()
        self._later = []
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        self.caller.on_change = None
        self.service.node.gate.leave(self.caller)

    def end(self) -> None:
        """Close, and know nobody any more: what knows each other goes only when the collector comes by, some day."""
        self.close()
        self._link = NOBODY
        self.replies.through(NOBODY)
        del self.publisher, self.receiver

    COMMANDS: ClassVar[dict[str, tuple[str, Callable[..., Any]]]] = {
        "PUB": ("publisher", Publisher.pub),
        "MPUB": ("publisher", Publisher.mpub),
        "DPUB": ("publisher", Publisher.dpub),
        "PUB_EXT": ("publisher", Publisher.pub_ext),
        "MPUB_EXT": ("publisher", Publisher.mpub_ext),
        "PUB_TRACE": ("publisher", Publisher.pub_trace),
        "MPUB_TRACE": ("publisher", Publisher.mpub_trace),
        "INTERNAL_CREATE_TOPIC": ("publisher", Publisher.internal_create_topic),
        "SUB": ("receiver", Receiver.sub),
        "SUB_ADVANCED": ("receiver", Receiver.sub_advanced),
        "SUB_ORDERED": ("receiver", Receiver.sub_ordered),
        "RDY": ("receiver", Receiver.rdy),
        "FIN": ("receiver", Receiver.fin),
        "REQ": ("receiver", Receiver.req),
        "TOUCH": ("receiver", Receiver.touch),
        "CLS": ("receiver", Receiver.cls),
        "NOP": ("", nop),
        "IDENTIFY": ("", identify),
        "AUTH": ("", auth),
        "fault": ("", fail),
        "hang up": ("", hang_up),
    }
