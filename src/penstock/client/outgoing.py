"""What a program publishes, as record batches: single messages, many, or batches it already has.

Owns which Python values each column takes. Pure; knows nothing of connections.
Invariant: a column that nobody filled is not sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from time import time_ns
from typing import Any, TypeAlias, cast

import pyarrow as pa

from penstock.columns import BUCKET_MAX, COLUMNS, KINDS
from penstock.errors import Refusal
from penstock.units.times import moment

#: A moment: nanoseconds since 1970, an aware datetime, from now, or a text as on the command line ("30s", ISO).
Moment: TypeAlias = "int | datetime | timedelta | str"
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


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message to publish."""

    body: Bytes
    properties: Properties = Properties()


Publishable: TypeAlias = "Bytes | Outgoing | Iterable[Bytes | Outgoing] | pa.RecordBatch | pa.Table"

NAMES = tuple(field.name for field in fields(Properties))


def batches_of(messages: Publishable, properties: Properties) -> Iterator[pa.RecordBatch]:
    """Return what to send; `properties` fill what a message does not say itself. Batches go as they are.

    What cannot be sent raises here, before anything is; of an iterator, which may have no end, piece by piece.
    """
    if isinstance(messages, pa.Table | pa.RecordBatch):
        for name in NAMES:
            if getattr(properties, name) is not None:
                raise TypeError(f"{name}= goes with single messages; give the table a column {name!r}")
        return iter(messages.to_batches(BATCH_ROWS_MAX) if isinstance(messages, pa.Table) else [messages])
    if isinstance(messages, bytes | bytearray | memoryview | str | Outgoing):
        return iter([_batch([messages], properties)])
    if isinstance(messages, Mapping) or not isinstance(messages, Iterable):
        raise TypeError(f"messages is {_what(messages)}; {_BODY}, or a list of those{_json(messages)}")
    pieces = _pieces(cast("Iterable[Bytes | Outgoing]", messages), properties)
    return iter(list(pieces)) if isinstance(messages, Sequence) else pieces


def _pieces(messages: Iterable[Bytes | Outgoing], properties: Properties) -> Iterator[pa.RecordBatch]:
    first, some = 0, []
    for message in messages:
        some.append(message)
        if len(some) == BATCH_ROWS_MAX:
            yield _batch(some, properties, first)
            first, some = first + len(some), []
    if some:
        yield _batch(some, properties, first)


def check(message: Outgoing) -> None:
    """Raise what is wrong with one message."""
    _bodies([message], None)
    for name in NAMES:
        value = getattr(message.properties, name)
        if value is not None:
            _value(name, name, value, 0)


def _batch(messages: list[Bytes | Outgoing], properties: Properties, first: int | None = None) -> pa.RecordBatch:
    """Return messages as columns; `first` is the row of the first one, None if it is the only one."""
    whole = [message if isinstance(message, Outgoing) else Outgoing(message) for message in messages]
    columns = {"body": pa.array(_bodies(whole, first), pa.binary())}
    now_ns = time_ns()
    for name in NAMES:
        common = getattr(properties, name)
        common = None if common is None else _value(name, name, common, now_ns)
        own = [getattr(message.properties, name) for message in whole]
        values = [
            common if value is None else _value(name, _where(name, first, row), value, now_ns)
            for row, value in enumerate(own)
        ]
        if any(value is not None for value in values):
            columns[name] = pa.array(values, COLUMNS[name])
    return pa.record_batch(columns)


def _bodies(messages: list[Outgoing], first: int | None) -> list[bytes]:
    bodies = []
    for row, message in enumerate(messages):
        body = message.body
        if not isinstance(body, bytes | bytearray | memoryview | str):
            raise TypeError(f"{_where('the body', first, row)} is {_what(body)}; {_BODY}{_json(body)}")
        try:
            bodies.append(_bytes(body))
        except UnicodeEncodeError as error:
            raise _no_utf8(_where("the body", first, row), error) from None
    return bodies


def _where(name: str, first: int | None, row: int) -> str:
    return name if first is None else f"{name} of row {first + row}"


def _what(value: object) -> str:
    shown = repr(value)
    kind = type(value).__name__
    article = "an" if kind[0] in "aeiou" else "a"
    return "None" if value is None else f"{article} {kind}, {shown if len(shown) < 60 else shown[:56] + ' ...'}"


def _json(value: object) -> str:
    return "; json.dumps(...) makes it one" if isinstance(value, Mapping | list | tuple | int | float) else ""


_BODY = "a message is bytes or str"


def _no_utf8(where: str, error: UnicodeEncodeError) -> ValueError:
    wrong = error.object[error.start]
    return ValueError(
        f"{where} holds {wrong!r} at {error.start}, half a character, which UTF-8 does not have; pass bytes"
    )


def _value(name: str, where: str, value: Any, now_ns: int) -> int | str | bytes | None:
    """Return a value as its column holds it; `where` names it in errors."""
    match KINDS[name]:
        case "time":
            return moment_ns(value, now_ns, where)
        case "bits":
            bits = _number(where, value, -(1 << 63), (1 << 64) - 1)
            return bits - (1 << 64) if bits >> 63 == 1 else bits
        case "bucket":
            return _number(where, value, 0, BUCKET_MAX)
        case "number":
            return _number(where, value, -(1 << 63), (1 << 63) - 1)
        case "text":
            if not isinstance(value, str):
                raise TypeError(f"{where} is {_what(value)}; it takes a str")
            _utf8(where, value)
            return str(value)
        case "json" if isinstance(value, Mapping):
            return _headers(where, value)
    if not isinstance(value, bytes | bytearray | memoryview | str):
        takes = "a mapping, or JSON as bytes or str" if name == "headers" else "bytes or str"
        raise TypeError(f"{where} is {_what(value)}; it takes {takes}")
    return _utf8(where, value) if isinstance(value, str) else bytes(value)


def _number(where: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{where} is {_what(value)}; it takes an int")
    if not least <= value <= most:
        raise ValueError(f"{where} is {value}; it goes from {least} to {most}")
    return value


def _headers(where: str, headers: Mapping[str, Any]) -> bytes:
    for name in headers:
        if not isinstance(name, str):
            raise TypeError(f"{where} has a name that is {_what(name)}; names are str")
    try:
        text = json.dumps(dict(headers), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{where} is no JSON: {error}") from None
    return _utf8(where, text)


def _utf8(where: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _no_utf8(where, error) from None


def moment_ns(value: object, now_ns: int, where: str) -> int:
    """Return a moment as nanoseconds since 1970."""
    if isinstance(value, timedelta):
        return now_ns + _nanoseconds(value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{where} {value} has no time zone; write datetime(..., tzinfo=UTC)")
        return _nanoseconds(value - EPOCH)
    if isinstance(value, str):
        try:
            return moment(value, now_ns, where)
        except Refusal as refusal:
            raise ValueError(str(refusal)) from None
    if not isinstance(value, int) or isinstance(value, bool):
        takes = 'a str like "30s", an aware datetime, a timedelta from now, or an int of nanoseconds since 1970'
        raise TypeError(f"{where} is {_what(value)}; it takes {takes}")
    return value


def _nanoseconds(span: timedelta) -> int:
    return (span.days * 86_400 + span.seconds) * 1_000_000_000 + span.microseconds * 1000


def _bytes(value: Bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
