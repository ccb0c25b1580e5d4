"""Who an NSQ connection is, and what it may say: by AUTH, by its certificate, by the auth server's word.

Owns the caller of one connection and follows what becomes of its rights. Knows nothing of what commands do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.callers import Caller
from penstock.callers.identity import Identity
from penstock.dialects.nsq.codec import RESPONSE, Command, frame
from penstock.dialects.nsq.tcp.auth import Guard, Query
from penstock.errors import Refusal

if TYPE_CHECKING:
    from penstock.dialects.nsq.tcp.session import Session

#: Commands that need the auth server's word, where there is one: these name their topic first ...
_PUBLISHING = frozenset(("PUB", "MPUB", "DPUB", "PUB_EXT", "MPUB_EXT", "PUB_TRACE", "MPUB_TRACE"))
#: ... and these a topic and a channel among their words.
_SUBSCRIBING = frozenset(("SUB", "SUB_ADVANCED", "SUB_ORDERED"))
#: What a client may say before TLS where TLS is required.
_IN_CLEAR = frozenset(("IDENTIFY", "fault", "hang up"))

#: The endpoint of these connections.
LISTENER = "nsq.tcp_port"


class Login:
    """The caller of one connection."""

    __slots__ = ("_gate", "_session", "caller", "guard")

    def __init__(self, session: Session, caller: Caller | None = None) -> None:
        """Begin as nobody, or as somebody whom another node let in."""
        service = session.service
        self._session = session
        self._gate = gate = service.node.gate
        self.caller = caller or Caller(gate, session.name, LISTENER)
        self.caller.on_change = self._changed
        gate.follow(self.caller)
        #: What the auth server grants; None where there is none.
        asks = service.ask if caller is None else None  # which was asked where it came in
        self.guard = Guard(asks, service.node.clock) if asks is not None else None

    def leave(self) -> None:
        """Be nobody any more."""
        self.caller.on_change = None
        self._gate.leave(self.caller)

    def passes(self, command: Command) -> bool:
        """Tell whether a command may be carried out now; if not, the client was told or will be."""
        word = str(command[0])
        if self._session.service.config.tls_required and not self._session.link.tls and word not in _IN_CLEAR:
            self._session.fail("E_INVALID", f"cannot {word} in current state (TLS required)")
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
            self._session.fail("E_AUTH_FIRST", f"AUTH required before {word}")
        elif not guard.fresh:
            self._session.wait()
            guard.refresh(self._refreshed)
        elif not guard.grants.allow(topic, channel):
            self._session.fail("E_UNAUTHORIZED", f'AUTH failed for {word} on "{topic}" "{channel}"')
        else:
            return True
        return False

    def _refreshed(self) -> None:
        """Go on after the auth server was asked again, with the command that made it necessary."""
        if self._session.closed:
            return
        if self.guard is None or self.guard.grants is None:
            self._session.fail("E_AUTH_FAILED", "AUTH failed")
        else:
            self._session.resume()

    def auth(self, args: list[bytes], body: bytes) -> None:
        """Learn who the client is, and what it may do: from the auth server, where there is one."""
        guard, gate = self.guard, self._gate
        if self._session.state != "init":
            self._session.fail("E_INVALID", "cannot AUTH in current state")
        elif guard is None and not gate.takes_secrets:
            self._session.fail("E_AUTH_DISABLED", "AUTH disabled")
        elif (
            guard.known if guard is not None else self.caller.identity.how not in ("nothing", "certificate", "vouched")
        ):
            self._session.fail("E_INVALID", "AUTH already set")
        elif guard is None:
            self._session.wait()
            gate.identify(body, self._session.name).then(self._identified)
        else:
            address = self._session.name.rpartition(":")[0]
            link = self._session.link
            query = Query(address, link.tls, body.decode("utf-8", "replace"), link.common_name)
            self._session.wait()
            guard.authenticate(query, self._authenticated)

    def _authenticated(self) -> None:
        if self._session.closed or self.guard is None:
            return
        grants = self.guard.grants
        if grants is None:
            self._session.fail("E_AUTH_FAILED", "AUTH failed")
        elif not len(grants):
            self._session.fail("E_UNAUTHORIZED", "AUTH no authorizations found")
        else:
            # What it may do is asked of the auth server's grants, command by command.
            self._turn_into(Identity(grants.identity, "server"))
            self._welcome(grants.identity, len(grants), grants.identity_url)

    def _identified(self, identity: Identity | None, _: Exception | None) -> None:
        if self._session.closed or identity is None:
            return
        self._turn_into(identity)
        permissions = len(self._gate.rules(self.caller))
        if not self.caller.is_known:
            self._session.fail("E_AUTH_FAILED", "AUTH failed")
        elif not permissions:
            self._session.fail("E_UNAUTHORIZED", "AUTH no authorizations found")
        else:
            try:
                self.caller.enter()
            except Refusal as refusal:
                self._session.fail("E_TOO_MANY_CONNECTIONS", f"AUTH failed {refusal}")
                return
            self._welcome(identity.user, permissions)

    def _welcome(self, name: str, permissions: int, url: str = "") -> None:
        told = {"identity": name, "identity_url": url, "permission_count": permissions}
        self._session.replies.send(frame(RESPONSE, msgspec.json.encode(told)))
        self._session.resume()

    def certified(self, common_name: str) -> None:
        """Take note whose certificate the client showed."""
        identity = self._gate.certified(common_name)
        if identity.user and self.guard is None:
            self._turn_into(identity)

    def _turn_into(self, identity: Identity) -> None:
        """Be somebody from now on; whatever was allowed to nobody in particular is asked for again."""
        gate = self._gate
        gate.leave(self.caller)
        caller = self.caller = gate.noted(self.caller.showing(identity))
        caller.on_change = self._changed
        gate.follow(caller)
        self._session.publisher.forget()

    def _changed(self) -> None:
        """See what is left of the client's rights: one that is known no more, or may not receive, has to go."""
        self._session.publisher.forget()
        receiver = self._session.receiver
        topic = receiver.topic
        if self._session.closed or self.caller.identity.how == "nothing":  # which may still show something
            return
        spliced = self._session.spliced
        if spliced is not None:
            if not (self.caller.is_known and self.caller.may("receive", spliced.topic)):
                self._session.link.hang_up()  # without a word, which could stand in the middle of another node's
            return
        if not self.caller.is_known:
            self._session.fail("E_UNAUTHORIZED", "AUTH failed: what was shown does not count any more")
        elif receiver.seat is not None and topic is not None and not self.caller.may("receive", topic.name):
            self._session.fail("E_UNAUTHORIZED", f'AUTH failed for SUB on "{topic.name}"')

    def refuse(self, word: str, topic: str, channel: str, why: Refusal) -> None:
        """Tell that somebody may not, as nsqd does, and hang up."""
        if why.code == "unauthorized" and self.caller.identity.how == "nothing":
            self._session.fail("E_AUTH_FIRST", f"AUTH required before {word}")
        else:
            self._session.fail("E_UNAUTHORIZED", f'AUTH failed for {word} on "{topic}" "{channel}"')
