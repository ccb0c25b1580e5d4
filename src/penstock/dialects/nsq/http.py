"""NSQ over HTTP: publishing with curl, and what nsqd's own tools ask before they connect.

Owns the paths, codes and headers of nsqd's HTTP interface, version 1.0. A plain ASGI application without a framework,
because one publish is one request here and everything beside the topic's own work is overhead.
Invariant: parameters come from the query alone, and a refused request stores nothing.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from typing import ClassVar, NamedTuple
from urllib.parse import parse_qsl
from zlib import crc32

import msgspec

from penstock.clock import MILLISECOND, SECOND
from penstock.config import Config
from penstock.dialects.nsq.codec import SOURCE, Command, Decoder, Limits, is_name
from penstock.dialects.nsq.identify import VERSION
from penstock.dialects.nsq.session import EPHEMERAL
from penstock.errors import Refusal
from penstock.inlet import Receipt
from penstock.listener import Listener, Receive, Scope, Send, listen
from penstock.message import Rows
from penstock.node import Node
from penstock.settings import TopicSettings
from penstock.topic import Topic

#: A client that sends half a body and stops is given up after this long without a byte.
BODY_PAUSE_S = 30.0

#: Connections share this many publishers, so that each keeps its shard and all of them use every shard.
PUBLISHERS = 64

_NSQ = (b"x-nsq-content-type", b"nsq; version=1.0")
_JSON = (b"content-type", b"application/json; charset=utf-8")
_TEXT = (b"content-type", b"text/plain; charset=utf-8")
_SLASHES = re.compile("/{2,}")
_SWITCH = {"true": True, "1": True, "false": False, "0": False}
_OK = b"OK"

#: How a refusal reads here where the code itself is not nsqd's word for it.
_CODES = {"stopping": "EXITING", "message_too_big": "MSG_TOO_BIG", "bad_name": "INVALID_TOPIC"}

Params = dict[str, str]


class Answer(NamedTuple):
    """What is sent back."""

    content: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    status: int = 200


_DONE = Answer(_OK, (_NSQ, _TEXT))


class Fault(Exception):
    """A request that is refused, with nsqd's status and word for it."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class _Publisher:
    """The one a topic gives a shard to."""


