"""A few plain pages beside a dialect: routes, and what goes wrong as a line of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import Refusal
from penstock.http.app import App
from penstock.http.connection import Connection
from penstock.http.request import Request
from penstock.http.response import TEXT, Response
from penstock.http.routes import Routes

if TYPE_CHECKING:
    from penstock.node.node import Node


class Pages(App):
    """The application of a listener that only shows something."""

    def __init__(self, name: str, node: Node, routes: Routes) -> None:
        """Take the name under which faults are counted, and the routes."""
        self._name = name
        self._node = node
        self._routes = routes

    def begin(self, request: Request) -> None:
        """Give a request its route."""
        request.route, request.names = self._routes.find(request.method, request.path)

    def refused(self, error: BaseException, request: str, connection: Connection) -> Response:
        """Count what went wrong and say it."""
        if isinstance(error, Refusal):
            self._node.count_fault(self._name, error.code, f"{request}: {error}", connection.peer)
            return Response(f"{error.code}: {error}\n".encode(), (TEXT,), error.reason.http)
        self._node.report_bug(f"{self._name} http", error)
        return Response(b"internal: the node failed inside; its log says more\n", (TEXT,), 500)

    def not_http(self, text: str, connection: Connection) -> None:
        """Count bytes that are no request."""
        self._node.count_fault(self._name, "bad_request", text, connection.peer)
