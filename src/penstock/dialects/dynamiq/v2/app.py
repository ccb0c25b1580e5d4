"""Version 2 as an application: every row of its table, one envelope, one shape of errors.

Invariant: whatever is asked, the answer is {"data": …} or {"error": {"code", "message", "field"}}; but for the pages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

import penstock
from penstock.dialects.dynamiq.config import DynamiqConfig
from penstock.dialects.dynamiq.v2 import shapes
from penstock.dialects.dynamiq.v2.endpoint import COMMAND_BYTES_MAX, V2, Call, Endpoint, decoded
from penstock.dialects.dynamiq.v2.leases import LeaseResource
from penstock.dialects.dynamiq.v2.messages import MessageResource
from penstock.dialects.dynamiq.v2.queues import QueueResource
from penstock.dialects.dynamiq.v2.redrives import RedriveResource
from penstock.dialects.dynamiq.v2.topics import TopicResource
from penstock.errors import Refusal
from penstock.http import App, Connection, Request, Response, Route, Routes
from penstock.registry.answer import Answer
from penstock.rest.docs import docs
from penstock.rest.openapi import Described, Interface, document
from penstock.rest.page import Site, sheet
from penstock.rest.problem import bug, of_refusal
from penstock.rest.reply import JSON, Reply, answered

if TYPE_CHECKING:
    from penstock.dialects.dynamiq.queues import Queues
    from penstock.dialects.dynamiq.stats import Stats
    from penstock.node.node import Node

OPENAPI, DOCS, SHEET = f"{V2}/openapi.json", f"{V2}/docs", f"{V2}/page.css"

_NAME = {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"}
_encode = msgspec.json.Encoder().encode


class Api(App):
    """The part of the listener under /v2."""

    def __init__(
        self,
        node: Node,
        config: DynamiqConfig,
        all_queues: Queues,
        publisher: Callable[[Request], object],
        stats: Stats | None,
    ) -> None:
        self._node = node
        queues = QueueResource(node, all_queues, stats)
        messages = MessageResource(node, config, queues, publisher, stats)
        leases = LeaseResource(node, config, all_queues, queues, stats)
        topics = TopicResource(node, all_queues, queues, messages, publisher, self._report)
        self.endpoints: list[Endpoint] = [
            Endpoint("GET", V2, self.show_index, "Show what can be asked here", shapes.Index, query=None),
            Endpoint("GET", OPENAPI, self.show_openapi, "Show this document", query=None),
            Endpoint("GET", DOCS, self.show_docs, "The same, for people", None, None, media_type="text/html"),
            Endpoint("GET", SHEET, self.show_sheet, "How pages look", None, None, media_type="text/css"),
            *queues.endpoints(),
            *messages.endpoints(),
            *leases.endpoints(),
            *RedriveResource(node, queues).endpoints(),
            *topics.endpoints(),
        ]
        self._messages_bytes_max = min(config.max_batch_bytes, node.budget.input.bytes_max)
        self._routes = Routes(((each.method, each.path, self._route(each)) for each in self.endpoints), head=True)

    # --- App ------------------------------------------------------------------------------------------------------

    def begin(self, request: Request) -> None:
        """Give a request its route."""
        path = request.path
        try:
            request.route, request.names = self._routes.find(
                request.method, path[:-1] if path.endswith("/") and path != V2 + "/" else path.rstrip("/")
            )
        except Refusal as refusal:
            if refusal.code != "not_found":
                raise
            raise Refusal("not_found", f"{refusal}; GET {V2} lists what there is") from None

    def admit(self, request: Request) -> None:
        """Let those in that may be here."""
        request.caller.enter()

    def refused(self, error: BaseException, request: str, connection: Connection) -> Response:
        """Count what went wrong and return what is said about it."""
        if isinstance(error, Refusal):
            self._node.count_fault("dynamiq", error.code, f"{request}: {error}", connection.peer)
            return of_refusal(error)
        self._node.report_bug("dynamiq http", error)
        return bug()

    def not_http(self, text: str, connection: Connection) -> None:
        """Count bytes that are no request."""
        self._node.count_fault("dynamiq", "bad_request", text, connection.peer)

    # --- what is there --------------------------------------------------------------------------------------------

    def show_index(self, call: Call[None, None]) -> shapes.Index:
        """Show what can be asked here."""
        listed = {f"{each.method} {each.path}": each.summary for each in self.endpoints}
        return shapes.Index(penstock.__version__, OPENAPI, DOCS, listed)

    def show_openapi(self, call: Call[None, None]) -> Reply:
        """Show the OpenAPI document."""
        return Reply(_encode(self.document()))

    def show_docs(self, call: Call[None, None]) -> Reply:
        """Show the same document to people."""
        site = Site(penstock.__version__, (("Queues", DOCS), ("OpenAPI", OPENAPI)), SHEET)
        return docs(site, self.document(), OPENAPI)

    def show_sheet(self, call: Call[None, None]) -> Reply:
        """Show how pages look."""
        return sheet()

    def document(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        names = {"queue": _NAME, "topic": _NAME}
        interface = Interface("Penstock queues, version 2", penstock.__version__, _tag, envelope="data", names=names)
        return document(interface, self.endpoints)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _route(self, endpoint: Endpoint) -> Route:
        most = self._messages_bytes_max if endpoint.takes_messages else COMMAND_BYTES_MAX
        return Route(partial(self._handle, endpoint), most, only_reads=endpoint.method == "GET")

    def _handle(self, endpoint: Endpoint, request: Request) -> Response | Answer[Response]:
        done = endpoint.handle(decoded(endpoint, request))
        if isinstance(done, Answer):
            return done.then_make(partial(_told, endpoint))
        return _told(endpoint, done)

    def _report(self, error: BaseException, request: Request) -> None:
        """Count what went wrong with a part of a request that is answered all the same."""
        self.refused(error, f"{request.method} {request.path}", request.connection)


def _told(endpoint: Endpoint, value: object) -> Response:
    if isinstance(value, Reply):
        return value.response()
    return answered(_encode({"data": value}), JSON, endpoint.status)


def _tag(endpoint: Described) -> str:
    words = [word for word in endpoint.path.removeprefix(V2).split("/") if word and not word.startswith("{")]
    if not words or words[0] in ("openapi.json", "docs", "page.css"):
        return "index"
    return next((word for word in reversed(words) if word in _TAGS), words[0])


_TAGS = ("messages", "leases", "dead-letters", "redrives", "subscriptions", "queues", "topics")
