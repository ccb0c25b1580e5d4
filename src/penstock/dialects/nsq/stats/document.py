"""What a node says about its topics, channels and clients, as nsqd says it: nsqadmin, nsq_stat and StatsD read this.

Owns the document's fields and what each means here. It only reads; nothing is counted in this module.

What differs from nsqd: every message of a topic that is not kept in memory alone is on disk, so `backend_depth` is
`depth` there. A topic's `message_count` starts with the process; a channel's counts what came to it since it was made
or last sought, whether it was delivered, filtered or emptied, and goes on after a restart.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock.clock import SECOND
from penstock.delivery.seat import Seat
from penstock.delivery.subscription import Subscription
from penstock.dialects.nsq.choices import NsqChoices
from penstock.dialects.nsq.codec import is_name
from penstock.dialects.nsq.health import health
from penstock.dialects.nsq.stats.latency import Percentiles
from penstock.dialects.nsq.stats.meter import Meter
from penstock.dialects.nsq.tcp.identify import VERSION
from penstock.dialects.nsq.tcp.server import Connection
from penstock.dialects.nsq.topics import is_listed
from penstock.filters.match import ExtFilter
from penstock.node.node import Node
from penstock.node.topic import Topic

#: nsqd's numbers for the states of a connection.
STATES = {"init": 0, "subscribed": 3, "closing": 4}

Clients = Mapping[Seat, Connection]


class PubCount(msgspec.Struct):
    """How much one client published to one topic."""

    topic: str
    count: int


class Client(msgspec.Struct, kw_only=True):
    """One connection."""

    client_id: str
    hostname: str
    version: str = "V2"
    remote_address: str
    state: int
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    connect_ts: int
    sample_rate: int = 0
    deflate: bool = False
    snappy: bool = False
    user_agent: str = ""
    authed: bool | msgspec.UnsetType = msgspec.UNSET
    auth_identity: str | msgspec.UnsetType = msgspec.UNSET
    auth_identity_url: str | msgspec.UnsetType = msgspec.UNSET
    pub_counts: list[PubCount] | msgspec.UnsetType = msgspec.UNSET
    tls: bool = False
    tls_cipher_suite: str = ""
    tls_version: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False
    topology_zone: str = ""
    topology_region: str = ""
    msg_timeout: int = 0
    desired_tag: str = ""
    ext_filter: ExtFilter | msgspec.UnsetType = msgspec.UNSET


class Channel(msgspec.Struct, kw_only=True):
    """One subscription."""

    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    client_count: int
    clients: list[Client] | None
    paused: bool
    e2e_processing_latency: Percentiles


class TopicStats(msgspec.Struct, kw_only=True):
    """One topic."""

    topic_name: str
    channels: list[Channel]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    e2e_processing_latency: Percentiles
    is_ext: bool


class Memory(msgspec.Struct, kw_only=True):
    """The process, in the words of Go's runtime; what Python does not know is 0."""

    heap_objects: int
    heap_idle_bytes: int = 0
    heap_in_use_bytes: int
    heap_released_bytes: int = 0
    gc_pause_usec_100: int = 0
    gc_pause_usec_99: int = 0
    gc_pause_usec_95: int = 0
    next_gc_bytes: int = 0
    gc_total_runs: int


class Stats(msgspec.Struct, kw_only=True):
    """The whole document."""

    version: str
    health: str
    start_time: int
    #: None where a topic was asked for that is not there.
    topics: list[TopicStats] | None
    memory: Memory | msgspec.UnsetType
    producers: list[Client] | None


