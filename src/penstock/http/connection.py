"""One socket: bytes in, requests to the application, answers out in the order of the requests.

Owns the limits on what a client may send and how long it may take. A request begins when everything before it is
answered; one with a shortcut may begin before that, because nothing that it changes could be seen earlier.
Knows nothing of paths, and needs no loop: time is the clock's, bytes are the transport's.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, cast

import httptools

from penstock.budget import Wait
from penstock.callers import Caller
from penstock.callers.gate import shown_in
from penstock.callers.identity import Identity
from penstock.clock import SECOND
from penstock.errors import Refusal
from penstock.http import plain
from penstock.http.app import Broken, Shortcut
from penstock.http.request import Request
from penstock.http.response import TEXT, Response
from penstock.registry.answer import Answer
from penstock.wire.tls import common_name

if TYPE_CHECKING:
    from penstock.http.listener import Listener

#: Request line and headers together; nginx and Go stop at about as much.
HEAD_BYTES_MAX = 64 * 1024

HEAD_TOO_LONG = f"The head of a request has at most {HEAD_BYTES_MAX} bytes."

#: An idle connection is kept this long: more than the pause between two scrapes, or two commands of a person.
KEEP_ALIVE_NS = 75 * SECOND

#: A request's head must be there this long after its first byte; nginx gives twice as long.
HEAD_NS = 30 * SECOND

#: A body may stop coming for so long; how long it may take as a whole, and at what rate, the limits say.
BODY_PAUSE_NS = 30 * SECOND

#: What a client may still send of a body that was refused already, before it is hung up on. Many read no answer
#: before they have sent everything, so it is not little; and it may not take longer than a head.
LEFTOVER_BYTES_MAX = 64 * 1024 * 1024

#: A client that pipelines has at most this many answers outstanding; then it is not read for a while.
ANSWERS_MAX = 1024

#: The audit has this much of a path.
DOING_CHARACTERS_MAX = 256

#: In a plain head.
_authorization = re.compile(rb"\r\nauthorization:[ \t]*([^\r]*)\r\n", re.IGNORECASE).search

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

#: Why nothing is read: answers must leave first, or the client reads none.
_BEHIND, _CHOKED = 1, 2


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self._app = listener.app
        self._clock = listener.clock
        self._door = listener.door
        self._bodies = listener.budget.body
        #: What is held of bodies, while anything is; and of answers that the client does not read.
        self._held: Wait | None = None
        self._unread: Wait | None = None
        self._parser = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport
        #: Where the client is, like ("127.0.0.1", 50412); none on a socket in the file system.
        self.client: tuple[str, int] | None = None
        #: Who is connected, as far as the connection itself tells; and the last one that the header of a request told.
        self.caller = Caller(listener.gate, "", listener.key, asks_token=listener.asks_token)
        self._shown: tuple[bytes, Caller] | None = None
        #: Who signed the last request, where the application looks at signatures; it leaves with the connection.
        self.signed: Caller | None = None
        self.is_secure = False
        #: No request has begun and not ended yet, as far as its bytes go.
        self.between = True
        self.in_head = False
        #: When the last bytes came, and when the head, body or leftover under way began.
        self.heard_ns = self._clock.monotonic()
        self._began_ns = 0
        #: Bytes of the read at hand, requests that began in it, and what earlier reads brought of the head under way.
        self._read_bytes = 0
        self._begun = 0
        self._head_bytes = 0
        self._leftover_bytes = 0
        #: The request whose bytes are coming, and what has come of its body.
        self._coming = Request(self)
        self._url = b""
        self._parts: list[bytes] = []
        self._size = 0
        #: Requests that began and are not answered, or wait for the answers before them; and what of them has no
        #: request. Those behind them have not begun.
        self._answers: deque[Request | _Cell] = deque()
        self._behind: deque[Request] = deque()
        self._flushing = False
        #: The connection ends with the last answer, and takes nothing more.
        self.ends = False
        self._closed = False
        self._paused = 0
        #: The last plain head, its way, and how long its body is: clients repeat themselves.
        self._plain_head = b"\n"
        self._shortcut: Shortcut | None = None
        self._plain_size = 0
        #: What was read and not taken: a plain request that is not all there, or what waits for answers before it.
        self.rest = b""
        self._rest_ns = 0

    # --- asyncio calls these --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple) and len(peer) >= 2:
            self.client = (peer[0], peer[1])
            self.caller.address = f"{peer[0]}:{peer[1]}"
        elif _is_path(transport):
            self.caller.address = "unix"
        self.is_secure = transport.get_extra_info("sslcontext") is not None
        host = self.client[0] if self.client is not None else ""
        if why := self.listener.crowd.refusal(host, transport):
            self.ends = True
            refusal = self._app.refused(Refusal("too_many_connections", why), "connect", self)
            self.transport.write(refusal.wire(is_last=True))
            self.transport.close()
            return
        self.listener.crowd.enter(host)
        if name := common_name(transport.get_extra_info("peercert")):
            self._turn_into(self.caller.showing(self.listener.gate.certified(name)))
        self.listener.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Take what a client sent."""
        self.heard_ns = self._clock.monotonic()
        if self.ends:
            return
        if self.rest:
            data, self.rest = self.rest + data, b""
        if self._paused & _BEHIND:
            self.rest = data
        elif self._app.starts and self.between and not self._has_requests():
            self._take(data)
        else:
            self._parse(data)

    def eof_received(self) -> bool:
        """Response what was asked before the client said that it asks no more, unless that is somebody who waits."""
        if self.is_secure or not self.is_busy or any(each.is_watched for each in self._answers):
            return False
        self.ends = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget who would have been answered."""
        self._closed = self.ends = True
        if self in self.listener.connections:
            self.listener.connections.discard(self)
            self.listener.crowd.leave(self.client[0] if self.client is not None else "")
        self._forget(self.caller)
        if self._shown is not None:
            self._forget(self._shown[1])
        if self.signed is not None:
            self._forget(self.signed)
        asked, self._answers = self._answers, deque()
        for request in self._behind:
            request.error = None  # as in _handle
        self._behind.clear()
        self.rest = b""
        self.resume_writing()
        for each in asked:
            each.leave()
        coming = self._coming
        if not self.between and not self.in_head and coming.error is None and not coming.is_answered:
            self._refuse(coming, Broken("the client hung up inside the body"))
        coming.error = None
        self._drop_parts()
        del self._parser, self._coming  # they know this one, and the collector comes by only some day

    def pause_writing(self) -> None:
        """Read nothing more from a client that does not read."""
        self._stop(_CHOKED)
        output = self.listener.budget.output
        self._unread = output.begin(self._address, self._cut_off)
        output.hold(self._unread, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Go on with it."""
        if self._unread is not None:
            self.listener.budget.output.end(self._unread)
            self._unread = None
        self._start(_CHOKED)

    # --- the listener calls these ---------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        """Where the client is, for people."""
        return self.caller.address

    @property
    def _address(self) -> str:
        return self.client[0] if self.client is not None else ""

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer."""
        return bool(self._answers or self._behind)

    def sweep(self, now_ns: int) -> None:
        """Hang up on a client that keeps the connection and does nothing with it, or takes too long."""
        if self.rest and not self._paused & _BEHIND and now_ns - self._rest_ns > HEAD_NS:
            rest, self.rest = self.rest, b""
            self._long_way(rest)  # half a plain request is refused like any other
        if self.in_head or self._is_leftover():
            if now_ns - self._began_ns > HEAD_NS:
                self.transport.close()
        elif not self.between:
            if now_ns - self.heard_ns > BODY_PAUSE_NS:
                self._fail(Refusal("too_slow", "no more of the body came for too long"))
                self._end()
        elif not self.is_busy and now_ns - self.heard_ns > KEEP_ALIVE_NS:
            self.transport.close()

    def shut_down(self) -> None:
        """End as soon as everything that was asked is answered."""
        self._end()

    # --- the short way --------------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        """Carry out as many requests as have a shortcut; budget: 3 us each beside the application's own work."""
        at, end = 0, len(data)
        while at < end:
            if not data.startswith(self._plain_head, at) and not self._read_head(data, at):
                half = plain.is_half(data, at, self._app.starts)
                return self._keep(data[at:]) if half else self._long_way(data[at:])
            start = at + len(self._plain_head)
            stop = start + self._plain_size
            shortcut = self._shortcut
            if shortcut is None or not 0 < self._plain_size <= shortcut.body_bytes_max:
                return self._long_way(data[at:])
            if stop > end:
                if stop - at > HEAD_BYTES_MAX:  # too much to keep here: the long way counts it as it comes
                    return self._long_way(data[at:])
                return self._keep(data[at:])
            if self._answers and (shortcut.in_turn or len(self._answers) >= ANSWERS_MAX):
                return self._wait(data[at:])
            self._rest_ns = 0
            cell = _Cell()
            self._answers.append(cell)
            try:
                taken = shortcut.take(data[start:stop], partial(self._done, cell, shortcut))
            except Exception as failure:  # a bug must cost one request, not the connection's other ones
                taken = True
                if not cell.wire:
                    self._done(cell, shortcut, None, failure)
            if not taken:
                self._answers.pop()
                return self._long_way(data[at:])
            at = stop
        return None

    def _read_head(self, data: bytes, at: int) -> bool:
        """Learn a plain head; False for any other."""
        if not data.startswith(self._app.starts, at):
            return False
        found = plain.match(data, at, at + HEAD_BYTES_MAX)
        if found is None:
            return False
        host = found[5] if found[3] is None else found[3]
        if host is not None and not self._door.answers_to(host):
            return False  # the long way says why not
        self._plain_head, self._plain_size = found[0], int(found[4])
        head = found[0]
        shown = _authorization(head)
        caller = self._known(shown[1] if shown is not None else b"")
        self._shortcut = self._app.shortcut(found[1], found[2], head, caller, self) if caller is not None else None
        return True

    def _done(self, cell: _Cell, shortcut: Shortcut, told: object, error: BaseException | None) -> None:
        if error is None:
            cell.wire = shortcut.answer or cast(bytes, told)
        else:
            method, target = self._plain_head.split(b" ", 2)[:2]
            request = f"{method.decode()} {target.partition(b'?')[0].decode('latin-1')}"
            cell.wire = self._app.refused(error, request, self).wire()
        self.flush()

    def _keep(self, data: bytes) -> None:
        """Keep a request until the rest of it comes."""
        self.rest, self._rest_ns = data, self._rest_ns or self.heard_ns

    def _long_way(self, data: bytes) -> None:
        """Leave bytes to the parser, once everything before them is answered."""
        self._rest_ns = 0
        if self._answers:
            self._wait(data)
        else:
            self._parse(data)

    def _wait(self, data: bytes) -> None:
        """Look at bytes when the answers before them are written, and read no more until then."""
        self.rest = data
        self._stop(_BEHIND)

    # --- the parser's way -----------------------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        self._read_bytes, self._begun = len(data), 0
        was_between = self.between
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # another protocol was offered; this one goes on
            self._parser = httptools.HttpRequestParser(self)
            if rest := data[upgrade.args[0] :]:
                self._parse(rest)
            return
        except httptools.HttpParserError as error:
            self._not_parsed(error)
            return
        if self.ends:
            return
        if self.in_head:
            # Of a head that began behind other requests, this read may have brought little.
            if self._begun == 0 or (was_between and self._begun == 1):
                self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._not_http(HEAD_TOO_LONG)
        elif self._is_leftover():
            self._leftover_bytes += len(data)
            if self._leftover_bytes > LEFTOVER_BYTES_MAX:
                self._app.not_http("The body went on after it was refused.", self)
                self.transport.close()

    def _not_parsed(self, error: httptools.HttpParserError) -> None:
        if self.ends:  # whatever comes behind the last request
            return
        cause = error.__context__
        if isinstance(cause, _TooLong):
            self._not_http(HEAD_TOO_LONG)
            return
        if isinstance(cause, Exception) and not isinstance(cause, httptools.HttpParserError):
            self._app.refused(cause, "request", self)  # a bug of ours in one of the calls below
        self._not_http("Invalid HTTP request received.")

    def on_message_begin(self) -> None:
        """Count the bytes of its head."""
        self.between = False
        self._begun += 1
        self.in_head, self._head_bytes, self._began_ns = True, 0, self.heard_ns
        self._coming = Request(self)
        self._url = b""

    def on_url(self, url: bytes) -> None:
        """Take the target, or a part of it."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header."""
        self._coming.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Let the application say whose it is."""
        request = self._coming
        self.in_head, self._leftover_bytes, self._began_ns = False, 0, self.heard_ns
        if self._head_bytes + self._read_bytes > HEAD_BYTES_MAX:  # it may be too long: count
            # With the colon, the blank and the line's end, which the parser keeps to itself.
            size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in request.headers)
            if size > HEAD_BYTES_MAX:
                raise _TooLong  # the parser stops
        url = httptools.parse_url(self._url)
        request.method = self._parser.get_method().decode("ascii")
        request.path = (url.path or b"/").decode("latin-1")
        request.query = url.query or b""
        request.keep_alive = self._parser.should_keep_alive()
        self.listener.requests += 1
        try:
            self._door.check(request)
            self._look_at(request)
            self._app.begin(request)
            if request.route is not None and not request.route.only_reads:
                self._door.check_change(request)
            if request.identity is None:
                self._admit(request)
        except Exception as error:
            self._fail(error)
            return
        told = request.header(b"content-length")
        if request.route is not None and told.isdigit() and int(told) > request.route.body_bytes_max:
            self._fail(_too_big(request, int(told)))
            return
        if not self.is_busy and request.header(b"expect").lower() == b"100-continue":
            self.transport.write(_CONTINUE)

    def on_body(self, part: bytes) -> None:
        """Take a part of the body, within its limit and within the node's memory for bodies."""
        request = self._coming
        if request.error is not None or request.is_answered:
            return
        self._size += len(part)
        self._parts.append(part)
        self._hold()
        if request.route is not None and self._size > request.route.body_bytes_max:
            self._fail(_too_big(request, self._size))

    def on_message_complete(self) -> None:
        """Hand it over, or let it wait for its turn."""
        self.between = True
        request = self._coming
        if not request.keep_alive:
            self.ends = True
        if request.is_answered or self._closed:
            return
        if request.error is None:
            parts = self._parts
            request.body = parts[0] if len(parts) == 1 else b"".join(parts)
        if self.is_busy:
            self._behind.append(request)
            self._drop_parts()
            self._stop(_BEHIND)
        else:
            self._drop_parts()
            self._begin(request)

    def _fail(self, error: Exception) -> None:
        """Refuse the request whose bytes are coming; what still comes of its body is passed over."""
        self._coming.error = error
        self._drop_parts()
        if not self._coming.keep_alive:
            self.ends = True
        if not self.is_busy:
            self._begin(self._coming)

    def _drop_parts(self) -> None:
        self._parts, self._size = [], 0
        self._hold()

    def _hold(self) -> None:
        """Count what is held of bodies: of the one that comes, and of those that wait for answers before them."""
        size = self._size + sum([len(request.body) for request in self._behind])
        if not size:
            if self._held is not None:
                self._bodies.end(self._held)
                self._held = None
            return
        if self._held is None:
            self._held = self._bodies.begin(self._address, self._cut)
        self._held.paced = not self.between
        self._bodies.hold(self._held, size)

    def _cut(self, why: Refusal) -> None:
        """Hold nothing more for a client that sends too slowly, or where too much is held."""
        self._held = None
        for request in self._behind:
            request.body, request.error = b"", why
        if not self.between:
            self._fail(why)
            if why.code == "too_slow":
                self._end()

    def _cut_off(self, why: Refusal) -> None:
        """Let go of a client that does not read."""
        self._unread = None
        self._app.refused(why, "answer", self)
        self.transport.abort()

    # --- who asks -------------------------------------------------------------------------------------------------

    def _known(self, authorization: bytes) -> Caller | None:
        """Return who asks with this header; None while nobody knows."""
        if not authorization:
            return self.caller
        if self._shown is not None and self._shown[0] == authorization and self._shown[1].is_known:
            return self._shown[1]
        shown = shown_in(authorization)
        if shown is None and self._app.takes_signatures:
            return self.caller
        found = self.listener.gate.known(shown) if shown is not None else Identity("", "wrong", note="no known form")
        return None if found is None else self._shows(authorization, found)

    def _admit(self, request: Request) -> None:
        request.caller.doing = f"{request.method} {request.path[:DOING_CHARACTERS_MAX]}"
        self._app.admit(request)

    def _look_at(self, request: Request) -> None:
        """See who asks; where a secret has to be hashed for it, that goes on while the body comes."""
        authorization = request.header(b"authorization")
        caller = self._known(authorization)
        if caller is not None:
            request.caller = caller
        else:
            request.identity = self.listener.gate.identify(shown_in(authorization) or b"", self.caller.address)

    def _identified(self, request: Request, identity: Identity | None, _: Exception | None) -> None:
        """Go on with a request, now that it is known whose it is."""
        if identity is not None and not self._closed:
            request.caller = self._shows(request.header(b"authorization"), identity)
            try:
                self._admit(request)
            except Exception as error:
                request.error = error
            self._handle(request)

    def _shows(self, authorization: bytes, identity: Identity) -> Caller:
        gate = self.listener.gate
        if self._shown is not None:
            self._forget(self._shown[1])
        caller = gate.noted(self.caller.showing(identity))
        self._shown = (authorization, caller)
        caller.on_change = partial(self._changed, caller)
        gate.follow(caller)
        return caller

    def _turn_into(self, caller: Caller) -> None:
        """Be somebody else, by a certificate."""
        self.caller = self.listener.gate.noted(caller)
        if caller.name:
            caller.on_change = partial(self._changed, caller)
            self.listener.gate.follow(caller)

    def _forget(self, caller: Caller) -> None:
        caller.on_change = None
        self.listener.gate.leave(caller)

    def _changed(self, caller: Caller) -> None:
        """Hang up on somebody who is known no more, once it is answered."""
        if not caller.is_known:
            self.shut_down()

    # --- answers --------------------------------------------------------------------------------------------------

    def _begin(self, request: Request) -> None:
        self._answers.append(request)
        if request.error is None and request.identity is not None:
            request.identity.then(partial(self._identified, request))
        else:
            self._handle(request)

    def _handle(self, request: Request) -> None:
        if request.error is not None:
            # Not raised again, and forgotten: its frames would keep this read, and whoever they belong to, in a cycle.
            error, request.error = request.error, None
            request.answer(self._refuse(request, error))
            return
        try:
            request.hold()
            assert request.route is not None
            answer = request.route.handle(request)
        except Exception as error:  # also a bug: it costs one request
            answer = self._refuse(request, error)
        if isinstance(answer, Answer):
            answer.then(partial(self._told, request))
        elif answer is not None:
            request.answer(answer)

    def _told(self, request: Request, answer: Response | None, error: Exception | None) -> None:
        if error is not None:
            answer = self._refuse(request, error)
        if answer is not None:
            request.answer(answer)

    def _refuse(self, request: Request, error: Exception) -> Response:
        return self._app.refused(error, f"{request.method} {request.path}", self)

    def flush(self) -> None:
        """Write the answers that are there, as far as no other must leave before them, and begin what waited."""
        if self._flushing or self._closed:
            return
        self._flushing = True
        answers = self._answers
        while True:
            while answers and answers[0].wire:
                self.transport.write(answers.popleft().wire)
            if answers or not self._behind:
                break
            request = self._behind.popleft()
            self._hold()
            self._begin(request)
        self._flushing = False
        if not self.is_busy:
            if self.ends:
                self.transport.close()
            elif self._paused & _BEHIND:
                self._clock.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._paused & _BEHIND and not self.is_busy and not self.transport.is_closing():
            self._start(_BEHIND)
            data, self.rest = self.rest, b""
            if data:
                self.data_received(data)

    def _not_http(self, text: str) -> None:
        """Hang up on what is no HTTP, once everything before it is answered."""
        self._app.not_http(text, self)
        self.in_head, self.between = False, True
        cell = _Cell()
        cell.wire = Response(text.encode(), (TEXT,), 400).wire(is_last=True)
        self._answers.append(cell)
        self.ends = True
        self.flush()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        self.ends = True
        if not self.is_busy:
            self.transport.close()

    def _has_requests(self) -> bool:
        # A request begins when it is alone, so the first tells.
        return bool(self._behind or (self._answers and type(self._answers[0]) is Request))

    def _is_leftover(self) -> bool:
        return not self.between and not self.in_head and self._coming.is_answered

    def _stop(self, why: int) -> None:
        if not self._paused and not self._closed:
            self.transport.pause_reading()
        self._paused |= why

    def _start(self, why: int) -> None:
        if self._paused & why:
            self._paused &= ~why
            if not self._paused and not self.transport.is_closing():
                self.transport.resume_reading()


def _is_path(transport: asyncio.BaseTransport) -> bool:
    """Tell whether a connection came by the file system."""
    sock = transport.get_extra_info("socket")
    return sock is not None and sock.family == socket.AF_UNIX


class _TooLong(Exception):
    """What the parser is told to stop with."""


class _Cell:
    """The place of an answer that belongs to no request."""

    __slots__ = ("wire",)

    #: Nobody waits for it.
    is_watched = False

    def __init__(self) -> None:
        self.wire = b""

    def leave(self) -> None:
        """Tell nobody."""


def _too_big(request: Request, size: int) -> Exception:
    assert request.route is not None
    if request.route.too_big is not None:
        return request.route.too_big
    limit = request.route.body_bytes_max
    return Refusal("message_too_big", f"a body of {size} bytes is over the limit of {limit}; send it in parts")
