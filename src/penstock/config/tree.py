"""The configuration of one node as a frozen tree of values in base units, with the defaults.

Knows neither files nor the environment. A duration's field is `<key>_ns`; outside, its key has no suffix.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.settings import (
    GIB,
    HOUR_NS,
    MINUTE_NS,
    SECOND_NS,
    YEAR_NS,
    Compression,
    Durability,
    QuotaFull,
    TopicSettings,
)

MILLISECOND_NS = 1_000_000
KIB = 1 << 10
MIB = 1 << 20

#: A field of this kind is `<key>_ns` in the tree and a text like "30s" under `<key>` outside.
Duration = Annotated[int, Meta(ge=0, extra={"kind": "duration"})]
Size = Annotated[int, Meta(ge=0, extra={"kind": "size"})]
SomeSize = Annotated[int, Meta(ge=1, extra={"kind": "size"})]
Count = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Secret = Annotated[str, Meta(extra={"kind": "secret"})]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the tree, written as a table in the file."""


class LogConfig(Section, frozen=True, kw_only=True):
    """What the node says about itself."""

    #: What is less important than this is not said.
    level: Literal["debug", "info", "warning", "error"] = "info"
    #: Lines for people, or one JSON object a line.
    format: Literal["text", "json"] = "text"


class NodeConfig(Section, frozen=True, kw_only=True):
    """Limits and habits of the node as a whole."""

    #: Acks are written this often; 0 = in the turn of the ack, before any later reply on that connection.
    ack_flush_ns: Duration = 10 * MILLISECOND_NS
    #: Input that was read and is not stored yet; beyond it, publishes are refused.
    memory_input_bytes: SomeSize = 256 * MIB
    #: Batches that all topics together keep in memory, for subscriptions that read close to the end of the log.
    cache_bytes: Size = 128 * MIB
    #: Bytes of segments that all topics together may hold; 0 = no limit.
    quota_bytes: Size = 0
    #: What damage to synced data means: go on without it and report it, or refuse to start.
    recovery: Literal["cut", "strict"] = "cut"
    #: History is looked over this often, and what retention lets go is dropped.
    retention_check_ns: Duration = 10 * SECOND_NS
    #: How long a stopping node waits for consumers to finish what they hold.
    drain_timeout_ns: Duration = 5 * SECOND_NS


class TopicConfig(Section, frozen=True, kw_only=True):
    """What a topic starts with unless its creator says otherwise."""

    #: When a publish is answered: kept in memory, in the page cache (survives `kill -9`), or on disk.
    durability: Durability = "os"
    #: Of closed segments.
    compression: Compression = "none"
    #: A file of the log ends at this.
    segment_bytes: Annotated[int, Meta(ge=64 * KIB, le=1 << 31, extra={"kind": "size"})] = 64 * MIB
    #: History beyond what subscriptions still need is kept while younger than this and smaller than the next.
    retention_age_ns: Duration = 24 * HOUR_NS
    retention_bytes: Size = GIB
    #: `retention_bytes` also bounds a topic without subscriptions; on when that key is set by the user.
    retention_hard: bool = False
    #: Bytes of segments a topic may hold, whoever needs them; 0 = no limit.
    quota_bytes: Size = 0
    #: At its quota, or the node's, a topic refuses what is published, or drops what is oldest, read or not.
    quota_full: QuotaFull = "refuse"
    #: A message may be due this much later than it is published, or released; 0 = no limit.
    max_due_ns: Duration = YEAR_NS

    def settings(self) -> TopicSettings:
        """Return the settings of a topic nobody chose anything for."""
        return TopicSettings(**msgspec.structs.asdict(self))


class EventsConfig(Section, frozen=True, kw_only=True):
    """The delivery history, which the node writes to a topic of its own."""

    #: What happens to messages is not written, written of one message in `one_in`, or of every message.
    mode: Literal["off", "sampled", "full"] = "sampled"
    #: In mode `sampled`.
    one_in: Annotated[int, Meta(ge=1, le=1 << 16)] = 64
    #: Events a second; what is more is dropped and counted.
    rate_max: Annotated[int, Meta(ge=1)] = 20_000
    #: History beyond this is dropped; it takes effect when the topic is made.
    retention_bytes: SomeSize = 64 * MIB
    #: Events are written this often.
    flush_interval_ns: Annotated[int, Meta(ge=10 * MILLISECOND_NS, le=MINUTE_NS, extra={"kind": "duration"})] = (
        SECOND_NS
    )


