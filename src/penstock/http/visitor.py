"""Who is at the other end of a connection: by its certificate, by what its requests show, by how they are signed.

Owns the callers of one connection and follows what becomes of them. Knows nothing of what they ask.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.callers import Caller
from penstock.callers.gate import shown_in
from penstock.callers.identity import Identity

if TYPE_CHECKING:
    from penstock.http.listener import Listener
    from penstock.http.request import Request


class Visitor:
    """One client, and whoever it says it is."""

    __slots__ = ("_gate", "_hang_up", "_shown", "_takes_signatures", "caller", "signed")

    def __init__(self, listener: Listener, hang_up: Callable[[], None]) -> None:
        self._gate = listener.gate
        self._takes_signatures = listener.app.takes_signatures
        #: Called when somebody is known no more.
        self._hang_up = hang_up
        #: Who is connected, as far as the connection itself tells; and the last one that the header of a request told.
        self.caller = Caller(listener.gate, "", listener.key, asks_token=listener.asks_token)
        self._shown: tuple[bytes, Caller] | None = None
        #: Who signed the last request, where the application looks at signatures; it leaves with the connection.
        self.signed: Caller | None = None

    def certify(self, name: str) -> None:
        """Be who a certificate says."""
        caller = self.caller.showing(self._gate.certified(name))
        self.caller = self._gate.noted(caller)
        if caller.name:
            self._follow(caller)

    def known(self, authorization: bytes) -> Caller | None:
        """Return who asks with this header; None while nobody knows."""
        if not authorization:
            return self.caller
        if self._shown is not None and self._shown[0] == authorization and self._shown[1].is_known:
            return self._shown[1]
        shown = shown_in(authorization)
        if shown is None and self._takes_signatures:
            return self.caller
        found = self._gate.known(shown) if shown is not None else Identity("", "wrong", note="no known form")
        return None if found is None else self.shows(authorization, found)

    def look_at(self, request: Request) -> None:
        """See who asks; where a secret has to be hashed for it, that goes on while the body comes."""
        authorization = request.header(b"authorization")
        caller = self.known(authorization)
        if caller is not None:
            request.caller = caller
        else:
            request.identity = self._gate.identify(shown_in(authorization) or b"", self.caller.address)

    def shows(self, authorization: bytes, identity: Identity) -> Caller:
        """Return who a header showed, now that it is known."""
        if self._shown is not None:
            self._forget(self._shown[1])
        caller = self._gate.noted(self.caller.showing(identity))
        self._shown = (authorization, caller)
        self._follow(caller)
        return caller

    def leave(self) -> None:
        """Be nobody any more."""
        self._forget(self.caller)
        if self._shown is not None:
            self._forget(self._shown[1])
        if self.signed is not None:
            self._forget(self.signed)
        del self._hang_up  # it knows the connection, and the collector comes by only some day

    def _follow(self, caller: Caller) -> None:
        caller.on_change = partial(self._changed, caller)
        self._gate.follow(caller)

    def _forget(self, caller: Caller) -> None:
        caller.on_change = None
        self._gate.leave(caller)

    def _changed(self, caller: Caller) -> None:
        """Hang up on somebody who is known no more, once it is answered."""
        if not caller.is_known:
            self._hang_up()
