"""What NSQ's HTTP interfaces share: answers, refusals and parameters, version 1.0 of both daemons.

A plain ASGI application without a framework. Knows no path and no node.
Invariant: parameters come from the query alone, and every answer says which version it is.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl

import msgspec

from penstock.dialects.nsq.codec import is_name
from penstock.listener import Scope, Send

NSQ = (b"x-nsq-content-type", b"nsq; version=1.0")
JSON = (b"content-type", b"application/json; charset=utf-8")
TEXT = (b"content-type", b"text/plain; charset=utf-8")

#: A request with more parameters than this has another purpose.
PARAMS_MAX = 32

Params = dict[str, str]

_SLASHES = re.compile("/{2,}")


class Answer(NamedTuple):
    """What is sent back."""

    content: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    status: int = 200


OK = Answer(b"OK", (NSQ, TEXT))
EMPTY = Answer(b"", (NSQ,))


class Fault(Exception):
    """A request that is refused, with NSQ's status and word for it."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


def document(content: object) -> Answer:
    """Return an answer in JSON."""
    return Answer(msgspec.json.encode(content), (NSQ, JSON))


def refusal(status: int, code: str) -> Answer:
    """Return the answer to what is refused."""
    return Answer(msgspec.json.encode({"message": code}), (NSQ, JSON), status)


def params(scope: Scope) -> Params:
    """Return the query's parameters, of a repeated one the first."""
    try:
        pairs = parse_qsl(scope["query_string"].decode("ascii"), True, errors="strict", max_num_fields=PARAMS_MAX)
    except ValueError:
        raise Fault(400, "INVALID_REQUEST") from None
    return dict(reversed(pairs))


def path(scope: Scope) -> str:
    """Return the path, without the doubled slashes that ansq sends."""
    asked: str = scope["path"]
    return _SLASHES.sub("/", asked) if "//" in asked else asked


def name(params: Params, what: str, invalid: str) -> str:
    """Return the parameter that names a topic or channel; `invalid` is the code for a name NSQ does not take."""
    if what not in params:
        raise Fault(400, f"MISSING_ARG_{what.upper()}")
    given = params[what]
    if not given.isascii() or not is_name(given.encode()):
        raise Fault(400, invalid)
    return given


def peer(scope: Scope) -> str:
    """Return who asks."""
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""


async def send(answer: Answer, send: Send) -> None:
    """Send an answer."""
    length = (b"content-length", b"%d" % len(answer.content))
    await send({"type": "http.response.start", "status": answer.status, "headers": [*answer.headers, length]})
    await send({"type": "http.response.body", "body": answer.content})
