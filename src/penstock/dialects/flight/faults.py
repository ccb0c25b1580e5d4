"""What went wrong, as a Flight client hears it: an error whose message is "code: text", with the codes of `errors`.

Owns the one table from refusals to Flight's kinds of errors. Knows nothing of calls.
Invariant: nothing of the node's inside (paths, stack traces) leaves with an error.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.flight as flight

from penstock.client.wire import place_told, retry_told
from penstock.errors import Elsewhere, Refusal

_KINDS = {"unauthorized": flight.FlightUnauthenticatedError, "forbidden": flight.FlightUnauthorizedError}

#: What Arrow raises where a client is gone: its own errors, and the system's.
GONE = (pa.ArrowException, OSError)

#: What a client hears of a failure that is ours; the node's log has the rest.
OURS = "bug: the node failed at this; its log says how"


def error_of(refusal: Refusal) -> flight.FlightError:
    """Return the Flight error that says a refusal; what may be tried again is `unavailable`.

    Programs find beside the text when that is, or which node has what they want, and where.
    """
    kind = _KINDS.get(refusal.code)
    if kind is None:
        kind = flight.FlightUnavailableError if refusal.reason.retry else flight.FlightServerError
    told = retry_told(refusal.retry_ns) if refusal.retry_ns else b""
    return kind(f"{refusal.code}: {refusal}", place_told(refusal) if isinstance(refusal, Elsewhere) else told)


def refusal_of(error: pa.ArrowException) -> Refusal:
    """Return the refusal of bytes that Arrow itself could not read."""
    text = str(error).partition(". Detail:")[0].partition(" gRPC ")[0]
    return Refusal("bad_request", f"Arrow cannot read this: {text[:300]}")
