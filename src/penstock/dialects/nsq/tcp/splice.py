"""A session whose topic another node has: from SUB on, its bytes go there and back as they are.

The other node's session is the one that holds messages, beats and answers; this one only passes on. Owns the way to it.
Invariant: each end waits for the other to read, and ends with it.
"""

from __future__ import annotations

import asyncio
from glob import escape
from typing import TYPE_CHECKING, Protocol, cast

import msgspec

from penstock.callers import Rule
from penstock.callers.carried import carried
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.tcp.identify import Agreed, Faulty, agree
from penstock.errors import Elsewhere, Refusal
from penstock.wire.reading import Reading

if TYPE_CHECKING:
    from penstock.dialects.nsq.tcp.session import Session

DOOR = "nsq.tcp_port"

#: A topic that moves is looked for at so many nodes.
HOPS_MAX = 2

#: Why nothing is read from the other node: the client does not read.
_FULL = 1


class About(msgspec.Struct, frozen=True):
    """What the other node has to know of a session."""

    #: The body of its last IDENTIFY, empty if there was none.
    identify: bytes = b""
    #: By how many nodes it came.
    hops: int = 1

    def agreed(self, config: NsqConfig, otherwise: Agreed) -> Agreed:
        """Return what holds for it, without layers: those are between the client and the node it is connected to."""
        if not self.identify:
            return otherwise
        try:
            return agree(self.identify, config)
        except Faulty as faulty:
            raise Refusal("bad_request", str(faulty)) from None


def about(said: bytes) -> About:
    """Read what a node says of a session."""
    try:
        return msgspec.msgpack.decode(said, type=About)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Refusal("bad_request", f"what is said of a session cannot be read: {error}") from None


class Client(Protocol):
    """The connection of the client."""

    def passed_back(self, data: bytes) -> None:
        """Send what the other node said."""

    def hold(self, full: bool) -> None:
        """Read nothing from the client, or go on."""

    def hang_up(self) -> None:
        """Close once everything sent has left."""


class Splice(asyncio.Protocol):
    """The way of one session to another node."""

    def __init__(self, session: Session, client: Client, there: Elsewhere, line: bytes) -> None:
        """Take where to go, and the command that leads there."""
        self._session = session
        self._client = client
        self._there = there
        self._line = line
        self._transport: asyncio.Transport | None = None
        self._reading = Reading()
        #: What the client said before the way was there.
        self._early = b""
        self._closed = False

    def begin(self) -> None:
        """Go there."""
        session = self._session
        node, login = session.service.node, session.login
        rules = None
        if login.guard is not None:  # what the auth server grants is asked here, so this is all that it may do there
            rules = (Rule("consume", escape(self._there.topic)),)
        told = carried(login.caller, node.gate, rules)
        said = msgspec.msgpack.encode(About(session.identified, session.hops + 1))
        if node.peers is not None:
            node.peers.connect(self._there.node, DOOR, told, said, self, self._failed)

    @property
    def topic(self) -> str:
        """The topic that it is about."""
        return self._there.topic

    def write(self, data: bytes) -> None:
        """Pass on what the client said."""
        if self._transport is not None:
            self._transport.write(data)
        else:
            self._early += data

    def block(self) -> None:
        """Take nothing more from the other node: the client does not read."""
        self._reading.stop(_FULL)

    def unblock(self) -> None:
        """Go on."""
        self._reading.start(_FULL)

    def close(self) -> None:
        """Let the other node know that the client is gone."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    # --- the transport calls these --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what the client said."""
        self._transport = cast(asyncio.Transport, transport)
        self._reading.begin(self._transport)
        if self._closed:
            self._transport.abort()
            return
        self._client.hold(False)  # what is written now may hold it again
        self._transport.write(self._line + self._session.given_away() + self._early)

    def data_received(self, data: bytes) -> None:
        """Pass on what the other node said."""
        self._client.passed_back(data)

    def pause_writing(self) -> None:
        """Read nothing from the client while the other node does not."""
        self._client.hold(True)

    def resume_writing(self) -> None:
        """Go on."""
        self._client.hold(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """End with the other node: clients come back, and find the topic's next one."""
        self._transport = None
        self._reading.end()
        if not self._closed:
            self._closed = True
            self._client.hang_up()

    def _failed(self, why: Refusal) -> None:
        if not self._closed:
            self._closed = True
            word = self._line.partition(b" ")[0].decode()
            self._session.fail("E_SUB_FAILED", f"{word} failed {why}")
