"""One request: what was asked, and the way to answer it, now or later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.callers.identity import Identity
from penstock.errors import Refusal
from penstock.http.response import Response
from penstock.registry.answer import Answer

if TYPE_CHECKING:
    from penstock.http.connection import Connection
    from penstock.http.routes import Route

#: Smaller bodies are not counted while they are worked on.
SMALL_BYTES_MAX = 64 * 1024

NO_NAMES: Mapping[str, str] = {}


class Request:
    """A request whose head is read; its body is there when the handler gets it."""

    __slots__ = (
        "_gone",
        "_half",
        "_held_bytes",
        "body",
        "caller",
        "connection",
        "error",
        "headers",
        "hops",
        "identity",
        "is_answered",
        "keep_alive",
        "method",
        "names",
        "path",
        "query",
        "route",
        "wire",
    )

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        #: Who asks: the connection's, unless the request itself shows another.
        self.caller = connection.visitor.caller
        #: Who that is, while a secret that it showed is still looked at.
        self.identity: Answer[Identity] | None = None
        self.method = ""
        #: As it was sent, not unescaped; each byte is one character.
        self.path = ""
        self.query = b""
        #: Names in lower case.
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        #: How many nodes brought it here.
        self.hops = 0
        self.keep_alive = True
        #: Who answers it, and what the braces of its path hold.
        self.route: Route | None = None
        self.names = NO_NAMES
        #: Why it is refused before anybody looks at it.
        self.error: Exception | None = None
        #: The answer, while it waits for those before it.
        self.wire = b""
        self.is_answered = False
        self._gone: Callable[[], None] | None = None
        self._half: Callable[[], bool] | None = None
        #: How much of the node's memory for input its body has.
        self._held_bytes = 0

    def header(self, name: bytes, default: bytes = b"") -> bytes:
        """Return a header by its name in lower case; of a repeated one the first."""
        return next((value for known, value in self.headers if known == name), default)

    def answer(self, answer: Response) -> None:
        """Answer it; in the order of the requests, and to nobody if the client is gone. The first answer counts."""
        if not self.is_answered:
            self.is_answered = True
            self.let_go()
            self._gone = None
            self.wire = answer.wire(is_last=not self.keep_alive or self.connection.ends, is_head=self.method == "HEAD")
            self.connection.flush()

    def relay(self, wire: bytes) -> None:
        """Answer it with the bytes of an answer that was given elsewhere."""
        if not self.is_answered:
            self.is_answered = True
            self.let_go()
            self._gone = None
            self.wire = wire
            self.connection.flush()

    def hold(self) -> None:
        """Take memory for a body that somebody works on now, or refuse it; few bytes are gone before they count."""
        size, memory = len(self.body), self.connection.listener.budget.input
        if size > SMALL_BYTES_MAX:
            if not memory.take(size):
                raise Refusal("memory_full", f"input not yet stored fills its {memory.bytes_max} bytes; try again")
            self._held_bytes = size

    def let_go(self) -> None:
        """Say that nobody needs the body any more, or that somebody else counts it now; its answer says so, too."""
        if self._held_bytes:
            self.connection.listener.budget.input.give(self._held_bytes)
            self._held_bytes = 0

    def on_gone(self, gone: Callable[[], None], half: Callable[[], bool] | None = None) -> None:
        """Be told if the client hangs up before the answer; a client that only stops sending counts as gone then.

        Unless `half`, which hears of that, says that it is answered all the same.
        """
        self._gone, self._half = gone, half

    def is_left(self) -> bool:
        """Tell whether a client that sends nothing more counts as gone."""
        return self._gone is not None and (self._half is None or not self._half())

    def leave(self) -> None:
        """Tell whoever wants to know that the client is gone."""
        gone, self._gone = self._gone, None
        if gone is not None:
            gone()