class Observer:
    """Looks at a node and its NSQ connections."""

    def __init__(self, node: Node, connections: Iterable[Connection], meter: Meter) -> None:
        self._node = node
        self._connections = connections
        self._meter = meter

    def stats(self, topic: str = "", channel: str = "", *, clients: bool = True, memory: bool = True) -> Stats:
        """Return everything there is to say, or what concerns one topic or channel."""
        node = self._node
        connections = list(self._connections) if clients else None
        topics = self.topics(topic, channel, connections)
        shown = connections or [] if topics is not None else []
        producers = [_client(one, _pub_counts(one, topic)) for one in shown if one.session.pub_counts]
        return Stats(
            version=VERSION,
            health=health(node),
            start_time=node.started_ns // SECOND,
            topics=topics,
            memory=memory_of_process() if memory else msgspec.UNSET,
            producers=producers or None,
        )

    def topics(
        self, topic: str = "", channel: str = "", connections: Sequence[Connection] | None = None
    ) -> list[TopicStats] | None:
        """Return the topics by name, with all their channels or those of one name; without connections, no clients."""
        known = [topic] if topic else filter(is_listed, self._node.topics)
        found = sorted(name for name in known if _can_spell(name))
        topics = [self._node.topics[name] for name in found if name in self._node.topics]
        if topic and not topics:
            return None
        clients: Clients | None = None
        if connections is not None:
            clients = {one.session.seat: one for one in connections if one.session.seat is not None}
        return [self._topic(one, channel, clients) for one in topics if not channel or channel in one.subscriptions]

    def _topic(self, topic: Topic, channel: str, clients: Clients | None) -> TopicStats:
        names = sorted(name for name in topic.subscriptions if _can_spell(name) and channel in ("", name))
        depth = topic.depth()
        return TopicStats(
            topic_name=topic.name,
            channels=[self._channel(topic, topic.subscriptions[name], clients) for name in names],
            depth=depth,
            backend_depth=_on_disk(topic, depth),
            message_count=topic.published,
            message_bytes=topic.intake.published_bytes,
            paused=topic.settings.paused,
            e2e_processing_latency=self._meter.of(topic.subscriptions.values()),
            is_ext=topic.chosen.of(NsqChoices).extend != "off",
        )

    def _channel(self, topic: Topic, subscription: Subscription, clients: Clients | None) -> Channel:
        unread = subscription.depth() - subscription.ready()
        deferred = topic.deferred(subscription)
        depth = subscription.depth() - deferred
        listed = None
        if clients is not None:
            listed = [_consumer(one, clients.get(one)) for one in subscription.seats.values()]
        return Channel(
            channel_name=subscription.name,
            depth=depth,
            backend_depth=_on_disk(topic, depth),
            in_flight_count=subscription.in_flight(),
            deferred_count=subscription.waiting() + deferred,
            # What is ahead of the cursors has come to the channel and was not passed yet.
            message_count=subscription.counts()["passed"] + unread,
            requeue_count=subscription.released,
            timeout_count=subscription.expired_leases,
            client_count=len(subscription.seats),
            clients=listed,
            paused=subscription.settings.paused,
            e2e_processing_latency=self._meter.of([subscription]),
        )


def memory_of_process() -> Memory:
    """Return what the process uses."""
    with open("/proc/self/statm", "rb") as file:
        resident_pages = int(file.read().split()[1])
    return Memory(
        heap_objects=sys.getallocatedblocks(),
        heap_in_use_bytes=resident_pages * os.sysconf("SC_PAGE_SIZE"),
        gc_total_runs=sum(generation["collections"] for generation in gc.get_stats()),
    )


def _consumer(consumer: Seat, connection: Connection | None) -> Client:
    if connection is None:  # a consumer of another dialect
        client = Client(
            client_id=consumer.name, hostname="", remote_address="", state=STATES["subscribed"], connect_ts=0
        )
    else:
        client = _client(connection)
    client.ready_count = consumer.credit
    client.in_flight_count = consumer.in_flight
    client.message_count = consumer.received
    client.finish_count = consumer.acked
    client.requeue_count = consumer.released
    client.timeout_count = consumer.expired
    return client


def _client(connection: Connection, pub_counts: list[PubCount] | None = None) -> Client:
    session, agreed, facts = connection.session, connection.session.agreed, connection.facts
    grants = session.login.guard.grants if session.login.guard is not None else None
    return Client(
        client_id=agreed.client_id,
        hostname=agreed.hostname,
        remote_address=session.name,
        state=STATES[session.state],
        connect_ts=session.connected_ns // SECOND,
        sample_rate=agreed.sample_rate,
        deflate=agreed.deflate,
        snappy=agreed.snappy,
        user_agent=agreed.user_agent,
        authed=True if grants else msgspec.UNSET,
        auth_identity=(grants.identity if grants else "") or msgspec.UNSET,
        auth_identity_url=(grants.identity_url if grants else "") or msgspec.UNSET,
        pub_counts=pub_counts or msgspec.UNSET,
        tls=facts is not None,
        tls_cipher_suite=facts.cipher if facts is not None else "",
        tls_version=facts.version if facts is not None else "",
        tls_negotiated_protocol=facts.protocol if facts is not None else "",
        tls_negotiated_protocol_is_mutual=bool(facts is not None and facts.protocol),
        topology_zone=agreed.topology_zone,
        topology_region=agreed.topology_region,
        msg_timeout=agreed.lease_ns,
        desired_tag=agreed.desired_tag,
        ext_filter=agreed.ext_filter if agreed.ext_filter is not None else msgspec.UNSET,
    )


def _pub_counts(connection: Connection, topic: str) -> list[PubCount]:
    counts = sorted(connection.session.pub_counts.items())
    return [PubCount(name, count) for name, count in counts if topic in ("", name)]


def _on_disk(topic: Topic, depth: int) -> int:
    return 0 if topic.settings.durability == "memory" else depth


def _can_spell(name: str) -> bool:
    return name.isascii() and is_name(name.encode())
