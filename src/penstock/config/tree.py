"""The configuration of one node as a frozen tree of values in base units, with the defaults.

Knows neither files nor the environment. A duration's field is `<key>_ns`; outside, its key has no suffix.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

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
    Home,
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
#: What a file that nobody named may not say: it would run a program, send a secret elsewhere or let strangers in.
Named = Annotated[str, Meta(extra={"kind": "text", "named": True})]
NamedList = Annotated[tuple[str, ...], Meta(extra={"kind": "list", "named": True})]
NamedSwitch = Annotated[bool, Meta(extra={"kind": "switch", "named": True})]

TlsVersion = Literal["tls1.2", "tls1.3"]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the tree, written as a table in the file."""

    def __repr__(self) -> str:
        """Return what may stand in a log: of a secret, that it is set."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        secret = ("token", "password")
        told = (f"{name}={'...' if name.endswith(secret) and value else repr(value)}" for name, value in shown.items())
        return f"{type(self).__name__}({', '.join(told)})"


S = TypeVar("S", bound=Section)


class LogConfig(Section, frozen=True, kw_only=True):
    """What the node says about itself."""

    #: What is less important than this is not said.
    level: Literal["debug", "info", "warning", "error"] = "info"
    #: Lines for people, or one JSON object a line.
    format: Literal["text", "json"] = "text"
    #: The file they go to, opened anew at SIGUSR1; empty = standard error.
    file: Named = ""
    #: The socket of the machine's syslog, which gets them, too: usually /dev/log; empty = none.
    syslog: Named = ""


class HttpConfig(Section, frozen=True, kw_only=True):
    """Every HTTP listener, whatever is served there."""

    #: Names that requests may ask for besides those of this machine: what a proxy or a container network calls it.
    hosts: tuple[str, ...] = ()


class NodeConfig(Section, frozen=True, kw_only=True):
    """Limits and habits of the node as a whole."""

    #: Acks are written this often; 0 = in the turn of the ack, before any later reply on that connection.
    ack_flush_ns: Duration = 10 * MILLISECOND_NS
    #: One message; a dialect may have a lower limit of its own.
    message_bytes: SomeSize = MIB
    #: One request of a publisher that carries many messages.
    request_bytes: SomeSize = 16 * MIB
    #: Bytes of segments that all topics together may hold; 0 = no limit.
    quota_bytes: Size = 0
    #: What damage to synced data means: go on without it and report it, or refuse to start.
    recovery: Literal["cut", "strict"] = "cut"
    #: History is looked over this often, and what retention lets go is dropped.
    retention_check_ns: Duration = 10 * SECOND_NS
    #: How long a stopping node waits for consumers to finish what they hold.
    drain_timeout_ns: Duration = 5 * SECOND_NS


class MemoryConfig(Section, frozen=True, kw_only=True):
    """Memory for what the node holds for others, in parts that cannot starve each other."""

    #: All parts together; 0 = half of what the machine or the control group has, 1 GiB at most.
    budget_bytes: Size = 0
    #: Bodies and commands that have not come whole; 0 = an eighth of the budget. Beyond it the slowest are cut off.
    body_bytes: Size = 0
    #: Input that was read and is not stored yet; 0 = a quarter. Beyond it, publishes are refused.
    input_bytes: Size = 0
    #: Output that clients do not read; 0 = a quarter. Beyond it the slowest are cut off.
    output_bytes: Size = 0
    #: Rows of all memory topics; 0 = a quarter. Beyond it the largest lose their oldest rows.
    topic_bytes: Size = 0
    #: Batches that all topics together keep, for subscriptions that read close to the end of the log; 0 = an eighth.
    cache_bytes: Size = 0


class LimitsConfig(Section, frozen=True, kw_only=True):
    """What clients can make the node do or keep, at most; what is more is refused and counted."""

    #: Topics that clients may have made.
    topics: Annotated[int, Meta(ge=1)] = 10_000
    #: Shards of all topics together; each takes some files.
    shards: Annotated[int, Meta(ge=1)] = 16_384
    #: Shards of one topic: each is made with a few syncs.
    topic_shards: Annotated[int, Meta(ge=1)] = 64
    #: Subscriptions (channels) of one topic: each is offered every message.
    topic_subscriptions: Annotated[int, Meta(ge=1)] = 1000
    #: Subscriptions of all topics together; each takes a file for every shard of its topic.
    subscriptions: Annotated[int, Meta(ge=1)] = 32_768
    #: Holds of readers outside, like Spark's, which keep rows against retention.
    holds: Annotated[int, Meta(ge=1)] = 1000
    #: Connections to each listener; of Flight every stream that publishes or consumes, from its first message on.
    connections: Annotated[int, Meta(ge=1)] = 10_000
    #: Those of them that come from one address.
    connections_per_address: Annotated[int, Meta(ge=1)] = 5_000
    #: A body, or a command, must be all there so long after its first byte ...
    body_timeout_ns: Duration = 5 * MINUTE_NS
    #: ... and bring so many bytes a second, over any half minute.
    body_rate: Size = KIB
    #: A client that does not read what it is sent is cut off after this, if its dialect does not do so earlier.
    output_timeout_ns: Duration = 5 * MINUTE_NS


class CallersConfig(Section, frozen=True, kw_only=True):
    """Who may do what; `penstock user` keeps the users."""

    #: The file of users; empty = users.json in the data directory.
    users: Named = ""
    #: What those may do who show nothing: everything from this machine and nothing from elsewhere, or nothing at all.
    anonymous: Literal["loopback", "off"] = "loopback"
    #: What the topic _penstock.audit gets: nothing; refusals and what named callers do; or what anonymous ones do, too.
    audit: Literal["off", "named", "all"] = "named"
    #: Rows of it a second; what is more is dropped and counted.
    audit_rate_max: Annotated[int, Meta(ge=1)] = 1000
    #: Rows beyond this are dropped, the oldest first; it takes effect when the topic is made.
    audit_retention_bytes: SomeSize = 64 * MIB


class TopicConfig(Section, frozen=True, kw_only=True):
    """What a topic starts with unless its creator says otherwise."""

    #: Where its log lives: on this node's disk, or on Kafka, for the whole cluster.
    log: Home = "local"
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


class DiscardsConfig(Section, frozen=True, kw_only=True):
    """What is said of messages that were thrown away."""

    #: Reports begin anew this often, counted from the start.
    report_interval_ns: Annotated[int, Meta(ge=SECOND_NS, extra={"kind": "duration"})] = 10 * MINUTE_NS
    #: Of each recent sample in a report, this much is kept.
    sample_bytes: Annotated[int, Meta(ge=0, le=MIB, extra={"kind": "size"})] = 256
    #: The node's log tells of each reason, at most every 30 seconds.
    warn: bool = True
    #: The file that gets a line for each message, with its content; empty = none.
    log: Named = ""
    #: At this size it is renamed, the time added to its name, and begun anew.
    log_file_bytes: SomeSize = 32 * MIB
    #: So much of renamed files is kept, the latest.
    log_archive_bytes: Size = 256 * MIB
    #: Of each key and each value this much is written; 0 = all of it.
    log_message_bytes: Size = 2 * KIB


class PipelineConfig(Section, frozen=True, kw_only=True):
    """The pipeline that runs beside the node, in a process of its own."""

    #: A pipeline's file, "default" for the one that comes with Penstock and a demo for it to read, "off" for none.
    file: Named = "off"
    #: A command that installs what a pipeline needs, run before it starts; empty = it waits until that is there.
    setup: Named = ""


class RegistryConfig(Section, frozen=True, kw_only=True):
    """Where the node remembers topics, subscriptions and the routing mapping."""

    #: In a file beside the log, or in etcd.
    kind: Literal["embedded", "etcd"] = "embedded"
    #: Which of the zones below, with etcd.
    zone: str = "default"
    #: What all of its keys start with, with etcd. Each node, or cluster, has one of its own.
    prefix: str = "penstock"
    #: How long a starting node waits for etcd.
    start_timeout_ns: Duration = MINUTE_NS


class ZoneConfig(Section, frozen=True, kw_only=True):
    """One etcd cluster. `default` is there without being named; a section `[etcd.zones.west]` makes another."""

    #: HOST:PORT of its members; the first that answers is asked.
    endpoints: NamedList = ("127.0.0.1:2379",)
    #: Whether they speak TLS.
    tls: bool = False
    #: Who vouches for them (PEM), where the system's authorities do not.
    tls_ca: str = ""
    #: Certificate and key (PEM) of this client, where they ask for one.
    tls_cert: str = ""
    tls_key: str = ""
    #: The user of etcd's own, where it has users.
    user: str = ""
    #: Its password.
    password: Secret = ""
    #: The file whose first line it is, where `password` is not set; read again whenever the node logs in.
    password_file: Named = ""


class EtcdConfig(Section, frozen=True, kw_only=True):
    """The etcd clusters that the node knows, by name."""

    zones: dict[str, ZoneConfig] = msgspec.field(default_factory=lambda: {"default": ZoneConfig()})


class SharedLogConfig(Section, frozen=True, kw_only=True):
    """The Kafka that holds the logs of a cluster's topics."""

    #: HOST:PORT of some of its brokers.
    brokers: NamedList = ("127.0.0.1:9092",)
    #: Copies of each partition; 0 = three, or as many as Kafka has brokers. No topic is made with fewer than are set.
    replication: Annotated[int, Meta(ge=0, le=100)] = 0
    #: Of what is sent there.
    compression: Literal["none", "lz4", "zstd"] = "none"
    #: Whether they speak TLS; who vouches for them, and the certificate and key of this client (PEM).
    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    #: How this client shows who it is.
    sasl: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = ""
    user: str = ""
    #: The file whose first line is its password.
    password_file: Named = ""
    #: What Kafka did not take for so long is no longer waited for: publishers are refused.
    patience_ns: Duration = 30 * SECOND_NS
    #: How much of closed segments the node's own disk keeps of it, for those who read again.
    cache_bytes: SomeSize = 10 * GIB


