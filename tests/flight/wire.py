"""A gRPC client by hand, for what no library sends: HTTP/2 frames over a socket, one call, a part of its message.

Nothing is compressed and nothing is kept of what comes but how much may still be sent.
"""

from __future__ import annotations

import socket
import struct
from typing import Self

from tests.served import PATIENCE_S

_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW = 0, 1, 4, 6, 8
_ACK, _END_HEADERS = 1, 4
#: What may be sent before anybody allows more, and in one frame.
_WINDOW_BYTES, _FRAME_BYTES = 65_535, 16_384


class Call:
    """A call whose message never comes whole."""

    def __init__(self, port: int, method: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._held = b""
        self._windows = {0: _WINDOW_BYTES, 1: _WINDOW_BYTES}
        self._first = _WINDOW_BYTES
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": f"/arrow.flight.protocol.FlightService/{method}",
            ":authority": "localhost",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        block = b"".join(b"\x00%b%b" % (_text(name), _text(value)) for name, value in headers.items())
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._frame(_SETTINGS, 0, 0, b"")
        self._frame(_HEADERS, _END_HEADERS, 1, block)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def say(self, size: int) -> None:
        """Say how large the message is."""
        self._data(b"\x00" + struct.pack(">I", size))

    def send(self, size: int) -> int:
        """Send so much of it, or as much as is taken before the other side hangs up; return how much that was."""
        sent, zeros = 0, bytes(_FRAME_BYTES)
        try:
            while sent < size:
                room = min(*self._windows.values(), size - sent, _FRAME_BYTES)
                if room <= 0:
                    self._hear()
                    continue
                self._data(zeros[:room])
                sent += room
        except OSError:
            pass
        return sent

    def is_hung_up(self) -> bool:
        """Wait until the other side hangs up."""
        try:
            while True:
                self._hear()
        except TimeoutError:
            return False
        except OSError:
            return True

    def _data(self, data: bytes) -> None:
        for stream in self._windows:
            self._windows[stream] -= len(data)
        self._frame(_DATA, 0, 1, data)

    def _frame(self, kind: int, flags: int, stream: int, data: bytes) -> None:
        self._socket.sendall(struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data)

    def _hear(self) -> None:
        """Take what the other side says."""
        read = self._socket.recv(65_536)
        if not read:
            raise ConnectionResetError
        self._held += read
        while len(self._held) >= 9:
            size = int.from_bytes(self._held[:3], "big")
            if len(self._held) < 9 + size:
                return
            kind, flags, stream = self._held[3], self._held[4], int.from_bytes(self._held[5:9], "big")
            content, self._held = self._held[9 : 9 + size], self._held[9 + size :]
            if kind == _WINDOW and stream in self._windows:
                self._windows[stream] += int.from_bytes(content, "big")
            elif kind == _SETTINGS and not flags & _ACK:
                for number, value in struct.iter_unpack(">HI", content):
                    if number == 4:
                        self._windows[1] += value - self._first
                        self._first = value
                self._frame(_SETTINGS, _ACK, 0, b"")
            elif kind == _PING and not flags & _ACK:
                self._frame(_PING, _ACK, 0, content)


def _text(text: str) -> bytes:
    """Return text as HPACK has it, plain."""
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()
