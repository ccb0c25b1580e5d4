"""Who calls: every call shows a token, or a user and its secret, in its header `authorization`, Bearer or Basic.

Owns the look at the header, on Flight's threads, where a secret may take its time to be hashed; a header alone does not
tell where it comes from, so that waits for the call itself. Whether somebody may be here, with or without having shown
anything, is the gate's to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow.flight as flight

from penstock.callers.gate import Gate, shown_in
from penstock.callers.identity import ANONYMOUS, Identity

#: The name under which a call finds who its caller is.
CALLER = "caller"


class Shown(flight.ServerMiddleware):  # type: ignore[misc]
    """What one call showed; None if nothing."""

    def __init__(self, header: bytes | None) -> None:
        super().__init__()
        self._header = header

    def identity(self, gate: Gate, peer: str) -> Identity:
        """Return who that is."""
        if self._header is None:
            return ANONYMOUS
        shown = shown_in(self._header)
        return gate.checked(shown, peer) if shown is not None else Identity("", "wrong", note="no known form")


class Callers(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Keeps that header of each call."""

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str | bytes]]) -> Shown:
        """See who calls."""
        values = headers.get("authorization")
        if not values:
            return Shown(None)
        return Shown(values[0] if isinstance(values[0], bytes) else values[0].encode("utf-8", "surrogateescape"))
