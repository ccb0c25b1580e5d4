"""One row of the API's table, and one request to it.

A row says everything about an endpoint: the way to it, what it takes, what it answers. Requests are decoded by it and
the OpenAPI document is written from it, so the two cannot differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from penstock.api.context import Context
from penstock.callers import Action, Caller
from penstock.delivery.subscription import Subscription
from penstock.http import Request
from penstock.http.away import Away
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.rest.reading import Nothing, read_body, read_query, unquoted
from penstock.rest.reply import JSON, Reply

PREFIX = "/api/v1"

#: A body that is a command, not messages.
COMMAND_BYTES_MAX = 1 << 20

__all__ = ["COMMAND_BYTES_MAX", "PREFIX", "Call", "Endpoint", "Nothing", "Reply", "decoded"]

Query = TypeVar("Query")
Body = TypeVar("Body")


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
    #: What is done to the topic in its path; None = GET looks at it, all else changes it.
    action: Action | None = None
    #: What is done to the node as a whole; None = nothing that not everybody may.
    on_node: Action | None = None

    @property
    def does(self) -> Action:
        """What is done to the topic in its path."""
        return self.action or ("see" if self.method == "GET" else "change")


class Call(Generic[Query, Body]):
    """One request, decoded."""

    def __init__(
        self,
        context: Context,
        request: Request,
        action: Action,
        names: Mapping[str, str],
        query: Query,
        body: Body,
    ) -> None:
        self.context = context
        self.action = action
        self.names = names
        self.query = query
        self.body = body
        self.client = request.connection.client
        #: The client hung up while it was waited for something.
        self.is_gone = False
        self._request = request

    @property
    def node(self) -> Node:
        """The node that is asked."""
        return self.context.node

    @property
    def caller(self) -> Caller:
        """Who asks."""
        return self._request.caller

    @property
    def away(self) -> Away | None:
        """The way to other nodes; None where there is no cluster."""
        return self._request.connection.listener.away

    def let_go(self) -> None:
        """Say that the body is needed no more."""
        self._request.let_go()

    def topic(self) -> Topic:
        """Return the topic that the path names, to somebody who may do with it what is asked for here."""
        return self.node.reach(self.caller, self.action, self.names["topic"])

    def subscription(self) -> tuple[Topic, Subscription]:
        """Return the subscription that the path names, with its topic."""
        topic = self.topic()
        return topic, topic.subscription(self.names["subscription"])

    async def wait(self, event: asyncio.Future[Any], seconds: float) -> bool:
        """Wait for an event, but not longer than told, nor for a client that is gone; True if it came."""
        if not event.done() and seconds > 0:
            gone = asyncio.get_running_loop().create_future()
            self._request.on_gone(lambda: None if gone.done() else gone.set_result(None))
            await asyncio.wait(
                {event, gone, self.context.closing}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            self.is_gone = gone.done()
        return event.done()


def decoded(context: Context, endpoint: Endpoint, request: Request) -> Call[Any, Any]:
    """Return a request as its endpoint takes it, or refuse it."""
    names = {name: unquoted(value) for name, value in request.names.items()}
    query = None if endpoint.query is None else read_query(request.query, endpoint.query)
    body: object = None
    if endpoint.body is not None:
        body = read_body(request.body, endpoint.body) if issubclass(endpoint.body, msgspec.Struct) else request.body
    return Call(context, request, endpoint.does, names, query, body)
