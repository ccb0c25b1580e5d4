"""NSQ over HTTP: publishing with curl, and what nsqd's own tools ask.

Owns the paths of nsqd's HTTP interface, version 1.0, and those that publish; the others end in `admin`, `options` and
`stats`. A publish of the common shape to a topic that exists takes the kit's short way.
Invariant: parameters come from the query alone, and a refused request stores nothing.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from zlib import crc32

import msgspec

from penstock.callers import Action, Caller
from penstock.callers.rights import NODE
from penstock.clock import MILLISECOND, SECOND
from penstock.columns import place_of
from penstock.config import Config
from penstock.dialect import Bound
from penstock.dialects.nsq.choices import NsqChoices
from penstock.dialects.nsq.codec import SOURCE, Command, Decoder, Limits, partition_of
from penstock.dialects.nsq.config import NsqConfig, quantile
from penstock.dialects.nsq.health import health
from penstock.dialects.nsq.http import words
from penstock.dialects.nsq.http.admin import Admin
from penstock.dialects.nsq.http.ext import checked, columns_of, header_of
from penstock.dialects.nsq.http.lines import Lines
from penstock.dialects.nsq.http.options import Options, Relookup
from penstock.dialects.nsq.http.words import EMPTY, IDLE_BYTES_MAX, JSON, NSQ, OK, Fault, Params, document
from penstock.dialects.nsq.lookup.address import broadcast_address, crowd, door
from penstock.dialects.nsq.places import place as place_in_queue
from penstock.dialects.nsq.start import Start
from penstock.dialects.nsq.stats.document import Observer
from penstock.dialects.nsq.stats.meter import Meter
from penstock.dialects.nsq.stats.printout import printout
from penstock.dialects.nsq.tcp.identify import VERSION
from penstock.dialects.nsq.tcp.server import Server
from penstock.dialects.nsq.tls import server_context
from penstock.dialects.nsq.topics import topic_settings
from penstock.errors import Refusal
from penstock.filters.header import HeaderReader
from penstock.http import App, Connection, Listener, Request, Response, Route, Routes, Shortcut
from penstock.http.app import Done
from penstock.http.away import join
from penstock.http.response import TEXT
from penstock.intake.receipt import Receipt
from penstock.message import Rows
from penstock.node.admission import publish
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.registry.answer import Answer

#: Connections share this many publishers, so that each keeps its shard and all of them use every shard.
PUBLISHERS = 64

#: A place in a topic is a word and a number.
START_BYTES_MAX = 64

#: A publish of the common shape: one plain topic name, nothing to unescape.
_PLAIN = re.compile(rb"/pub\?topic=([.a-zA-Z0-9_-]{1,64})").fullmatch

#: Refusals that Youzan's clients know by another word, on the paths that only they ask.
_WAITING = ("rate_limited", "memory_full")

_TRACE_MAX = (1 << 64) - 1

#: Told where a message went.
Stored = Callable[[Receipt], None]


class _Publisher:
    """The one a topic gives a shard to."""


class PlainPublish:
    """Publishes to one topic from one connection, as long as the topic is there."""

    __slots__ = ("_caller", "_http", "_name", "_publisher", "answer", "body_bytes_max", "in_turn")

    def __init__(self, http: Http, name: str, caller: Caller, publisher: object) -> None:
        self._http = http
        self._caller = caller
        self._name = name
        self._publisher = publisher
        self.body_bytes_max = http.message_bytes_max
        self.answer = _OK
        self.in_turn = False

    def take(self, body: bytes, done: Done) -> bool:
        """Store one message; False where there is no such topic, no memory for it, no right any more, or a rate."""
        node, size = self._http.node, len(body)
        topic = node.topics.get(self._name)
        if topic is None or node.budget.input.used + size > node.budget.input.bytes_max:
            return False
        if not self._caller.may("publish", self._name) or (node.gate.accounts.metered and self._caller.meter):
            return False
        topic.publish(Rows(1, [0, size], body, SOURCE), self._publisher, done)
        return True


class Http(App):
    """The application of one listener."""

    starts = (b"POST /pub?topic=",)

    def __init__(
        self, node: Node, config: Config, bound: Mapping[str, Bound], observer: Observer, relookup: Relookup
    ) -> None:
        self.node = node
        self._tree = config
        self._config = config.of(NsqConfig)
        self.message_bytes_max = self._config.max_msg_size
        self._bound = bound
        self._observer = observer
        self._options = Options(config, relookup)
        self._admin = Admin(node, config)
        self._readers = {"strict": HeaderReader(), "lenient": HeaderReader(lenient=True)}
        self._readers["node"] = self._readers[self._config.header_rules]
        self._publishers = [_Publisher() for _ in range(PUBLISHERS)]
        one = (self.message_bytes_max, Fault(413, "MSG_TOO_BIG"))
        many = (self._config.max_body_size, Fault(413, "BODY_TOO_BIG"))
        pub, mpub = Route(self.pub, *one), Route(self.mpub, *many)
        start = Route(self.setoffset, START_BYTES_MAX, Fault(400, "INVALID_OFFSET"))
        value = Route(self.set_option, self.message_bytes_max, Fault(413, "INVALID_VALUE"))
        stats = Route(self.stats, IDLE_BYTES_MAX, only_reads=True)
        option = Route(self.option, IDLE_BYTES_MAX, only_reads=True)
        #: Anybody's to ask, and what concerns no topic.
        self._open = Route(self.ping, IDLE_BYTES_MAX, only_reads=True)
        self._about_node: dict[Route, Action] = {stats: "see", option: "see", value: "admin"}
        self._routes = Routes(
            [
                ("POST", "/pub", pub),
                ("POST", "/mpub", mpub),
                ("POST", "/put", pub),  # as clients from before version 1.0 call them
                ("POST", "/mput", mpub),
                ("POST", "/pub_ext", Route(self.pub_ext, *one)),
                ("POST", "/pubtrace", Route(self.pubtrace, *one)),
                ("GET", "/ping", self._open),
                ("GET", "/info", Route(self.info, IDLE_BYTES_MAX, only_reads=True)),
                ("GET", "/stats", stats),
                ("POST", "/channel/setoffset", start),
                ("GET", "/config/{option}", option),
                ("PUT", "/config/{option}", value),
                *(("POST", path, Route(self._managed(handle), IDLE_BYTES_MAX)) for path, handle in Admin.PATHS.items()),
            ]
        )

    def begin(self, request: Request) -> None:
        """Give a request its route."""
        request.route, request.names = self._routes.find(request.method, words.path(request))

    def admit(self, request: Request) -> None:
        """Let everybody ask whether the node is well, and those that may be here the rest."""
        assert request.route is not None
        if request.route is not self._open:
            request.caller.enter()
        if request.route in self._about_node:
            request.caller.check(self._about_node[request.route], NODE)

    def refused(self, error: BaseException, request: str, connection: Connection) -> Response:
        """Count what went wrong and return what is said about it."""
        fault = Fault.of(error) if isinstance(error, Refusal) else error
        if isinstance(fault, Fault):
            self.node.count_fault("nsq", fault.code, request, connection.peer)
            return words.refusal(fault.status, fault.code, fault.reason, fault.retry_s)
        self.node.report_bug("nsq http", error)
        return words.refusal(500, "INTERNAL_ERROR")

    def not_http(self, text: str, connection: Connection) -> None:
        """Count bytes that are no request."""
        self.node.count_fault("nsq", "INVALID_REQUEST", text, connection.peer)

    def shortcut(
        self, method: bytes, target: bytes, head: bytes, caller: Caller, connection: Connection
    ) -> Shortcut | None:
        """Return the short way of a plain publish."""
        found = _PLAIN(target)
        if found is None:
            return None
        name = found[1].decode("ascii")
        if not caller.may("publish", name) or not self.node.gate.counts(caller):
            return None  # the long way says why not
        return PlainPublish(self, name, caller, self._publisher(connection))

    def _publisher(self, connection: Connection) -> object:
        """Return whose order a client's messages keep."""
        return self._publishers[crc32(connection.peer.encode()) % PUBLISHERS]

    # --- publishing -----------------------------------------------------------------------------------------------

    def pub(self, request: Request) -> Answer[Response | None]:
        """Publish the body as one message."""
        rows = self._message(request)
        params = words.params(request)

        def store(topic: Topic) -> None:
            if "defer" in params:
                delay_ns = self._delay_ns(params["defer"])
                if delay_ns:
                    rows.columns = {"due": [self.node.clock.now() + delay_ns]}
            self._publish(request, topic, rows, _shard(topic, params))

        return self._topic(request, params).then_make(store)

    def mpub(self, request: Request) -> Answer[Response | None]:
        """Publish several messages: one a line, or each behind its length."""
        params = words.params(request)

        def store(topic: Topic) -> Response | None:
            # A value that is neither true nor false counts as true, as in nsqd.
            is_binary = "binary" in params and words.switch(params, "binary", default=True)
            shard = _shard(topic, params)
            if is_binary:
                self._publish(request, topic, self._packed(request.body), shard)
            else:
                self._read(request, topic, shard, Lines(request.body, self._config.max_msg_size))
            return None

        return self._topic(request, params).then_make(store)

    def pub_ext(self, request: Request) -> Answer[Response | None]:
        """Publish the body as one message with a header; traced if the header says so."""
        rows = self._message(request)
        params = words.params(request)
        # A header that is refused makes no topic, so the rules of one that is there are looked up before.
        known = self.node.find(params.get("topic", ""))
        reader = self._readers[known.chosen.of(NsqChoices).header_rules if known is not None else "node"]
        parsed = checked(header_of(params.get("ext"), request.headers), reader)

        def store(topic: Topic) -> None:
            rows.columns = columns_of(
                parsed, topic.chosen.of(NsqChoices).extend, compatible=self._config.allow_ext_compatible
            )
            stored = None if parsed.trace is None else partial(self._traced, request, topic, parsed.trace & _TRACE_MAX)
            self._publish(request, topic, rows, _shard(topic, params), stored, extended=True)

        return self._extended_topic(request, params, extend=True).then_make(store)

    def pubtrace(self, request: Request) -> Answer[Response | None]:
        """Publish the body as one message under a trace id, and tell where it went."""
        rows = self._message(request)
        params = words.params(request)
        text = params.get("trace_id", "")
        if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= _TRACE_MAX):
            raise Fault(400, "INVALID_TRACE_ID")
        trace = int(text)
        rows.columns = {"trace": [trace - (trace >> 63 << 64)]}

        def store(topic: Topic) -> None:
            stored = partial(self._traced, request, topic, trace)
            self._publish(request, topic, rows, _shard(topic, params), stored, extended=True)

        return self._extended_topic(request, params).then_make(store)

    def _message(self, request: Request) -> Rows:
        if not request.body:
            raise Fault(400, "MSG_EMPTY")
        return Rows(1, [0, len(request.body)], request.body, SOURCE)

    def _publish(
        self,
        request: Request,
        topic: Topic,
        rows: Rows,
        shard: int | None,
        stored: Stored | None = None,
        *,
        extended: bool = False,
    ) -> None:
        """Store rows, and answer when they are; `stored` answers where more than OK is to be said."""

        def done(receipt: Receipt | None, error: BaseException | None) -> None:
            if extended and isinstance(error, Refusal) and error.code in _WAITING:
                error = Fault(429, "E_PUB_TOO_MUCH_WAITING", str(error), error.retry_s)
            if error is not None:
                request.answer(self.refused(error, f"{request.method} {request.path}", request.connection))
            elif stored is None or receipt is None:
                request.answer(OK)
            else:
                stored(receipt)

        request.let_go()
        publish(topic, request.caller, rows, self._publisher(request.connection), done, shard)

    def _traced(self, request: Request, topic: Topic, trace: int, receipt: Receipt) -> None:
        """Tell where a message went."""
        id_ = receipt.ids()[0]
        number, offset = place_of(id_)

        def tell() -> None:
            at = place_in_queue(topic, receipt, id_)
            told = {"status": "OK", "id": id_, "trace_id": str(trace)}
            request.answer(document({**told, "queue_offset": at.queue_offset, "rawsize": at.raw_size}))

        if place_in_queue(topic, receipt, id_).raw_size:
            tell()
        else:  # it repeats one that is older than what is in memory
            topic.shards[number].fetch(offset, tell)

    def _read(self, request: Request, topic: Topic, shard: int | None, lines: Lines) -> None:
        """Publish lines once all of them are read; what is large is read in slices, with everybody else in between."""
        if lines.step():
            self._publish_lines(request, topic, shard, lines)
            return
        memory = self.node.budget.input
        # What is read is about as large as the body; what could never be free beside it is not asked for.
        size = max(min(len(request.body), memory.bytes_max - len(request.body)), 0)
        if not memory.take(size):
            raise Refusal("memory_full", f"input not yet stored fills its {memory.bytes_max} bytes; try again")

        def read(_: None, error: Exception | None) -> None:
            memory.give(size)
            try:
                if error is not None:
                    raise error
                self._publish_lines(request, topic, shard, lines)
            except Exception as failure:
                request.answer(self.refused(failure, f"{request.method} {request.path}", request.connection))

        self.node.slices.do(lines.step).then(read)

    def _publish_lines(self, request: Request, topic: Topic, shard: int | None, lines: Lines) -> None:
        rows = lines.rows()
        if rows.count:
            self._publish(request, topic, rows, shard)
        else:
            request.answer(OK)

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

    def _topic(self, request: Request, params: Params, *, extend: bool = False) -> Answer[Topic]:
        name = words.name(params, "topic", "INVALID_TOPIC")
        if not self.node.is_known(name) and self._config.auto_create != "topics":
            raise Fault(404, "TOPIC_NOT_FOUND")
        settings = topic_settings(self._tree, name, extend=extend)
        return self.node.obtain_for(request.caller, "publish", name, settings)

    def _extended_topic(self, request: Request, params: Params, *, extend: bool = False) -> Answer[Topic]:
        """Return the topic of a publish in Youzan's form, which has its own word for one that is not there."""
        try:
            return self._topic(request, params, extend=extend)
        except Fault as fault:
            raise Fault(404, "E_TOPIC_NOT_EXIST") if fault.status == 404 else fault from None

    # --- questions ------------------------------------------------------------------------------------------------

    def ping(self, request: Request) -> Response:
        """Say that all is well, or that the last write to disk failed."""
        text = health(self.node)
        return Response(text.encode(), (TEXT,), 200 if text == "OK" else 500)

    def info(self, request: Request) -> Response:
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

    def stats(self, request: Request) -> Response:
        """Tell everything about topics, channels and clients."""
        params = words.params(request)
        stats = self._observer.stats(
            params.get("topic", ""),
            params.get("channel", ""),
            clients=words.switch(params, "include_clients", default=True),
            memory=words.switch(params, "include_mem", default=True),
        )
        if params.get("format") == "json":
            return document(stats)
        return Response(printout(stats, self.node.started_ns, self.node.clock.now()).encode(), (NSQ, TEXT))

    # --- changes --------------------------------------------------------------------------------------------------

    def _managed(
        self, handle: Callable[[Admin, Caller, Params], Answer[Response]]
    ) -> Callable[[Request], Answer[Response]]:
        return lambda request: handle(self._admin, request.caller, words.params(request))

    def setoffset(self, request: Request) -> None:
        """Let a channel begin anew at the place that the body names."""
        params = words.params(request)
        topic, subscription = self._admin.channel(request.caller, params)
        subscription.check_seek()
        start = Start.of(request.body.decode("latin-1").strip())
        if start is None:
            raise Fault(400, "INVALID_OFFSET", "write special:-1, timestamp:S, virtual_queue:BYTES or msgcount:N")
        shard = _shard(topic, params)

        def found(places: Sequence[tuple[int, int]]) -> None:
            for number, offset in places:
                subscription.seek(number, offset)
            subscription.keeping.wait(kept)

        def kept(error: BaseException | None) -> None:
            place = "POST /channel/setoffset"
            request.answer(EMPTY if error is None else self.refused(error, place, request.connection))

        start.find(topic, range(len(topic.shards)) if shard is None else [shard], found, kept)

    def option(self, request: Request) -> Response:
        """Tell an option."""
        return self._options.get(request.names["option"])

    def set_option(self, request: Request) -> Response:
        """Change one."""
        if not request.body:
            raise Fault(413, "INVALID_VALUE")
        return self._options.put(request.names["option"], request.body)


