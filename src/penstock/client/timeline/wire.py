"""What clients of timelines and a node say to each other: JSON documents, and the columns of batches.

The one definition of them: the SDK and `dialects/timeline` use it. Actions are `timeline.<name>` of ACTIONS; what
goes wrong with a timeline is an `Error` inside a reply, never an error of Flight.
Needs pyarrow and nothing else. Times are milliseconds since 1970, by the clock of the node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import pyarrow as pa

from penstock.client.wire import of

PROTOCOL_VERSION = 1
DRIVER_VERSION = 1


class Severity(IntEnum):
    """How bad an error is."""

    PANIC = 7
    FATAL = 8
    ERROR = 9
    WARN = 10
    INFO = 11
    DEBUG = 12
    TRACE = 13


class Module(IntEnum):
    """Where an error comes from."""

    INTERNAL = 0
    CLUSTER = 1
    STORAGE = 2
    BROKER = 3
    PROTOCOL = 4
    DRIVER = 5


class Kind(IntEnum):
    """What went wrong."""

    NONE = 0
    CLUSTER_OFFLINE = 10
    WRONG_CLUSTER = 12
    CLUSTER_MINORITY = 13
    NO_CONNECTION = 14
    STORAGE = 100
    STORAGE_OFFLINE = 101
    STORAGE_TIMEOUT = 103
    UNSUPPORTED = 104
    BROKER_DEGRADED = 201
    BROKER_MINORITY = 202
    BROKER_TIMEOUT = 203
    PROTOCOL = 300
    UNKNOWN_COMMAND = 301
    TOPIC = 400
    TOPIC_NOT_FOUND = 401
    TOPIC_PROVISIONING = 402
    TOPIC_DELETING = 403
    MESSAGE_NOT_FOUND = 404
    TOPIC_EXISTS = 405
    LEASE_EXPIRED = 410
    NOT_THE_HOLDER = 411
    VERSION_MISMATCH = 412
    BODY_TOO_LARGE = 413
    TIME_OUT_OF_RANGE = 414
    DUPLICATE_ID = 415
    LEASE_TOO_LONG = 416
    THROTTLED = 429
    UNKNOWN_SESSION = 440
    WRONG_ROLE = 441


@dataclass(frozen=True, kw_only=True)
class Error:
    """What went wrong; one without a message says that all is well."""

    severity: int = Severity.ERROR
    module: int = Module.BROKER
    kind: int = Kind.NONE
    #: The command that failed.
    op: str = ""
    message: str = ""
    details: dict[str, str] = field(default_factory=dict)
    #: Nothing should be asked again before so long.
    throttled_ms: int = 0
    #: The client should shake hands anew: what it knows of the cluster is old.
    should_sync: bool = False
    should_retry: bool = False


@dataclass(frozen=True, kw_only=True)
class Request:
    """What every request may carry."""

    trace_id: str = ""
    #: After so long without an answer the answer is that (203), and what was asked for may still be done; 0 = never.
    timeout_ms: int = 0


@dataclass(frozen=True, kw_only=True)
class Answered:
    """What every reply may carry."""

    error: Error | None = field(default=None, metadata=of(Error))


# --- actions of the overseer ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TimelineCreate(Request):
    """Action `create`: make a topic; what is absent or 0 has its default."""

    id: str
    cluster: str = ""
    replica_count: int = 0
    #: 0, said so, means without a bound.
    max_seconds_future_allowed: int | None = None
    max_seconds_lease: int = 0
    checksum_bodies: bool = False
    max_body_size_bytes: int = 0
    rqs_limit_per_client: int = 0
    minimum_protocol_version: int = 0
    minimum_driver_version: int = 0
    bucket_count: int = 0
    time_window_ms: int = 0
    #: 0, said so, switches it off.
    prefetch_max_ms: int | None = None
    prefetch_max_count: int = 0
    #: simple, rack or gladiator.
    dealer: str = ""


@dataclass(frozen=True, kw_only=True)
class TimelineDeleteTopic(Request):
    """Action `delete`: drop a topic with all of its messages."""

    id: str
    cluster: str = ""


@dataclass(frozen=True, kw_only=True)
class Redeal(Request):
    """Action `redeal`: deal the buckets of a topic anew, without a thought for who had which."""

    topic_id: str
    cluster: str = ""


@dataclass(frozen=True, kw_only=True)
class Redealt(Answered):
    """Reply to `Redeal`."""

    #: Whether somebody was there to deal to.
    is_dealt: bool = False


@dataclass(frozen=True, kw_only=True)
class Done(Answered):
    """Reply of `create`, `delete` and `unsubscribe`."""


@dataclass(frozen=True, kw_only=True)
class ProducerHandshake(Request):
    """Action `producer-handshake`: become a producer of a topic."""

    topic_id: str
    producer_group_id: str
    producer_id: str
    cluster: str = ""
    protocol_version: int = PROTOCOL_VERSION
    driver_version: int = DRIVER_VERSION


@dataclass(frozen=True, kw_only=True)
class ConsumerHandshake(Request):
    """Action `consumer-handshake`: become a consumer of a topic."""

    topic_id: str
    consumer_id: str
    cluster: str = ""
    lease_timeout_ms: int = 60_000
    rack_id: str = ""
    protocol_version: int = PROTOCOL_VERSION
    driver_version: int = DRIVER_VERSION


@dataclass(frozen=True, kw_only=True)
class Broker:
    """A node that takes commands, as clients are told of it."""

    id: str
    #: Where its Flight listens, like grpc://10.0.0.7:7071; empty for the one that was asked.
    address: str = ""
    #: Its rank: the lowest is tried first.
    weight: int = 0
    over_capacity: bool = False


@dataclass(frozen=True, kw_only=True)
class Session(Answered):
    """Reply to a handshake."""

    session_id: str = ""
    brokers: list[Broker] = field(default_factory=list, metadata=of(Broker))


@dataclass(frozen=True, kw_only=True)
class Info(Request):
    """Action `info`: what the cluster has; with a topic also who should be asked about it."""

    cluster: str = ""
    topic_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Informed(Answered):
    """Reply to `Info`; records are as the overseer keeps them."""

    cluster: str = ""
    brokers: list[dict[str, Any]] = field(default_factory=list)
    topics: list[dict[str, Any]] = field(default_factory=list)
    preference: list[Broker] = field(default_factory=list, metadata=of(Broker))


@dataclass(frozen=True, kw_only=True)
class Ping(Request):
    """Action `ping`, and a word in a Consume stream from either side."""

    local_ts_ms: int
    session_id: str = ""
    #: How long the last one took until it was answered; 0 where that is not known.
    rtt_ms: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Pong(Answered):
    """Reply to a ping; `local_ts_ms` is the one that came."""

    local_ts_ms: int
    partner_ts_ms: int


# --- actions of the carrier -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Count(Request):
    """Action `count`: how many messages there are; by state, and by their place on the time axis."""

    topic_id: str
    cluster: str = ""
    #: all, available, waiting or processing.
    status: str = "all"
    from_ms: int | None = None
    #: Not included.
    to_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class Counted(Answered):
    """Reply to `Count`."""

    n: int = 0


@dataclass(frozen=True, kw_only=True)
class Unsubscribe(Request):
    """Action `unsubscribe`: end a session at once."""

    session_id: str


# --- exchanges --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CreateMessages(Request):
    """Metadata of a batch of CREATED rows going up `create-messages`, which is answered by REPLIED rows in order."""

    session_id: str
    #: Comes back with the reply.
    number: int = 0
    #: `due_ms` is from now on, by the clock of the node.
    relative: bool = False


@dataclass(frozen=True, kw_only=True)
class Change(Request):
    """Metadata of a batch of CHANGED rows going up `change`, which is answered by REPLIED rows in order."""

    session_id: str
    #: delete, extend-lease or release.
    command: str
    number: int = 0
    #: `new_ts_ms` is from now on, by the clock of the node.
    relative: bool = False


@dataclass(frozen=True, kw_only=True)
class Reply(Answered):
    """Metadata of a batch of REPLIED rows; with an error it stands for all of them, and there are no rows."""

    number: int = 0


@dataclass(frozen=True, kw_only=True)
class ConsumerStatus(Request):
    """What a consumer has room for."""

    session_id: str
    max_buffer_size: int
    available_buffer_size: int
    lag_ms: int = 0
    lag_no_messages: int = 0


@dataclass(frozen=True, kw_only=True)
class TopicStatus:
    """How a topic is, for consumers that want to react to it."""

    available: int = 0
    oldest_lag_ms: int = 0
    create_rate: float = 0.0
    deliver_rate: float = 0.0
    consumers: int = 0
    window: int = 0


@dataclass(frozen=True, kw_only=True)
class Switch:
    """Suggests to go to another broker, from a window on."""

    broker: Broker = field(metadata=of(Broker))
    window: int = 0


@dataclass(frozen=True, kw_only=True)
class Up:
    """Words going up `consume`; the first has a status, which names the session."""

    status: ConsumerStatus | None = field(default=None, metadata=of(ConsumerStatus))
    ping: Ping | None = field(default=None, metadata=of(Ping))
    pong: Pong | None = field(default=None, metadata=of(Pong))


@dataclass(frozen=True, kw_only=True)
class Down(Answered):
    """Words coming down `consume`, alone or with PUSHED rows."""

    status: TopicStatus | None = field(default=None, metadata=of(TopicStatus))
    ping: Ping | None = field(default=None, metadata=of(Ping))
    pong: Pong | None = field(default=None, metadata=of(Pong))
    switch: Switch | None = field(default=None, metadata=of(Switch))
    #: Active leases of this consumer were pushed; what comes now is new.
    hydrated: bool = False
    #: The node ends the exchange, and why.
    end: str | None = None


#: Takes -> answers.
ACTIONS: dict[str, tuple[type, type]] = {
    "create": (TimelineCreate, Done),
    "delete": (TimelineDeleteTopic, Done),
    "redeal": (Redeal, Redealt),
    "producer-handshake": (ProducerHandshake, Session),
    "consumer-handshake": (ConsumerHandshake, Session),
    "info": (Info, Informed),
    "ping": (Ping, Pong),
    "count": (Count, Counted),
    "unsubscribe": (Unsubscribe, Done),
}

#: Messages to be made; a null id is made by the node.
CREATED = pa.schema([("message_id", pa.binary()), ("due_ms", pa.uint64()), ("body", pa.binary())])

#: Leases pushed to a consumer, by (due, id).
PUSHED = pa.schema(
    [
        ("expiration_ts_ms", pa.uint64()),
        ("consumer_id", pa.binary()),
        ("message_id", pa.binary()),
        ("body", pa.binary()),
        ("timestamp_ms", pa.uint64()),
        ("producer_group_id", pa.binary()),
        ("version", pa.uint16()),
        ("bucket_id", pa.uint16()),
    ]
)

#: Messages to delete, extend or release; `new_ts_ms` is null for a delete. An owner's delete has nulls for version and
#: bucket, too.
CHANGED = pa.schema(
    [
        ("message_id", pa.binary()),
        ("version", pa.uint16()),
        ("bucket_id", pa.uint16()),
        ("new_ts_ms", pa.uint64()),
    ]
)

#: What became of each row that went up, in order: kind 0 is well. `expiration_ts_ms` and `version` follow an extend;
#: the version also a release and a create.
REPLIED = pa.schema(
    [
        ("message_id", pa.binary()),
        ("kind", pa.uint16()),
        ("text", pa.string()),
        ("expiration_ts_ms", pa.uint64()),
        ("version", pa.uint16()),
    ]
)
