"""A producer of M3Msg that does what it is told, right or wrong: messages out, acks in."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable
from typing import Self

from penstock.m3 import messages
from penstock.m3.acks import AckReader
from penstock.m3.entries import Metadata
from penstock.m3.metrics import Metric, encode
from penstock.m3.policies import storage_policy
from tests.served import PATIENCE_S, Served

SENT = 1_700_000_000_000_000_000
POLICY = storage_policy("10s:2d")


def metric(id_: bytes = b"foo", traffic: int = 5, value: float = 42.5) -> bytes:
    """Return an aggregated metric."""
    return encode(Metric(id_, "", 1_700_000_010 * 10**9, (value,), (POLICY,), traffic))


class Producer:
    """One connection."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        plain = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.sock = context.wrap_socket(plain, server_hostname="localhost") if context is not None else plain
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = AckReader()
        self.acked: list[Metadata] = []
        #: How many entries came with each read.
        self.reads: list[bytes] = []
        self._next = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, *values: bytes, shard: int = 5) -> list[Metadata]:
        """Send values as messages, and return what names them."""
        names = [Metadata(shard, self._next + place, SENT + place) for place in range(len(values))]
        self._next += len(values)
        self.say(b"".join(messages.encoded(name, value) for name, value in zip(names, values, strict=True)))
        return names

    def say(self, data: bytes) -> None:
        """Send bytes, whatever they are."""
        self.sock.sendall(data)

    def hear(self) -> bool:
        """Read once; False at the end."""
        try:
            data = self.sock.recv(1 << 20)
        except ConnectionError:
            data = b""
        if data:
            self.reads.append(data)
        found = self._reader.feed(data)
        assert not self._reader.frames.fault
        if found is not None:
            self.acked += [Metadata(*map(int, row)) for row in zip(*found, strict=True)]
        return bool(data)

    def until_acked(self, count: int) -> list[Metadata]:
        """Read until so many messages are acked, and return what names them, in order."""
        while len(self.acked) < count and self.hear():
            pass
        return self.acked

    def until_end(self) -> list[Metadata]:
        """Read until the node hangs up."""
        while self.hear():
            pass
        return self.acked

    def reset(self) -> None:
        """End it without a word."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def stored(served: Served, topic: str = "aggregated_metrics") -> list[tuple[bytes, dict[str, object]]]:
    """Return the bodies of a topic with their columns, in order."""

    def look() -> list[tuple[bytes, dict[str, object]]]:
        found: list[tuple[bytes, dict[str, object]]] = []
        for shard in served.node.topic(topic).shards if topic in served.node.topics else ():
            at = shard.start
            while (batch := shard.read(at)) is not None:
                found += [
                    (batch.row_body(row), {name: batch.row_value(name, row) for name in batch.columns})
                    for row in range(batch.count)
                ]
                at = batch.end
        return found

    return served.do(look)


def published(served: Served, topic: str = "aggregated_metrics") -> int:
    """Return how many messages a topic has stored; in the node's thread."""
    found = served.node.topics.get(topic)
    return found.intake.published if found is not None else 0


def bodies(rows: Iterable[tuple[bytes, dict[str, object]]]) -> list[bytes]:
    """Return bodies alone."""
    return [body for body, _ in rows]
