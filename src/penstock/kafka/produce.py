"""Produce: record batches of several partitions in one request, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.columns import Buffer
from penstock.kafka.exchange import Api, is_flexible
from penstock.kafka.wire import Reader, Writer

#: An answer when all replicas in sync have it; when the leader has it; never.
ACKS_ALL, ACKS_LEADER, ACKS_NONE = -1, 1, 0


class Part(NamedTuple):
    """What goes to one partition: one record batch, in pieces."""

    topic: str
    partition: int
    batch: Sequence[Buffer]


class BadRecord(NamedTuple):
    """Why a broker refused a batch: one record of it."""

    row: int
    why: str


class Outcome(NamedTuple):
    """What became of one partition's batch."""

    topic: str
    partition: int
    error: int
    #: The offset of its first record; -1 where it has none.
    offset: int = -1
    #: When the broker stored it, if it and not the producer says so; else -1.
    stored_ms: int = -1
    #: Which records were why it was refused, and in words.
    bad: tuple[BadRecord, ...] = ()
    why: str = ""


class Produced(NamedTuple):
    """What became of a request."""

    parts: tuple[Outcome, ...]
    #: How long the broker waited with its answer because of a quota.
    throttle_ms: int = 0


def request(version: int, parts: Sequence[Part], acks: int, timeout_ms: int) -> list[Buffer]:
    """Return a request, in pieces; what belongs to one topic must stand together."""
    out = Writer(is_flexible(Api.PRODUCE, version))
    body: list[Buffer] = []
    out.string(None)  # no transaction
    out.int16(acks)
    out.int32(timeout_ms)
    topics: list[list[Part]] = []
    for part in parts:
        if not topics or topics[-1][0].topic != part.topic:
            topics.append([])
        topics[-1].append(part)
    out.count(len(topics))
    for topic in topics:
        out.string(topic[0].topic)
        out.count(len(topic))
        for part in topic:
            out.int32(part.partition)
            out.size(sum([len(piece) for piece in part.batch]))
            body.append(out.done())
            body += part.batch
            out.tags()
        out.tags()
    out.tags()
    body.append(out.done())
    return body


def answer(reader: Reader, version: int) -> Produced:
    """Return what became of each partition; BadAnswer where it is no answer."""
    found: list[Outcome] = []
    for _ in range(reader.count(3)):
        topic = reader.text()
        found.extend(_outcome(reader, topic, version) for _ in range(reader.count(22)))
        reader.tags()
    throttle_ms = reader.int32()
    reader.tags()
    reader.end()
    return Produced(tuple(found), throttle_ms)


def _outcome(reader: Reader, topic: str, version: int) -> Outcome:
    partition, error = reader.int32(), reader.int16()
    offset, stored_ms = reader.int64(), reader.int64()
    if version >= 5:
        reader.int64()  # where its log begins
    bad: list[BadRecord] = []
    why = ""
    if version >= 8:
        for _ in range(reader.count(5)):
            bad.append(BadRecord(reader.int32(), reader.string() or ""))
            reader.tags()
        why = reader.string() or ""
    reader.tags()
    return Outcome(topic, partition, error, offset, stored_ms, tuple(bad), why)