class ApiConfig(Section, frozen=True, kw_only=True):
    """The admin HTTP listener."""

    #: Off where a node shall open nothing but its dialects' ports.
    enabled: bool = True
    #: Beyond this machine it needs `token`, and TLS unless `insecure`; so do the other listeners.
    address: str = "127.0.0.1"
    port: Port = 7070


class FlightConfig(Section, frozen=True, kw_only=True):
    """The Arrow Flight listener."""

    enabled: bool = True
    address: str = "127.0.0.1"
    port: Port = 7071
    #: Subscriptions that may be consumed over Flight at once; each takes two threads.
    exchanges_max: Annotated[int, Meta(ge=1)] = 500
    #: One record batch of a publisher; never more than node.memory_input_bytes.
    max_batch_size: SomeSize = 64 * MIB


class PipelineConfig(Section, frozen=True, kw_only=True):
    """The pipeline that runs beside the node, in a process of its own."""

    #: A pipeline's file, "default" for the one that comes with Penstock and a demo for it to read, "off" for none.
    file: str = "off"
    #: A command that installs what a pipeline needs, run before it starts; empty = it waits until that is there.
    setup: str = ""


class NsqConfig(Section, frozen=True, kw_only=True):
    """The NSQ listeners and the limits of their protocol."""

    address: str = "127.0.0.1"
    tcp_port: Port = 4150
    http_port: Port = 4151
    #: Open only with a certificate.
    https_port: Port = 4152
    #: Run the lookup service in this process.
    lookup: bool = True
    lookup_tcp_port: Port = 4160
    lookup_http_port: Port = 4161
    #: Lookup services elsewhere that this node announces itself to, each "host:port".
    lookupd_tcp_addresses: tuple[str, ...] = ()
    #: Where others reach this node; empty = the address it listens on, or this machine's name if that is all of them.
    broadcast_address: str = ""
    #: A tombstone hides a producer of a topic this long.
    tombstone_lifetime_ns: Duration = 45 * SECOND_NS
    #: A producer that was not heard of for this long is not shown any more.
    inactive_producer_timeout_ns: Duration = 5 * MINUTE_NS
    #: One message.
    max_msg_size: SomeSize = MIB
    #: One command with all its messages, or the body of an HTTP request.
    max_body_size: SomeSize = 5 * MIB
    #: The highest RDY a client may ask for.
    max_rdy_count: Annotated[int, Meta(ge=1)] = 2500
    #: How long a client may hold a message, unless it asks for another time.
    msg_timeout_ns: Duration = 60 * SECOND_NS
    #: The longest it may ask for, and hold one by TOUCH.
    max_msg_timeout_ns: Duration = 15 * MINUTE_NS
    #: The longest delay of REQ and DPUB.
    max_req_timeout_ns: Duration = HOUR_NS
    #: How often a client hears a heartbeat, unless it asks for another time; it is cut off after two without an answer.
    heartbeat_interval_ns: Duration = 30 * SECOND_NS
    #: The longest it may ask for.
    max_heartbeat_interval_ns: Duration = 60 * SECOND_NS
    #: The largest buffer a client may ask for.
    max_output_buffer_size: SomeSize = 64 * KIB
    max_output_buffer_timeout_ns: Duration = 30 * SECOND_NS
    #: Consumers in one channel; 0 = no limit.
    max_channel_consumers: Count = 0
    #: Bytes a connection may leave unread before the node stops producing for it.
    max_client_output_size: SomeSize = 16 * MIB
    #: What a header must be: an object of strings under plain names, or with old producers any object.
    header_rules: Literal["strict", "lenient"] = "strict"
    #: A header of reserved names alone may be sent to a topic that takes none; it is dropped.
    allow_ext_compatible: bool = False
    #: A client that knows no headers may subscribe to a topic that has them; it does not see them.
    allow_sub_ext_compatible: bool = False
    #: What first use makes: topics with their channels, channels of topics that exist, or nothing.
    auto_create: Literal["topics", "channels", "off"] = "topics"
    #: Certificate and key for TLS on NSQ connections; empty = those of the node.
    tls_cert: str = ""
    tls_key: str = ""
    #: Clients must ask for TLS before anything else.
    tls_required: bool = False
    #: Clients must show a certificate that this file, or without one the system, vouches for; both words mean that.
    tls_client_auth_policy: Literal["none", "require", "require-verify"] = "none"
    #: Certificates that vouch for clients.
    tls_root_ca_file: str = ""
    tls_min_version: Literal["tls1.2", "tls1.3"] = "tls1.2"
    #: HTTP stays open in clear where TLS is required.
    plain_http: bool = False
    #: Clients may ask for compression.
    snappy: bool = True
    deflate: bool = True
    #: The highest level a client may ask for.
    max_deflate_level: Annotated[int, Meta(ge=1, le=9)] = 6
    #: Servers that say what a client may do, each "host:port" or a URL; empty = nobody has to authenticate.
    auth_http_addresses: tuple[str, ...] = ()
    auth_http_request_method: Literal["get", "post"] = "get"
    #: Where StatsD listens, "host:port"; empty = nothing is sent.
    statsd_address: str = ""
    statsd_interval_ns: Annotated[int, Meta(ge=SECOND_NS, extra={"kind": "duration"})] = 60 * SECOND_NS
    #: Before every name; %s is this node's address and HTTP port, dots and colons replaced by _.
    statsd_prefix: str = "nsq.%s"
    #: Send figures of the process, too.
    statsd_mem_stats: bool = True
    #: Leave out topics and channels that end with `#ephemeral`.
    statsd_exclude_ephemeral: bool = False
    #: Bytes of a packet; what 508 leaves of the smallest packet that every network carries whole is for its headers.
    statsd_udp_packet_size: Annotated[int, Meta(ge=1, le=65507, extra={"kind": "size"})] = 508
    #: Percentiles of the time from publish to FIN that stats show, like ["0.99", "0.5"]; none = it is not measured.
    e2e_processing_latency_percentiles: tuple[str, ...] = ()
    #: Over how much of the past.
    e2e_processing_latency_window_time_ns: Annotated[int, Meta(ge=SECOND_NS, extra={"kind": "duration"})] = (
        10 * MINUTE_NS
    )


