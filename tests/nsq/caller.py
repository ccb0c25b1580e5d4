"""An NSQ client on a real socket, which goes through the layers it is granted."""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Any, Self

import msgspec

from penstock.wire.layers import Deflate, Layer, Snappy
from tests.nsq.certificates import certificates
from tests.nsq.parts import sized
from tests.served import PATIENCE_S


class Caller:
    """Blocking, one thing after another."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None, *, magic: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._context = context
        self._layer: Layer | None = None
        self._held = bytearray()
        if magic:
            self.send(b"  V2")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def address(self) -> str:
        host, port = self.socket.getsockname()
        return f"{host}:{port}"

    def send(self, data: bytes) -> None:
        self.socket.sendall(self._layer.send(data) if self._layer is not None else data)

    def frame(self) -> tuple[int, bytes]:
        """Wait for the next frame that is no heartbeat; EOFError once there is none to come."""
        while True:
            size, kind = struct.unpack(">II", self._take(8))
            data = self._take(size - 4)
            if data != b"_heartbeat_":
                return kind, data

    def told(self) -> str:
        """Wait for a response or error."""
        kind, data = self.frame()
        assert kind != 2, data
        return data.decode()

    def identify(self, **asked: Any) -> Any:
        """Identify and take up every granted layer."""
        self.send(b"IDENTIFY\n" + sized(msgspec.json.encode({"feature_negotiation": True, **asked})))
        reply = msgspec.json.decode(self.told())
        if reply["tls_v1"]:
            context = self._context or certificates().client_context()
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
            assert self.told() == "OK"
        if reply["snappy"] or reply["deflate"]:
            self._layer = Snappy() if reply["snappy"] else Deflate()
            self._held = bytearray(self._layer.receive(bytes(self._held)))  # what came with the reply
            assert self.told() == "OK"
        return reply

    def ended(self) -> bool:
        """Wait until the other end has closed; whatever still came is dropped."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionError:
            pass
        return True

    def reset(self) -> None:
        """Go without a word, as a process that died."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _take(self, count: int) -> bytes:
        while len(self._held) < count:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError(bytes(self._held))
            self._held += self._layer.receive(data) if self._layer is not None else data
        taken = bytes(self._held[:count])
        del self._held[:count]
        return taken
