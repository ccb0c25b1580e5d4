"""A sender: hands messages to the node on this machine, and never hears back.

A datagram is taken whole or not at all, and needs no connection: a node that was started again is found again. Over
a stream or TCP the connection is made with the first message, and made again after a failure, once for a message.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Literal, Self, TypeAlias

from penstock.dory.message import encode

Transport: TypeAlias = Literal["datagram", "stream", "tcp"]

#: How long a node that does not take anything is waited for.
TIMEOUT_S = 10.0
#: What a datagram needs beside its own bytes in the buffer it is sent from.
_SPARE_BYTES = 1024


class Sender:
    """Sends messages over one socket; not for several threads at once.

    ConnectionError or OSError where nobody listens, TimeoutError where it takes nothing for so long.
    """

    def __init__(
        self, place: str | int, transport: Transport = "datagram", *, timeout_s: float | None = TIMEOUT_S
    ) -> None:
        """Take the path of a UNIX socket, or the port of TCP on this machine."""
        self._address: str | tuple[str, int] = ("127.0.0.1", int(place)) if transport == "tcp" else str(place)
        self._transport = transport
        self._timeout_s = timeout_s
        self._sock: socket.socket | None = None
        self._buffer_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(
        self,
        topic: bytes | str,
        value: bytes,
        key: bytes = b"",
        *,
        partition_key: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Send one message."""
        self.send_encoded(encode(topic, value, key, partition_key=partition_key, timestamp_ms=timestamp_ms))

    def send_encoded(self, wire: bytes) -> None:
        """Send what `encode` made: one message, and over a stream or TCP any number back to back."""
        fresh = self._sock is None
        try:
            self._put(wire)
        except BlockingIOError:
            self.close()
            raise TimeoutError(f"{self._address} took nothing for {self._timeout_s} s") from None
        except OSError:
            self.close()
            if fresh:
                raise
            # The node was started again meanwhile. What it had not read of the old connection is lost with it.
            self._put(wire)

    def close(self) -> None:
        """Hang up; what was sent arrives."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
            self._buffer_bytes = 0

    def _put(self, wire: bytes) -> None:
        sock = self._sock or self._connect()
        if self._transport == "datagram":
            if len(wire) + _SPARE_BYTES > self._buffer_bytes:
                self._make_room(sock, len(wire) + _SPARE_BYTES)
            sock.send(wire)
        else:
            sock.sendall(wire)

    def _connect(self) -> socket.socket:
        family = socket.AF_INET if self._transport == "tcp" else socket.AF_UNIX
        kind = socket.SOCK_DGRAM if self._transport == "datagram" else socket.SOCK_STREAM
        sock = socket.socket(family, kind)
        try:
            # The kernel's own timeout: Python's would ask it before every message whether there is room.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(self._timeout_s))
            sock.connect(self._address)
        except BaseException:
            sock.close()
            raise
        self._sock = sock
        self._buffer_bytes = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        return sock

    def _make_room(self, sock: socket.socket, size: int) -> None:
        """Ask for a buffer that holds one large datagram; the system may not give as much."""
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        self._buffer_bytes = max(size, sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))


def _timeval(seconds: float | None) -> bytes:
    """Return struct timeval; zero is for ever."""
    whole, part = divmod(seconds or 0.0, 1)
    return struct.pack("@ll", int(whole), int(part * 1_000_000))
