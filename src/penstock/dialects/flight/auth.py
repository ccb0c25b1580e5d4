"""Who calls: every call shows a token, or a user and its secret, in its header `authorization`, Bearer or Basic.

Owns the look at the header, on Flight's threads, where a secret may take its time to be hashed. Whether somebody may
be here, with or without having shown anything, is the gate's to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow.flight as flight

from penstock.callers.gate import shown_in
from penstock.callers.identity import ANONYMOUS, Identity
from penstock.dialects.flight.service import Service

#: The name under which a call finds who its caller is.
CALLER = "caller"


class Shown(flight.ServerMiddleware):  # type: ignore[misc]
    """What one call showed."""

    def __init__(self, identity: Identity) -> None:
        super().__init__()
        self.identity = identity


class Callers(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Looks at the headers of each call before anything else does."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self._gate = service.node.gate

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str | bytes]]) -> Shown:
        """See who calls."""
        values = headers.get("authorization")
        if not values:
            return Shown(ANONYMOUS)
        header = values[0] if isinstance(values[0], bytes) else values[0].encode("utf-8", "surrogateescape")
        shown = shown_in(header)
        if shown is None:
            return Shown(Identity("", "wrong", note="no known form"))
        return Shown(self._gate.known(shown) or self._gate.verified(shown))
