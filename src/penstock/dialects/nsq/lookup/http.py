"""The lookup service over HTTP: where a topic is, and the names that people make before anybody publishes.

Owns the paths and codes of nsqlookupd's interface, version 1.0, with what Youzan's clients ask beside it. Answers come
from the directory alone; a topic's settings come from the node beside it, where there is one.
Invariant: without the extended parameters, answers and effects are upstream's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import msgspec

from penstock.callers import Caller
from penstock.callers.rights import NODE
from penstock.clock import Clock
from penstock.dialects.nsq.http import words
from penstock.dialects.nsq.http.words import EMPTY, IDLE_BYTES_MAX, OK, SAID, Fault, Params, document
from penstock.dialects.nsq.lookup.codec import PARTITION_MAX, Identity
from penstock.dialects.nsq.lookup.directory import Directory, Far, Meta, Peer
from penstock.dialects.nsq.lookup.server import Bug
from penstock.dialects.nsq.lookup.session import Fault as Faulted
from penstock.dialects.nsq.tcp.identify import VERSION
from penstock.errors import Refusal
from penstock.http import App, Broken, Connection, Request, Response, Route, Routes
from penstock.registry.answer import Answer

#: Youzan's lookup services take at most this many.
REPLICAS_MAX = 5

#: Parameters of /topic/create that only Youzan's form has: they ask for a topic on the nodes, not just for a name.
EXTENDED = ("partition_num", "replicator", "extend", "orderedmulti", "multipart", "disable_channel_auto_create")


class Host(Protocol):
    """The node in this process, as far as the lookup service asks it for anything."""

    def meta(self, topic: str) -> Meta | None:
        """Return what a topic of the node is like, None if it has none of this name."""

    def elsewhere(self, topic: str) -> Far | None:
        """Return what is to be told of a topic that another node of the cluster has, None if none has it."""

    def names(self) -> list[str]:
        """Return the topics of other nodes."""

    def create(self, caller: Caller, topic: str, meta: Meta) -> Answer[None]:
        """Make a topic of somebody who may do that, unless it exists."""

    def upgrade(self, topic: str) -> Answer[None]:
        """Let a topic of the node carry headers from now on."""

    def replicate(self, topic: str, replicas: int) -> Answer[None]:
        """Remember how many copies of a topic were asked for."""

    def delete(self, topic: str) -> Answer[None]:
        """Drop a topic of the node, if it has it."""


class Http(App):
    """The application of one listener."""

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        me: Callable[[], Identity],
        host: Host | None,
        fault: Faulted,
        report_bug: Bug,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._me = me
        self._host = host
        self._fault = fault
        self._report_bug = report_bug
        paths = [(method, path, self._answered(handle)) for path, (method, handle) in self.PATHS.items()]
        self._routes = Routes(
            (method, path, Route(handle, IDLE_BYTES_MAX, only_reads=method == "GET")) for method, path, handle in paths
        )

    def _answered(
        self, handle: Callable[[Http, Params, Caller], Response | Answer[Response]]
    ) -> Callable[[Request], Response | Answer[Response]]:
        is_open = handle in (Http.ping, Http.info)

        def answered(request: Request) -> Response | Answer[Response]:
            if not is_open:
                request.caller.enter()
            return handle(self, words.params(request), request.caller)

        return answered

    def begin(self, request: Request) -> None:
        """Give a request its route."""
        request.route, request.names = self._routes.find(request.method, words.path(request))

    def refused(self, error: BaseException, request: str, connection: Connection) -> Response:
        """Count what went wrong and return what is said about it."""
        if isinstance(error, Refusal):
            told = str(error) if error.code in SAID else ""
            fault = Fault.of(error) if isinstance(error, Broken) else Fault(error.reason.http, error.code.upper(), told)
            self._fault(fault.code, f"{request}: {error}", connection.peer)
            return words.refusal(fault.status, fault.code, fault.reason, error.retry_s if fault.status == 429 else 0)
        if isinstance(error, Fault):
            self._fault(error.code, request, connection.peer)
            return words.refusal(error.status, error.code)
        self._report_bug("nsq lookup http", error)
        return words.refusal(500, "INTERNAL_ERROR")

    def not_http(self, text: str, connection: Connection) -> None:
        """Count bytes that are no request."""
        self._fault("INVALID_REQUEST", text, connection.peer)

    # --- questions ------------------------------------------------------------------------------------------------

    def ping(self, params: Params, caller: Caller) -> Response:
        """Say that all is well."""
        return OK

    def info(self, params: Params, caller: Caller) -> Response:
        """Tell what this is."""
        return document({"version": VERSION})

    def lookup(self, params: Params, caller: Caller) -> Response:
        """Tell where a topic is."""
        topic = _topic(params)
        caller.check("see", topic)
        access = params.get("access", "")
        if access not in ("", "r", "w"):
            raise Fault(400, "INVALID_ACCESS_MODE")
        far = self._host.elsewhere(topic) if self._host is not None else None
        if not self._directory.knows(topic) and far is None and access != "r":
            raise Fault(404, "TOPIC_NOT_FOUND")
        now_ns = self._clock.monotonic()
        peers = self._directory.producers(topic, now_ns)
        found: dict[str, Any] = {
            "channels": self._channels(topic, far),
            "producers": [_peer(peer) for peer in ([*peers, far.peer] if far is not None else peers)],
        }
        if "metainfo" in params or "access" in params:
            partitions = self._directory.partitions(topic, now_ns)
            if far is not None:
                partitions = dict.fromkeys(range(far.partitions), far.peer)
            if "partition" in params:
                wanted = _number(params["partition"], "INVALID_ARG_TOPIC_PARTITION", 0, PARTITION_MAX)
                partitions = {wanted: partitions[wanted]} if wanted in partitions else {}
            found["partitions"] = {str(number): _peer(peer) for number, peer in sorted(partitions.items())}
            if _switch(params, "metainfo"):
                found["meta"] = self._meta(topic)
        return document(found)

    def topics(self, params: Params, caller: Caller) -> Response:
        """List every topic."""
        caller.check_known()
        far = self._host.names() if self._host is not None else []
        names = [name for name in [*dict.fromkeys((*self._directory.topics(), *far))] if caller.may("see", name)]
        found: dict[str, Any] = {"topics": names}
        if _switch(params, "metaInfo") or _switch(params, "metainfo"):
            found["meta_info"] = [{"topic_name": name, **msgspec.to_builtins(self._meta(name))} for name in names]
        return document(found)

    def channels(self, params: Params, caller: Caller) -> Response:
        """List the channels of a topic."""
        topic = _topic(params)
        caller.check("see", topic)
        far = self._host.elsewhere(topic) if self._host is not None else None
        return document({"channels": self._channels(topic, far)})

    def _channels(self, topic: str, far: Far | None) -> list[str]:
        """Return the channels of a topic, also of one that another node of the cluster has."""
        return [*dict.fromkeys((*self._directory.channels(topic), *(far.channels if far is not None else ())))]

    def nodes(self, params: Params, caller: Caller) -> Response:
        """List the nodes with their topics."""
        caller.check("see", NODE)
        listed = []
        for peer, topics in self._directory.nodes(self._clock.monotonic()):
            node = _peer(peer)
            node["tombstones"] = [hidden for _, hidden, _ in topics]
            node["topics"] = [name for name, _, _ in topics]
            if any(numbers for _, _, numbers in topics):
                node["partitions"] = {name: [str(number) for number in numbers] for name, _, numbers in topics}
            listed.append(node)
        return document({"producers": listed})

    def debug(self, params: Params, caller: Caller) -> Response:
        """Show everything that is registered."""
        caller.check("see", NODE)
        to_wall_ns = self._clock.now() - self._clock.monotonic()
        found: dict[str, list[dict[str, object]]] = {}
        for record in self._directory.records():
            tombstone_ns = record.tombstone_ns
            found.setdefault(f"{record.category}:{record.topic}:{record.channel}", []).append(
                {
                    **_peer(record.peer),
                    "last_update": record.heard_ns + to_wall_ns,
                    "tombstoned": tombstone_ns is not None,
                    "tombstoned_at": tombstone_ns + to_wall_ns if tombstone_ns is not None else 0,
                }
            )
        return document(found)

    def listlookup(self, params: Params, caller: Caller) -> Response:
        """List the lookup services: this one. Youzan's clients ask it before every lookup."""
        caller.check_known()
        me = self._me()
        node = {
            "ID": f"{me.broadcast_address}:{me.tcp_port}",
            "NodeIP": me.broadcast_address,
            # As text, because Youzan's clients drop a list with numbers here.
            "TcpPort": str(me.tcp_port),
            "HttpPort": str(me.http_port),
            "RpcPort": "",
            "Epoch": 0,
        }
        return document({"lookupdnodes": [node], "lookupdleader": node})

    # --- changes --------------------------------------------------------------------------------------------------

    def create_topic(self, params: Params, caller: Caller) -> Answer[Response]:
        """Remember a topic; asked in Youzan's form, make it on the node in this process too."""
        topic = words.name(params, "topic", "INVALID_ARG_TOPIC")
        caller.check("create", topic)
        if not any(word in params for word in EXTENDED):
            return Answer.of(self._know(topic))
        meta = Meta(
            partition_num=_number(params.get("partition_num", "1"), "INVALID_ARG_TOPIC_PARTITION_NUM", 1, 1024),
            replica=_number(params.get("replicator", "1"), "INVALID_ARG_TOPIC_REPLICATOR", 1, REPLICAS_MAX),
            extend_support=_switch(params, "extend"),
            ordered=_switch(params, "orderedmulti"),
            multi_part=_switch(params, "multipart"),
            disable_channel_auto_create=_switch(params, "disable_channel_auto_create"),
        )
        made = Answer.of(None) if self._host is None else self._host.create(caller, topic, meta)
        return made.then_make(lambda _: self._know(topic, meta))

    def _know(self, topic: str, meta: Meta | None = None) -> Response:
        self._directory.add_topic(topic, meta)
        return EMPTY

    def update_meta(self, params: Params, caller: Caller) -> Answer[Response]:
        """Change what a topic is like; headers can be allowed, never forbidden again."""
        topic = words.name(params, "topic", "INVALID_ARG_TOPIC")
        caller.check("change", topic)
        if not self._directory.knows(topic):
            raise Fault(404, "TOPIC_NOT_FOUND")
        meta, host, done = self._meta(topic), self._host, Answer.of(None)
        if "replicator" in params:
            replica = _number(params["replicator"], "INVALID_ARG_TOPIC_REPLICATOR", 1, REPLICAS_MAX)
            if host is not None:
                done = host.replicate(topic, replica)
            meta = msgspec.structs.replace(meta, replica=replica)
        if _switch(params, "upgradeext"):
            if host is not None:
                done = done.then_ask(lambda _: host.upgrade(topic))
            meta = msgspec.structs.replace(meta, extend_support=True)
        return done.then_make(lambda _: self._know(topic, meta))

    def delete_topic(self, params: Params, caller: Caller) -> Answer[Response]:
        """Forget a topic; asked in Youzan's form (`partition=**`), drop it on the node in this process too."""
        topic = _topic(params)
        caller.check("delete", topic)
        gone = Answer.of(None)
        if params.get("partition") == "**" and self._host is not None:
            gone = self._host.delete(topic)

        def forget(_: None) -> Response:
            self._directory.remove_topic(topic)
            return EMPTY

        return gone.then_make(forget)

    def tombstone(self, params: Params, caller: Caller) -> Response:
        """Hide a producer of a topic for a while, or show it again with `restore=true`."""
        topic = _topic(params)
        caller.check("change", topic)
        if "node" not in params:
            raise Fault(400, "MISSING_ARG_NODE")
        if _switch(params, "restore"):
            self._directory.restore(topic, params["node"])
        else:
            self._directory.tombstone(topic, params["node"], self._clock.monotonic())
        return EMPTY

    def create_channel(self, params: Params, caller: Caller) -> Response:
        """Remember a channel, for nodes that make its topic later."""
        topic = words.name(params, "topic", "INVALID_ARG_TOPIC")
        channel = words.name(params, "channel", "INVALID_ARG_CHANNEL")
        caller.check("change", topic, f"channel {channel}")
        self._directory.add_channel(topic, channel)
        return EMPTY

    def delete_channel(self, params: Params, caller: Caller) -> Response:
        """Forget a channel."""
        topic = words.name(params, "topic", "INVALID_ARG_TOPIC")
        channel = words.name(params, "channel", "INVALID_ARG_CHANNEL")
        caller.check("change", topic, f"channel {channel}")
        if not self._directory.remove_channel(topic, channel):
            raise Fault(404, "CHANNEL_NOT_FOUND")
        return EMPTY

    # --- inside ---------------------------------------------------------------------------------------------------

    def _meta(self, topic: str) -> Meta:
        """Return what is known of a topic: what it was made with, and what the node here says of it today."""
        known = self._directory.meta(topic) or Meta()
        real = self._host.meta(topic) if self._host is not None else None
        if real is not None:
            known = msgspec.structs.replace(
                real,
                extend_support=real.extend_support or known.extend_support,  # others may have it, too
                multi_part=known.multi_part,
                disable_channel_auto_create=known.disable_channel_auto_create,
            )
        seen = self._directory.partitions(topic, self._clock.monotonic())
        return msgspec.structs.replace(known, partition_num=max(known.partition_num, *(n + 1 for n in seen), 1))

    PATHS: ClassVar[dict[str, tuple[str, Callable[[Http, Params, Caller], Response | Answer[Response]]]]] = {
        "/ping": ("GET", ping),
        "/info": ("GET", info),
        "/lookup": ("GET", lookup),
        "/topics": ("GET", topics),
        "/channels": ("GET", channels),
        "/nodes": ("GET", nodes),
        "/debug": ("GET", debug),
        "/listlookup": ("GET", listlookup),
        "/topic/tombstone": ("POST", tombstone),
        "/topic/create": ("POST", create_topic),
        "/topic/creat": ("POST", create_topic),  # as the design note of tag dispatch spells it
        "/topic/meta/update": ("POST", update_meta),
        "/topic/delete": ("POST", delete_topic),
        "/channel/create": ("POST", create_channel),
        "/channel/delete": ("POST", delete_channel),
    }


def _topic(params: Params) -> str:
    if "topic" not in params:
        raise Fault(400, "MISSING_ARG_TOPIC")
    return params["topic"]


def _switch(params: Params, name: str) -> bool:
    return params.get(name, "").lower() in ("true", "1")


def _number(text: str, code: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and least <= int(text) <= most):
        raise Fault(400, code)
    return int(text)


def _peer(peer: Peer) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(peer)
    return shown
