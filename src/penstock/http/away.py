"""Requests about topics that another node has: brought to the same listener there, and its answer brought back.

Owns the connections to the same listener of other nodes. An answer's bytes go back as they came.
Invariant: a request is brought to another node only if nothing of it was done here, at most twice, and never sent
again: whether one that was not answered was carried out is not known, and the client is told so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from penstock.budget import Wait
from penstock.callers import Caller
from penstock.callers.carried import Carried
from penstock.clock import SECOND
from penstock.errors import Elsewhere, Refusal
from penstock.http.brought import question, written
from penstock.http.request import Request
from penstock.registry.answer import Answer

if TYPE_CHECKING:
    from penstock.http.listener import Listener
    from penstock.node.node import Node

#: A topic that moves is looked for at so many nodes.
HOPS_MAX = 2

#: Connections to one node that lie idle, and for how long they may: less than the other side keeps them.
IDLE_MAX = 32
IDLE_NS = 30 * SECOND


def join(node: Node, listener: Listener) -> None:
    """Let a listener bring requests to other nodes, and take those that they bring."""
    if node.config.cluster.name:
        listener.away = Away(node, listener.key)
        node.doors[listener.key] = lambda caller, about: listener.connect_node(caller.identity.note)


class Errand(Protocol):
    """What is brought to another node, and who is told what comes back."""

    @property
    def method(self) -> str:
        """As HTTP names it."""

    @property
    def what(self) -> str:
        """What it is, for people."""

    def wire(self) -> bytes:
        """Return its bytes."""

    def done(self, wire: bytes) -> None:
        """Hear the bytes of the answer."""

    def failed(self, why: Refusal) -> None:
        """Hear why there is none."""


class Away:
    """What one listener has at other nodes."""

    def __init__(self, node: Node, key: str) -> None:
        self.node = node
        self.key = key
        #: Requests that went to each node.
        self.brought: Counter[str] = Counter()
        self._idle: dict[str, list[_Way]] = {}

    def bring(self, request: Request, there: Elsewhere) -> None:
        """Have a request answered by another node."""
        if request.hops >= HOPS_MAX:
            raise Refusal("unavailable", f"topic {there.topic} is on its way to another node; try again in a moment")
        if self.node.peers is None:
            raise there
        self.brought[there.node] += 1
        way = self._send(there.node, _Brought(request))
        request.on_gone(way.abandon, way.end)

    def ask(self, to: str, caller: Caller, target: str) -> Answer[bytes]:
        """Answer with the content of a page of another node's, for somebody."""
        answer: Answer[bytes] = Answer()
        self._send(to, _Question(question(caller, self.node.gate, target), target, answer))
        return answer

    def ask_owners(self, names: Iterable[str], caller: Caller, target: str) -> Answer[dict[str, bytes | Refusal]]:
        """Answer with a page of each node that has some of these topics, or why there is none, by node."""
        owners = {owner for name in names if (owner := self.node.elsewhere(name)) is not None}
        told: dict[str, bytes | Refusal] = {}
        all_told: Answer[dict[str, bytes | Refusal]] = Answer()

        def tell(owner: str, content: bytes | None, error: Exception | None) -> None:
            told[owner] = content if content is not None else cast(Refusal, error)
            if len(told) == len(owners):
                all_told.give(told)

        if not owners:
            all_told.give(told)
        for owner in sorted(owners):
            self.ask(owner, caller, target).then(partial(tell, owner))
        return all_told

    def _send(self, to: str, errand: Errand) -> _Way:
        way = self._kept(to)
        if way is None:
            way = _Way(self, to)
            way.begin(errand)
            peers = self.node.peers
            if peers is None:
                self.node.clock.call_soon(partial(way.failed, Refusal("unavailable", "there is no way to other nodes")))
            else:
                peers.connect(to, self.key, Carried(address=peers.name, listener=self.key), b"", way, way.failed)
        else:
            way.begin(errand)
        return way

    def keep(self, way: _Way) -> None:
        """Have a connection at hand for the next request."""
        idle = self._idle.setdefault(way.to, [])
        if len(idle) < IDLE_MAX:
            idle.append(way)
        else:
            way.close()

    def forget(self, way: _Way) -> None:
        """Have it no more."""
        idle = self._idle.get(way.to, [])
        if way in idle:
            idle.remove(way)

    def _kept(self, to: str) -> _Way | None:
        idle = self._idle.get(to, [])
        since_ns = self.node.clock.monotonic() - IDLE_NS
        while idle:
            way = idle.pop()
            if way.is_open and way.idle_ns > since_ns:
                return way
            way.close()
        return None


