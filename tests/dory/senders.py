"""Senders that do what they are told, right or wrong, over every transport; and a node for them."""

from __future__ import annotations

import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from penstock.dialects.dory.config import TCP, DoryConfig
from penstock.dialects.dory.running import Dory
from penstock.dory import encode
from tests.served import PATIENCE_S, Served

TIME_MS = 1_700_000_000_000
M = encode("t", b"hello", timestamp_ms=TIME_MS)


class Sockets:
    """A node with all inputs of Dory's."""

    def __init__(self, served: Served, directory: str) -> None:
        self.served = served
        self.datagram = f"{directory}/dory.socket"
        self.stream = f"{directory}/dory.stream"

    @property
    def running(self) -> Dory:
        running = self.served.node.served["dory"].running
        assert isinstance(running, Dory)
        return running

    def count(self, name: str) -> int:
        """Return a counter."""
        return self.running.counters[name]

    def until(self, name: str, count: int) -> None:
        """Wait until a counter is this, or more."""
        self.served.until(lambda: self.count(name) >= count)

    def thrown(self) -> dict[str, int]:
        """Return what was thrown away so far, by reason."""
        counts = self.served.do(lambda: dict(self.served.node.discards.reports()[0].counts))
        return {reason: count for reason, count in counts.items() if count}

    def until_thrown(self, **wanted: int) -> None:
        """Wait until this was thrown away, and see that it was nothing else."""
        served = self.served
        served.until(lambda: served.node.discards.total() >= sum(wanted.values()))
        assert self.thrown() == wanted

    def until_stored(self, count: int, topic: str = "t") -> list[tuple[bytes, dict[str, object]]]:
        """Wait until a topic has so many rows, and return them with their columns."""
        served = self.served
        served.until(lambda: topic in served.node.topics and served.node.topics[topic].intake.published >= count)
        found = stored(served, topic)
        assert len(found) == count
        return found

    def until_received(self, size: int) -> None:
        """Wait, while the loop stands still, until so many bytes of datagrams are handed over, with room or without."""
        datagrams = self.running._datagrams
        assert datagrams is not None
        end = time.monotonic() + PATIENCE_S
        while datagrams.waiting_bytes + datagrams._spilled - datagrams._told < size:
            assert time.monotonic() < end, "they never came"
            time.sleep(0.001)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Keep the node's loop from everything else for as long."""
        going, blocked = threading.Event(), threading.Event()

        def block() -> None:
            blocked.set()
            going.wait(PATIENCE_S)

        self.served._loop.call_soon_threadsafe(block)
        assert blocked.wait(PATIENCE_S)
        try:
            yield
        finally:
            going.set()

    def open(self, transport: str) -> Line:
        """Connect."""
        if transport == "tcp":
            return Line(socket.create_connection(("127.0.0.1", self.served.ports[TCP]), PATIENCE_S))
        kind, path = (
            (socket.SOCK_DGRAM, self.datagram) if transport == "datagram" else (socket.SOCK_STREAM, self.stream)
        )
        sock = socket.socket(socket.AF_UNIX, kind)
        try:
            # The kernel's timeouts: with Python's, a sender among many never gets its turn.
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(PATIENCE_S), 0))
            sock.connect(path)
        except BaseException:
            sock.close()
            raise
        return Line(sock)


class Line:
    """One sender's socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def say(self, *wires: bytes) -> None:
        """Send bytes; with datagrams, one each."""
        for wire in wires:
            if self.sock.type == socket.SOCK_DGRAM:
                self.sock.send(wire)
            else:
                self.sock.sendall(wire)

    def until_end(self) -> bytes:
        """Read until the node hangs up; return what it said."""
        try:
            return self.sock.recv(1000)
        except ConnectionError:
            return b""

    def is_open(self) -> bool:
        """Tell whether the node has not hung up so far."""
        self.sock.setblocking(False)
        try:
            return bool(self.sock.recv(1))
        except BlockingIOError:
            return True
        finally:
            self.sock.setblocking(True)

    def reset(self) -> None:
        """End it without a word."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


@contextmanager
def dory(path: Path, node: dict[str, Any] | None = None, **chosen: Any) -> Iterator[Sockets]:
    """Run a node with all inputs; the sockets are where their paths are short enough."""
    with tempfile.TemporaryDirectory(prefix="dory-") as directory:
        config = DoryConfig(
            **{
                "unix_datagram_path": f"{directory}/dory.socket",
                "unix_stream_path": f"{directory}/dory.stream",
                "tcp": True,
                "tcp_port": 0,
                "http_port": 0,
                **chosen,
            }
        )
        with Served(path, dory=config, **(node or {})) as served:
            yield Sockets(served, directory)


def stored(served: Served, topic: str) -> list[tuple[bytes, dict[str, object]]]:
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
