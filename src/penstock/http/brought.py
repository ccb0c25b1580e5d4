"""A request that one node brings to another: the client's own, and a header that says whose it is.

Owns that header. Invariant: no client can send it: what it sends under this name is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.callers import Caller, Gate
from penstock.callers.carried import Carried, arrived, carried
from penstock.errors import Refusal

if TYPE_CHECKING:
    from penstock.http.request import Request

_NAME = b"x-penstock-caller"

#: Of one connection, not of the request; its body is whole, and its length is said anew.
_OF_CONNECTION = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade", b"http2-settings"),
        *(b"transfer-encoding", b"content-length", b"expect", _NAME),
    )
)


class _Brought(msgspec.Struct, frozen=True):
    caller: Carried
    #: How many nodes it came by.
    hops: int


_decode = msgspec.json.Decoder(_Brought).decode


def written(request: Request) -> bytes:
    """Return the bytes of a request as another node gets it."""
    target = request.path.encode("latin-1") + (b"?" + request.query if request.query else b"")
    head = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), target)]
    head += [b"%b: %b" % header for header in request.headers if header[0] not in _OF_CONNECTION]
    said = _said(request.caller, request.connection.listener.gate, request.hops)
    return b"\r\n".join((*head, said, b"content-length: %d" % len(request.body), b"", request.body))


def question(caller: Caller, gate: Gate, target: str) -> bytes:
    """Return the bytes of a GET that a node has for another one, for somebody."""
    return b"\r\n".join((b"GET %b HTTP/1.1" % target.encode("ascii"), _said(caller, gate, 0), b"", b""))


def _said(caller: Caller, gate: Gate, hops: int) -> bytes:
    return b"%b: %b" % (_NAME, msgspec.json.encode(_Brought(carried(caller, gate), hops + 1)))


def arrive(request: Request) -> None:
    """Learn whose a request is that another node brings."""
    said = request.header(_NAME)
    try:
        brought = _decode(said)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal("bad_request", f"node {request.connection.node} does not say whose it is: {error}") from None
    request.headers = [header for header in request.headers if header[0] != _NAME]
    request.hops = brought.hops
    connection = request.connection
    request.caller = connection.visitor.caller = arrived(brought.caller, connection.listener.gate, connection.node)
