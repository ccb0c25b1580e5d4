"""Records of Kafka's as rows: whole lists of them become columns.

Owns what of a record goes into which column. Knows nothing of the loop, of topics of the node, or of who reads.
Headers are a JSON object: a value that is text is that text; one that is not is {"type": "Binary", "value": base64}, as
SQS's attributes are; null is null; values of a name that comes several times are a list. A record without a value is an
empty body with the header TOMBSTONE.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from penstock.columns import HEADERS_BYTES_MAX, Column
from penstock.feeds.kafka.positions import PARTITIONS_MAX, sequence_of
from penstock.kafka.headers import TOMBSTONE
from penstock.message import Rows

#: What the rows say of where they came from.
SOURCE = "kafka"
_MILLISECOND_NS = 1_000_000
#: The largest time that fits the column.
_TIME_MS_MAX = ((1 << 63) - 1) // _MILLISECOND_NS

Headers: TypeAlias = Sequence[tuple[str, "str | bytes | None"]]
_encode = msgspec.json.Encoder().encode


class Part(msgspec.Struct, eq=False):
    """Rows that are stored together or not at all, and where their partitions are behind them."""

    shard: int
    rows: Rows
    #: Partition -> offset of the next record.
    positions: dict[int, int]


class Load(msgspec.Struct, eq=False):
    """What was read of one of Kafka's topics at one time."""

    topic: str
    parts: list[Part]
    size_bytes: int
    #: Records that are too long for a message, or whose headers are.
    refused: list[Message]
    skipped: int = 0


class Limits(msgspec.Struct, frozen=True):
    """What becomes of records that are not like others."""

    message_bytes: int
    keep_tombstones: bool = True


def unseen(messages: Sequence[Message], positions: Mapping[int, int]) -> Sequence[Message]:
    """Return those records that are at or behind the positions of their partitions."""
    partitions, offsets = list(map(Message.partition, messages)), list(map(Message.offset, messages))
    firsts = dict(zip(reversed(partitions), reversed(offsets), strict=True))
    if all(_is_due(partition, offset, positions) for partition, offset in firsts.items()):
        return messages
    places = zip(messages, partitions, offsets, strict=True)
    return [message for message, partition, offset in places if _is_due(partition, offset, positions)]


def load_of(topic: str, messages: Sequence[Message], source: bytes, shards: int, limits: Limits) -> Load:
    """Return records of a topic, in their order, as what is to be stored in a topic of so many shards.

    Budget: 1.2 us a record of 100 bytes with a key and no headers.
    """
    sizes = list(map(len, messages))
    load = Load(topic, [], sum(sizes), [])
    for shard, some in _by_shard(messages, shards):
        partitions, offsets = map(Message.partition, some), map(Message.offset, some)
        positions = {partition: offset + 1 for partition, offset in dict(zip(partitions, offsets, strict=True)).items()}  # type: ignore[operator]
        taken = _taken(some, load, limits, max(sizes, default=0))
        rows = _rows(taken)
        rows.sequence = sequence_of(source, positions)  # type: ignore[arg-type]
        load.parts.append(Part(shard, rows, positions))  # type: ignore[arg-type]
    return load


def _is_due(partition: int | None, offset: int | None, positions: Mapping[int, int]) -> bool:
    least = positions.get(partition or 0)
    return least is not None and (offset or 0) >= least


def _by_shard(messages: Sequence[Message], shards: int) -> list[tuple[int, Sequence[Message]]]:
    """Return the records of each shard; a partition has one, so its order stays."""
    partitions = [partition or 0 for partition in map(Message.partition, messages)]
    distinct = set(partitions)
    if len(distinct) <= 1 or (shards == 1 and len(distinct) <= PARTITIONS_MAX):
        return [(partitions[0] % shards, messages)] if messages else []
    groups: dict[tuple[int, int], list[Message]] = {}
    for message, partition in zip(messages, partitions, strict=True):
        groups.setdefault((partition % shards, partition // shards // PARTITIONS_MAX), []).append(message)
    return [(shard, some) for (shard, _), some in groups.items()]


def _taken(messages: Sequence[Message], load: Load, limits: Limits, largest: int) -> Sequence[Message]:
    """Return the records that messages are made of."""
    if largest > limits.message_bytes:
        load.refused += [message for message in messages if len(message) > limits.message_bytes]
        messages = [message for message in messages if len(message) <= limits.message_bytes]
    if not limits.keep_tombstones:
        kept = [message for message in messages if message.value() is not None]
        load.skipped += len(messages) - len(kept)
        messages = kept
    if any(map(Message.headers, messages)):
        long = {id(each) for each in messages if len(headers_of(each) or b"") > HEADERS_BYTES_MAX}
        if long:
            load.refused += [message for message in messages if id(message) in long]
            messages = [message for message in messages if id(message) not in long]
    return messages


def _rows(messages: Sequence[Message]) -> Rows:
    bodies = list(map(Message.value, messages))
    columns: dict[str, Column] = {}
    keys = list(map(Message.key, messages))
    if keys.count(None) < len(keys):
        columns["key"] = keys
    times = [
        time * _MILLISECOND_NS if kind != TIMESTAMP_NOT_AVAILABLE and 0 <= time <= _TIME_MS_MAX else None
        for kind, time in map(Message.timestamp, messages)
    ]
    if times.count(None) < len(times):
        columns["event_time"] = times
    if None in bodies or any(map(Message.headers, messages)):
        headers = [headers_of(message) for message in messages]
        columns["headers"] = headers
        bodies = [body or b"" for body in bodies]
    return Rows.of(bodies, SOURCE, columns)  # type: ignore[arg-type]


def headers_of(message: Message) -> bytes | None:
    """Return what the column has for a record; None where there is nothing to say."""
    given: Headers = message.headers() or ()  # type: ignore[assignment]
    is_tombstone = message.value() is None
    if not given and not is_tombstone:
        return None
    found: dict[str, object] = {}
    for name, value in given:
        shown = _shown(value)
        if name in found:
            before = found[name]
            found[name] = [*before, shown] if isinstance(before, list) else [before, shown]
        else:
            found[name] = shown
    if is_tombstone:
        found[TOMBSTONE] = "true"
    return _encode(found)


def _shown(value: str | bytes | None) -> object:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"type": "Binary", "value": b64encode(value).decode("ascii")}
