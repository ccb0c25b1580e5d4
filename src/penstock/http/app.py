"""What an application is to its connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock.callers import Caller
from penstock.errors import Refusal
from penstock.http.response import Response

if TYPE_CHECKING:
    from penstock.http.connection import Connection
    from penstock.http.request import Request


class Broken(Refusal):
    """A request that did not come whole."""

    def __init__(self, text: str) -> None:
        super().__init__("bad_request", text)


#: Told what came of it, and what went wrong.
Done = Callable[[object, BaseException | None], None]


class Shortcut(Protocol):
    """A request that clients repeat with the same head and other bodies: its way without a request."""

    #: Bodies of one byte to this many take it.
    body_bytes_max: int
    #: What is answered when all went well; empty where `done` is told the bytes.
    answer: bytes
    #: It begins when everything before it is answered, because it may see what that changes.
    in_turn: bool

    def take(self, body: bytes, done: Done) -> bool:
        """Carry it out and tell `done`, now or later; False if it shall take the long way this time."""


class App(Protocol):
    """Whoever answers the requests of one listener."""

    #: How requests that have a shortcut begin; none = no request has one.
    starts: tuple[bytes, ...] = ()
    #: Callers may show who they are by signing the request as a whole: the application looks at that itself.
    takes_signatures: bool = False

    def begin(self, request: Request) -> None:
        """Give a request its route, or raise why it is refused; its head is there, its body is not."""

    def admit(self, request: Request) -> None:
        """Refuse a caller that may not ask this at all; called once it is known who asks, before the handler is."""
        return None

    def refused(self, error: BaseException, request: str, connection: Connection) -> Response:
        """Count what went wrong and return what is said about it; `request` is its method and path."""

    def not_http(self, text: str, connection: Connection) -> None:
        """Count bytes that are no request."""

    def shortcut(
        self, method: bytes, target: bytes, head: bytes, caller: Caller, connection: Connection
    ) -> Shortcut | None:
        """Return the short way for requests of somebody with this method, target and whole head, if there is one."""
        return None
