"""One socket: bytes in, requests to the application, answers out in the order of the requests.

Owns the order of requests and answers, and the short way. A request begins when everything before it is
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

from penstock.budget import Wait
from penstock.callers.identity import Identity
from penstock.clock import SECOND
from penstock.errors import Elsewhere, Refusal
from penstock.http import plain
from penstock.http.app import Shortcut
from penstock.http.incoming import BEHIND, HEAD_BYTES_MAX, HEAD_NS, Incoming
from penstock.http.request import Request
from penstock.http.response import TEXT, Response
from penstock.http.visitor import Visitor
from penstock.registry.answer import Answer
from penstock.wire.tls import common_name

if TYPE_CHECKING:
    from penstock.http.listener import Listener

#: An idle connection is kept this long: more than the pause between two scrapes, or two commands of a person.
KEEP_ALIVE_NS = 75 * SECOND

#: Of a request that may take the short way so much is kept until the rest of it comes.
KEPT_BYTES_MAX = 8 * 1024

#: A client that pipelines has at most this many answers outstanding; then it is not read for a while.
ANSWERS_MAX = 1024

#: So many requests that take the parser's way begin in one turn of the loop; then it is the others' turn.
BEGUN_MAX = 16

#: The audit has this much of a path.
DOING_CHARACTERS_MAX = 256

#: In a plain head.
_authorization = re.compile(rb"\r\nauthorization:[ \t]*([^\r]*)\r\n", re.IGNORECASE).search

#: Why nothing is read, beside `BEHIND`: the client reads nothing.
_CHOKED = 2


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, listener: Listener, node: str = "") -> None:
        self.listener = listener
        #: The node of the cluster that brings requests of its own clients; empty for a client.
        self.node = node
        self._app = listener.app
        self._clock = listener.clock
        #: What is held of answers that the client does not read.
        self._unread: Wait | None = None
        self.transport: asyncio.Transport
        #: Where the client is, like ("127.0.0.1", 50412); none on a socket in the file system.
        self.client: tuple[str, int] | None = None
        #: Who that is.
        self.visitor = Visitor(listener, self.shut_down)
        self.is_secure = False
        #: When the last bytes came.
        self.heard_ns = self._clock.monotonic()
        #: Requests that began and are not answered, or wait for the answers before them; and what of them has no
        #: request. Those behind them have not begun.
        self._answers: deque[Request | _Cell] = deque()
        self.behind: deque[Request] = deque()
        self._flushing = False
        #: The connection ends with the last answer, and takes nothing more.
        self.ends = False
        self.closed = False
        self._paused = 0
        #: Requests that began in this turn; the next one is asked for; nothing comes behind what was read.
        self._begun = 0
        self._goes_on = False
        self._is_all = False
        #: The last plain head, its way, and how long its body is: clients repeat themselves.
        self._plain_head = b"\n"
        self._shortcut: Shortcut | None = None
        self._plain_size = 0
        #: What was read and not taken: a plain request that is not all there, or what waits for answers before it.
        self.rest = b""
        self._rest_ns = 0
        #: The request whose bytes are coming the parser's way.
        self._incoming = Incoming(self)

    # --- asyncio calls these --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if self.node:  # who asks is told with each request
            self.listener.connections.add(self)
            return
        if isinstance(peer, tuple) and len(peer) >= 2:
            self.client = (peer[0], peer[1])
            self.visitor.caller.address = f"{peer[0]}:{peer[1]}"
        elif _is_path(transport):
            self.visitor.caller.address = "unix"
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
            self.visitor.certify(name)
        self.listener.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Take what a client sent."""
        self.heard_ns = self._clock.monotonic()
        if self.ends:
            return
        if not self.behind:
            self._begun = 0
        if self.rest:
            data, self.rest = self.rest + data, b""
        if self._paused & BEHIND:
            self.rest = data
        elif self._app.starts and self._incoming.between and not self.node and not self._has_requests():
            self._take(data)
        else:
            self._incoming.feed(data)

    def eof_received(self) -> bool:
        """Answer what was asked before the client said that it asks no more, unless that is somebody who waits."""
        waits = bool(self.waiting_bytes)
        if self.is_secure or not (self.is_busy or waits) or any(each.is_left() for each in self._answers):
            return False
        self.ends = not waits
        self._is_all = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget who would have been answered."""
        self.closed = self.ends = True
        if self in self.listener.connections:
            self.listener.connections.discard(self)
            if not self.node:
                self.listener.crowd.leave(self.client[0] if self.client is not None else "")
        self.visitor.leave()
        asked, self._answers = self._answers, deque()
        for request in self.behind:
            request.error = None  # as in _handle
        self.behind.clear()
        self.rest = b""
        self.resume_writing()
        for each in asked:
            each.leave()
        self._incoming.end()
        del self._incoming  # it knows this one, and the collector comes by only some day

    def pause_writing(self) -> None:
        """Read nothing more from a client that does not read."""
        self.stop_reading(_CHOKED)
        self._count_unread(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Go on with it."""
        self._count_unread(0)
        self._start(_CHOKED)
        if self._paused & BEHIND:
            self.flush()

    # --- the listener calls these ---------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        """Where the client is, for people."""
        return self.visitor.caller.address

    @property
    def address(self) -> str:
        """The machine it is on; empty on a socket in the file system."""
        return self.client[0] if self.client is not None else ""

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer."""
        return bool(self._answers or self.behind)

    @property
    def may_begin(self) -> bool:
        """Whether one more request may begin in this turn, of a client that reads its answers."""
        return self._begun < BEGUN_MAX and not self._paused & _CHOKED

    @property
    def waiting_bytes(self) -> int:
        """How much was read that nobody looks at before its turn."""
        return len(self.rest) if self._paused & BEHIND else 0

    def drop_waiting(self) -> None:
        """Forget what was read and waits; the connection ends with what was asked before that."""
        if self.waiting_bytes:
            self.rest, self.ends = b"", True
            self._clock.call_soon(self.flush)

    def sweep(self, now_ns: int) -> None:
        """Hang up on a client that keeps the connection and does nothing with it, or takes too long."""
        if self.rest and not self._paused & BEHIND and now_ns - self._rest_ns > HEAD_NS:
            rest, self.rest = self.rest, b""
            self._long_way(rest)  # half a plain request is refused like any other
        if not self._incoming.between:
            self._incoming.sweep(now_ns)
        elif not self.is_busy and now_ns - self.heard_ns > KEEP_ALIVE_NS:
            self.transport.close()

    def shut_down(self) -> None:
        """End as soon as everything that was asked is answered."""
        self.ends = True
        if not self.is_busy:
            self.transport.close()

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
                if stop - at > KEPT_BYTES_MAX:  # too much to keep here: the long way counts it as it comes
                    return self._long_way(data[at:])
                return self._keep(data[at:])
            if self._answers and (shortcut.in_turn or len(self._answers) >= ANSWERS_MAX):
                return self.wait(data[at:])
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
        if host is not None and not self.listener.door.answers_to(host):
            return False  # the long way says why not
        self._plain_head, self._plain_size = found[0], int(found[4])
        head = found[0]
        shown = _authorization(head)
        caller = self.visitor.known(shown[1] if shown is not None else b"")
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
            self.wait(data)
        else:
            self._incoming.feed(data)

    def wait(self, data: bytes = b"") -> None:
        """Look at bytes when the answers before them are written, and it is their turn; read no more until then."""
        self.rest = data
        self.stop_reading(BEHIND)
        self._incoming.hold()
        self.flush()

    def _count_unread(self, size_bytes: int) -> None:
        self._unread = self.listener.budget.output.keep(self._unread, size_bytes, self.address, self._cut_off)

    def _cut_off(self, why: Refusal) -> None:
        """Let go of a client that does not read."""
        self._app.refused(why, "answer", self)
        self.transport.abort()

    # --- answers --------------------------------------------------------------------------------------------------

    def begin(self, request: Request) -> None:
        """Have a request answered, whose body is there or which is refused."""
        self._begun += 1
        self._answers.append(request)
        if request.error is None and request.identity is not None:
            request.identity.then(partial(self._identified, request))
        else:
            self._handle(request)

    def _identified(self, request: Request, identity: Identity | None, _: Exception | None) -> None:
        """Go on with a request, now that it is known whose it is."""
        if identity is not None and not self.closed:
            request.caller = self.visitor.shows(request.header(b"authorization"), identity)
            try:
                self.admit(request)
            except Exception as error:
                request.error = error
            self._handle(request)

    def admit(self, request: Request) -> None:
        """Refuse a caller that may not ask this at all."""
        request.caller.doing = f"{request.method} {request.path[:DOING_CHARACTERS_MAX]}"
        self._app.admit(request)

    def _handle(self, request: Request) -> None:
        if request.error is not None:
            # Not raised again, and forgotten: its frames would keep this read, and whoever they belong to, in a cycle.
            error, request.error = request.error, None
            request.answer(self.refuse(request, error))
            return
        try:
            request.hold()
            assert request.route is not None
            answer = request.route.handle(request)
        except Elsewhere as there:
            answer = self.bring(request, there)
        except Exception as error:  # also a bug: it costs one request
            answer = self.refuse(request, error)
        if isinstance(answer, Answer):
            answer.then(partial(self._told, request))
        elif answer is not None:
            request.answer(answer)

    def _told(self, request: Request, answer: Response | None, error: Exception | None) -> None:
        if isinstance(error, Elsewhere):
            answer = self.bring(request, error)
        elif error is not None:
            answer = self.refuse(request, error)
        if answer is not None:
            request.answer(answer)

    def bring(self, request: Request, there: Elsewhere) -> Response | None:
        """Have a request answered by the node that has its topic; nothing of it was done here."""
        try:
            if self.listener.away is None:
                raise there
            self.listener.away.bring(request, there)
        except Refusal as refusal:
            return self.refuse(request, refusal)
        return None

    def refuse(self, request: Request, error: Exception) -> Response:
        """Return what is said about what went wrong."""
        return self._app.refused(error, f"{request.method} {request.path}", self)

    def flush(self) -> None:
        """Write the answers that are there, as far as no other must leave before them, and begin what waited."""
        if self._flushing or self.closed:
            return
        self._flushing = True
        answers = self._answers
        while True:
            while answers and answers[0].wire:
                self.transport.write(answers.popleft().wire)
            if answers or not (self.behind and self.may_begin):
                break
            request = self.behind.popleft()
            self._incoming.hold()
            self.begin(request)
        self._flushing = False
        if self.ends and not self.is_busy:
            self.transport.close()
        elif not answers and self._paused & BEHIND and not self._paused & _CHOKED and not self._goes_on:
            self._goes_on = True
            self._clock.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Take up what waited, in a turn of its own."""
        self._goes_on, self._begun = False, 0
        if self.behind:
            self.flush()
        elif self._paused & BEHIND and not self._answers and not self.transport.is_closing():
            self._start(BEHIND)
            data, self.rest = self.rest, b""
            if data:
                self.data_received(data)
            if self.closed:
                return
            self._incoming.hold()
            if self._is_all and not self._paused & BEHIND:
                self.shut_down()

    def not_http(self, text: str) -> None:
        """Hang up on what is no HTTP, once everything before it is answered."""
        self._app.not_http(text, self)
        cell = _Cell()
        cell.wire = Response(text.encode(), (TEXT,), 400).wire(is_last=True)
        self._answers.append(cell)
        self.ends = True
        self.flush()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _has_requests(self) -> bool:
        # A request begins when it is alone, so the first tells.
        return bool(self.behind or (self._answers and type(self._answers[0]) is Request))

    def stop_reading(self, why: int) -> None:
        """Read nothing more until that reason is gone."""
        if not self._paused and not self.closed:
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


class _Cell:
    """The place of an answer that belongs to no request."""

    __slots__ = ("wire",)

    def __init__(self) -> None:
        self.wire = b""

    def is_left(self) -> bool:
        """Tell that its client is answered, also where that sends nothing more."""
        return False

    def leave(self) -> None:
        """Tell nobody."""
