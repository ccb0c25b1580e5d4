"""What may lie between a connection's socket and what is said on it: deflate, snappy; TLS is beside, in `tls`.

Owns the encodings, over memory: bytes in, bytes out, so the simulation runs them as a server does. Knows nothing of
sockets, or who asked for what.
Invariant: what one side sends is what the other receives, however the wire cuts it, and no input makes a layer hold
or return more than a fixed amount above what it was given.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol

from cramjam import DecompressionError, snappy
from fastcrc.crc32 import iscsi as crc32c

from penstock.columns import Buffer
from penstock.errors import PenstockError

#: One call of `receive` returns about this much at most: what a 256 KiB read makes at 4:1, so that a compressing
#: client gets no longer a turn of the loop than a plain one, and a bomb (deflate reaches 1000:1) no memory.
RECEIVE_BYTES_MAX = 1024 * 1024

#: The framing format's limit for the plain bytes of one chunk.
CHUNK_BYTES_MAX = 64 * 1024
#: The largest data chunk there can be: a checksum, and 64 KiB that raw snappy made as much longer as it can.
CHUNK_WIRE_BYTES_MAX = 4 + 32 + CHUNK_BYTES_MAX + CHUNK_BYTES_MAX // 6
STREAM_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
COMPRESSED, UNCOMPRESSED, SKIPPABLE_MIN, IDENTIFIER = 0x00, 0x01, 0x80, 0xFF


class LayerError(PenstockError):
    """The peer's bytes are not what the layer's format allows; nothing more can be read from this connection."""

    def __init__(self, text: str, last: bytes = b"") -> None:
        super().__init__(text)
        #: What the layer still has to tell the peer (TLS: an alert), to be written as it is before closing.
        self.last = last


class Layer(Protocol):
    """One encoding of a connection, both ways."""

    @property
    def pending(self) -> bool:
        """Whether `receive(b"")` may return more: read from the wire again only once this is False."""

    def receive(self, data: Buffer) -> bytes:
        """Take bytes of the wire and return plain ones, at most about RECEIVE_BYTES_MAX; may raise LayerError."""

    def send(self, data: Buffer) -> bytes:
        """Return the wire's bytes for plain ones, complete: the peer can read them without waiting for more."""


class Stack:
    """Several layers as one, the one next to the wire first."""

    __slots__ = ("_layers",)

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = tuple(layers)

    @property
    def pending(self) -> bool:
        """Whether any layer holds more."""
        return any(layer.pending for layer in self._layers)

    def receive(self, data: Buffer) -> bytes:
        """Take the wire's bytes up through all layers."""
        for layer in self._layers:
            data = layer.receive(data)
        return bytes(data)

    def send(self, data: Buffer) -> bytes:
        """Take plain bytes down through all layers."""
        for layer in reversed(self._layers):
            data = layer.send(data)
        return bytes(data)


class Deflate:
    """Raw deflate, flushed at every send. Costs about 300 KiB of memory a connection, zlib's windows."""

    __slots__ = ("_deflate", "_full", "_inflate")

    def __init__(self, level: int = 6) -> None:
        if not 1 <= level <= 9:
            raise ValueError(f"deflate level {level}: choose one from 1 to 9")
        self._deflate = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._full = False

    @property
    def pending(self) -> bool:
        """Whether the last output was cut; the rest is still compressed."""
        return self._full

    def receive(self, data: Buffer) -> bytes:
        """Inflate."""
        inflate = self._inflate
        if inflate.unconsumed_tail:
            data = inflate.unconsumed_tail + bytes(data)
        if inflate.eof:
            if len(memoryview(data)):
                raise LayerError("deflate: bytes after the end of the stream")
            return b""
        try:
            plain = inflate.decompress(data, RECEIVE_BYTES_MAX)
        except zlib.error as error:
            raise LayerError(f"deflate: {error}") from None
        if inflate.unused_data:
            raise LayerError("deflate: bytes after the end of the stream")
        # A full output may leave some inside zlib although all input is used up, so only a short one is the last.
        self._full = len(plain) == RECEIVE_BYTES_MAX
        return plain

    def send(self, data: Buffer) -> bytes:
        """Deflate and flush."""
        if not len(memoryview(data)):
            return b""
        return self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)