class Http:
    """The application of one listener."""

    def __init__(self, node: Node, config: Config, tcp_port: int) -> None:
        self._node = node
        self._config = config.nsq
        self._tcp_port = tcp_port
        #: Known once the listener is bound.
        self.http_port = config.listeners()["nsq.http_port"][1]
        self._publishers = [_Publisher() for _ in range(PUBLISHERS)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            content, headers, status = await self._route(scope, receive)
        except Fault as fault:
            content, headers, status = _message(fault.code), (_NSQ, _JSON), fault.status
            self._node.count_fault("nsq", fault.code, f"{scope['method']} {scope['path']}", _peer(scope))
        except Exception as failure:  # a bug must cost one request, not the node
            self._node.report_bug("nsq http", failure)
            content, headers, status = _message("INTERNAL_ERROR"), (_NSQ, _JSON), 500
        length = (b"content-length", b"%d" % len(content))
        await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": content})

    async def _route(self, scope: Scope, receive: Receive) -> Answer:
        path: str = scope["path"]
        if "//" in path:  # ansq sends these
            path = _SLASHES.sub("/", path)
        found = self.PATHS.get(path)
        if found is None:
            raise Fault(404, "NOT_FOUND")
        method, handle = found
        if scope["method"] != method:
            raise Fault(405, "METHOD_NOT_ALLOWED")
        return await handle(self, scope, receive)

    # --- paths ----------------------------------------------------------------------------------------------------

    async def ping(self, scope: Scope, receive: Receive) -> Answer:
        """Say that all is well, or that the last write to disk failed."""
        trouble = _disk_trouble(self._node)
        return Answer(f"NOK - {trouble}".encode(), (_TEXT,), 500) if trouble else Answer(_OK, (_TEXT,))

    async def info(self, scope: Scope, receive: Receive) -> Answer:
        """Tell who this is."""
        config = self._config
        told = {
            "version": VERSION,
            "broadcast_address": socket.gethostname(),
            "hostname": socket.gethostname(),
            "http_port": self.http_port,
            "tcp_port": self._tcp_port,
            "start_time": self._node.started_ns // SECOND,
            "max_heartbeat_interval": config.max_heartbeat_interval_ns,
            "max_output_buffer_size": config.max_output_buffer_size,
            "max_output_buffer_timeout": config.max_output_buffer_timeout_ns,
            "max_deflate_level": 6,
            "topology_zone": "",
            "topology_region": "",
        }
        return Answer(msgspec.json.encode(told), (_NSQ, _JSON))

    async def pub(self, scope: Scope, receive: Receive) -> Answer:
        """Publish the body as one message."""
        body = await self._body(scope, receive, self._config.max_msg_size, "MSG_TOO_BIG")
        if not body:
            raise Fault(400, "MSG_EMPTY")
        params = _params(scope)
        topic = self._topic(params)
        rows = Rows(1, [0, len(body)], body, SOURCE)
        if "defer" in params:
            delay = params["defer"]
            if not (delay.isascii() and delay.isdigit() and len(delay) < 19):
                raise Fault(400, "INVALID_DEFER")
            delay_ns = int(delay) * MILLISECOND
            if delay_ns > self._config.max_req_timeout_ns:
                raise Fault(400, "INVALID_DEFER")
            if delay_ns:
                rows.columns = {"due": [self._node.clock.now() + delay_ns]}
        return await self._publish(scope, topic, rows)

    async def mpub(self, scope: Scope, receive: Receive) -> Answer:
        """Publish several messages: one a line, or each behind its length."""
        body = await self._body(scope, receive, self._config.max_body_size, "BODY_TOO_BIG")
        params = _params(scope)
        topic = self._topic(params)
        # A value that is neither true nor false counts as true, as in nsqd.
        is_binary = _SWITCH.get(params["binary"], True) if "binary" in params else False
        rows = self._packed(body) if is_binary else self._lines(body)
        return await self._publish(scope, topic, rows) if rows.count else _DONE

    # --- inside ---------------------------------------------------------------------------------------------------

    def _lines(self, body: bytes) -> Rows:
        bodies = [line for line in body.split(b"\n") if line]
        if any(len(line) > self._config.max_msg_size for line in bodies):
            raise Fault(413, "MSG_TOO_BIG")
        return Rows.of(bodies, SOURCE)

    def _packed(self, body: bytes) -> Rows:
        count = int.from_bytes(body[:4], "big") if len(body) >= 4 else 0
        if not 0 < count <= (self._config.max_body_size - 4) // 5:
            raise Fault(413, "BAD_BODY")
        faults: list[Command] = []
        limits = Limits(self._config.max_msg_size, self._config.max_body_size)
        rows = Decoder(limits).items(body, 4, len(body), count, faults)
        if rows is None:
            raise Fault(413, str(faults[0][1]).removeprefix("E_"))
        return rows

    async def _publish(self, scope: Scope, topic: Topic, rows: Rows) -> Answer:
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(receipt: Receipt | None, error: BaseException | None) -> None:
            if stored.done():
                return  # the listener ended meanwhile
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)

        publisher = self._publishers[crc32(_peer(scope).encode()) % PUBLISHERS]
        topic.publish(rows, publisher, done)
        try:
            await stored
        except Refusal as refusal:
            raise _fault(refusal) from None
        return _DONE

    def _topic(self, params: Params) -> Topic:
        if "topic" not in params:
            raise Fault(400, "MISSING_ARG_TOPIC")
        name = params["topic"]
        if not name.isascii() or not is_name(name.encode()):
            raise Fault(400, "INVALID_TOPIC")
        settings = None
        if name.endswith(EPHEMERAL):
            settings = TopicSettings(durability="memory", ephemeral=True, extend="off")
        try:
            return self._node.topic(name, create=True, settings=settings)
        except Refusal as refusal:
            raise _fault(refusal) from None

    async def _body(self, scope: Scope, receive: Receive, limit: int, too_big: str) -> bytes:
        """Read a whole body, within its limit and within the node's memory for input."""
        memory = self._node.input_memory
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > limit:
                raise Fault(413, too_big)
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                async with asyncio.timeout(BODY_PAUSE_S):
                    message = await receive()
                if message["type"] == "http.disconnect":
                    raise Fault(400, "INVALID_REQUEST")
                part: bytes = message.get("body", b"")
                if not memory.take(len(part)):
                    raise Fault(503, "MEMORY_FULL")
                size += len(part)
                if size > limit:
                    raise Fault(413, too_big)
                parts.append(part)
                if not message.get("more_body", False):
                    return parts[0] if len(parts) == 1 else b"".join(parts)
        except TimeoutError:
            raise Fault(400, "INVALID_REQUEST") from None
        finally:
            memory.give(size)

    PATHS: ClassVar[dict[str, tuple[str, Callable[[Http, Scope, Receive], Awaitable[Answer]]]]] = {
        "/ping": ("GET", ping),
        "/info": ("GET", info),
        "/pub": ("POST", pub),
        "/mpub": ("POST", mpub),
    }


async def serve_http(node: Node, config: Config, tcp_port: int | None = None) -> Listener:
    """Start NSQ's HTTP listener in the running loop; OSError if its port cannot be had.

    `tcp_port` is what `/info` shows where the configuration asks for any free port.
    """
    address, port = config.listeners()["nsq.http_port"]
    app = Http(node, config, tcp_port or config.listeners()["nsq.tcp_port"][1])

    def fault(text: str, peer: str) -> None:
        node.count_fault("nsq", "INVALID_REQUEST", text, peer)

    listener = await listen(app, address, port, fault)
    app.http_port = listener.port
    return listener


def _params(scope: Scope) -> Params:
    """Return the query's parameters, of a repeated one the first."""
    try:
        pairs = parse_qsl(scope["query_string"].decode("ascii"), True, errors="strict", max_num_fields=32)
    except ValueError:
        raise Fault(400, "INVALID_REQUEST") from None
    return dict(reversed(pairs))


def _disk_trouble(node: Node) -> str | None:
    """Return why the last write of some topic failed; the next one that succeeds makes it well again."""
    for entry in node.ledger.entries("disk_full"):
        topic = node.topics.get(entry.topic)
        if topic is not None and entry.last_ns > max(shard.last_ns for shard in topic.shards):
            return f"topic {topic.name} could not be written"
    return None


def _fault(refusal: Refusal) -> Fault:
    return Fault(refusal.reason.http, _CODES.get(refusal.code, refusal.code.upper()))


def _message(code: str) -> bytes:
    return msgspec.json.encode({"message": code})


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""
