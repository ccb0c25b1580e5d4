"""What a program publishes, as record batches: single messages, many, or batches it already has.

Owns which Python values each column takes. Pure; knows nothing of connections.
Invariant: a column that nobody filled is not sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from time import time_ns
from typing import Any, TypeAlias, TypedDict

import pyarrow as pa

from penstock.message import COLUMNS, KINDS

#: A moment: nanoseconds since 1970, an aware datetime, or from now.
Moment: TypeAlias = "int | datetime | timedelta"
Bytes: TypeAlias = "bytes | bytearray | memoryview | str"

#: What goes out in one piece; the node stores it in one append.
BATCH_ROWS_MAX = 10_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """What a message may carry beside its body."""

    #: Order, shard and Kafka key.
    key: Bytes | None = None
    #: A JSON object.
    headers: Mapping[str, Any] | Bytes | None = None
    #: Goes to consumers that ask for this tag.
    tag: str | None = None
    #: The 64 traffic-type bits.
    traffic: int | None = None
    #: Not to be delivered before.
    due: Moment | None = None
    #: Not to be delivered after.
    expires: Moment | None = None
    #: The producer's own time.
    event_time: Moment | None = None
    #: Published again with the same key within the topic's window, it is stored once.
    dedup: Bytes | None = None
    bucket: int | None = None
    route: int | None = None
    message_id: Bytes | None = None
    trace: int | None = None
    group: Bytes | None = None


class PropertyValues(TypedDict, total=False):
    """`Properties` as keywords."""

    key: Bytes | None
    headers: Mapping[str, Any] | Bytes | None
    tag: str | None
    traffic: int | None
    due: Moment | None
    expires: Moment | None
    event_time: Moment | None
    dedup: Bytes | None
    bucket: int | None
    route: int | None
    message_id: Bytes | None
    trace: int | None
    group: Bytes | None


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message to publish."""

    body: Bytes
    properties: Properties = Properties()


Publishable: TypeAlias = "Bytes | Outgoing | Iterable[Bytes | Outgoing] | pa.RecordBatch | pa.Table"

NAMES = tuple(field.name for field in fields(Properties))


def batches_of(messages: Publishable, properties: Properties) -> Iterator[pa.RecordBatch]:
    """Yield what to send; `properties` fill what a message does not say itself. Batches go as they are."""
    if isinstance(messages, pa.Table):
        yield from messages.to_batches(BATCH_ROWS_MAX)
    elif isinstance(messages, pa.RecordBatch):
        yield messages
    elif isinstance(messages, bytes | bytearray | memoryview | str | Outgoing):
        yield _batch([messages], properties)
    else:
        some: list[Bytes | Outgoing] = []
        for message in messages:
            some.append(message)
            if len(some) == BATCH_ROWS_MAX:
                yield _batch(some, properties)
                some = []
        if some:
            yield _batch(some, properties)


def _batch(messages: list[Bytes | Outgoing], properties: Properties) -> pa.RecordBatch:
    whole = [message if isinstance(message, Outgoing) else Outgoing(message) for message in messages]
    columns = {"body": pa.array([_bytes(message.body) for message in whole], pa.binary())}
    now_ns = time_ns()
    for name in NAMES:
        common = getattr(properties, name)
        own = [getattr(message.properties, name) for message in whole]
        values = [common if value is None else value for value in own]
        if any(value is not None for value in values):
            columns[name] = pa.array([_value(name, value, now_ns) for value in values], COLUMNS[name])
    return pa.record_batch(columns)


def _value(name: str, value: Any, now_ns: int) -> int | str | bytes | None:
    if value is None:
        return None
    match KINDS[name]:
        case "time":
            return moment_ns(value, now_ns)
        case "bits":
            return value - (1 << 64) if value >> 63 == 1 else int(value)
        case "number" | "bucket":
            return int(value)
        case "text":
            return str(value)
        case "json" if isinstance(value, Mapping):
            return json.dumps(dict(value), separators=(",", ":"), ensure_ascii=False).encode()
    return _bytes(value)


def moment_ns(moment: Moment, now_ns: int) -> int:
    """Return a moment as nanoseconds since 1970."""
    if isinstance(moment, timedelta):
        return now_ns + _nanoseconds(moment)
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ValueError(f"{moment} has no time zone; write datetime(..., tzinfo=UTC)")
        return _nanoseconds(moment - EPOCH)
    return int(moment)


def _nanoseconds(span: timedelta) -> int:
    return (span.days * 86_400 + span.seconds) * 1_000_000_000 + span.microseconds * 1000


def _bytes(value: Bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
