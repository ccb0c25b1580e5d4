"""The admin API as an application: every endpoint of the table, behind the token, with every error as JSON.

Invariant: no request ends without an answer that says what was wrong, and no failure of a handler ends the node.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.api import dialects, health, leases, ledger, messages, pipelines, redrives, routing, subscriptions, topics
from penstock.api.context import Context
from penstock.api.endpoint import PREFIX, Call, Endpoint, Reply, decoded
from penstock.api.openapi import document
from penstock.api.problem import HTTP_CODES, JSON, of_refusal, problem
from penstock.api.record import Line
from penstock.config import is_loopback
from penstock.errors import Refusal
from penstock.listener import Receive, Scope, Send

#: Refusals that tell of the client, not of the topic: nobody else has counted them.
COUNTED = frozenset({"bad_request", "bad_name", "bad_column", "bad_offset", "message_too_big", "unauthorized"})


class Index(msgspec.Struct):
    """Where to go from here."""

    name: str
    version: str
    openapi: str
    endpoints: dict[str, str]


async def show_index(call: Call[None, None]) -> Index:
    """Show what can be asked here."""
    listed = {f"{endpoint.method} {endpoint.path}": endpoint.summary for endpoint in ENDPOINTS}
    return Index("penstock", call.context.version, f"{PREFIX}/openapi.json", listed)


async def show_openapi(call: Call[None, None]) -> Reply:
    """Show the OpenAPI document of this API."""
    return Reply(msgspec.json.encode(document(ENDPOINTS, call.context.version, Line)))


#: Everything this API can do. Requests, the OpenAPI document and the index are all made from it.
ENDPOINTS: Sequence[Endpoint] = (
    Endpoint("GET", "/", show_index, "Show what can be asked here", Index, query=None),
    Endpoint("GET", PREFIX, show_index, "Show what can be asked here", Index, query=None),
    Endpoint("GET", f"{PREFIX}/openapi.json", show_openapi, "Show this document", query=None),
    *topics.ENDPOINTS,
    *subscriptions.ENDPOINTS,
    *messages.ENDPOINTS,
    *leases.ENDPOINTS,
    *redrives.ENDPOINTS,
    *routing.ENDPOINTS,
    *pipelines.ENDPOINTS,
    *ledger.ENDPOINTS,
    *dialects.ENDPOINTS,
    *health.ENDPOINTS,
)


class Api:
    """The application of one server."""

    def __init__(self, context: Context) -> None:
        self._context = context
        by_path: dict[str, dict[str, Endpoint]] = {}
        for endpoint in ENDPOINTS:
            by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        routes = [Route(path, self._route(found), methods=list(found)) for path, found in by_path.items()]
        self._app = Starlette(routes=routes, exception_handlers={HTTPException: self._lost})
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        # Names may hold a slash: the path is split as it was sent, and each part is decoded after that.
        raw_path = scope.get("raw_path") or scope["path"].encode()
        await self._app({**scope, "path": raw_path.decode("latin-1")}, receive, send)

    def _route(self, endpoints: dict[str, Endpoint]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            return await self._answer(endpoints[method], request)

        return answer

    async def _answer(self, endpoint: Endpoint, request: Request) -> Response:
        node = self._context.node
        try:
            _check_origin(request, has_token=bool(self._context.config.token))
            is_known = self._context.allows(request.headers.get("authorization", ""))
            if not is_known and not endpoint.is_open:
                raise Refusal("unauthorized", "show the node's token: Authorization: Bearer <token>")
            call = await decoded(self._context, endpoint, request, is_known=is_known)
            return _response(endpoint, await endpoint.handle(call))
        except Refusal as refusal:
            if refusal.code in COUNTED:
                client = request.client
                node.count_fault("api", refusal.code, str(refusal), f"{client.host}:{client.port}" if client else "")
            return of_refusal(refusal)
        except Exception as failure:  # a bug must cost one request, not the node
            node.report_bug(f"api {endpoint.method} {endpoint.path}", failure)
            return problem(500, "internal", "the node failed inside; its log says more")

    async def _lost(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 405 and isinstance(error, HTTPException):
            allowed = (error.headers or {}).get("Allow", "")
            text = f"{request.method} is not possible on {request.url.path}; possible: {allowed}"
            return problem(405, HTTP_CODES[405], text, error.headers)
        text = f"there is nothing at {request.url.path}; GET {PREFIX} lists what there is"
        return problem(status, HTTP_CODES.get(status, "bad_request"), text)


def _response(endpoint: Endpoint, answer: object) -> Response:
    if isinstance(answer, Reply):
        return Response(answer.content, answer.status, media_type=answer.media_type)
    if answer is None:
        return Response(status_code=endpoint.status)
    return Response(msgspec.json.encode(answer), endpoint.status, media_type=JSON)


def _check_origin(request: Request, *, has_token: bool) -> None:
    """Refuse what a web page from elsewhere asks: without a token, reaching this machine is all the right one needs."""
    origin = request.headers.get("origin")
    if origin is None:
        return
    asked = urlsplit(f"//{request.headers.get('host', '')}")
    try:
        here = urlsplit(origin).netloc == asked.netloc and (has_token or is_loopback(asked.hostname or ""))
    except ValueError:
        here = False
    if not here:
        raise Refusal("forbidden", f"a page of {origin} may not use this node")
