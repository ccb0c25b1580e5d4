"""The section of feeds from Kafka, and what librdkafka is told for one of them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock.config import Config, Section, check_client, secret_in
from penstock.config.tree import KIB, MIB, MILLISECOND_NS, Duration, SomeSize
from penstock.errors import ConfigError
from penstock.settings import SECOND_NS

#: What stands for the name of Kafka's topic in `into`.
TOPIC = "{topic}"
#: A pattern begins with this, as librdkafka has it.
PATTERN = "^"
Property = str | int | float | bool
#: What librdkafka fetches ahead, at most.
AHEAD_BYTES_MAX = 32 * MIB

#: How it is read is the feed's own affair: each of these would lose rows, or take some twice.
_OURS = {
    "bootstrap.servers": "write brokers",
    "metadata.broker.list": "write brokers",
    "group.id": "write group",
    "security.protocol": "write tls and sasl",
    "sasl.mechanism": "write sasl",
    "sasl.mechanisms": "write sasl",
    "sasl.username": "write user",
    "auto.offset.reset": "write start",
    "enable.auto.commit": "positions are kept with the rows",
    "enable.auto.offset.store": "positions are kept with the rows",
    "enable.partition.eof": "leave it out",
    "group.protocol": "leave it out: partitions change hands all at once",
    "partition.assignment.strategy": "leave it out: partitions change hands all at once",
    "statistics.interval.ms": "leave it out",
}
_SECRET = re.compile(r"password|secret|\.pem$|key\.string|certificate\.string").search


class FeedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Topics of one Kafka that are brought in."""

    #: What figures and logs call it.
    name: str
    #: HOST:PORT of brokers; one that answers names the others.
    brokers: tuple[str, ...]
    #: Names, and patterns that begin with ^.
    topics: tuple[str, ...]
    #: The consumer group; nodes of the same group share the partitions.
    group: str = "penstock"
    #: The topic of this node; {topic} stands for the name of Kafka's.
    into: str = TOPIC
    #: Where a group begins that has no position yet.
    start: Literal["earliest", "latest"] = "earliest"
    #: A record without a value is a message without a body, with a header that says so, or is passed over.
    tombstones: Literal["keep", "skip"] = "keep"
    tls: bool = False
    #: Who vouches for the brokers (PEM), where the system's authorities do not.
    tls_ca: str = ""
    #: Certificate and key (PEM) of this client, where brokers ask for one.
    tls_cert: str = ""
    tls_key: str = ""
    sasl: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = ""
    user: str = ""
    #: Its first line is the password.
    password_file: str = ""
    #: Anything else that librdkafka can be told, by its names.
    properties: dict[str, Property] = {}
    #: A file of NAME=VALUE lines: more of the same, and the place for those that are secret.
    properties_file: str = ""

    def target(self, topic: str) -> str:
        """Return where messages of one of Kafka's topics go."""
        return self.into.replace(TOPIC, topic)


class KafkaFeedConfig(Section, frozen=True, kw_only=True):
    """Topics of Kafka's that are brought in."""

    #: What is read, each as [[kafka_feed.feeds]]; none = nothing.
    feeds: Annotated[tuple[FeedConfig, ...], Meta(extra={"kind": "tables", "named": True})] = ()
    #: How often positions are written down, and told to Kafka for those who look how far behind a group is.
    commit_interval_ns: Duration = 5 * SECOND_NS
    #: Records that are taken over together.
    batch: Annotated[int, Meta(ge=1, le=65_536)] = 8_192
    #: How long the first of them waits for others.
    linger_ns: Duration = 5 * MILLISECOND_NS
    #: Bytes that one feed may have read and not stored; beyond it, it reads no more. All feeds together have a quarter
    #: of memory.body_bytes at most.
    in_flight_bytes: SomeSize = 32 * MIB