class _Brought:
    """A client's request."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.method = request.method
        self.what = f"{request.method} {request.path[:256]}"

    def wire(self) -> bytes:
        """Return its bytes."""
        return written(self._request)

    def done(self, wire: bytes) -> None:
        """Answer it."""
        self._request.relay(wire)

    def failed(self, why: Refusal) -> None:
        """Refuse it."""
        self._request.answer(self._request.connection.refuse(self._request, why))


class _Question:
    """What this node itself wants to know."""

    method = "GET"

    def __init__(self, wire: bytes, what: str, answer: Answer[bytes]) -> None:
        self._wire = wire
        self.what = what
        self._answer = answer

    def wire(self) -> bytes:
        """Return its bytes."""
        return self._wire

    def done(self, wire: bytes) -> None:
        """Tell the content."""
        head, _, content = wire.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 200 "):
            self._answer.give(content)
        else:
            self._answer.refuse(Refusal("unavailable", f"{self.what}: {head[9:100].decode('latin-1')}"))

    def failed(self, why: Refusal) -> None:
        """Tell why not."""
        self._answer.refuse(why)


class _Way(asyncio.Protocol):
    """One connection to the same listener of another node; one errand at a time."""

    def __init__(self, away: Away, to: str) -> None:
        self.to = to
        self.idle_ns = 0
        self._away = away
        self._transport: asyncio.Transport | None = None
        self._errand: Errand | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._size = 0
        self._held: Wait | None = None
        self._whole = False
        #: Nothing more is sent, which the other node has not heard.
        self._ends = False

    @property
    def is_open(self) -> bool:
        """Whether something may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def begin(self, errand: Errand) -> None:
        """Send something, as soon as that is possible."""
        self._errand = errand
        if self._transport is not None:
            self._transport.write(errand.wire())

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def end(self) -> bool:
        """Let the other node know that the client sends no more: it answers, or hangs up on one that waits.

        False if it cannot be told.
        """
        if self._transport is None:
            self._ends = True
        elif self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            return False
        return True

    def abandon(self) -> None:
        """Let the other node know that nobody waits any more."""
        self._let_go()
        if self._transport is not None:
            self._transport.abort()

    # --- the transport calls these --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what waits."""
        self._transport = cast(asyncio.Transport, transport)
        if self._errand is None:  # whoever asked is gone
            self._transport.abort()
        else:
            self._transport.write(self._errand.wire())
            if self._ends and not self.end():
                self._break("its connection cannot be ended by halves")

    def failed(self, why: Refusal) -> None:
        """Tell that the node could not be asked."""
        self._fail(Refusal(why.code, f"{why}; nothing was done, try again"))

    def data_received(self, data: bytes) -> None:
        """Gather the answer."""
        if self._errand is None:
            self.close()
            return
        self._parts.append(data)
        self._size += len(data)
        bodies = self._away.node.budget.body
        if self._held is None:
            self._held = bodies.begin(f"node {self.to}", self._cut)
        bodies.hold(self._held, self._size)
        if not self._parts:  # it was cut just now
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._break("what came from it is no answer")
            return
        if self._whole:
            self._answer()

    def on_headers_complete(self) -> None:
        """Know that the answer to HEAD is over."""
        if self._errand is not None and self._errand.method == "HEAD":
            self._whole = True

    def on_message_complete(self) -> None:
        """Know that it is all there."""
        self._whole = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that it is not known what became of it."""
        self._transport = None
        self._away.forget(self)
        self._break("it hung up before it had answered")

    # --- inside ---------------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        errand, wire = self._errand, b"".join(self._parts)
        is_kept = self._parser.should_keep_alive() and self.is_open
        self._let_go()
        self._parser = httptools.HttpResponseParser(self)
        self.idle_ns = self._away.node.clock.monotonic()
        if is_kept:
            self._away.keep(self)
        else:
            self.close()
        if errand is not None:
            errand.done(wire)

    def _cut(self, why: Refusal) -> None:
        self._held = None
        self._break(f"its answer is not taken: {why}")

    def _break(self, why: str) -> None:
        if self._errand is not None:
            text = f"node {self.to}: {why}; whether {self._errand.what} was carried out is not known"
            self._fail(Refusal("unavailable", text))
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, why: Refusal) -> None:
        errand = self._errand
        self._let_go()
        if errand is not None:
            errand.failed(why)

    def _let_go(self) -> None:
        self._errand, self._whole = None, False
        self._parts, self._size = [], 0
        if self._held is not None:
            self._away.node.budget.body.end(self._held)
            self._held = None
