"""The layers of one connection from the moment IDENTIFY granted them: TLS first, then snappy or deflate (spec order).

Bytes in, bytes out: `receive` gives plain bytes for the session and wire bytes to write at once, so the simulation
runs it as the server does.
Invariant: each granted layer is announced by one OK, sent through that layer and before anything else in it.
"""

from __future__ import annotations

import ssl

from penstock.columns import Buffer
from penstock.dialects.nsq.codec import OK
from penstock.wire.layers import Deflate, Layer, LayerError, Snappy, Stack
from penstock.wire.tls import Tls, TlsFacts


class Upgrade:
    """What lies between one socket and its session."""

    __slots__ = ("_compression", "_layers", "_tls")

    def __init__(self, tls: ssl.SSLContext | None, *, snappy: bool = False, deflate_level: int = 0) -> None:
        self._tls = Tls(tls) if tls is not None else None
        self._compression: Layer | None = None
        if snappy:
            self._compression = Snappy()
        elif deflate_level:
            self._compression = Deflate(deflate_level)
        #: None until everything was announced.
        self._layers: Stack | None = None

    @property
    def ready(self) -> bool:
        """Whether plain bytes can be sent."""
        return self._layers is not None

    @property
    def ended(self) -> bool:
        """Whether the peer said that it sends no more."""
        return self._tls is not None and self._tls.ended

    @property
    def pending(self) -> bool:
        """Whether `receive(b"")` may return more."""
        return self._layers is not None and self._layers.pending

    @property
    def facts(self) -> TlsFacts | None:
        """What TLS agreed on, None without TLS."""
        return self._tls.facts if self._tls is not None else None

    @property
    def common_name(self) -> str:
        """The name in the client's certificate."""
        return self._tls.common_name if self._tls is not None and self._tls.done else ""

    def begin(self) -> bytes:
        """Return what to write at once: announcements, unless a handshake comes first."""
        return b"" if self._tls is not None else self._announce()

    def receive(self, data: Buffer) -> tuple[bytes, bytes]:
        """Take bytes of the wire; return plain ones, and others to write as they are. May raise LayerError."""
        if self._layers is not None:
            return self._layers.receive(data), b""
        assert self._tls is not None  # without TLS the layers are there from the beginning
        answer = self._tls.handshake(data)
        if not self._tls.done:
            return b"", answer
        try:
            answer += self._announce()
            return self._stack().receive(b""), answer
        except LayerError as error:
            raise LayerError(str(error), answer + error.last) from None

    def send(self, data: Buffer) -> bytes:
        """Return the wire's bytes for plain ones."""
        return self._stack().send(data)

    def close(self) -> bytes:
        """Return what tells the peer that the end is no accident."""
        return self._tls.close() if self._tls is not None else b""

    def _stack(self) -> Stack:
        assert self._layers is not None  # whoever sends has looked whether it is ready
        return self._layers

    def _announce(self) -> bytes:
        layers: list[Layer] = []
        out = b""
        for layer in (self._tls, self._compression):
            if layer is not None:
                layers.append(layer)
                out += Stack(layers).send(OK)
        self._layers = Stack(layers)
        return out
