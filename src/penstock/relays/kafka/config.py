"""The relay's section of the configuration."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.config import Config, Section, check_client, host_and_port, parse_duration, parse_size, secret_in
from penstock.config.tree import Duration, Named, NamedList, Secret, Size, SomeSize
from penstock.errors import ConfigError
from penstock.relays.kafka.actions import changes
from penstock.relays.kafka.batching import BatchLimits
from penstock.settings import MINUTE_NS, SECOND_NS

MILLISECOND_NS = 1_000_000
INT32_MAX = (1 << 31) - 1

Batching = Literal["none", "per_topic", "combined"]
Sasl = Literal["none", "plain", "scram-sha-256", "scram-sha-512"]
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd", "auto"]


class PerTopic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is different for one topic; what is not said is as for all others."""

    topic: str
    batching: Batching | None = None
    batch_time: str | None = None
    batch_messages: int | None = None
    batch_bytes: str | None = None
    compression: Codec | None = None
    compression_level: int | None = None
    compression_min_bytes: str | None = None
    rate_interval: str | None = None
    rate_count: int | None = None


class TopicManner(msgspec.Struct, frozen=True):
    """How messages of one topic are sent."""

    batching: Batching
    batch: BatchLimits
    compression: Codec
    compression_level: int | None
    compression_min_bytes: int
    #: 0 = no limit.
    rate_interval_ns: int
    #: 0 in an interval = none may go.
    rate_count: int


class KafkaRelayConfig(Section, frozen=True, kw_only=True):
    """Topics whose messages are sent to Kafka, to topics of the same names."""

    #: Topics of this node, by name or pattern (orders, web-*, * for all but those that begin with _); none = no relay.
    topics: NamedList = ()
    #: HOST:PORT of brokers; one that answers is enough, it names the others.
    brokers: NamedList = ("127.0.0.1:9092",)
    #: The subscription that each topic gets for it.
    subscription: str = "kafka"
    #: Only messages with one of these tags; none = whatever their tag.
    tags: tuple[str, ...] = ()
    #: Only messages whose headers say this, like region=eu; empty = whatever they say.
    header: str = ""
    #: What this producer is called in Kafka's logs and quotas.
    client_id: str = "penstock"
    #: How long a broker may wait for its replicas; all of those in sync must have a message before it is acked.
    replication_timeout_ns: Duration = 10 * SECOND_NS
    #: A broker that says nothing for so long while something is asked of it is given up.
    socket_timeout_ns: Duration = MINUTE_NS
    #: A message is sent once to each partition, however often an answer is lost.
    idempotence: bool = True
    #: A message whose key, value and headers have more than this, less 26 bytes, is thrown away; at most
    #: `message.max.bytes` of the brokers.
    message_max_bytes: SomeSize = 1_000_000
    #: Keys, values and headers in one request, unless a message alone has more.
    request_bytes: SomeSize = 1 << 20
    #: Requests that wait for their answer at one broker.
    requests: Annotated[int, Meta(ge=1, le=5)] = 5
    #: Messages of one topic that the relay may have in hand, and bytes of all of them (never more than half of
    #: memory.output_bytes).
    in_flight: Annotated[int, Meta(ge=1)] = 131_072
    in_flight_bytes: SomeSize = 64 << 20
    #: Whether messages wait for others before they go: those of their topic, or any that go to the same broker.
    batching: Batching = "none"
    #: What completes a batch of one topic; 0 = not that.
    batch_time_ns: Duration = 0
    batch_messages: Annotated[int, Meta(ge=0)] = 0
    batch_bytes: Size = 0
    #: What completes a batch of several topics; 0 = not that.
    combined_time_ns: Duration = 0
    combined_messages: Annotated[int, Meta(ge=0)] = 0
    combined_bytes: Size = 0
    #: Messages of one partition that go together are compressed (auto: by what each topic is found to suit), with a
    #: level (0 = the codec's own), if they are so large ...
    compression: Codec = "none"
    compression_level: Annotated[int, Meta(ge=0, le=22)] = 0
    compression_min_bytes: Size = 128
    #: ... and if that leaves at most so many percent of them.
    compression_percent: Annotated[int, Meta(ge=0, le=100)] = 100
    #: So many messages of a topic may go in each interval, the others are thrown away; an interval of 0 = no limit.
    rate_interval_ns: Duration = 0
    rate_count: Annotated[int, Meta(ge=0)] = 0
    #: What is different for single topics, each as [[kafka_relay.per_topic]] with its topic.
    per_topic: Annotated[tuple[PerTopic, ...], Meta(extra={"kind": "tables"})] = ()
    #: Where keys go: over the partitions that have a leader, as Dory does it, or over all, so that they stay.
    partition_keys: Literal["dory", "stable"] = "dory"
    #: What follows from an error of a broker's, by its code: resend, discard, pause, discard_and_pause.
    error_actions: Annotated[dict[str, str], Meta(extra={"kind": "table"})] = msgspec.field(default_factory=dict)
    #: A message that brokers refuse oftener than this is thrown away; connections that break do not count.
    failed_attempts_max: Annotated[int, Meta(ge=0)] = 5
    #: Topics that Kafka does not have are made by asking for them.
    topic_autocreate: bool = False
    #: Who leads what is asked this often, give or take a fifth.
    metadata_refresh_ns: Duration = 15 * MINUTE_NS
    #: Connections stay if nothing changed.
    metadata_compare: bool = True
    #: After trouble nothing is sent for at least so long ...
    pause_min_ns: Duration = 200 * MILLISECOND_NS
    #: ... and while it goes on for about this, doubled each time up to so many times.
    pause_initial_ns: Duration = SECOND_NS
    pause_doublings: Annotated[int, Meta(ge=0, le=20)] = 4
    #: How long answers are waited for before connections are made anew.
    restart_max_delay_ns: Duration = 5 * SECOND_NS
    #: How long a stopping node goes on sending what the relay has in hand.
    shutdown_max_delay_ns: Duration = 30 * SECOND_NS
    #: Whether brokers speak TLS.
    tls: bool = False
    #: Who vouches for them (PEM), where the system's authorities do not.
    tls_ca: str = ""
    #: Certificate and key (PEM) of this client, where they ask for one.
    tls_cert: str = ""
    tls_key: str = ""

    #: How this client says who it is.
    sasl: Sasl = "none"
    user: str = ""
    #: The user's password.
    password: Secret = ""
    #: The file whose first line it is, where `password` is not set; read again for each connection.
    password_file: Named = ""

    @property
    def combined(self) -> BatchLimits:
        """What completes a batch of several topics."""
        return BatchLimits(self.combined_time_ns, self.combined_messages, self.combined_bytes)

    def manner(self, topic: str) -> TopicManner:
        """Return how messages of a topic are sent."""
        said = next((each for each in self.per_topic if each.topic == topic), PerTopic(topic=topic))
        level = self.compression_level if said.compression_level is None else said.compression_level
        batch = BatchLimits(
            self.batch_time_ns if said.batch_time is None else parse_duration(said.batch_time),
            self.batch_messages if said.batch_messages is None else said.batch_messages,
            self.batch_bytes if said.batch_bytes is None else parse_size(said.batch_bytes),
        )
        least = said.compression_min_bytes
        interval = said.rate_interval
        return TopicManner(
            self.batching if said.batching is None else said.batching,
            batch,
            self.compression if said.compression is None else said.compression,
            level or None,
            self.compression_min_bytes if least is None else parse_size(least),
            self.rate_interval_ns if interval is None else parse_duration(interval),
            self.rate_count if said.rate_count is None else said.rate_count,
        )

    def secret(self) -> str:
        """Return the password; ConfigError where its file cannot be read."""
        return self.password or (secret_in(self.password_file, "password") if self.password_file else "")

    def relays(self, topic: str) -> bool:
        """Tell whether messages of a topic are sent."""
        return any(
            topic == pattern or (fnmatchcase(topic, pattern) and not topic.startswith("_")) for pattern in self.topics
        )


