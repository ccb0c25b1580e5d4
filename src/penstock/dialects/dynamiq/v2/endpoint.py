"""One row of the table of version 2, and one request to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from penstock.callers import Caller
from penstock.dialects.dynamiq.codec import is_name
from penstock.http import Request
from penstock.rest.problem import BadField
from penstock.rest.reading import Nothing, read_body, read_query, unquoted
from penstock.rest.reply import JSON

V2 = "/v2"

#: A body that is a command, not messages.
COMMAND_BYTES_MAX = 1 << 20

Query = TypeVar("Query")
Body = TypeVar("Body")


class Endpoint(NamedTuple):
    """One way to ask for something."""

    method: str
    path: str
    #: Returns what is answered, now or as an `Answer`; raises why not.
    handle: Callable[[Any], Any]
    summary: str
    answer: Any = None
    query: type[msgspec.Struct] | None = Nothing
    body: type[msgspec.Struct] | None = None
    status: int = 200
    media_type: str = JSON
    is_open: bool = False
    #: The handler reads the body itself; it may be large.
    takes_messages: bool = False


class Call(Generic[Query, Body]):
    """One request, decoded."""

    __slots__ = ("body", "names", "query", "request")

    def __init__(self, request: Request, names: Mapping[str, str], query: Query, body: Body) -> None:
        self.request = request
        self.names = names
        self.query = query
        self.body = body

    @property
    def caller(self) -> Caller:
        """Who asks."""
        return self.request.caller


def decoded(endpoint: Endpoint, request: Request) -> Call[Any, Any]:
    """Return a request as its endpoint takes it, or refuse it."""
    names = {name: unquoted(value) for name, value in request.names.items()}
    for name in ("queue", "topic"):
        if name in names:
            check_name(names[name], name)
    query = None if endpoint.query is None else read_query(request.query, endpoint.query)
    is_read = endpoint.body is None or endpoint.takes_messages
    return Call(request, names, query, None if is_read else read_body(request.body, endpoint.body or Nothing))


def check_name(name: str, field: str) -> None:
    """Refuse a name that nothing could have."""
    if is_name(name) is None:
        text = f"{name[:200]!r} is no name: write 1 to 128 letters, digits, dots, underscores and hyphens"
        raise BadField("bad_name", text, field)