class ClusterConfig(Section, frozen=True, kw_only=True):
    """Several nodes that share topics: etcd for agreement ([registry] kind = "etcd"), Kafka for the bytes."""

    #: What the cluster is called, in Kafka's topics, too; empty = this node is alone.
    name: str = ""
    #: What this node is called in it; empty = the machine's name.
    node: str = ""
    #: Parts that topics fall into; each has one owner. Fixed when the cluster's first node starts.
    slots: Annotated[int, Meta(ge=1, le=4096)] = 64
    #: Its share of them beside the others'.
    weight: Annotated[int, Meta(ge=1, le=1000)] = 1
    #: A node that says nothing for so long has lost what it owned.
    lease_ns: Duration = 10 * SECOND_NS
    #: Where other nodes reach it.
    address: str = "127.0.0.1"
    port: Port = 7075
    #: HOST:PORT that the others are told, where that is another.
    advertise: str = ""
    #: The file whose first line all nodes share; they show each other that they know it.
    secret_file: Named = ""
    #: Certificate and key (PEM) of this node, and who vouches for the others'.
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""


class FilterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one subscription takes; it is made if it is not there, and so is its topic."""

    topic: str
    subscription: str
    #: Where neither of these is said, traffic types are not looked at.
    allowed_traffic_types: tuple[str, ...] | None = None
    is_default: bool | None = None
    upstream_filter: bool = False
    storage_policies: tuple[str, ...] = ()
    percentage: float = 1.0
    shard_set: str = ""


class RoutingConfig(Section, frozen=True, kw_only=True):
    """Traffic types: where their mapping is kept, and what subscriptions take."""

    #: The name of the routing policy in etcd; empty = the mapping is kept in the registry.
    key: str = ""
    #: Which of the etcd zones has it.
    zone: str = "default"
    #: Its key there is _kv/ENVIRONMENT/KEY, or NAMESPACE/ENVIRONMENT/KEY with a namespace of its own.
    environment: str = "default_env"
    namespace: str = ""
    #: Traffic types with their bits, added to the mapping at each start, where it is not in etcd.
    traffic_types: Annotated[dict[str, int], Meta(extra={"kind": "table"})] = msgspec.field(default_factory=dict)
    #: Subscriptions with the filters they have at each start, each as [[routing.filters]].
    filters: Annotated[tuple[FilterConfig, ...], Meta(extra={"kind": "tables"})] = ()


class MetricsConfig(Section, frozen=True, kw_only=True):
    """What `/metrics` says besides what it has to say."""

    #: Labels that every sample has, like { stage = "prod" }; at most 10.
    labels: Annotated[dict[str, str], Meta(extra={"kind": "table"})] = msgspec.field(default_factory=dict)
    #: Metrics of timelines also under the names of ChronoQueue's design note.
    seed_names: bool = False


class Config(Section, frozen=True, kw_only=True):
    """The whole tree."""

    #: One process at a time uses it.
    data_dir: str = "./penstock-data"
    #: Who may read what is made there: the node's user only, or its group, too, for readers that run as another user.
    data_mode: Literal["private", "group"] = "private"
    #: Added to every port that is not 0 (0 = any free port).
    port_offset: Count = 0
    #: What clients must show.
    token: Secret = ""
    #: The file whose first line it is, where `token` is not set.
    token_file: Named = ""
    #: Listen beyond this machine without TLS, or without asking who comes; each start says which listeners that are.
    insecure: NamedSwitch = False
    #: Certificate and key (PEM) of every listener.
    tls_cert: str = ""
    tls_key: str = ""
    #: Certificates that vouch for those that clients may show to listeners: such a client is the user of its common
    #: name. One that shows none must show something else. A dialect whose section names certificates goes by those.
    tls_client_ca: Named = ""
    #: The oldest that listeners speak, unless their dialect's section names a later one. Those of gRPC speak 1.2, too.
    tls_min_version: TlsVersion = "tls1.2"
    http: HttpConfig = HttpConfig()
    log: LogConfig = LogConfig()
    node: NodeConfig = NodeConfig()
    memory: MemoryConfig = MemoryConfig()
    limits: LimitsConfig = LimitsConfig()
    callers: CallersConfig = CallersConfig()
    topic: TopicConfig = TopicConfig()
    events: EventsConfig = EventsConfig()
    discards: DiscardsConfig = DiscardsConfig()
    pipeline: PipelineConfig = PipelineConfig()
    registry: RegistryConfig = RegistryConfig()
    etcd: EtcdConfig = EtcdConfig()
    cluster: ClusterConfig = ClusterConfig()
    shared_log: SharedLogConfig = SharedLogConfig()
    routing: RoutingConfig = RoutingConfig()
    metrics: MetricsConfig = MetricsConfig()
    #: Sections of what this tree does not know: the API and the dialects. One that is not here has its defaults.
    parts: tuple[Section, ...] = ()

    def of(self, kind: type[S]) -> S:
        """Return the section of this type."""
        for part in self.parts:
            if isinstance(part, kind):
                return part
        return kind()

    def listen_port(self, port: int) -> int:
        """Return the port to bind: with the offset added, unless any free one is asked for."""
        return port + self.port_offset if port else 0
