"""The token: every call shows it in its header `authorization: Bearer <token>`, or is not begun.

Owns the check. Where no token is configured everybody may call; the configuration allows that on loopback only.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence

import pyarrow.flight as flight

from penstock.dialects.flight.faults import error_of
from penstock.errors import Refusal


class TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Looks at the headers of each call before anything else does."""

    def __init__(self, token: str, refused: Callable[[Refusal, str], None]) -> None:
        super().__init__()
        self._token = token.encode()
        self._refused = refused

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str | bytes]]) -> None:
        """Refuse a call without the token; in a time that does not tell how nearly it was right."""
        if not self._token:
            return
        values = headers.get("authorization") or [""]
        shown = values[0] if isinstance(values[0], bytes) else values[0].encode("utf-8", "surrogateescape")
        scheme, _, given = shown.partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._token):
            return
        what = "is not the node's" if given else "is missing: send the header authorization: Bearer <token>"
        refusal = Refusal("unauthorized", f"the token {what}")
        self._refused(refusal, str(info.method))
        raise error_of(refusal)
