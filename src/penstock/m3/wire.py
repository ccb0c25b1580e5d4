"""Protobuf's wire format, as far as M3's small messages need it: fields in, fields out.

No schema: each message says in its own module which field is what. Invariant: bytes are read whole or refused with
BadMessage, whatever they are; fields nobody asked for are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.varints import varint

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

_BITS = (1 << 64) - 1
#: A varint holds 64 bits, seven in a byte.
_VARINT_BYTES_MAX = 10
_SIZES = {FIXED64: 8, FIXED32: 4}
_double = Struct("<d")


class BadMessage(PenstockError):
    """Bytes that are not the message they should be; the text says where."""


class Field(NamedTuple):
    """One field as it stands in a message: a number for varints, bytes for the rest."""

    number: int
    kind: int
    value: int | bytes

    def whole(self) -> int:
        """Return an unsigned number."""
        if isinstance(self.value, int):
            return self.value
        raise BadMessage(f"field {self.number} is no whole number")

    def signed(self) -> int:
        """Return a number of 64 bits with a sign."""
        bits = self.whole()
        return bits - (1 << 64) if bits >> 63 else bits

    def double(self) -> float:
        """Return a floating-point number."""
        if self.kind == FIXED64 and isinstance(self.value, bytes):
            number: float = _double.unpack(self.value)[0]
            return number
        raise BadMessage(f"field {self.number} is no double")

    def data(self) -> bytes:
        """Return bytes, or a message inside this one."""
        if self.kind == BYTES and isinstance(self.value, bytes):
            return self.value
        raise BadMessage(f"field {self.number} holds no bytes")

    def text(self) -> str:
        """Return text."""
        try:
            return self.data().decode()
        except UnicodeDecodeError:
            raise BadMessage(f"field {self.number} is not UTF-8 text") from None


def fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message in their order; raises BadMessage."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise BadMessage(f"byte {at}: there is no field {number}")
        if kind == VARINT:
            value, at = _varint(data, at)
            yield Field(number, kind, value)
            continue
        if kind == BYTES:
            size, at = _varint(data, at)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise BadMessage(f"byte {at}: field {number} has wire type {kind}, which nothing is written with")
        if size > end - at:
            raise BadMessage(f"byte {at}: field {number} needs {size} bytes, and {end - at} are left")
        yield Field(number, kind, data[at : at + size])
        at += size


def number_field(number: int, value: int) -> bytes:
    """Return a field with a whole number; nothing for 0, which is what a missing one means."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def double_field(number: int, value: float) -> bytes:
    """Return a field with a floating-point number; nothing for 0."""
    return varint(number << 3 | FIXED64) + _double.pack(value) if value else b""


def text_field(number: int, value: str) -> bytes:
    """Return a field with text; nothing where it is empty."""
    return bytes_field(number, value.encode()) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    """Return a field with bytes, or with a message; an empty one is written, too."""
    return varint(number << 3 | BYTES) + varint(len(value)) + value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the place after it."""
    number = 0
    for step, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << 7 * step
        if byte < 0x80:
            return number & _BITS, at + step + 1
    raise BadMessage(f"byte {at}: a number has no end")
