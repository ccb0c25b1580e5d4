"""Dynamiq's REST interface: every route with its status and bytes.

Under /v1 it answers as the service did, on bare paths as its manual says; where the two differ, `_is_bare` tells which
is meant. What a queue does is `queue`'s affair, and what is under /v2 is `v2`'s.
Invariant: a refused request changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote
from zlib import crc32

import msgspec

import penstock
from penstock.cluster.places import name_of
from penstock.config import Config
from penstock.dialects.dynamiq.codec import SOURCE, core_ids, element, elements, is_name
from penstock.dialects.dynamiq.config import DynamiqConfig
from penstock.dialects.dynamiq.described import v1_document
from penstock.dialects.dynamiq.queue import Queue
from penstock.dialects.dynamiq.v2.app import Api
from penstock.dialects.dynamiq.v2.endpoint import V2
from penstock.errors import Refusal
from penstock.http import App, Connection, Request, Response, Route, Routes
from penstock.http.response import CHALLENGE, TEXT
from penstock.message import Batch, Rows
from penstock.node.admission import publish
from penstock.registry.answer import Answer
from penstock.shown import SPACE, shown_id

if TYPE_CHECKING:
    from penstock.delivery.source import Delivery
    from penstock.dialects.dynamiq.queues import Queues
    from penstock.dialects.dynamiq.stats import Stats
    from penstock.fanout import FanoutRecord
    from penstock.fanout.fanouts import Copies
    from penstock.intake.receipt import Receipt
    from penstock.node.node import Node

V1 = "/v1"
JSON = (b"content-type", b"application/json; charset=UTF-8")

#: Where nothing is read of a body, one of this size is passed over.
IDLE_BYTES_MAX = 64 << 10

#: Connections share this many publishers, so that each keeps its shard and all of them use every shard.
PUBLISHERS = 64

#: A batch size has no more digits than this, whatever its sign.
_DIGITS_MAX = 18


class Fault(Exception):
    """A request that is refused with Dynamiq's status and words."""

    def __init__(self, status: int, content: object) -> None:
        super().__init__(str(content))
        self.status = status
        self.content = content


def document(content: object, status: int = 200) -> Response:
    """Return an answer in JSON."""
    return Response(msgspec.json.encode(content), (JSON,), status)


def text(content: str, status: int = 200) -> Response:
    """Return an answer in bare text."""
    return Response(content.encode(), (TEXT,), status)


NOT_FOUND = text("404 page not found", 404)
NO_ID = text("")


class _Publisher:
    """The one a topic gives a shard to."""


