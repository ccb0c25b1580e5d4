"""What NSQ's HTTP interfaces share: answers, refusals and parameters, version 1.0 of both daemons.

A plain ASGI application without a framework. Knows no path and no node.
Invariant: parameters come from the query alone, and every answer says which version it is.
"""

from __future__ import annotations

import asyncio
import re
from typing import NamedTuple
from urllib.parse import parse_qsl

import msgspec

from penstock.dialects.nsq.codec import is_name
from penstock.intake.limits import InputMemory
from penstock.listener import Receive, Scope, Send

NSQ = (b"x-nsq-content-type", b"nsq; version=1.0")
JSON = (b"content-type", b"application/json; charset=utf-8")
TEXT = (b"content-type", b"text/plain; charset=utf-8")

#: A client that sends half a body and stops is given up after this long without a byte.
BODY_PAUSE_S = 30.0

#: A request with more parameters than this has another purpose.
PARAMS_MAX = 32

Params = dict[str, str]

#: A percent sign that escapes nothing.
_BROKEN = re.compile(rb"%(?![0-9a-fA-F]{2})").search
_SWITCH = {"true": True, "1": True, "false": False, "0": False}
_SLASHES = re.compile("/{2,}")


class Answer(NamedTuple):
    """What is sent back."""

    content: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    status: int = 200


OK = Answer(b"OK", (NSQ, TEXT))
EMPTY = Answer(b"", (NSQ,))


class Fault(Exception):
    """A request that is refused, with NSQ's status and word for it, and where that helps the reason in a sentence."""

    def __init__(self, status: int, code: str, reason: str = "") -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.reason = reason


def document(content: object) -> Answer:
    """Return an answer in JSON."""
    return Answer(msgspec.json.encode(content), (NSQ, JSON))


def refusal(status: int, code: str, reason: str = "") -> Answer:
    """Return the answer to what is refused; programs read the code, people the reason."""
    told = {"message": code, "reason": reason} if reason else {"message": code}
    return Answer(msgspec.json.encode(told), (NSQ, JSON), status)


def params(scope: Scope) -> Params:
    """Return the query's parameters, of a repeated one the first; bytes that are no text stay as surrogates."""
    query: bytes = scope["query_string"]
    if _BROKEN(query) is not None:
        raise Fault(400, "INVALID_REQUEST")
    try:
        pairs = parse_qsl(query.decode("ascii"), True, errors="surrogateescape", max_num_fields=PARAMS_MAX)
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


def switch(params: Params, name: str, *, default: bool) -> bool:
    """Return a parameter that is on or off; a word that says neither counts as not given, as in nsqd."""
    return _SWITCH.get(params.get(name, ""), default)


def peer(scope: Scope) -> str:
    """Return who asks."""
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""


async def body(scope: Scope, receive: Receive, limit: int, memory: InputMemory, too_big: Fault) -> bytes:
    """Read a whole body, within its limit and within the node's memory for input."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise too_big
    parts: list[bytes] = []
    size = 0
    try:
        while True:
            async with asyncio.timeout(BODY_PAUSE_S):
                message = await receive()
            if message["type"] == "http.disconnect":
                raise Fault(400, "INVALID_REQUEST")
            part: bytes = message.get("body", b"")
            if not memory.take(len(part)):
                raise Fault(503, "MEMORY_FULL")
            size += len(part)
            if size > limit:
                raise too_big
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)
    except TimeoutError:
        raise Fault(400, "INVALID_REQUEST") from None
    finally:
        memory.give(size)


async def send(answer: Answer, send: Send) -> None:
    """Send an answer."""
    length = (b"content-length", b"%d" % len(answer.content))
    await send({"type": "http.response.start", "status": answer.status, "headers": [*answer.headers, length]})
    await send({"type": "http.response.body", "body": answer.content})