class Config(Section, frozen=True, kw_only=True):
    """The whole tree."""

    #: One process at a time uses it.
    data_dir: str = "./penstock-data"
    #: Who may read what is made there: the node's user only, or its group, too, for readers that run as another user.
    data_mode: Literal["private", "group"] = "private"
    #: Added to every port that is not 0 (0 = any free port).
    port_offset: Count = 0
    #: What clients must show; needed as soon as anything listens beyond this machine.
    token: Secret = ""
    #: Listen beyond this machine without TLS.
    insecure: bool = False
    #: Certificate and key (PEM) of every listener.
    tls_cert: str = ""
    tls_key: str = ""
    log: LogConfig = LogConfig()
    node: NodeConfig = NodeConfig()
    topic: TopicConfig = TopicConfig()
    events: EventsConfig = EventsConfig()
    api: ApiConfig = ApiConfig()
    flight: FlightConfig = FlightConfig()
    nsq: NsqConfig = NsqConfig()
    pipeline: PipelineConfig = PipelineConfig()

    def listen_port(self, port: int) -> int:
        """Return the port to bind: with the offset added, unless any free one is asked for."""
        return port + self.port_offset if port else 0

    def listeners(self) -> dict[str, tuple[str, int]]:
        """Return (address, port to bind) of every listener that is on, by the key of its port."""
        nsq = self.nsq
        ports = {"nsq.tcp_port": (nsq.address, nsq.tcp_port), "nsq.http_port": (nsq.address, nsq.http_port)}
        if self.flight.enabled:
            ports = {"flight.port": (self.flight.address, self.flight.port), **ports}
        if self.api.enabled:
            ports = {"api.port": (self.api.address, self.api.port), **ports}
        if self.tls_cert or nsq.tls_cert:
            ports["nsq.https_port"] = (nsq.address, nsq.https_port)
        if nsq.lookup:
            ports["nsq.lookup_tcp_port"] = (nsq.address, nsq.lookup_tcp_port)
            ports["nsq.lookup_http_port"] = (nsq.address, nsq.lookup_http_port)
        return {key: (address, self.listen_port(port)) for key, (address, port) in ports.items()}
