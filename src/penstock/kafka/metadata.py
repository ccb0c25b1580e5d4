"""Metadata: which brokers there are, and who leads which partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.kafka.exchange import Api, is_flexible
from penstock.kafka.wire import Reader, Writer

_NO_ID = bytes(16)


class Broker(NamedTuple):
    """Where a broker is."""

    id: int
    host: str
    port: int


class Partition(NamedTuple):
    """One partition; its leader is -1 where nobody leads it."""

    id: int
    leader: int
    error: int


class Topic(NamedTuple):
    """One topic, or why it is not there."""

    name: str
    error: int
    partitions: tuple[Partition, ...]


class Metadata(NamedTuple):
    """What a broker said, in its order and with all it said twice."""

    brokers: tuple[Broker, ...]
    topics: tuple[Topic, ...]
    cluster: str | None = None
    #: Which broker has the say over topics; -1 where nobody has.
    controller: int = -1
    throttle_ms: int = 0


def request(version: int, topics: Sequence[str] | None, *, autocreate: bool = False) -> bytes:
    """Return the question for some topics, or all (None); brokers that may do so make those that they lack."""
    out = Writer(is_flexible(Api.METADATA, version))
    out.count(None if topics is None else len(topics))
    for topic in topics or ():
        if version >= 10:
            out.raw(_NO_ID)
        out.string(topic)
        out.tags()
    out.int8(autocreate)
    if 8 <= version <= 10:
        out.int8(0)  # what one may do with the cluster is not asked
    if version >= 8:
        out.int8(0)
    out.tags()
    return out.done()


def answer(reader: Reader, version: int) -> Metadata:
    """Return what a broker says; BadAnswer where it is none."""
    throttle_ms = reader.int32()
    brokers = tuple(_broker(reader) for _ in range(reader.count(11)))
    cluster = reader.string()
    controller = reader.int32()
    topics = tuple(_topic(reader, version) for _ in range(reader.count(8)))
    if 8 <= version <= 10:
        reader.int32()
    reader.tags()
    reader.end()
    return Metadata(brokers, topics, cluster, controller, throttle_ms)


def _broker(reader: Reader) -> Broker:
    broker = Broker(reader.int32(), reader.text(), reader.int32())
    reader.string()  # its rack
    reader.tags()
    return broker


def _topic(reader: Reader, version: int) -> Topic:
    error = reader.int16()
    name = reader.string()
    if version >= 10:
        reader.skip(16)
    reader.boolean()  # one of Kafka's own
    partitions = tuple(_partition(reader, version) for _ in range(reader.count(16)))
    if version >= 8:
        reader.int32()
    reader.tags()
    return Topic(name or "", error, partitions)


def _partition(reader: Reader, version: int) -> Partition:
    error, number, leader = reader.int16(), reader.int32(), reader.int32()
    if version >= 7:
        reader.int32()  # the leader's epoch
    reader.int32s()  # replicas
    reader.int32s()  # those in sync
    if version >= 5:
        reader.int32s()  # those that are away
    reader.tags()
    return Partition(number, leader, error)
