"""Publishes over HTTP that need no application: POST /pub?topic=NAME of an existing topic, in its one common shape.

Owns the way from such a request's bytes to its answer: no task, no coroutine, the reply is written where the topic says
that the message is stored. Everything else, also what is wrong, goes the long way through uvicorn and `api`.
Invariant: answers leave in the order of the requests, whichever way each of them went.
"""

from __future__ import annotations

import re
from collections import deque
from functools import partial
from typing import Protocol

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from penstock import listener
from penstock.dialects.nsq.codec import SOURCE
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.http.asgi import OK, Answer
from penstock.intake.receipt import Receipt
from penstock.listener import HEAD_BYTES_MAX, HEAD_S, Fault
from penstock.message import Rows
from penstock.node import Node

#: A client that pipelines has at most this many answers outstanding; then it is not read for a while.
ANSWERS_MAX = 1024

#: Half a head is kept up to this size; a plain one is far smaller.
HALF_HEAD_BYTES_MAX = 4096

_START = b"POST /pub?topic="

#: A header that changes nothing here. Those that would (a length, chunks, 100-continue, another protocol, a
#: connection that ends) are left out, so that a request with one of them has another shape.
_OTHER = (
    rb"(?>(?!(?:content-length|transfer-encoding|expect|upgrade|connection)[ \t]*:)"
    rb"[!#$%&'*+.^_`|~0-9a-z-]++:[^\x00-\x08\x0a-\x1f\x7f]*+\r\n|connection:[ ]?keep-alive\r\n)*+"
)
#: The whole head, one length in it. Nothing in it can match in two ways, so no input makes it look back.
_head = re.compile(
    rb"POST /pub\?topic=([.a-zA-Z0-9_-]{1,64}) HTTP/1\.1\r\n"
    rb"(?i:" + _OTHER + rb"content-length:[ ]?([0-9]{1,9})\r\n" + _OTHER + rb")\r\n"
).match


class Host(Protocol):
    """What the application lends to its connections."""

    node: Node

    def publisher(self, peer: str) -> object:
        """Return whose order a client's messages keep."""

    def refused(self, error: BaseException, request: str, peer: str) -> Answer:
        """Count what went wrong and return what is said about it."""