class TlsRequired(App):
    """What the plain port says where clients must use TLS."""

    def __init__(self, node: Node, https_port: int) -> None:
        self._node = node
        told = msgspec.json.encode({"message": "TLS_REQUIRED", "https_port": https_port})
        self._answer = Response(told, (NSQ, JSON), 403)
        self._route = Route(lambda request: self._answer, IDLE_BYTES_MAX, only_reads=True)

    def begin(self, request: Request) -> None:
        """Send every client to the other port."""
        request.route = self._route

    def refused(self, error: BaseException, request: str, connection: Connection) -> Response:
        """Say the same to what is wrong besides."""
        return self._answer

    def not_http(self, text: str, connection: Connection) -> None:
        """Count bytes that are no request."""
        self._node.count_fault("nsq", "INVALID_REQUEST", text, connection.peer)


async def serve_http(
    node: Node, config: Config, bound: Mapping[str, Bound], key: str, observer: Observer, relookup: Relookup
) -> Listener:
    """Start the listener under a key, HTTP or HTTPS, in the running loop.

    `observer` sees the connections that `/stats` shows; `relookup` is told when other lookup services shall hear of the
    node. Where TLS is required, the plain listener only says so, and names the other one.
    """
    nsq = config.of(NsqConfig)
    secure = bound[key].endpoint.tls
    app: App = Http(node, config, bound, observer, relookup)
    if nsq.tls_required and not (secure or nsq.plain_http):
        app = TlsRequired(node, bound["nsq.https_port"].port if "nsq.https_port" in bound else 0)
    listener = Listener(key, app, node.clock, node.budget, node.gate, door(config), crowd(config))
    join(node, listener)
    await listener.serve(bound[key].taken(), server_context(config) if secure else None)
    return listener


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


_OK = OK.wire()
