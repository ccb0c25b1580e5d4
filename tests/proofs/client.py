"""A small blocking NSQ client on a raw socket, for proofs: it shows every frame and hides nothing.

Invariant: frames are handed out in the order they came, heartbeats answered and left out.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import NamedTuple

RESPONSE, ERROR, MESSAGE = 0, 1, 2

_SIZES = struct.Struct(">II")
_HEAD = struct.Struct(">qH16s")


class Message(NamedTuple):
    """What a message frame holds."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes

    @classmethod
    def read(cls, data: bytes) -> Message:
        """Take a frame apart."""
        timestamp_ns, attempts, id_ = _HEAD.unpack_from(data)
        return cls(timestamp_ns, attempts, id_, data[_HEAD.size :])


class Refused(Exception):
    """The node answered with an error frame."""


class Client:
    """One connection. A connection that ends raises ConnectionError, one that is silent too long TimeoutError."""

    def __init__(self, port: int, timeout_s: float = 30.0, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._in = bytearray()
        self.send(b"  V2")

    def send(self, data: bytes) -> None:
        """Send commands as they are."""
        self.socket.sendall(data)

    def frame(self) -> tuple[int, bytes]:
        """Return the next frame: its type and its data."""
        while (frame := self.ready_frame()) is None:
            self.receive()
        return frame

    def receive(self) -> None:
        """Read once from the socket."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the node closed the connection")
        self._in += data

    def ready_frame(self) -> tuple[int, bytes] | None:
        """Return the next frame if all of it was received."""
        while len(self._in) >= 8:
            size, kind = _SIZES.unpack_from(self._in)
            end = 4 + size
            if len(self._in) < end:
                return None
            data = bytes(self._in[8:end])
            del self._in[:end]
            if data != b"_heartbeat_":
                return kind, data
            self.send(b"NOP\n")
        return None

    def reply(self) -> bytes:
        """Return the next frame, which must be a response."""
        kind, data = self.frame()
        if kind != RESPONSE:
            raise Refused(f"frame of type {kind}: {data[:200]!r}")
        return data

    def command(self, data: bytes) -> None:
        """Send one command and wait for its OK."""
        self.send(data)
        reply = self.reply()
        if reply != b"OK":
            raise Refused(repr(reply))

    def message(self) -> Message:
        """Return the next frame, which must be a message."""
        kind, data = self.frame()
        if kind != MESSAGE:
            raise Refused(f"frame of type {kind}: {data[:200]!r}")
        return Message.read(data)

    def identify(self, **wishes: object) -> None:
        """Agree on what is given."""
        data = json.dumps(wishes).encode()
        self.command(b"IDENTIFY\n" + struct.pack(">I", len(data)) + data)

    def subscribe(self, topic: str, channel: str, ready: int) -> None:
        """Join a channel and ask for messages."""
        self.command(f"SUB {topic} {channel}\n".encode())
        self.send(b"RDY %d\n" % ready)

    def close(self) -> None:
        """Hang up."""
        self.socket.close()


def pub(topic: str, body: bytes) -> bytes:
    """Return the command that publishes one message."""
    return f"PUB {topic}\n".encode() + struct.pack(">I", len(body)) + body


def dpub(topic: str, delay_ms: int, body: bytes) -> bytes:
    """Return the command that publishes one message for later."""
    return f"DPUB {topic} {delay_ms}\n".encode() + struct.pack(">I", len(body)) + body


def mpub(topic: str, bodies: list[bytes]) -> bytes:
    """Return the command that publishes several messages with one answer."""
    items = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    return f"MPUB {topic}\n".encode() + struct.pack(">II", len(items) + 4, len(bodies)) + items


def fin(id_: bytes) -> bytes:
    """Return the command that finishes a message."""
    return b"FIN " + id_ + b"\n"


def req(id_: bytes, delay_ms: int = 0) -> bytes:
    """Return the command that gives a message back."""
    return b"REQ " + id_ + b" %d\n" % delay_ms
