"""Answers as a good broker gives them, and all that reads answers: what is not quite these is what hostile ones say."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial

from penstock.kafka import metadata, produce, producer_id, sasl, versions
from penstock.kafka.exchange import Api, Exchange, is_flexible
from penstock.kafka.wire import BadAnswer, Reader, Writer

#: What reads an answer, one row for each form that it has.
READERS: tuple[tuple[Api, int, Callable[[Reader], object]], ...] = (
    (Api.API_VERSIONS, 0, lambda reader: versions.answer(reader, 0)),
    (Api.API_VERSIONS, 3, lambda reader: versions.answer(reader, 3)),
    *((Api.METADATA, version, partial(metadata.answer, version=version)) for version in (4, 8, 12)),
    *((Api.PRODUCE, version, partial(produce.answer, version=version)) for version in (3, 8, 12)),
    (Api.INIT_PRODUCER_ID, 1, producer_id.answer),
    (Api.INIT_PRODUCER_ID, 5, producer_id.answer),
    (Api.SASL_HANDSHAKE, 1, lambda reader: sasl.handshaken(reader, "PLAIN")),
    (Api.SASL_AUTHENTICATE, 1, lambda reader: sasl.authenticated(reader, 1)),
    (Api.SASL_AUTHENTICATE, 2, lambda reader: sasl.authenticated(reader, 2)),
)


def good(api: Api, version: int) -> bytes:
    """Return a whole answer to the first question of a connection, behind its size."""
    out = Writer(is_flexible(api, version))
    out.int32(1)
    if api is not Api.API_VERSIONS:
        out.tags()
    _BODIES[api](out, version)
    if api is not Api.SASL_HANDSHAKE:
        out.tags()
    return out.done()


def read(choice: int, data: bytes) -> object:
    """Return what one of the readers makes of bytes that came as the answer to its question."""
    api, version, reader = READERS[choice % len(READERS)]
    exchange = Exchange("tests")
    exchange.ask(api, version, [b""])
    found = exchange.feed(struct.pack(">i", len(data)) + data)
    if not found:
        raise BadAnswer(exchange.fault)
    return reader(found[0][1])


def _versions(out: Writer, version: int) -> None:
    out.int16(0)
    out.count(3)
    for api, low, high in ((0, 3, 13), (3, 0, 13), (18, 0, 4)):
        out.int16(api)
        out.int16(low)
        out.int16(high)
        out.tags()
    if version >= 1:
        out.int32(0)


def _metadata(out: Writer, version: int) -> None:
    out.int32(0)
    out.count(2)
    for broker in (1, 2):
        out.int32(broker)
        out.string("127.0.0.1")
        out.int32(9092)
        out.string(None)
        out.tags()
    out.string("a cluster")
    out.int32(1)
    out.count(1)
    out.int16(0)
    out.string("orders")
    if version >= 10:
        out.raw(bytes(16))
    out.int8(0)
    out.count(2)
    for partition in (0, 1):
        out.int16(0)
        out.int32(partition)
        out.int32(1)
        if version >= 7:
            out.int32(0)
        for _ in range(3 if version >= 5 else 2):
            out.count(1)
            out.int32(1)
        out.tags()
    if version >= 8:
        out.int32(0)
    out.tags()
    if 8 <= version <= 10:
        out.int32(0)


def _produce(out: Writer, version: int) -> None:
    out.count(1)
    out.string("orders")
    out.count(1)
    out.int32(0)
    out.int16(87)
    out.int64(-1)
    out.int64(-1)
    if version >= 5:
        out.int64(0)
    if version >= 8:
        out.count(1)
        out.int32(3)
        out.string("no key")
        out.tags()
        out.string("one record is bad")
    out.tags()
    out.tags()
    out.int32(0)


def _producer(out: Writer, _: int) -> None:
    out.int32(0)
    out.int16(0)
    out.int64(4000)
    out.int16(0)


def _handshake(out: Writer, _: int) -> None:
    out.int16(0)
    out.count(1)
    out.string("PLAIN")


def _authenticate(out: Writer, version: int) -> None:
    out.int16(0)
    out.string(None)
    out.data(b"v=abc")
    out.int64(0)


_BODIES: dict[Api, Callable[[Writer, int], None]] = {
    Api.API_VERSIONS: _versions,
    Api.METADATA: _metadata,
    Api.PRODUCE: _produce,
    Api.INIT_PRODUCER_ID: _producer,
    Api.SASL_HANDSHAKE: _handshake,
    Api.SASL_AUTHENTICATE: _authenticate,
}
