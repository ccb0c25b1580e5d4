"""A broker of bytes: it speaks the oldest versions that are understood here, and misbehaves as a test says."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable
from struct import pack, unpack_from
from typing import cast

from penstock.kafka.compression import NUMBERS, CodecName
from penstock.kafka.exchange import Api

#: What it understands: one old version of each, without compact forms.
VERSIONS = {Api.PRODUCE: 3, Api.METADATA: 4, Api.INIT_PRODUCER_ID: 0, Api.API_VERSIONS: 0}

#: What becomes of the answer to one question: it is this instead, or (None) the connection is cut.
Fault = Callable[[bytes], bytes | None]
#: Key and value.
Record = tuple[bytes | None, bytes | None]


def text(value: str) -> bytes:
    return pack(">h", len(value)) + value.encode()


class Read:
    """A question, read from the front."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, form: str) -> int:
        (value,) = unpack_from(form, self.data, self.at)
        self.at += len(pack(form, 0))
        return int(value)

    def piece(self, size: int) -> bytes:
        self.at += max(size, 0)
        return self.data[self.at - max(size, 0) : self.at]

    def cell(self) -> bytes | None:
        """Read a key or a value of a record."""
        size = self.varint()
        return None if size < 0 else self.piece(size)

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)


def records(batch: bytes) -> list[Record]:
    """Return keys and values of a record batch, plain or gzipped."""
    (count,) = unpack_from(">i", batch, 57)
    plain = zlib.decompress(batch[61:], 31) if codec(batch) == "gzip" else batch[61:]
    read, found = Read(plain), list[Record]()
    for _ in range(count):
        end = read.varint()
        end += read.at
        read.at += 1
        read.varint()
        read.varint()
        found.append((read.cell(), read.cell()))
        read.at = end
    return found


def bodies(batch: bytes) -> list[bytes]:
    """Return the values of a record batch."""
    return [value or b"" for _, value in records(batch)]


def codec(batch: bytes) -> CodecName:
    """Return how a record batch is compressed."""
    (attributes,) = unpack_from(">h", batch, 21)
    return next(name for name, number in NUMBERS.items() if number == attributes & 7)


class ByteBroker:
    """One broker, with one topic of one partition, and how it will answer."""

    def __init__(self, port: int, topic: str) -> None:
        self.port = port
        self.topic = topic
        #: The next answers to each question; those behind are as they should be.
        self.faults: dict[Api, deque[Fault]] = {api: deque() for api in Api}
        self.records: list[Record] = []
        #: How each batch was compressed.
        self.codecs: list[CodecName] = []
        self.sessions = 0
        #: The next number of each producer.
        self._numbers: dict[int, int] = {}
        self._producers = 0

    @property
    def stored(self) -> list[bytes]:
        """The values of what it has."""
        return [value or b"" for _, value in self.records]

    def answer(self, data: bytes) -> bytes | None:
        """Return the answer to a question, whole; None where the connection is to be cut."""
        read = Read(data)
        api, version, number = Api(read.number(">h")), read.number(">h"), read.number(">i")
        read.piece(read.number(">h"))
        known = VERSIONS[api] == version
        body = pack(">h", 35) if not known else getattr(self, f"_{api.name.lower()}")(read)
        if api is Api.API_VERSIONS and not known:
            body += pack(">i", 0)
        whole = pack(">ii", 4 + len(body), number) + body
        faults = self.faults[api]
        return faults.popleft()(whole) if known and faults else whole

    def _api_versions(self, _: Read) -> bytes:
        pairs = b"".join(pack(">hhh", api, version, version) for api, version in VERSIONS.items())
        return pack(">hi", 0, len(VERSIONS)) + pairs

    def _metadata(self, _: Read) -> bytes:
        brokers = pack(">ii", 1, 1) + text("10.0.0.1") + pack(">ih", self.port, -1)
        partitions = pack(">ihii", 1, 0, 0, 1) + pack(">iiii", 1, 1, 1, 1)
        topics = pack(">ih", 1, 0) + text(self.topic) + b"\0" + partitions
        return pack(">i", 0) + brokers + pack(">hi", -1, 1) + topics

    def _init_producer_id(self, _: Read) -> bytes:
        self._producers += 1
        return pack(">ihqh", 0, 0, self._producers, 0)

    def _produce(self, read: Read) -> bytes:
        read.number(">h")
        assert read.number(">h") == -1
        read.number(">i")
        assert read.number(">i") == 1
        assert read.piece(read.number(">h")).decode() == self.topic
        assert read.number(">i") == 1
        assert read.number(">i") == 0
        batch = read.piece(read.number(">i"))
        producer, _, first, count = unpack_from(">qhii", batch, 43)
        due = self._numbers.get(producer, 0)
        if first == due:
            self._numbers[producer] = first + count
            self.records += records(batch)
            self.codecs.append(codec(batch))
        error = 0 if first <= due else 45
        return pack(">i", 1) + text(self.topic) + pack(">iihqqi", 1, 0, error, 0, -1, 0)


class Session(asyncio.Protocol):
    """One connection to it."""

    def __init__(self, broker: ByteBroker) -> None:
        self._broker = broker
        self._data = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._broker.sessions += 1

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4:
            (size,) = unpack_from(">i", self._data)
            if len(self._data) < 4 + size:
                return
            question, self._data = self._data[4 : 4 + size], self._data[4 + size :]
            answer = self._broker.answer(question)
            if answer is None:
                self._transport.close()
                return
            self._transport.write(answer)