def check(config: Config) -> None:
    """Refuse what is well formed and still cannot work."""
    relay = config.of(KafkaRelayConfig)
    if not relay.topics:
        return
    if not relay.brokers:
        raise ConfigError("kafka_relay.brokers is empty; name at least one HOST:PORT")
    for broker in relay.brokers:
        host_and_port(broker)
    for name, value in (("socket_timeout", relay.socket_timeout_ns), ("metadata_refresh", relay.metadata_refresh_ns)):
        if not value:
            raise ConfigError(f'kafka_relay.{name} is 0; write a duration, like "60s"')
    if relay.replication_timeout_ns // MILLISECOND_NS > INT32_MAX:
        raise ConfigError("kafka_relay.replication_timeout is longer than Kafka can be told; at most 596h")
    changes(relay.error_actions)
    if relay.header and "=" not in relay.header:
        raise ConfigError(f'kafka_relay.header = "{relay.header}" is no NAME=VALUE')
    check_client(relay, relay.password or relay.password_file, "kafka_relay.", sasl=relay.sasl != "none")
    relay.secret()
    seen: set[str] = set()
    for each in relay.per_topic:
        if each.topic in seen:
            raise ConfigError(f"kafka_relay.per_topic has {each.topic} twice; leave one out")
        seen.add(each.topic)
    for name in ("", *seen):
        _check_manner(name, relay)
    if relay.batching == "combined" and not relay.combined.is_set:
        raise ConfigError("kafka_relay.batching = combined needs combined_time, combined_messages or combined_bytes")


def _check_manner(topic: str, relay: KafkaRelayConfig) -> None:
    where = f"kafka_relay.per_topic of {topic}" if topic else "kafka_relay"
    try:
        manner = relay.manner(topic)
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from None
    if manner.batching == "per_topic" and not manner.batch.is_set:
        raise ConfigError(f"{where}: batching = per_topic needs batch_time, batch_messages or batch_bytes")
    if manner.rate_count < 0 or (manner.rate_count and not manner.rate_interval_ns):
        raise ConfigError(f'{where}: rate_count needs a rate_interval, like "1s", and is not negative')
