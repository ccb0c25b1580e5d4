"""The request whose bytes are coming: what the parser tells of it becomes a request, within its limits.

Owns how long a head, a body and what is left of a refused one may be, and how long they may take; and what is held of
bodies. Knows nothing of answers. Invariant: no more of a body is held than its route and the node's memory allow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httptools

from penstock.budget import Wait
from penstock.clock import SECOND
from penstock.errors import Refusal
from penstock.http.app import Broken
from penstock.http.brought import arrive
from penstock.http.request import Request

if TYPE_CHECKING:
    from penstock.http.connection import Connection

#: Request line and headers together; nginx and Go stop at about as much.
HEAD_BYTES_MAX = 64 * 1024

HEAD_TOO_LONG = f"The head of a request has at most {HEAD_BYTES_MAX} bytes."

#: A request that another node brings has a client's head, and says whose it is with all its rights.
BROUGHT_BYTES_MAX = HEAD_BYTES_MAX + 256 * 1024

#: A request's head must be there this long after its first byte; nginx gives twice as long.
HEAD_NS = 30 * SECOND

#: A body may stop coming for so long; how long it may take as a whole, and at what rate, the limits say.
BODY_PAUSE_NS = 30 * SECOND

#: So much is parsed at once where requests may begin in it. What must wait for answers before it is left as it came: as
#: requests it would take fifty times the memory, and as many turns of whoever waits.
PIECE_BYTES = 1024

#: What a client may still send of a body that was refused already, before it is hung up on. Many read no answer
#: before they have sent everything, so it is not little; and it may not take longer than a head.
LEFTOVER_BYTES_MAX = 64 * 1024 * 1024

#: Why nothing is read: answers must leave first.
BEHIND = 1

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Incoming:
    """What comes of one connection's requests."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        listener = connection.listener
        self._app = listener.app
        self._door = listener.door
        self._bodies = listener.budget.body
        self._head_bytes_max = BROUGHT_BYTES_MAX if connection.node else HEAD_BYTES_MAX
        #: What is held of bodies, while anything is.
        self._held: Wait | None = None
        self._parser = httptools.HttpRequestParser(self)
        #: No request has begun and not ended yet, as far as its bytes go.
        self.between = True
        self._in_head = False
        #: When the head, body or leftover under way began.
        self._began_ns = 0
        #: Bytes of the read at hand, requests that began in it, and what earlier reads brought of the head under way.
        self._read_bytes = 0
        self._begun = 0
        self._head_bytes = 0
        self._leftover_bytes = 0
        #: What its head says is still to come of the body; 0 where it comes in chunks.
        self._body_left = 0
        #: The request, and what has come of its body.
        self._request = Request(connection)
        self._url = b""
        self._parts: list[bytes] = []
        self._size = 0

    def sweep(self, now_ns: int) -> None:
        """Hang up on a client that takes too long for a request."""
        connection = self._connection
        if connection.rest:  # it sent more, which waits here
            self._began_ns = now_ns
        elif self._in_head or self._is_leftover():
            if now_ns - self._began_ns > HEAD_NS:
                connection.transport.close()
        elif now_ns - connection.heard_ns > BODY_PAUSE_NS:
            self._fail(Refusal("too_slow", "no more of the body came for too long"))
            connection.shut_down()

    def end(self) -> None:
        """Let go of everything: the client is gone."""
        request = self._request
        if not self.between and not self._in_head and request.error is None and not request.is_answered:
            self._connection.refuse(request, Broken("the client hung up inside the body"))
        request.error = None
        self._drop_parts()
        del self._parser, self._request  # they know this one, and the collector comes by only some day

    def feed(self, data: bytes) -> None:
        """Take what a client sent, as far as nothing in it must wait."""
        connection, at, end = self._connection, 0, len(data)
        while at < end and not connection.ends:
            if connection.behind or not connection.may_begin:
                connection.wait(data[at:])
                return
            # A body that comes is no request; the rest of it may come in one piece.
            size = PIECE_BYTES if self.between or self._in_head else max(self._body_left, PIECE_BYTES)
            self._feed(data[at : at + size])
            at += size

    def _feed(self, data: bytes) -> None:
        self._read_bytes, self._begun = len(data), 0
        was_between = self.between
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # another protocol was offered; this one goes on
            self._parser = httptools.HttpRequestParser(self)
            if rest := data[upgrade.args[0] :]:
                self._feed(rest)
            return
        except httptools.HttpParserError as error:
            self._not_parsed(error)
            return
        if self._connection.ends:
            return
        if self._in_head:
            # Of a head that began behind other requests, this read may have brought little.
            if self._begun == 0 or (was_between and self._begun == 1):
                self._head_bytes += len(data)
            if self._head_bytes > self._head_bytes_max:
                self._not_http(HEAD_TOO_LONG)
        elif self._is_leftover():
            self._leftover_bytes += len(data)
            if self._leftover_bytes > LEFTOVER_BYTES_MAX:
                self._app.not_http("The body went on after it was refused.", self._connection)
                self._connection.transport.close()

    def _not_parsed(self, error: httptools.HttpParserError) -> None:
        if self._connection.ends:  # whatever comes behind the last request
            return
        cause = error.__context__
        if isinstance(cause, _TooLong):
            self._not_http(HEAD_TOO_LONG)
            return
        if isinstance(cause, Exception) and not isinstance(cause, httptools.HttpParserError):
            self._app.refused(cause, "request", self._connection)  # a bug of ours in one of the calls below
        self._not_http("Invalid HTTP request received.")

    def on_message_begin(self) -> None:
        """Count the bytes of its head."""
        self.between = False
        self._begun += 1
        self._in_head, self._head_bytes, self._began_ns = True, 0, self._connection.heard_ns
        self._request = Request(self._connection)
        self._url = b""

    def on_url(self, url: bytes) -> None:
        """Take the target, or a part of it."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header."""
        self._request.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Let the application say whose it is."""
        request = self._request
        self._in_head, self._leftover_bytes, self._began_ns = False, 0, self._connection.heard_ns
        if self._head_bytes + self._read_bytes > self._head_bytes_max:  # it may be too long: count
            # With the colon, the blank and the line's end, which the parser keeps to itself.
            size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in request.headers)
            if size > self._head_bytes_max:
                raise _TooLong  # the parser stops
        url = httptools.parse_url(self._url)
        request.method = self._parser.get_method().decode("ascii")
        request.path = (url.path or b"/").decode("latin-1")
        request.query = url.query or b""
        request.keep_alive = self._parser.should_keep_alive()
        self._connection.listener.requests += 1
        try:
            if self._connection.node:  # which has looked at where it comes from, and who asks
                arrive(request)
            else:
                self._door.check(request)
                self._connection.visitor.look_at(request)
            self._app.begin(request)
            if request.route is not None and not request.route.only_reads and not self._connection.node:
                self._door.check_change(request)
            if request.identity is None:
                self._connection.admit(request)
        except Exception as error:
            self._fail(error)
            return
        told = request.header(b"content-length")
        self._body_left = int(told) if told.isdigit() else 0
        if request.route is not None and told.isdigit() and int(told) > request.route.body_bytes_max:
            self._fail(_too_big(request, int(told)))
            return
        if not self._connection.is_busy and request.header(b"expect").lower() == b"100-continue":
            self._connection.transport.write(_CONTINUE)

    def on_body(self, part: bytes) -> None:
        """Take a part of the body, within its limit and within the node's memory for bodies."""
        request = self._request
        self._body_left -= len(part)
        if request.error is not None or request.is_answered:
            return
        self._size += len(part)
        self._parts.append(part)
        self.hold()
        if request.route is not None and self._size > request.route.body_bytes_max:
            self._fail(_too_big(request, self._size))

    def on_message_complete(self) -> None:
        """Hand it over, or let it wait for its turn."""
        self.between = True
        request = self._request
        if not request.keep_alive:
            self._connection.ends = True
        if request.is_answered or self._connection.closed:
            return
        if request.error is None:
            parts = self._parts
            request.body = parts[0] if len(parts) == 1 else b"".join(parts)
        must_wait = self._connection.is_busy or not self._connection.may_begin
        if must_wait:
            self._connection.behind.append(request)
        self._drop_parts()
        if must_wait:
            self._connection.wait()
        else:
            self._connection.begin(request)

    def _fail(self, error: Exception) -> None:
        """Refuse the request whose bytes are coming; what still comes of its body is passed over."""
        self._request.error = error
        self._drop_parts()
        if not self._request.keep_alive:
            self._connection.ends = True
        if not self._connection.is_busy:
            self._connection.begin(self._request)

    def _drop_parts(self) -> None:
        self._parts, self._size = [], 0
        self.hold()

    def hold(self) -> None:
        """Count what is held of bodies: of the one that comes, and of what waits for answers before it."""
        connection = self._connection
        behind = sum([len(request.body) for request in connection.behind]) + connection.waiting_bytes
        size = self._size + behind
        if size or self._held is not None:
            paced = not (self.between or connection.waiting_bytes)
            self._held = self._bodies.keep(self._held, size, connection.address, self._cut, paced=paced)

    def _cut(self, why: Refusal) -> None:
        """Hold nothing more for a client that sends too slowly, or where too much is held."""
        for request in self._connection.behind:
            request.body, request.error = b"", why
        self._connection.drop_waiting()
        if not self.between:
            self._fail(why)
            if why.code == "too_slow":
                self._connection.shut_down()

    def _not_http(self, text: str) -> None:
        self._in_head, self.between = False, True
        self._connection.not_http(text)

    def _is_leftover(self) -> bool:
        return not self.between and not self._in_head and self._request.is_answered


class _TooLong(Exception):
    """What the parser is told to stop with."""


def _too_big(request: Request, size: int) -> Exception:
    assert request.route is not None
    if request.route.too_big is not None:
        return request.route.too_big
    limit = request.route.body_bytes_max
    return Refusal("message_too_big", f"a body of {size} bytes is over the limit of {limit}; send it in parts")