def check(config: Config) -> None:
    """Refuse what is well formed and still cannot work."""
    section = config.of(KafkaFeedConfig)
    if section.feeds and not section.commit_interval_ns:
        raise ConfigError('kafka_feed.commit_interval is 0; write a duration, like "5s"')
    names: set[str] = set()
    for feed in section.feeds:
        if not feed.name or feed.name in names:
            raise ConfigError(f'kafka_feed.feeds: there are two called "{feed.name}"; give each a name of its own')
        names.add(feed.name)
        _check(feed, f'kafka_feed.feeds "{feed.name}"')


def _check(feed: FeedConfig, where: str) -> None:
    for key, values in (("brokers", feed.brokers), ("topics", feed.topics), ("group", feed.group), ("into", feed.into)):
        if not values or not all(values):
            raise ConfigError(f"{where}: {key} is empty")
    for topic in feed.topics:
        if topic.startswith(PATTERN):
            try:
                re.compile(topic)
            except re.error as error:
                raise ConfigError(f"{where}: topics: {topic} is not a pattern: {error}") from None
    check_client(feed, feed.password_file, f"{where}: ", sasl=bool(feed.sasl))
    for key in feed.properties:
        if _SECRET(key):
            raise ConfigError(
                f"{where}: properties: {key} is a secret; put it into a file, as {key}=VALUE, and name that as "
                "properties_file"
            )
    _check_librdkafka(feed, where)


def _check_librdkafka(feed: FeedConfig, where: str) -> None:
    from confluent_kafka import Consumer, KafkaException

    for key in (told := {**feed.properties, **_in_file(feed.properties_file)}):
        if key in _OURS:
            raise ConfigError(f"{where}: properties: {key} cannot be set here; {_OURS[key]}")
    try:
        Consumer({**properties(feed, told), "log_level": 0}).close()  # it connects to nobody yet
    except (KafkaException, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: librdkafka does not take its settings: {text_of(error)}") from None


def properties(
    feed: FeedConfig, told: dict[str, Property] | None = None, ahead_bytes: int = AHEAD_BYTES_MAX
) -> dict[str, Any]:
    """Return what librdkafka is told; of `ahead_bytes`, how much it may fetch ahead."""
    told = told if told is not None else {**feed.properties, **_in_file(feed.properties_file)}
    found: dict[str, Any] = {
        "client.id": "penstock",
        "allow.auto.create.topics": False,
        # A topic that comes, goes or grows is noticed after this.
        "topic.metadata.refresh.interval.ms": 10_000,
        # Beside the feed's own limit.
        "queued.max.messages.kbytes": max(min(ahead_bytes, AHEAD_BYTES_MAX) // KIB, 1),
        "reconnect.backoff.max.ms": 5_000,
        **told,
        "bootstrap.servers": ",".join(feed.brokers),
        "group.id": feed.group,
        "security.protocol": ("SASL_" if feed.sasl else "") + ("SSL" if feed.tls else "PLAINTEXT"),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # A position that Kafka no longer has must be told, not passed over.
        "auto.offset.reset": "error",
        # Partitions change hands all at once: who loses some begins all it keeps from where it wrote down.
        "partition.assignment.strategy": "range,roundrobin",
        "statistics.interval.ms": 2_000,
    }
    secured = (
        ("ssl.ca.location", feed.tls_ca),
        ("ssl.certificate.location", feed.tls_cert),
        ("ssl.key.location", feed.tls_key),
        ("sasl.mechanisms", feed.sasl),
        ("sasl.username", feed.user),
        ("sasl.password", secret_in(feed.password_file, "password") if feed.password_file else ""),
    )
    return found | {key: value for key, value in secured if value}


def text_of(error: BaseException) -> str:
    """Return what librdkafka says, without the words around it."""
    inner = error.args[0] if error.args else error
    said = inner.str() if hasattr(inner, "str") else str(inner)
    return str(said)


def _in_file(path: str) -> dict[str, str]:
    if not path:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: properties cannot be read ({why})") from None
    found = {}
    for line in lines:
        if line and not line.startswith("#"):
            key, separator, value = line.partition("=")
            if not separator:
                raise ConfigError(f"{path}: a line has no =; write NAME=VALUE")
            found[key.strip()] = value.strip()
    return found
