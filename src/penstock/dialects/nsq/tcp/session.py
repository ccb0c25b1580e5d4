"""One NSQ connection: commands in, frames out. No sockets, no clock of its own, no delivery rules.

Owns the protocol's state, init -> subscribed (SUB) -> closing (CLS), what waits in it, and IDENTIFY. Publishing is in
`publisher`, consuming in `receiver`, who the client is in `login`; replies leave in the order of the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from penstock.budget import Wait
from penstock.callers import Caller
from penstock.clock import MILLISECOND, Timer
from penstock.columns import Buffer
from penstock.delivery.seat import Seat
from penstock.dialects.nsq.codec import OK, RESPONSE, SOURCE, Command, Decoder, Limits, error, frame
from penstock.dialects.nsq.tcp.gatherer import Gatherer
from penstock.dialects.nsq.tcp.identify import Agreed, Faulty, Offer, agree, reply
from penstock.dialects.nsq.tcp.login import Login
from penstock.dialects.nsq.tcp.publisher import Publisher, failed
from penstock.dialects.nsq.tcp.receiver import Receiver
from penstock.dialects.nsq.tcp.replies import Replies
from penstock.dialects.nsq.tcp.service import Service
from penstock.dialects.nsq.tcp.splice import HOPS_MAX, Splice
from penstock.dialects.nsq.topics import EPHEMERAL
from penstock.errors import Elsewhere, Refusal
from penstock.message import Rows
from penstock.peers.line import Line
from penstock.registry.answer import Answer

__all__ = ["EPHEMERAL", "Link", "Session"]

T = TypeVar("T")

#: No word of the protocol is longer.
WORD_BYTES_MAX = 32


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

    def pass_on(self) -> None:
        """Leave everything to the session's splice from now on."""

    def passed_back(self, data: bytes) -> None:
        """Send what another node said."""

    def hold(self, full: bool) -> None:
        """Read nothing, or go on: the other node does not read, or does."""

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

    def passed_back(self, data: bytes) -> None:
        """Send nothing."""

    def hold(self, full: bool) -> None:
        """Do nothing."""

    def retime(self) -> None:
        """Do nothing."""

    pause = resume = hang_up = pass_on = retime


NOBODY = _Nobody()


class Session:
    """The protocol's state."""

    __slots__ = (
        "_again",
        "_decoder",
        "_full",
        "_held",
        "_host",
        "_later",
        "_resting",
        "_stepping",
        "_waiting",
        "agreed",
        "closed",
        "connected_ns",
        "gated",
        "hops",
        "identified",
        "link",
        "login",
        "name",
        "publisher",
        "receiver",
        "replies",
        "service",
        "spliced",
        "state",
    )

    def __init__(self, service: Service, link: Link, name: str, caller: Caller | None = None) -> None:
        """Take the way back and the client's address; with `caller` another node let it in."""
        config = service.config
        self.service = service
        self.link = link
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
        #: The way to another node has no room.
        self._full = False
        #: In the middle of the commands of one read.
        self._stepping = False
        self.name = name
        #: Who that is, and what it may say.
        self.login = Login(self, caller)
        #: What it last said of itself, by how many nodes it came, and the way to the node that has its topic.
        self.identified = b""
        self.hops = 0
        self.spliced: Splice | None = None
        #: What came of a command that is not all there, if anything did.
        self._held: Wait | None = None
        self._host = host = name.rpartition(":")[0]  # its name, too, until it says who it is
        self.agreed = Agreed(host, host, heartbeat_ns=config.heartbeat_interval_ns, lease_ns=config.msg_timeout_ns)
        self.state: Literal["init", "subscribed", "closing"] = "init"
        self.closed = False
        self.connected_ns = service.node.clock.now()
        #: Not every command may pass: AUTH or TLS is asked for.
        self.gated = self.login.guard is not None or (config.tls_required and caller is None)
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
        held = 0 if self.closed else self._decoder.held
        if self._later and not self.closed:  # for a topic that is being made, say
            held += sum([len(part.body) for command in self._later for part in command if isinstance(part, Rows)])
        bodies, paced = self.service.node.budget.body, not self._waiting
        self._held = bodies.keep(self._held, held, self._host, self._cut, fresh=fresh, paced=paced)

    def _cut(self, why: Refusal) -> None:
        """Hold nothing more of a command that comes too slowly, or where too much is held."""
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
                if self.gated and not self.login.passes(command):
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
        self.link.pause()

    def resume(self) -> None:
        """Say that the answer has come; the link calls `go_on`, not from inside the command that waited."""
        if not self._full and self._resting is None:
            self.link.resume()

    def wait_for(self, line: Line) -> None:
        """Carry out nothing more, and read nothing, until the way to another node has room."""
        self.wait()
        if not self._full:  # who goes on twice would not wait for what it needs next
            self._full = True
            line.when_free(self._room)

    def _room(self) -> None:
        self._full = False
        self.resume()

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
        if self._waiting and not self.closed and self.spliced is None:
            self._waiting = False
            later, self._later = self._later, []
            self._decoder.stopped = True
            self._run(later)
            self._hold(fresh=True)

    # --- commands -------------------------------------------------------------------------------------------------

    def identify(self, args: list[bytes], body: bytes) -> None:
        """Agree on timeouts, buffers, filters and layers."""
        if self.state != "init":
            self.fail("E_INVALID", "cannot IDENTIFY in current state")
            return
        config = self.service.config
        fresh = not self.link.layered
        offer = Offer(
            tls=fresh and self.service.tls is not None,
            snappy=fresh and config.snappy,
            deflate=fresh and config.deflate,
            auth_required=self.login.guard is not None or not self.login.caller.is_known,
        )
        try:
            agreed = self.agreed = agree(body, config, offer)
            if self.login.guard is None and agreed.tls and config.tls_client_auth_policy != "none":
                offer = offer._replace(auth_required=False)  # the certificate says who it is
        except Faulty as faulty:
            self.fail(faulty.code, str(faulty))
            return
        self.identified = body if self.service.node.peers is not None else b""
        self.link.retime()
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
        self.link.upgrade(self.agreed, rest)

    def splice(self, there: Elsewhere, line: bytes) -> bool:
        """Let another node go on from here with what `line` asks; False if that cannot be."""
        if self.service.node.peers is None or self.hops >= HOPS_MAX:
            return False
        self.wait()
        self.spliced = Splice(self, self.link, there, line)
        self.replies.then(self.link.pass_on)
        return True

    def given_away(self) -> bytes:
        """Return what came of the client and was not looked at: somebody else's from now on."""
        rest = self._decoder.rest()
        self._hold()
        return rest

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
        gatherer = Gatherer(self.link, self.service.node.clock, bytes_max, hold_ns)
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
        self.replies.then(self.link.hang_up)

    def hang_up(self) -> None:
        """Close without a word once all replies are out."""
        if not self.closed:
            self.closed = True
            self.replies.then(self.link.hang_up)

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
        self.login.leave()
        if self.spliced is not None:
            self.spliced.close()
            self.spliced = None

    def end(self) -> None:
        """Close, and know nobody any more: what knows each other goes only when the collector comes by, some day."""
        self.close()
        self.link = NOBODY
        self.replies.through(NOBODY)
        del self.publisher, self.receiver, self.login

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
        "AUTH": ("login", Login.auth),
        "fault": ("", fail),
        "hang up": ("", hang_up),
    }