class Http(App):
    """The application of one listener."""

    def __init__(self, node: Node, config: Config, queues: Queues, stats: Stats | None) -> None:
        self._node = node
        self._config = config.of(DynamiqConfig)
        self._queues = queues
        self._stats = stats
        self._fanouts = node.fanouts
        self._publishers = [_Publisher() for _ in range(PUBLISHERS)]
        #: Everything under /v2.
        self.v2 = Api(node, self._config, queues, self._publisher, stats)
        self._open = self._plain(lambda _: text("pong"))
        table = [(method, prefix + path, route) for prefix in ("", V1) for method, path, route in self._table()]
        self._routes = Routes([*table, ("GET", f"{V1}/openapi.json", self._plain(self.openapi))])

    def _table(self) -> list[tuple[str, str, Route]]:
        message = min(self._config.max_body_bytes, self._node.config.node.message_bytes)
        return [
            ("GET", "/ping", self._open),
            ("GET", "/status/servers", self._plain(self.servers)),
            ("GET", "/status/partitionrange", self._plain(self.partition_range)),
            ("GET", "/topics", self._plain(self.topics)),
            ("GET", "/topics/{t}", self._plain(self.topic)),
            ("PUT", "/topics/{t}", Route(self.create_topic, IDLE_BYTES_MAX)),
            ("DELETE", "/topics/{t}", Route(self.delete_topic, IDLE_BYTES_MAX)),
            ("PUT", "/topics/{t}/queues/{q}", Route(self.subscribe, IDLE_BYTES_MAX)),
            ("DELETE", "/topics/{t}/queues/{q}", Route(self.unsubscribe, IDLE_BYTES_MAX)),
            ("PUT", "/topics/{t}/message", Route(self.publish, message)),
            ("GET", "/queues", self._plain(self.queues)),
            ("GET", "/queues/{q}", self._plain(self.queue)),
            ("PUT", "/queues/{q}", Route(self.create_queue, IDLE_BYTES_MAX)),
            ("DELETE", "/queues/{q}", Route(self.delete_queue, IDLE_BYTES_MAX)),
            ("DELETE", "/queue/{q}", Route(self.delete_queue, IDLE_BYTES_MAX)),
            ("PATCH", "/queues/{q}", Route(self.configure, IDLE_BYTES_MAX)),
            ("PUT", "/queues/{q}/message", Route(self.send, message)),
            ("GET", "/queues/{q}/messages/{n}", Route(self.receive, IDLE_BYTES_MAX)),
            ("GET", "/queues/{q}/message/{id}", self._plain(self.peek)),
            ("DELETE", "/queues/{q}/message/{id}", Route(self.delete, IDLE_BYTES_MAX)),
            ("DELETE", "/queues/{q}/messages/{n}", Route(self.delete_many, IDLE_BYTES_MAX)),
        ]

    def _plain(self, handle: Callable[[Request], Response | None]) -> Route:
        return Route(handle, IDLE_BYTES_MAX, only_reads=True)

    # --- the kit --------------------------------------------------------------------------------------------------

    def begin(self, request: Request) -> None:
        """Give a request its route; names that nothing could have are refused."""
        path = request.path
        if _is_v2(path):
            self.v2.begin(request)
            return
        if path.endswith("/"):
            path = path[:-1]
        try:
            request.route, names = self._routes.find(request.method, path)
        except Refusal:
            raise Fault(404, NOT_FOUND) from None
        if "%" in path:
            names = {name: unquote(value, errors="surrogateescape") for name, value in names.items()}
        request.names = names
        if not all(is_name(names[name]) for name in ("t", "q") if name in names):
            raise Fault(422, {"error": "Invalid name."})

    def admit(self, request: Request) -> None:
        """Let everybody ask whether the node is there, and those that may be here the rest."""
        if request.route is not self._open:  # nothing under /v2 is open
            request.caller.enter()

    def refused(self, error: BaseException, request: str, connection: Connection) -> Response:
        """Count what went wrong and return what is said about it."""
        if _is_v2(request.partition(" ")[2]):
            return self.v2.refused(error, request, connection)
        if isinstance(error, Fault):
            self._node.count_fault("dynamiq", str(error.status), request, connection.peer)
            return error.content if isinstance(error.content, Response) else document(error.content, error.status)
        if isinstance(error, Refusal):
            self._node.count_fault("dynamiq", error.code, f"{request}: {error}", connection.peer)
            more = (CHALLENGE,) if error.code == "unauthorized" else ()
            if error.reason.http == 429 and error.retry_s:
                more = ((b"retry-after", b"%d" % error.retry_s),)
            return Response(msgspec.json.encode({"error": str(error)}), (JSON, *more), error.reason.http)
        self._node.report_bug("dynamiq http", error)
        return document({"error": "The node failed inside; its log says more."}, 500)

    def not_http(self, text: str, connection: Connection) -> None:
        """Count bytes that are no request."""
        self._node.count_fault("dynamiq", "bad_request", text, connection.peer)

    def _late(self, request: Request, error: BaseException) -> None:
        """Refuse a request whose handler is over."""
        request.answer(self.refused(error, f"{request.method} {request.path}", request.connection))

    def openapi(self, request: Request) -> Response:
        """Show the OpenAPI document of version 1."""
        return document(v1_document(penstock.__version__, V1))

    # --- status ---------------------------------------------------------------------------------------------------

    def servers(self, request: Request) -> Response:
        """Tell who is there."""
        return text("".join(f"Member: {name} {address}\n" for name, address in self._members()))

    def partition_range(self, request: Request) -> Response:
        """Tell which ids would be this node's in Dynamiq; here a queue is wholly with one node, whoever is asked."""
        names = [name for name, _ in self._members()]
        bottom, top = key_range(names.index(self._name()), len(names))
        return document({"bottom": str(bottom), "top": str(top)})

    def _name(self) -> str:
        """Return what this node is called, in a cluster as the others call it: all must sort alike."""
        cluster = self._node.config.cluster
        return name_of(cluster) if self._node.share is not None else self._config.name or name_of(cluster)

    def _members(self) -> list[tuple[str, str]]:
        """Return names and addresses of all nodes, by name."""
        share = self._node.share
        known = share.slots.nodes() if share is not None else []
        found = {node.name: node.listeners.get("dynamiq.port", node.address) for node in known}
        return sorted({self._name(): self._config.address, **found}.items())

    # --- topics ---------------------------------------------------------------------------------------------------

    def topics(self, request: Request) -> Response:
        """List topics."""
        names = [name for name in self._fanouts.names() if is_name(name) and request.caller.may("see", name)]
        return document({"topics": names})

    def topic(self, request: Request) -> Response:
        """Tell which queues a topic feeds."""
        name = request.names["t"]
        request.caller.check("see", name)
        record = self._fanouts.get(name)
        if record is None:
            raise _no_topic()
        queues = self._fed(name)
        return document(queues if _is_bare(request) else {"Queues": queues})

    def create_topic(self, request: Request) -> Answer[Response]:
        """Make a topic."""
        name = request.names["t"]
        request.caller.check("create", name, "fan-out")
        if self._fanouts.get(name) is not None:
            raise Fault(422, {"error": "Topic already exists."})
        content: object = "created" if _is_bare(request) else {"Queues": []}
        return self._fanouts.create(name).then_make(lambda _: document(content, 201))

    def delete_topic(self, request: Request) -> Answer[Response]:
        """Remove a topic; its queues stay."""
        name = request.names["t"]
        request.caller.check("delete", name, "fan-out")
        if self._fanouts.get(name) is None:
            raise _no_topic()
        return self._fanouts.delete(name).then_make(lambda _: document({"Deleted": True}))

    def subscribe(self, request: Request) -> Answer[Response]:
        """Let a queue be fed."""
        name, queue = self._pair(request)
        if self._fanouts.get(name) is None:
            raise Fault(422, {"error": "Topic does not exist. Please create it first."})
        found = self._queues.get(queue)
        if found is None:
            raise Fault(422, {"error": "Queue does not exist. Please create it first"})
        return self._fanouts.add(name, found.topic).then_make(self._changed)

    def unsubscribe(self, request: Request) -> Answer[Response]:
        """Let a queue be fed no more."""
        name, queue = self._pair(request)
        if self._fanouts.get(name) is None:
            raise _no_topic()
        return self._fanouts.remove(name, queue).then_make(self._changed)

    def _pair(self, request: Request) -> tuple[str, str]:
        name, queue = request.names["t"], request.names["q"]
        request.caller.check("change", name, f"fan-out to {queue}")
        request.caller.check("change", queue, f"fan-out from {name}")
        request.caller.check_not_own(queue)
        return name, queue

    def _changed(self, record: FanoutRecord) -> Response:
        return document({"Queues": self._fed(record.name)})

    def _fed(self, name: str) -> list[str]:
        return sorted(topic.name for topic in self._fanouts.topics(name))

    def publish(self, request: Request) -> Answer[Response] | None:
        """Send a copy to each queue of a topic; one that is not there is made, and feeds none."""
        name = request.names["t"]
        request.caller.check("publish", name)
        if self._fanouts.get(name) is None:
            if not request.caller.may("create", name):
                return Answer.of(document({}))
            return self._fanouts.create(name).then_make(lambda _: document({}))
        topics = self._queues.among(self._fanouts.topics(name))
        keys = {topic.name: topic.incarnation for topic in topics}

        def done(copies: Copies) -> None:
            ids = {}
            for queue in sorted(copies):
                copy = copies[queue]
                if isinstance(copy, BaseException):
                    self.refused(copy, f"PUT {request.path}", request.connection)
                    ids[queue] = ""
                else:
                    ids[queue] = str(shown_id(copy.first_id, keys[queue]))
                    self._sent(queue)
            request.answer(document(ids))

        request.let_go()
        self._fanouts.publish(topics, request.caller, _rows(request), self._publisher(request), done)
        return None

    # --- queues ---------------------------------------------------------------------------------------------------

    def queues(self, request: Request) -> Response:
        """List queues."""
        return document({"queues": self._queues.names(request.caller)})

    def queue(self, request: Request) -> Response:
        """Tell the settings in force and how many partitions there are."""
        queue = self._named(request, "see")
        return document(queue.in_force.shown(queue.partitions))

    def create_queue(self, request: Request) -> Answer[Response]:
        """Make a queue."""
        if self._queues.get(request.names["q"]) is not None:
            request.caller.check("see", request.names["q"])
            raise Fault(422, {"error": "Queue already exists."})
        return self._queues.create(request.caller, request.names["q"]).then_make(lambda _: document("created", 201))

    def delete_queue(self, request: Request) -> Answer[Response]:
        """Remove a queue with its messages."""
        name = request.names["q"]
        request.caller.check("delete", name)
        if self._queues.get(name) is None:
            raise Fault(404, {"error": "Queue did not exist."})
        return self._node.delete_topic(name).then_make(lambda _: document({"Deleted": True}))

    def configure(self, request: Request) -> Answer[Response]:
        """Choose other settings for a queue: all of them, or none."""
        name = request.names["q"]
        request.caller.check("change", name)
        request.caller.check_not_own(name)
        queue = self._queues.get(name)
        if queue is None:
            raise Fault(404, {"error": "Queue did not exist."})
        try:
            fields = _objects(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Fault(400, {"error": f"The settings are no JSON object: {error}"}) from None
        try:
            updated = self._queues.update(
                queue, lambda chosen: chosen.patched(fields, strict=self._config.strict_config)
            )
        except Refusal as refusal:
            raise Fault(422, {"error": str(refusal)}) from None
        return updated.then_make(lambda _: document("ok"))

    # --- messages -------------------------------------------------------------------------------------------------

    def send(self, request: Request) -> Response | None:
        """Store the body as one message and tell its id; no id says that it was not stored."""
        name = request.names["q"]
        request.caller.check("publish", name)
        queue = self._queues.get(name)
        if queue is None:
            return document("") if _is_bare(request) else NO_ID

        def done(receipt: Receipt | None, error: BaseException | None) -> None:
            if receipt is None:
                error = error or Refusal("gone", "the queue went away")
                said = self.refused(error, f"PUT {request.path}", request.connection)
                if said.status == 429:  # it is told when to come back
                    request.answer(said)
                    return
                told = ""
            else:
                told = str(shown_id(receipt.first_id, queue.key))
                self._sent(name)
            request.answer(document(told) if _is_bare(request) else text(told))

        request.let_go()
        publish(queue.topic, request.caller, _rows(request), self._publisher(request), done)
        return None

    def receive(self, request: Request) -> None:
        """Hand out messages of one partition."""
        limit = min(_batch_size(request.names["n"]), self._config.max_receive_batch)
        queue = self._named(request, "receive")

        def told(deliveries: list[Delivery] | None, error: Exception | None) -> None:
            if isinstance(error, Refusal) and error.code == "gone":
                self._late(request, _no_queue(queue.topic.name))
            elif error is not None:
                self._late(request, Fault(500, str(error)))
            elif deliveries is None:
                strict = self._config.strict_204 or _is_bare(request)
                request.answer(ALL_LOCKED if strict else document([]))
            else:
                found, ids = elements(deliveries, queue.key)
                if self._stats is not None:
                    self._stats.received(queue.topic.name, limit, ids, queue.partitions)
                request.answer(document(found))

        queue.receive(limit, told)

    def peek(self, request: Request) -> None:
        """Show messages by their ids and leave them as they are."""
        name, asked = request.names["q"], request.names["id"]
        request.caller.check("read", name)
        queue = self._queues.get(name)
        if queue is None:
            raise Fault(404, {"error": f"There is no queue named {name}"})
        ids = core_ids(self._few(asked.split()), queue.key)

        def told(found: list[tuple[int, Batch, int]]) -> None:
            if found:
                shown = [element(shown_id(id_, queue.key), batch, row) for id_, batch, row in found]
                request.answer(document({"messages": shown}))
            else:
                self._late(request, Fault(404, {"error": f"Messages with id: {_said(asked)} not found."}))

        queue.peek(ids, told)

    def delete(self, request: Request) -> Response | Answer[Response]:
        """Delete one message and tell whether it was there."""
        name = request.names["q"]
        request.caller.check("receive", name)
        queue = self._queues.get(name)
        if queue is None:
            return document(False)
        return queue.subscription.keeping.kept(document(self._delete(queue, [request.names["id"]]) > 0))

    def delete_many(self, request: Request) -> Response | Answer[Response]:
        """Delete messages and tell how many of them were there."""
        name = request.names["q"]
        request.caller.check("receive", name)
        queue = self._queues.get(name)
        if queue is None:
            raise Fault(404, {"error": f"There is no queue named {name}"})
        ids = self._few([text.strip() for text in request.names["n"].split(",")])
        return queue.subscription.keeping.kept(document({"deleted": self._delete(queue, ids)}))

    def _delete(self, queue: Queue, texts: list[str]) -> int:
        count = queue.delete(core_ids(texts, queue.key))
        if self._stats is not None:
            self._stats.deleted(queue.topic.name, count)
        return count

    def _few(self, texts: list[str]) -> list[str]:
        most = self._config.max_delete_batch
        if len(texts) > most:
            raise Fault(422, {"error": f"At most {most} ids are taken at once."})
        return texts

    def _named(self, request: Request, action: Literal["see", "receive"]) -> Queue:
        name = request.names["q"]
        request.caller.check(action, name)
        queue = self._queues.get(name)
        if queue is None:
            raise _no_queue(name)
        return queue

    def _sent(self, queue: str) -> None:
        if self._stats is not None:
            self._stats.sent(queue)

    def _publisher(self, request: Request) -> object:
        """Return whose order a client's messages keep."""
        return self._publishers[crc32(request.connection.peer.encode()) % PUBLISHERS]


#: HTTP lets a 204 have no content, so what the manual has there is a header.
ALL_LOCKED = Response(b"", (JSON, (b"x-dynamiq-message", b'"There are no available partitions"')), 204)

_objects = msgspec.json.Decoder(dict[str, object]).decode


def _is_bare(request: Request) -> bool:
    return not request.path.startswith(f"{V1}/")


def _is_v2(path: str) -> bool:
    return path == V2 or path.startswith(f"{V2}/")


def _rows(request: Request) -> Rows:
    return Rows(1, [0, len(request.body)], request.body, SOURCE)


def _no_topic() -> Fault:
    return Fault(404, {"error": "Topic did not exist."})


def _no_queue(name: str) -> Fault:
    return Fault(404, f"There is no queue named {name}")


def _said(asked: str) -> str:
    return asked.encode("utf-8", "replace").decode()


def _batch_size(text: str) -> int:
    digits = text.removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        raise Fault(422, "batch size must be an integer")
    if text.startswith("-") or not digits.strip("0"):
        raise Fault(422, "Batchsizes must be non-negative integers greater than 0")
    return int(digits) if len(digits) <= _DIGITS_MAX else 1 << 62


def key_range(index: int, count: int) -> tuple[int, int]:
    """Return the first id of a member's range and the first behind it; members count in the order of their names."""
    return index * SPACE // count, (index + 1) * SPACE // count
