"""NSQ over HTTP: publishing with curl, and what nsqd's own tools ask.

Owns the paths of nsqd's HTTP interface, version 1.0, and those that publish; the others end in `admin`, `options` and
`stats`. A plain ASGI application without a framework, because one publish is one request here and everything beside the
topic's own work is overhead.
Invariant: parameters come from the query alone, and a refused request stores nothing.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from zlib import crc32

import msgspec

from penstock.clock import MILLISECOND, SECOND
from penstock.config import Config
from penstock.dialect import Bound
from penstock.dialects.nsq.codec import SOURCE, Command, Decoder, Limits, partition_of
from penstock.dialects.nsq.config import NsqConfig, quantile
from penstock.dialects.nsq.health import health
from penstock.dialects.nsq.http import asgi
from penstock.dialects.nsq.http.admin import Admin
from penstock.dialects.nsq.http.asgi import EMPTY, JSON, NSQ, OK, TEXT, Answer, Fault, Params, document
from penstock.dialects.nsq.http.direct import Direct
from penstock.dialects.nsq.http.ext import checked, columns_of, header_of
from penstock.dialects.nsq.http.options import Options, Relookup
from penstock.dialects.nsq.lookup.address import broadcast_address
from penstock.dialects.nsq.places import place as place_in_queue
from penstock.dialects.nsq.start import Start
from penstock.dialects.nsq.stats.document import Observer
from penstock.dialects.nsq.stats.meter import Meter
from penstock.dialects.nsq.stats.printout import printout
from penstock.dialects.nsq.tcp.identify import VERSION
from penstock.dialects.nsq.tcp.server import Server
from penstock.dialects.nsq.topics import topic_settings
from penstock.errors import Refusal
from penstock.filters.header import HeaderReader
from penstock.intake.receipt import Receipt
from penstock.listener import App, Connection, Listener, Receive, Scope, Send, listen
from penstock.message import Rows, place_of
from penstock.node import Node
from penstock.topic import Topic

#: Connections share this many publishers, so that each keeps its shard and all of them use every shard.
PUBLISHERS = 64

#: A place in a topic is a word and a number.
START_BYTES_MAX = 64

#: The query of nearly every publish: one plain topic name, nothing to unescape.
_PLAIN = re.compile(rb"topic=([.a-zA-Z0-9_-]{1,64})").fullmatch

#: How a refusal reads here where the code itself is not nsqd's word for it.
_CODES = {"stopping": "EXITING", "message_too_big": "MSG_TOO_BIG", "bad_name": "INVALID_TOPIC"}
#: And on the paths that only Youzan's clients know.
_WAITING = ("rate_limited", "memory_full")

_TRACE_MAX = (1 << 64) - 1

Handle = Callable[[Scope, Receive], Awaitable[Answer]]


class _Publisher:
    """The one a topic gives a shard to."""


class Http:
    """The application of one listener."""

    def __init__(
        self, node: Node, config: Config, bound: Mapping[str, Bound], observer: Observer, relookup: Relookup
    ) -> None:
        self.node = node
        self._tree = config
        self._config = config.of(NsqConfig)
        self._bound = bound
        self._observer = observer
        self._options = Options(config, relookup)
        self._admin = Admin(node, config)
        self._readers = {"strict": HeaderReader(), "lenient": HeaderReader(lenient=True)}
        self._readers["node"] = self._readers[self._config.header_rules]
        self._publishers = [_Publisher() for _ in range(PUBLISHERS)]
        self._paths: dict[str, tuple[str, Handle]] = {
            "/pub": ("POST", self.pub),
            "/mpub": ("POST", self.mpub),
            "/put": ("POST", self.pub),  # as clients from before version 1.0 call them
            "/mput": ("POST", self.mpub),
            "/pub_ext": ("POST", self.pub_ext),
            "/pubtrace": ("POST", self.pubtrace),
            "/ping": ("GET", self.ping),
            "/info": ("GET", self.info),
            "/stats": ("GET", self.stats),
            "/channel/setoffset": ("POST", self.setoffset),
            **{path: ("POST", self._managed(handle)) for path, handle in Admin.PATHS.items()},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            if scope["path"] == "/pub" and scope["method"] == "POST":
                answer = await self.pub(scope, receive)
            else:
                answer = await self._route(scope, receive)
        except Exception as failure:  # a bug must cost one request, not the node
            answer = self.refused(failure, f"{scope['method']} {scope['path']}", asgi.peer(scope))
        await asgi.send(answer, send)

    def refused(self, error: BaseException, request: str, peer: str) -> Answer:
        """Count what went wrong and return what is said about it."""
        fault = _fault(error) if isinstance(error, Refusal) else error
        if isinstance(fault, Fault):
            self.node.count_fault("nsq", fault.code, request, peer)
            return asgi.refusal(fault.status, fault.code, fault.reason)
        self.node.report_bug("nsq http", error)
        return asgi.refusal(500, "INTERNAL_ERROR")

    def publisher(self, peer: str) -> object:
        """Return whose order a client's messages keep."""
        return self._publishers[crc32(peer.encode()) % PUBLISHERS]

    async def _route(self, scope: Scope, receive: Receive) -> Answer:
        path = asgi.path(scope)
        found = self._paths.get(path)
        if found is None:
            option = path.removeprefix("/config/")
            if option != path and option and "/" not in option:
                return await self._option(option, scope, receive)
            raise Fault(404, "NOT_FOUND")
        method, handle = found
        if scope["method"] != method:
            raise Fault(405, "METHOD_NOT_ALLOWED")
        return await handle(scope, receive)

    # --- publishing -----------------------------------------------------------------------------------------------

    async def pub(self, scope: Scope, receive: Receive) -> Answer:
        """Publish the body as one message."""
        body = await self._message(scope, receive)
        plain = _PLAIN(scope["query_string"])
        topic = self.node.topics.get(plain[1].decode("ascii")) if plain is not None else None
        rows = Rows(1, [0, len(body)], body, SOURCE)
        if topic is not None:
            await self._publish(scope, topic, rows)
            return OK
        params = asgi.params(scope)
        topic = self._topic(params)
        if "defer" in params:
            delay_ns = self._delay_ns(params["defer"])
            if delay_ns:
                rows.columns = {"due": [self.node.clock.now() + delay_ns]}
        await self._publish(scope, topic, rows, _shard(topic, params))
        return OK

    async def mpub(self, scope: Scope, receive: Receive) -> Answer:
        """Publish several messages: one a line, or each behind its length."""
        limit = self._config.max_body_size
        body = await asgi.body(scope, receive, limit, self.node.input_memory, Fault(413, "BODY_TOO_BIG"))
        params = asgi.params(scope)
        topic = self._topic(params)
        # A value that is neither true nor false counts as true, as in nsqd.
        is_binary = "binary" in params and asgi.switch(params, "binary", default=True)
        rows = self._packed(body) if is_binary else self._lines(body)
        if rows.count:
            await self._publish(scope, topic, rows, _shard(topic, params))
        return OK

    async def pub_ext(self, scope: Scope, receive: Receive) -> Answer:
        """Publish the body as one message with a header; traced if the header says so."""
        body = await self._message(scope, receive)
        params = asgi.params(scope)
        # A header that is refused makes no topic, so the rules of one that is there are looked up before.
        known = self.node.topics.get(params.get("topic", ""))
        reader = self._readers[known.settings.header_rules if known is not None else "node"]
        parsed = checked(header_of(params.get("ext"), scope["headers"]), reader)
        topic = self._extended_topic(params, extend=True)
        columns = columns_of(parsed, topic.settings.extend, compatible=self._config.allow_ext_compatible)
        rows = Rows(1, [0, len(body)], body, SOURCE, columns)
        receipt = await self._publish(scope, topic, rows, _shard(topic, params), extended=True)
        return OK if parsed.trace is None else await self._traced(topic, receipt, parsed.trace & _TRACE_MAX)

    async def pubtrace(self, scope: Scope, receive: Receive) -> Answer:
        """Publish the body as one message under a trace id, and tell where it went."""
        body = await self._message(scope, receive)
        params = asgi.params(scope)
        text = params.get("trace_id", "")
        if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= _TRACE_MAX):
            raise Fault(400, "INVALID_TRACE_ID")
        trace = int(text)
        topic = self._extended_topic(params)
        rows = Rows(1, [0, len(body)], body, SOURCE, {"trace": [trace - (trace >> 63 << 64)]})
        receipt = await self._publish(scope, topic, rows, _shard(topic, params), extended=True)
        return await self._traced(topic, receipt, trace)

    async def _message(self, scope: Scope, receive: Receive) -> bytes:
        limit = self._config.max_msg_size
        body = await asgi.body(scope, receive, limit, self.node.input_memory, Fault(413, "MSG_TOO_BIG"))
        if not body:
            raise Fault(400, "MSG_EMPTY")
        return body

    async def _publish(
        self, scope: Scope, topic: Topic, rows: Rows, shard: int | None = None, *, extended: bool = False
    ) -> Receipt:
        stored: asyncio.Future[Receipt | None] = asyncio.get_running_loop().create_future()

        def done(receipt: Receipt | None, error: BaseException | None) -> None:
            if stored.done():
                return  # the listener ended meanwhile
            if error is None:
                stored.set_result(receipt)
            else:
                stored.set_exception(error)

        topic.publish(rows, self.publisher(asgi.peer(scope)), done, shard)
        try:
            receipt = await stored
        except Refusal as refusal:
            if extended and refusal.code in _WAITING:
                raise Fault(429, "E_PUB_TOO_MUCH_WAITING", str(refusal)) from None
            raise
        assert receipt is not None
        return receipt

    async def _traced(self, topic: Topic, receipt: Receipt, trace: int) -> Answer:
        """Return the answer that tells where a message went."""
        id_ = receipt.ids()[0]
        number, offset = place_of(id_)
        at = place_in_queue(topic, receipt, id_)
        if not at.raw_size:  # it repeats one that is older than what is in memory
            fetched = asyncio.get_running_loop().create_future()
            topic.shards[number].fetch(offset, lambda: None if fetched.done() else fetched.set_result(None))
            await fetched
            at = place_in_queue(topic, receipt, id_)
        told = {"status": "OK", "id": id_, "trace_id": str(trace)}
        return document({**told, "queue_offset": at.queue_offset, "rawsize": at.raw_size})

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

    def _delay_ns(self, text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise Fault(400, "INVALID_DEFER")
        delay_ns = int(text) * MILLISECOND
        if delay_ns > self._config.max_req_timeout_ns:
            raise Fault(400, "INVALID_DEFER")
        return delay_ns

    def _topic(self, params: Params, *, extend: bool = False) -> Topic:
        name = asgi.name(params, "topic", "INVALID_TOPIC")
        topic = self.node.topics.get(name)
        if topic is None:
            if self._config.auto_create != "topics":
                raise Fault(404, "TOPIC_NOT_FOUND")
            topic = self.node.create_topic(name, topic_settings(self._tree, name, extend=extend))
        return topic

    def _extended_topic(self, params: Params, *, extend: bool = False) -> Topic:
        """Return the topic of a publish in Youzan's form, which has its own word for one that is not there."""
        try:
            return self._topic(params, extend=extend)
        except Fault as fault:
            raise Fault(404, "E_TOPIC_NOT_EXIST") if fault.status == 404 else fault from None

    # --- questions ------------------------------------------------------------------------------------------------

    async def ping(self, scope: Scope, receive: Receive) -> Answer:
        """Say that all is well, or that the last write to disk failed."""
        text = health(self.node)
        return Answer(text.encode(), (TEXT,), 200 if text == "OK" else 500)

    async def info(self, scope: Scope, receive: Receive) -> Answer:
        """Tell who this is."""
        config = self._config
        return document(
            {
                "version": VERSION,
                "broadcast_address": broadcast_address(self._tree),
                "hostname": socket.gethostname(),
                "http_port": self._bound["nsq.http_port"].port,
                "tcp_port": self._bound["nsq.tcp_port"].port,
                "start_time": self.node.started_ns // SECOND,
                "max_heartbeat_interval": config.max_heartbeat_interval_ns,
                "max_output_buffer_size": config.max_output_buffer_size,
                "max_output_buffer_timeout": config.max_output_buffer_timeout_ns,
                "max_deflate_level": config.max_deflate_level,
                "topology_zone": "",
                "topology_region": "",
            }
        )

    async def stats(self, scope: Scope, receive: Receive) -> Answer:
        """Tell everything about topics, channels and clients."""
        params = asgi.params(scope)
        stats = self._observer.stats(
            params.get("topic", ""),
            params.get("channel", ""),
            clients=asgi.switch(params, "include_clients", default=True),
            memory=asgi.switch(params, "include_mem", default=True),
        )
        if params.get("format") == "json":
            return document(stats)
        return Answer(printout(stats, self.node.started_ns, self.node.clock.now()).encode(), (NSQ, TEXT))

    # --- changes --------------------------------------------------------------------------------------------------

    def _managed(self, handle: Callable[[Admin, Params], Answer]) -> Handle:
        async def answer(scope: Scope, receive: Receive) -> Answer:
            return handle(self._admin, asgi.params(scope))

        return answer

    async def setoffset(self, scope: Scope, receive: Receive) -> Answer:
        """Let a channel begin anew at the place that the body names."""
        topic, subscription = self._admin.channel(asgi.params(scope))
        too_big = Fault(400, "INVALID_OFFSET")
        body = await asgi.body(scope, receive, START_BYTES_MAX, self.node.input_memory, too_big)
        start = Start.of(body.decode("latin-1").strip())
        if start is None:
            raise Fault(400, "INVALID_OFFSET", "write special:-1, timestamp:S, virtual_queue:BYTES or msgcount:N")
        shard = _shard(topic, asgi.params(scope))
        numbers = range(len(topic.shards)) if shard is None else [shard]
        found: asyncio.Future[Sequence[tuple[int, int]]] = asyncio.get_running_loop().create_future()
        start.find(topic, numbers, lambda places: None if found.done() else found.set_result(places))
        for number, offset in await found:
            subscription.seek(number, offset)
        return EMPTY

    async def _option(self, name: str, scope: Scope, receive: Receive) -> Answer:
        if scope["method"] == "GET":
            return self._options.get(name)
        if scope["method"] != "PUT":
            raise Fault(405, "METHOD_NOT_ALLOWED")
        bad = Fault(413, "INVALID_VALUE")
        value = await asgi.body(scope, receive, self._config.max_msg_size, self.node.input_memory, bad)
        if not value:
            raise bad
        return self._options.put(name, value)


class TlsRequired:
    """What the plain port says where clients must use TLS."""

    def __init__(self, https_port: int) -> None:
        told = msgspec.json.encode({"message": "TLS_REQUIRED", "https_port": https_port})
        self._answer = Answer(told, (NSQ, JSON), 403)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send every client to the other port."""
        await asgi.send(self._answer, send)


async def serve_http(
    node: Node, config: Config, bound: Mapping[str, Bound], key: str, observer: Observer, relookup: Relookup
) -> Listener:
    """Start the listener under a key, HTTP or HTTPS, in the running loop.

    `observer` sees the connections that `/stats` shows; `relookup` is told when other lookup services shall hear of the
    node. Where TLS is required, the plain listener only says so, and names the other one.
    """
    nsq = config.of(NsqConfig)
    secure = bound[key].endpoint.tls
    app = Http(node, config, bound, observer, relookup)
    open_to_all = secure or nsq.plain_http or not nsq.tls_required
    https_port = bound["nsq.https_port"].port if "nsq.https_port" in bound else 0
    asked: App = app if open_to_all else TlsRequired(https_port)

    def fault(text: str, peer: str) -> None:
        node.count_fault("nsq", "INVALID_REQUEST", text, peer)

    tls = (nsq.tls_cert or config.tls_cert, nsq.tls_key or config.tls_key) if secure else None
    connect = partial(Direct, app) if open_to_all else Connection
    return await listen(asked, bound[key].taken(), fault, tls, connect)


def observe(node: Node, config: Config, server: Server | None = None) -> Observer:
    """Return what looks at a node and the connections of its NSQ server; there is one of it for all listeners."""
    nsq = config.of(NsqConfig)
    quantiles = [quantile(text) for text in nsq.e2e_processing_latency_percentiles]
    meter = Meter(node, quantiles, nsq.e2e_processing_latency_window_time_ns)
    return Observer(node, server.connections if server is not None else (), meter)


def _shard(topic: Topic, params: Params) -> int | None:
    """Return the partition that a request names; none, or -1, is the publisher's own."""
    text = params.get("partition", "-1")
    if text == "-1":
        return None
    number = partition_of(text.encode()) if text else None
    if number is None:
        raise Fault(400, "INVALID_ARG_TOPIC_PARTITION")
    if number >= len(topic.shards):
        raise Fault(404, "E_TOPIC_NOT_EXIST", f"topic {topic.name} has {len(topic.shards)} partitions")
    return number


def _fault(refusal: Refusal) -> Fault:
    return Fault(refusal.reason.http, _CODES.get(refusal.code, refusal.code.upper()))
