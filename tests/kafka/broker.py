"""A broker of bytes: it speaks the oldest versions that are understood here, and misbehaves as a test says."""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections import deque
from collections.abc import Callable
from struct import pack, unpack_from
from typing import cast

from penstock.clock import MILLISECOND, Clock
from penstock.kafka.compression import NUMBERS, CodecName
from penstock.kafka.exchange import Api
from penstock.wire.tls import Tls

#: What it understands: one old version of each, without compact forms.
VERSIONS = {Api.PRODUCE: 3, Api.METADATA: 4, Api.INIT_PRODUCER_ID: 0, Api.API_VERSIONS: 0}
#: And where it lets nobody in who does not say a password.
LOGIN_VERSIONS = {Api.SASL_HANDSHAKE: 1, Api.SASL_AUTHENTICATE: 1}

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

    def __init__(self, port: int, topic: str, clock: Clock, host: str = "10.0.0.1") -> None:
        self.host = host
        self.port = port
        self.topic = topic
        self.clock = clock
        #: What one has to say to it by PLAIN, empty = nothing; and for how long that holds, 0 = for ever.
        self.said = b""
        self.lifetime_ms = 0
        #: Who it is, where it speaks TLS, and what becomes of the first it says of keys.
        self.tls: ssl.SSLContext | None = None
        self.greetings: deque[Fault] = deque()
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

    @property
    def versions(self) -> dict[Api, int]:
        """What it understands."""
        return VERSIONS | LOGIN_VERSIONS if self.said else VERSIONS

    def answer(self, data: bytes, session: Session) -> bytes | None:
        """Return the answer to a question, whole; None where the connection is to be cut."""
        read = Read(data)
        api, version, number = Api(read.number(">h")), read.number(">h"), read.number(">i")
        read.piece(read.number(">h"))
        known = self.versions[api] == version
        if self.said and not session.allows(api):
            return None
        if api is Api.SASL_AUTHENTICATE:
            assert data.endswith(self.said)
            session.let_in(self.lifetime_ms)
        body = pack(">h", 35) if not known else getattr(self, f"_{api.name.lower()}")(read)
        if api is Api.API_VERSIONS and not known:
            body += pack(">i", 0)
        whole = pack(">ii", 4 + len(body), number) + body
        faults = self.faults[api]
        return faults.popleft()(whole) if known and faults else whole

    def _api_versions(self, _: Read) -> bytes:
        pairs = b"".join(pack(">hhh", api, version, version) for api, version in self.versions.items())
        return pack(">hi", 0, len(self.versions)) + pairs

    def _sasl_handshake(self, _: Read) -> bytes:
        return pack(">hi", 0, 1) + text("PLAIN")

    def _sasl_authenticate(self, _: Read) -> bytes:
        return pack(">hhiq", 0, -1, 0, self.lifetime_ms)

    def _metadata(self, _: Read) -> bytes:
        brokers = pack(">ii", 1, 1) + text(self.host) + pack(">ih", self.port, -1)
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
        self._tls = Tls(broker.tls) if broker.tls is not None else None
        self._data = b""
        self._transport: asyncio.Transport
        #: Until when it may ask; None = it has to log in first.
        self._until_ns: int | None = None
        #: A login has begun: nothing else may be asked before its end.
        self._is_at_login = False

    def allows(self, api: Api) -> bool:
        """Tell whether this may be asked now."""
        if api in LOGIN_VERSIONS:
            allowed = self._is_at_login == (api is Api.SASL_AUTHENTICATE)
            self._is_at_login = api is Api.SASL_HANDSHAKE
            return allowed
        if api is Api.API_VERSIONS:
            return True
        return not self._is_at_login and self._until_ns is not None and self._broker.clock.monotonic() < self._until_ns

    def let_in(self, lifetime_ms: int) -> None:
        """Let it ask for so long; 0 = for ever."""
        self._until_ns = self._broker.clock.monotonic() + (lifetime_ms or 1 << 40) * MILLISECOND

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._broker.sessions += 1

    def _agreed(self, tls: Tls, data: bytes) -> bytes:
        """Agree on keys, or decrypt."""
        if not tls.done:
            said: bytes | None = tls.handshake(data)
            if said and self._broker.greetings:
                said = self._broker.greetings.popleft()(said)
            if said is None:
                self._transport.close()
            else:
                self._transport.write(said)
            data = b""  # some may have come behind the handshake
        return tls.receive(data)

    def data_received(self, data: bytes) -> None:
        self._data += data if self._tls is None else self._agreed(self._tls, data)
        while len(self._data) >= 4:
            (size,) = unpack_from(">i", self._data)
            if len(self._data) < 4 + size:
                return
            question, self._data = self._data[4 : 4 + size], self._data[4 + size :]
            answer = self._broker.answer(question, self)
            if answer is None:
                self._transport.close()
                return
            self._transport.write(answer if self._tls is None else self._tls.send(answer))