class Snappy:
    """Snappy's framing format: chunks of at most 64 KiB, each with a masked CRC-32C of its plain bytes."""

    __slots__ = ("_full", "_greeted", "_held", "_identified", "_skip")

    def __init__(self) -> None:
        self._held = bytearray()
        #: Bytes of a chunk that nobody needs and that are yet to come: they are dropped, never held.
        self._skip = 0
        self._full = False
        self._identified = False
        self._greeted = False

    @property
    def pending(self) -> bool:
        """Whether the last output was cut; the rest is still compressed."""
        return self._full

    def receive(self, data: Buffer) -> bytes:
        """Return the plain bytes of every chunk that is complete."""
        self._held += memoryview(data)
        plain: list[Buffer] = []
        have = at = 0
        with memoryview(self._held) as held:
            while True:
                skipped = min(self._skip, len(held) - at)
                self._skip -= skipped
                at += skipped
                self._full = have >= RECEIVE_BYTES_MAX
                if self._full or len(held) - at < 4:
                    break
                kind, size = held[at], int.from_bytes(held[at + 1 : at + 4], "little")
                if self._passes_by(kind, size):
                    self._skip = 4 + size
                    continue
                end = at + 4 + size
                if end > len(held):
                    break
                if kind == IDENTIFIER:
                    self._identify(held[at:end])
                else:
                    chunk = _opened(kind, held[at + 4 : end])
                    plain.append(chunk)
                    have += len(chunk)
                at = end
        del self._held[:at]
        return b"".join(plain)

    def send(self, data: Buffer) -> bytes:
        """Return chunks; the first ever are preceded by the stream identifier."""
        view = memoryview(data)
        if not len(view):
            return b""
        out: list[Buffer] = []
        if not self._greeted:
            self._greeted = True
            out.append(STREAM_IDENTIFIER)
        for at in range(0, len(view), CHUNK_BYTES_MAX):
            _enclose(view[at : at + CHUNK_BYTES_MAX], out)
        return b"".join(out)

    def _passes_by(self, kind: int, size: int) -> bool:
        """Tell whether a chunk is to be skipped, and refuse it as early as its first four bytes allow."""
        if not self._identified and kind != IDENTIFIER:
            raise LayerError("snappy: the stream does not start with its identifier")
        if SKIPPABLE_MIN <= kind < IDENTIFIER:
            return True
        if kind == IDENTIFIER:
            if size != 6:
                raise LayerError("snappy: bad stream identifier")
        elif kind > UNCOMPRESSED:
            raise LayerError(f"snappy: reserved chunk type 0x{kind:02x} that may not be skipped")
        elif not 4 <= size <= (CHUNK_WIRE_BYTES_MAX if kind == COMPRESSED else 4 + CHUNK_BYTES_MAX):
            raise LayerError(f"snappy: a data chunk of {size} bytes")
        return False

    def _identify(self, chunk: memoryview) -> None:
        if chunk != STREAM_IDENTIFIER:
            raise LayerError("snappy: bad stream identifier")
        self._identified = True


def _opened(kind: int, chunk: memoryview) -> bytes:
    body = chunk[4:]
    plain: bytes
    if kind == UNCOMPRESSED:
        plain = bytes(body)
    else:
        try:
            # Asked first, because the length is the peer's word and the memory for it is ours.
            size = snappy.decompress_raw_len(body)
            if size > CHUNK_BYTES_MAX:
                raise LayerError(f"snappy: a chunk of {size} plain bytes, at most {CHUNK_BYTES_MAX} are allowed")
            plain = bytes(snappy.decompress_raw(body))
        except DecompressionError as error:
            raise LayerError(f"snappy: {error}") from None
    if _masked(crc32c(plain)) != int.from_bytes(chunk[:4], "little"):
        raise LayerError("snappy: a chunk's checksum is wrong")
    return plain


def _enclose(plain: memoryview, out: list[Buffer]) -> None:
    packed: Buffer = snappy.compress_raw(plain)
    size, kind = len(packed), COMPRESSED
    # As others do: what shrinks by less than an eighth is not worth the reader's time.
    if size >= len(plain) - len(plain) // 8:
        packed, size, kind = plain, len(plain), UNCOMPRESSED
    out.append((kind | (size + 4) << 8 | _masked(crc32c(plain)) << 32).to_bytes(8, "little"))
    out.append(packed)


def _masked(crc: int) -> int:
    """Return a checksum as the format stores it: one of data that contains checksums would be a weak one."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
