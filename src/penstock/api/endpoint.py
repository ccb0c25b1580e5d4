"""One row of the API's table, and one request to it.

A row says everything about an endpoint: the way to it, what it takes, what it answers. Requests are decoded by it and
the OpenAPI document is written from it, so the two cannot differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.requests import Request

from penstock.api.context import Context
from penstock.api.problem import JSON, unknown
from penstock.delivery.subscription import Subscription
from penstock.errors import Refusal
from penstock.listener import Receive
from penstock.node import Node
from penstock.topic import Topic

PREFIX = "/api/v1"

#: A body that is a command, not messages.
COMMAND_BYTES_MAX = 1 << 20

#: A client that sends half a body and stops is given up after this long without a byte.
BODY_PAUSE_S = 30.0

QUERY_FIELDS_MAX = 32

Query = TypeVar("Query")
Body = TypeVar("Body")


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """No parameters, or no body."""


class Reply(NamedTuple):
    """An answer that is not JSON, or not a 200."""

    content: bytes
    media_type: str = JSON
    status: int = 200


class Endpoint(NamedTuple):
    """One way to ask for something."""

    method: str
    path: str
    handle: Callable[[Any], Awaitable[object]]
    summary: str
    answer: Any = None
    query: type[msgspec.Struct] | None = Nothing
    #: A struct, or bytes for a body the handler reads itself.
    body: type[msgspec.Struct] | type[bytes] | None = None
    status: int = 200
    #: Asked without a token: what a load balancer needs.
    is_open: bool = False
    media_type: str = JSON


class Call(Generic[Query, Body]):
    """One request, decoded."""

    def __init__(
        self, context: Context, request: Request, names: Mapping[str, str], query: Query, body: Body, *, is_known: bool
    ) -> None:
        self.context = context
        self.names = names
        self.query = query
        self.body = body
        #: Whether the token was shown, or none is asked for.
        self.is_known = is_known
        self.client: tuple[str, int] | None = request.scope.get("client")
        #: The client hung up while it was waited for something.
        self.is_gone = False
        self._receive: Receive = request.receive

    @property
    def node(self) -> Node:
        """The node that is asked."""
        return self.context.node

    def topic(self) -> Topic:
        """Return the topic that the path names."""
        return self.node.topic(self.names["topic"])

    def subscription(self) -> tuple[Topic, Subscription]:
        """Return the subscription that the path names, with its topic."""
        topic = self.topic()
        return topic, topic.subscription(self.names["subscription"])

    async def wait(self, event: asyncio.Future[Any], seconds: float) -> bool:
        """Wait for an event, but not longer than told, nor for a client that is gone; True if it came."""
        if not event.done() and seconds > 0:
            gone = asyncio.ensure_future(self._gone())
            try:
                await asyncio.wait(
                    {event, gone, self.context.closing}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
                self.is_gone = gone.done()
            finally:
                gone.cancel()
        return event.done()

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def decoded(context: Context, endpoint: Endpoint, request: Request, *, is_known: bool) -> Call[Any, Any]:
    """Return a request as its endpoint takes it, or refuse it."""
    names = {name: _unquoted(value) for name, value in request.path_params.items()}
    query = None if endpoint.query is None else _query(request.scope["query_string"], endpoint.query)
    body: object = None
    if endpoint.body is not None:
        if issubclass(endpoint.body, msgspec.Struct):
            body = _command(await _body(request, context, COMMAND_BYTES_MAX), endpoint.body)
        else:
            body = await _body(request, context, context.publish_bytes_max)
    return Call(context, request, names, query, body, is_known=is_known)


def _unquoted(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise Refusal("bad_name", f"{text!r} in the path is not UTF-8 text") from None


def _query(raw: bytes, kind: type[msgspec.Struct]) -> msgspec.Struct:
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX)
    except ValueError as error:
        raise Refusal("bad_request", f"the parameters cannot be read: {error}") from None
    for name, _ in pairs:
        if name not in kind.__struct_fields__:
            raise unknown(name, kind.__struct_fields__, "parameter")
    try:
        return msgspec.convert(dict(pairs), kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refusal("bad_request", f"the parameters cannot be used: {_plain(error)}") from None


def _command(raw: bytes, kind: type[msgspec.Struct]) -> msgspec.Struct:
    try:
        value = msgspec.json.decode(raw) if raw.strip() else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal("bad_request", f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refusal("bad_request", "the body must be a JSON object")
    for name in value:
        if name not in kind.__struct_fields__:
            raise unknown(name, kind.__struct_fields__, "field")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Refusal("bad_request", f"the body cannot be used: {_plain(error)}") from None


def _plain(error: msgspec.ValidationError) -> str:
    return str(error).replace("`$.", "`").replace("`$[...]", "`an item")


async def _body(request: Request, context: Context, limit: int) -> bytes:
    """Read a whole body, within its limit and within the node's memory for input."""
    memory = context.node.input_memory
    told = request.headers.get("content-length", "0")
    if told.isascii() and told.isdigit() and int(told) > limit:
        raise _too_big(int(told), limit)
    parts: list[bytes] = []
    size = 0
    try:
        while True:
            async with asyncio.timeout(BODY_PAUSE_S):
                message = await request.receive()
            if message["type"] == "http.disconnect":
                raise Refusal("bad_request", "the client hung up inside the body")
            part = message.get("body", b"")
            if not memory.take(len(part)):
                raise Refusal("memory_full", "too much input is waiting to be stored; try again in a moment")
            size += len(part)
            parts.append(part)
            if size > limit:
                raise _too_big(size, limit)
            if not message.get("more_body", False):
                return b"".join(parts)
    except TimeoutError:
        raise Refusal("bad_request", f"no more of the body came for {BODY_PAUSE_S:.0f} s") from None
    finally:
        memory.give(size)


def _too_big(size: int, limit: int) -> Refusal:
    return Refusal("message_too_big", f"a body of {size} bytes is over the limit of {limit}; send it in parts")
