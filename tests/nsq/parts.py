"""NSQ clients against the real connection class, on a clock in your hand and real files."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from penstock.config import Config
from penstock.config.tree import EventsConfig, LimitsConfig, MemoryConfig, NodeConfig
from penstock.dialects.nsq import DIALECT
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.tcp.auth import Ask
from penstock.dialects.nsq.tcp.server import Connection, Server
from penstock.node.node import Node
from penstock.wire.reading import READ_BYTES_MAX
from tests.fakes import FakeClock, FakeDisk

SECOND = 1_000_000_000


class Broker:
    """A node with its NSQ server, and a way to kill it."""

    def __init__(
        self,
        path: Path,
        *,
        ack_flush_ns: int = 0,
        ask: Ask | None = None,
        limits: LimitsConfig | None = None,
        memory: MemoryConfig | None = None,
        **nsq: Any,
    ) -> None:
        self.ask = ask
        self.clock = FakeClock()
        self.disk = FakeDisk(self.clock)
        self.config = Config(
            data_dir=str(path),
            parts=(NsqConfig(**nsq),),
            node=NodeConfig(ack_flush_ns=ack_flush_ns),
            limits=limits or LimitsConfig(),
            memory=memory or MemoryConfig(),
            # A history, and what is counted, make topics of their own.
            events=EventsConfig(mode="off"),
        )
        self.start()

    def start(self) -> None:
        self.node = Node(self.config, self.clock, self.disk, random.Random(1), dialects=[DIALECT])
        self.server = Server(self.node, self.config.of(NsqConfig), self.ask)

    def kill(self) -> None:
        """Die as kill -9 does, and start again on the same files."""
        self.clock._soon.clear()
        self.clock._later.clear()
        self.disk.work.clear()
        self.start()

    def client(self, *, magic: bool = True) -> Client:
        client = Client(self)
        if magic:
            client.send(b"  V2")
        return client

    def advance(self, seconds: float) -> None:
        self.clock.advance(int(seconds * SECOND))


class Client:
    """The far end of a connection; it is also the transport."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.connection: Connection = broker.server.connect()
        self.out = bytearray()
        self.closed = False
        self.connection.connection_made(cast(Any, self))

    # what the connection asks of a transport

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", 5) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.out += memoryview(data)

    def get_write_buffer_size(self) -> int:
        return len(self.out)

    def write_eof(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
        self.broker.clock.call_soon(lambda: self.connection.connection_lost(None))

    # what a test does with it

    def send(self, data: bytes) -> None:
        for at in range(0, len(data), READ_BYTES_MAX):
            self.connection.data_received(data[at : at + READ_BYTES_MAX])
        self.broker.clock.run()

    def frames(self) -> list[tuple[int, bytes]]:
        """Take the frames that have come, heartbeats left out."""
        self.broker.clock.run()
        frames = []
        while len(self.out) >= 8:
            size, kind = struct.unpack_from(">II", self.out)
            assert len(self.out) >= 4 + size
            data = bytes(self.out[8 : 4 + size])
            del self.out[: 4 + size]
            if data != b"_heartbeat_":
                frames.append((kind, data))
        return frames

    def replies(self) -> list[str]:
        """Take responses and errors as text."""
        return [data.decode() for kind, data in self.frames() if kind != 2]

    def extended(self, *, extended: bool = True, detailed: bool = False) -> list[Extended]:
        """Take messages of the extension; nothing else may have come."""
        frames = self.frames()
        assert all(kind == 2 for kind, _ in frames), frames
        return [Extended(data, extended=extended, detailed=detailed) for _, data in frames]

    def messages(self) -> list[Message]:
        """Take messages; nothing else may have come."""
        frames = self.frames()
        assert all(kind == 2 for kind, _ in frames), frames
        return [Message(data) for _, data in frames]

    def identify(self, **body: Any) -> Any:
        data = msgspec.json.encode({"feature_negotiation": True, **body})
        self.send(b"IDENTIFY\n" + struct.pack(">I", len(data)) + data)
        reply = self.replies()[0]
        return msgspec.json.decode(reply) if reply.startswith("{") else reply

    def pub(self, topic: str, *bodies: bytes) -> None:
        self.send(b"".join(pub(topic, body) for body in bodies))

    def mpub(self, topic: str, bodies: list[bytes]) -> None:
        items = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
        self.send(f"MPUB {topic}\n".encode() + struct.pack(">II", len(items) + 4, len(bodies)) + items)

    def sub(self, topic: str, channel: str, rdy: int | None = None) -> None:
        self.send(f"SUB {topic} {channel}\n".encode())
        assert self.replies() == ["OK"]
        if rdy is not None:
            self.send(b"RDY %d\n" % rdy)

    def pub_ext(self, topic: str, header: bytes | dict[str, Any], body: bytes = b"hi") -> list[str]:
        """Publish with a header and return the replies; a traced one begins with OK."""
        self.send(pub_ext(topic, header, body))
        return [data.decode("latin-1") for kind, data in self.frames() if kind != 2]

    def fin(self, *messages: Message) -> None:
        self.send(b"".join(b"FIN " + message.id + b"\n" for message in messages))

    def hang_up(self) -> None:
        self.closed = True
        self.connection.connection_lost(None)
        self.broker.clock.run()


class Message:
    """A message frame taken apart."""

    def __init__(self, data: bytes) -> None:
        self.time_ns, self.attempts = struct.unpack_from(">qH", data)
        self.id = data[10:26]
        self.body = data[26:]


class Extended(Message):
    """A message frame of Youzan's extension taken apart, as its client does it."""

    def __init__(self, data: bytes, *, extended: bool = True, detailed: bool = False) -> None:
        super().__init__(data)
        self.number, self.trace = struct.unpack(">QQ", self.id)
        self.version, self.header = 0, b""
        rest = self.body
        if extended:
            self.version, rest = rest[0], rest[1:]
            if self.version:
                size = int.from_bytes(rest[:2], "big")
                self.header, rest = rest[2 : 2 + size], rest[2 + size :]
        self.queue_offset = self.raw_size = 0
        if detailed:
            self.queue_offset, self.raw_size = struct.unpack_from(">QI", rest)
            rest = rest[12:]
        self.body = rest


def pub(topic: str, body: bytes) -> bytes:
    return f"PUB {topic}\n".encode() + struct.pack(">I", len(body)) + body


def dpub(topic: str, delay_ms: int, body: bytes) -> bytes:
    return f"DPUB {topic} {delay_ms}\n".encode() + struct.pack(">I", len(body)) + body


def pub_ext(topic: str, header: bytes | dict[str, Any], body: bytes) -> bytes:
    """`topic` may be followed by a partition."""
    return f"PUB_EXT {topic}\n".encode() + sized(item(header, body))


def mpub_ext(topic: str, items: Sequence[tuple[bytes | dict[str, Any], bytes]]) -> bytes:
    packed = b"".join(sized(item(header, body)) for header, body in items)
    return f"MPUB_EXT {topic}\n".encode() + sized(struct.pack(">I", len(items)) + packed)


def pub_trace(topic: str, trace: int, body: bytes) -> bytes:
    return f"PUB_TRACE {topic}\n".encode() + sized(struct.pack(">Q", trace) + body)


def mpub_trace(topic: str, items: list[tuple[int, bytes]]) -> bytes:
    packed = b"".join(sized(struct.pack(">Q", trace) + body) for trace, body in items)
    return f"MPUB_TRACE {topic}\n".encode() + sized(struct.pack(">I", len(items)) + packed)


def item(header: bytes | dict[str, Any], body: bytes) -> bytes:
    encoded = header if isinstance(header, bytes) else msgspec.json.encode(header)
    return struct.pack(">H", len(encoded)) + encoded + body


def sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