class Direct(listener.Connection):
    """One socket, whose plain publishes are answered at once."""

    def __init__(self, host: Host, config: Config, state: ServerState, fault: Fault) -> None:
        super().__init__(config, state, fault)
        self._host = host
        self._topics = host.node.topics
        self._memory = host.node.input_memory
        self._message_bytes_max = host.node.config.of(NsqConfig).max_msg_size
        self._publisher: object = None
        #: The last head of the common shape, what it names, and how long its body is: clients repeat themselves.
        self._head = b"\n"
        self._topic = ""
        self._size = 0
        #: Answers to come, in the order of their requests; each a cell that is filled once it is known.
        self._answers: deque[list[bytes]] = deque()
        #: What was read and not taken: a request that is not all there, or what waits for answers before it.
        self._rest = b""
        #: Since when half a request is there.
        self._rest_s = 0.0
        #: Nothing is looked at before all answers are written; nor is anything read, nor while the client reads none.
        self._waits = False
        self._choked = False
        #: The connection ends with the last answer.
        self._ends = False

    @property
    def busy(self) -> bool:
        """Whether a request waits for its answer."""
        return bool(self._answers) or super().busy

    def overdue(self, now_s: float) -> bool:
        """Tell whether the client has been silent for too long; half a request is left to the application to refuse."""
        if self._rest and not self._waits and now_s - self._rest_s > HEAD_S:
            rest, self._rest = self._rest, b""
            self._long_way(rest)
        return super().overdue(now_s)

    def data_received(self, data: bytes) -> None:
        """Take what a client sent."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        if self._waits:
            self._rest = data
        elif self.between and (self.cycle is None or self.cycle.response_complete):  # type: ignore[redundant-expr]
            self._take(data)
        else:
            super().data_received(data)

    def _take(self, data: bytes) -> None:
        """Publish as many requests as have the common shape; budget: 3 us each beside the topic's own work."""
        self.heard_s = self.loop.time()
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        at, end = 0, len(data)
        while at < end:
            if not data.startswith(self._head, at) and not self._read_head(data, at):
                return self._keep(data[at:]) if _is_half_a_head(data, at) else self._long_way(data[at:])
            start = at + len(self._head)
            stop = start + self._size
            topic = self._topics.get(self._topic)
            fits = self._memory.used + self._size <= self._memory.bytes_max
            if topic is None or not fits or not 0 < self._size <= self._message_bytes_max:
                return self._long_way(data[at:])
            if stop > end:
                if stop - at > HEAD_BYTES_MAX:  # too much to keep here: the application counts it as it comes
                    return self._long_way(data[at:])
                return self._keep(data[at:])
            if len(self._answers) >= ANSWERS_MAX:
                return self._wait(data[at:])
            self._rest_s = 0.0
            answer = [b""]
            self._answers.append(answer)
            rows = Rows(1, [0, self._size], data[start:stop], SOURCE)
            try:
                topic.publish(rows, self._publisher, partial(self._answered, answer))
            except Exception as failure:  # a bug must cost one request, not the connection's other ones
                if not answer[0]:
                    self._answered(answer, None, failure)
            at = stop
        return None

    def _read_head(self, data: bytes, at: int) -> bool:
        """Learn a head of the common shape; False for any other."""
        found = _head(data, at, at + HEAD_BYTES_MAX)
        if found is None:
            return False
        self._head, self._topic, self._size = found[0], found[1].decode("ascii"), int(found[2])
        if self._publisher is None:
            self._publisher = self._host.publisher(self.peer)
        return True

    def _keep(self, data: bytes) -> None:
        """Keep a request until the rest of it comes."""
        self._rest, self._rest_s = data, self._rest_s or self.heard_s

    def _long_way(self, data: bytes) -> None:
        """Leave bytes to the application, once everything before them is answered."""
        self._rest_s = 0.0
        if self._answers:
            self._wait(data)
        else:
            super().data_received(data)

    def _wait(self, data: bytes) -> None:
        """Look at bytes when the answers before them are written, and read no more until then."""
        self._rest, self._waits = data, True
        self.flow.pause_reading()

    def _go_on(self) -> None:
        if self._waits and not self._answers and not self.transport.is_closing():
            self._waits = False
            data, self._rest = self._rest, b""
            if not self._choked:
                self.flow.resume_reading()
            self._take(data)

    def _answered(self, answer: list[bytes], receipt: Receipt | None, error: BaseException | None) -> None:
        """Write an answer, and those behind it that waited for it."""
        answer[0] = _OK if error is None else _wire(self._host.refused(error, "POST /pub", self.peer))
        answers = self._answers
        while answers and answers[0][0]:
            self.transport.write(answers.popleft()[0])
        if not answers:
            if self._ends:
                self.transport.close()
            elif self._waits:
                self.loop.call_soon(self._go_on)

    # --- asyncio and the listener call these ----------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Read nothing more from a client that does not read."""
        super().pause_writing()
        self._choked = self._waits or not self.flow.read_paused
        if self._choked:
            self.flow.pause_reading()

    def resume_writing(self) -> None:
        """Go on with it."""
        super().resume_writing()
        if self._choked and not self._waits:
            self.flow.resume_reading()
        self._choked = False

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer what was asked before the client said that it asks no more."""
        if self._answers and self.scheme != "https":
            self._ends = True
            return True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget who would have been answered."""
        self._answers.clear()
        self._rest = b""
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End as soon as everything that was asked is answered."""
        if self._answers:
            self._ends = True
        else:
            super().shutdown()


def _is_half_a_head(data: bytes, at: int) -> bool:
    """Tell whether bytes may become a plain publish; of a pipelined read the last head is nearly always cut."""
    begins = _START.startswith(data[at : at + len(_START)])
    return begins and len(data) - at < HALF_HEAD_BYTES_MAX and data.find(b"\r\n\r\n", at) < 0


def _wire(answer: Answer) -> bytes:
    """Return an answer's bytes."""
    status = STATUS_LINE[answer.status]
    headers = b"".join(b"%b: %b\r\n" % header for header in answer.headers)
    return b"%b%bcontent-length: %d\r\n\r\n%b" % (status, headers, len(answer.content), answer.content)


_OK = _wire(OK)
