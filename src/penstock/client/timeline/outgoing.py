"""What a producer gives to a timeline, as columns. Owns which Python values are taken; knows nothing of connections."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from time import time_ns
from typing import TypeAlias

import pyarrow as pa

from penstock.client.outgoing import Bytes, Moment, moment_ns
from penstock.client.timeline.wire import CREATED
from penstock.errors import ConfigError
from penstock.units.quantity import parse_duration

MILLISECOND_NS = 1_000_000
ID_BYTES_MAX = 128
TIME_MS_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One message for a timeline."""

    body: Bytes
    #: When it is due; at once, if nobody says.
    due: Moment | None = None
    #: Unique in its topic; made here, if nobody says.
    message_id: Bytes | None = None


Schedulable: TypeAlias = "Bytes | Scheduled | Iterable[Bytes | Scheduled]"


@dataclass(slots=True)
class Row:
    """A message as it is sent."""

    message_id: bytes
    #: Since 1970, or from now on.
    due_ms: int
    relative: bool
    body: bytes


def rows_of(messages: Schedulable, due: Moment | None) -> list[Row]:
    """Return what to send; `due` is for those that do not say. What cannot be sent raises before anything is."""
    if isinstance(messages, bytes | bytearray | memoryview | str | Scheduled):
        return [_row(messages, due, None)]
    if isinstance(messages, Mapping) or not isinstance(messages, Iterable):
        raise TypeError(f"messages is {_what(messages)}; it takes bytes, a str, a Scheduled, or a list of those")
    return [_row(each, due, row) for row, each in enumerate(messages)]


def _row(message: Bytes | Scheduled, due: Moment | None, row: int | None) -> Row:
    whole = message if isinstance(message, Scheduled) else Scheduled(message)
    if not isinstance(whole.body, bytes | bytearray | memoryview | str):
        raise TypeError(f"{_where('the body', row)} is {_what(whole.body)}; it takes bytes or str")
    body = whole.body.encode() if isinstance(whole.body, str) else bytes(whole.body)
    when = whole.due if whole.due is not None else due
    due_ms, relative = time_of(when, _where("due", row)) if when is not None else (0, True)
    return Row(message_id_of(whole.message_id, row), due_ms, relative, body)


def message_id_of(given: Bytes | None, row: int | None = None) -> bytes:
    """Return an id as it is sent; one is made where none is given."""
    if given is None:
        return uuid.uuid4().hex.encode()
    where = _where("message_id", row)
    if not isinstance(given, bytes | bytearray | memoryview | str):
        raise TypeError(f"{where} is {_what(given)}; it takes bytes or str")
    found = given.encode() if isinstance(given, str) else bytes(given)
    if not 0 < len(found) <= ID_BYTES_MAX:
        raise ValueError(f"{where} has {len(found)} bytes; it takes 1 to {ID_BYTES_MAX}")
    return found


def time_of(value: Moment, where: str) -> tuple[int, bool]:
    """Return milliseconds, and whether they count from now on, by the clock of the node: `5s`, a timedelta."""
    if isinstance(value, timedelta):
        return _from_now(where, round(value.total_seconds() * 1000))
    if isinstance(value, str):
        try:
            return _from_now(where, parse_duration(value.strip().removeprefix("+")) // MILLISECOND_NS)
        except ConfigError:
            pass  # a time then, or nothing
    time_ms = moment_ns(value, time_ns(), where) // MILLISECOND_NS
    if not 0 <= time_ms <= TIME_MS_MAX:
        raise ValueError(f"{where} is {value!r}, before 1970")
    return time_ms, False


def _from_now(where: str, span_ms: int) -> tuple[int, bool]:
    if span_ms < 0:
        raise ValueError(f"{where} lies {-span_ms} ms back; say a time, or leave it out for at once")
    return span_ms, True


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    """Return rows as the columns of CREATED."""
    return pa.record_batch(
        [
            pa.array([row.message_id for row in rows], pa.binary()),
            pa.array([row.due_ms for row in rows], pa.uint64()),
            pa.array([row.body for row in rows], pa.binary()),
        ],
        schema=CREATED,
    )


def _where(name: str, row: int | None) -> str:
    return name if row is None else f"{name} of row {row}"


def _what(value: object) -> str:
    shown = repr(value)
    kind = type(value).__name__
    article = "an" if kind[0] in "aeiou" else "a"
    return "None" if value is None else f"{article} {kind}, {shown if len(shown) < 60 else shown[:56] + ' ...'}"
