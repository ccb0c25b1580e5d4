"""The admin API as an application: every endpoint of the table, behind the token, with every error as JSON.

Invariant: no request ends without an answer that says what was wrong, and no failure of a handler ends the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.api import (
    cluster,
    dialects,
    discards,
    health,
    leases,
    ledger,
    memory,
    messages,
    pipelines,
    redrives,
    routing,
    subscriptions,
    topics,
    users,
)
from penstock.api.context import Context
from penstock.api.endpoint import COMMAND_BYTES_MAX, PREFIX, Call, Endpoint, Reply, decoded
from penstock.api.pages import frame, overview
from penstock.callers.rights import NODE
from penstock.errors import Elsewhere, Refusal
from penstock.http import App, Connection, Request, Response, Route, Routes
from penstock.rest.docs import docs
from penstock.rest.openapi import Described, Interface, document
from penstock.rest.problem import bug, of_refusal
from penstock.rest.record import Line
from penstock.rest.reply import JSON, answered

OPENAPI = f"{PREFIX}/openapi.json"

#: Refusals that tell of the client, not of the topic: nobody else has counted them.
COUNTED = frozenset(
    {
        *("bad_request", "bad_name", "bad_column", "bad_offset", "message_too_big"),
        *("unauthorized", "forbidden", "misdirected", "too_many_connections"),
    }
)


class Index(msgspec.Struct):
    """Where to go from here."""

    name: str
    version: str
    openapi: str
    endpoints: dict[str, str]


async def show_index(call: Call[None, None]) -> Index:
    """Show what can be asked here."""
    listed = {f"{endpoint.method} {endpoint.path}": endpoint.summary for endpoint in ENDPOINTS}
    return Index("penstock", call.context.version, OPENAPI, listed)


async def show_openapi(call: Call[None, None]) -> Reply:
    """Show the OpenAPI document of this API."""
    return Reply(msgspec.json.encode(_document(call.context.version)))


async def show_docs(call: Call[None, None]) -> Reply:
    """Show the same document to people."""
    return docs(frame.site(call.context.version), _document(call.context.version), OPENAPI)


def _document(version: str) -> dict[str, Any]:
    return document(Interface("Penstock admin API", version, _tag, Line), ENDPOINTS)


def _tag(endpoint: Described) -> str:
    if endpoint.path in (PREFIX, OPENAPI):
        return "index"
    if not endpoint.path.startswith(PREFIX + "/"):
        return "pages" if endpoint.media_type in _SHOWN else "health"
    words = [word for word in endpoint.path.removeprefix(PREFIX).split("/") if word and not word.startswith("{")]
    return next((word for word in reversed(words) if word in _TAGS), words[0])


#: What browsers are given.
_SHOWN = ("text/html", "text/css", "text/javascript")
_TAGS = ("topics", "subscriptions", "messages", "consumers", "pipelines", "ledger", "routing")


#: Everything this API can do. Requests, the OpenAPI document and the index are all made from it.
ENDPOINTS: Sequence[Endpoint] = (
    Endpoint("GET", PREFIX, show_index, "Show what can be asked here", Index, query=None),
    Endpoint("GET", OPENAPI, show_openapi, "Show this document", query=None),
    *topics.ENDPOINTS,
    *subscriptions.ENDPOINTS,
    *messages.ENDPOINTS,
    *leases.ENDPOINTS,
    *redrives.ENDPOINTS,
    *routing.ENDPOINTS,
    *pipelines.ENDPOINTS,
    *ledger.ENDPOINTS,
    *discards.ENDPOINTS,
    *dialects.ENDPOINTS,
    *cluster.ENDPOINTS,
    *memory.ENDPOINTS,
    *users.ENDPOINTS,
    *health.ENDPOINTS,
    *overview.ENDPOINTS,
    Endpoint("GET", "/docs", show_docs, "What can be asked here, for people", query=None, media_type="text/html"),
    *frame.ENDPOINTS,
)


class Api(App):
    """The application of one listener. Handlers are coroutines, so each request is a task here."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()
        self._routes = Routes(((each.method, each.path, self._route(each)) for each in ENDPOINTS), head=True)
        self._endpoints = {self._routes.find(each.method, each.path)[0]: each for each in ENDPOINTS}

    def begin(self, request: Request) -> None:
        """Give a request its route."""
        # Names may hold a slash: the path is split as it was sent, and each part is decoded after that.
        try:
            request.route, request.names = self._routes.find(request.method, request.path)
        except Refusal as refusal:
            if refusal.code != "not_found":
                raise
            raise Refusal("not_found", f"{refusal}; GET {PREFIX} lists what there is") from None

    def admit(self, request: Request) -> None:
        """Refuse who may not ask this, mostly before its body is read; whoever handles it looks at the topic."""
        assert request.route is not None
        endpoint = self._endpoints[request.route]
        if not endpoint.is_open:
            request.caller.enter()
        if endpoint.on_node is not None:
            request.caller.check(endpoint.on_node, NODE)

    def refused(self, error: BaseException, request: str, connection: Connection) -> Response:
        """Count what went wrong and return what is said about it."""
        if isinstance(error, Refusal):
            if error.code in COUNTED:
                self._context.node.count_fault("api", error.code, str(error), connection.peer)
            return of_refusal(error)
        self._context.node.report_bug(f"api {request}", error)
        return bug()

    def not_http(self, text: str, connection: Connection) -> None:
        """Count bytes that are no request."""
        self._context.node.count_fault("api", "bad_request", text, connection.peer)

    async def close(self) -> None:
        """End what still runs."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _route(self, endpoint: Endpoint) -> Route:
        def handle(request: Request) -> None:
            task = asyncio.get_running_loop().create_task(self._answer(endpoint, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        takes_messages = endpoint.body is bytes
        most = self._context.publish_bytes_max if takes_messages else COMMAND_BYTES_MAX
        return Route(handle, most, only_reads=endpoint.method == "GET")

    async def _answer(self, endpoint: Endpoint, request: Request) -> None:
        try:
            call = decoded(self._context, endpoint, request)
            answer = _answered(endpoint, await endpoint.handle(call))
        except Elsewhere as there:
            brought = request.connection.bring(request, there)
            if brought is not None:
                request.answer(brought)
            return
        except Exception as error:  # also a bug: it costs one request, not the node
            answer = self.refused(error, f"{endpoint.method} {endpoint.path}", request.connection)
        request.answer(answer)


def _answered(endpoint: Endpoint, answer: object) -> Response:
    if isinstance(answer, Reply):
        return answer.response()
    if answer is None:
        return Response(b"", (), endpoint.status)
    return answered(msgspec.json.encode(answer), JSON, endpoint.status)
