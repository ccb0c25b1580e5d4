"""Kafka's primitives: numbers, strings, arrays and tagged fields, in the old form and the compact ("flexible") one.

Invariant: an answer is read whole or refused with BadAnswer, whatever its bytes are; nothing is made of a length
before the bytes that it speaks of are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error

from penstock.errors import PenstockError
from penstock.varints import varint

_I8, _I16, _I32, _I64 = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")
#: An unsigned varint of Kafka's holds 32 bits.
_VARINT_BYTES_MAX = 5


class BadAnswer(PenstockError):
    """Bytes from a broker that are not the answer they should be; the text says where."""


class Writer:
    """A question, put together."""

    __slots__ = ("_flexible", "_out")

    def __init__(self, flexible: bool) -> None:
        self._flexible = flexible
        self._out = bytearray()

    def int8(self, value: int) -> None:
        """Write a number of one byte."""
        self._out += _I8.pack(value)

    def int16(self, value: int) -> None:
        """Write a number of two bytes."""
        self._out += _I16.pack(value)

    def int32(self, value: int) -> None:
        """Write a number of four bytes."""
        self._out += _I32.pack(value)

    def int64(self, value: int) -> None:
        """Write a number of eight bytes."""
        self._out += _I64.pack(value)

    def raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._out += data

    def count(self, value: int | None) -> None:
        """Write how many elements an array has; None is no array."""
        if self._flexible:
            self._out += varint(0 if value is None else value + 1)
        else:
            self.int32(-1 if value is None else value)

    def string(self, value: str | None) -> None:
        """Write text, or none."""
        data = None if value is None else value.encode()
        if self._flexible:
            self.count(None if data is None else len(data))
        else:
            self.int16(-1 if data is None else len(data))
        if data:
            self._out += data

    def data(self, value: bytes) -> None:
        """Write bytes with their length."""
        self.size(len(value))
        self._out += value

    def size(self, value: int) -> None:
        """Write the length of bytes that follow."""
        self.count(value)

    def tags(self) -> None:
        """Write that there are no tagged fields, where there could be some."""
        if self._flexible:
            self._out.append(0)

    def done(self) -> bytes:
        """Return what was written since the last time."""
        out, self._out = self._out, bytearray()
        return bytes(out)


class Reader:
    """An answer, read from the front."""

    __slots__ = ("_at", "_data", "_end", "_flexible")

    def __init__(self, data: bytes, at: int = 0, flexible: bool = False) -> None:
        self._data = data
        self._at = at
        self._end = len(data)
        self._flexible = flexible

    def int8(self) -> int:
        """Return a number of one byte."""
        return self._number(_I8)

    def int16(self) -> int:
        """Return a number of two bytes."""
        return self._number(_I16)

    def int32(self) -> int:
        """Return a number of four bytes."""
        return self._number(_I32)

    def int64(self) -> int:
        """Return a number of eight bytes."""
        return self._number(_I64)

    def boolean(self) -> bool:
        """Return a truth value."""
        return self.int8() != 0

    def _number(self, form: Struct) -> int:
        try:
            (value,) = form.unpack_from(self._data, self._at)
        except error:
            raise self.bad(f"a number of {form.size} bytes is cut off") from None
        self._at += form.size
        number: int = value
        return number

    def varint(self) -> int:
        """Return an unsigned number of up to 32 bits."""
        value = 0
        for place in range(_VARINT_BYTES_MAX):
            if self._at >= self._end:
                raise self.bad("a number is cut off")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return value
        raise self.bad("a number does not end")

    def count(self, least: int = 1) -> int:
        """Return how many elements an array has, 0 for none; each weighs at least so many bytes."""
        value = self.varint() - 1 if self._flexible else self.int32()
        if value < -1 or value * least > self._end - self._at:
            raise self.bad(f"an array of {value} elements where {self._end - self._at} bytes are left")
        return max(value, 0)

    def string(self) -> str | None:
        """Return text, or none."""
        size = self.varint() - 1 if self._flexible else self.int16()
        if size == -1:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise self.bad("text that is not UTF-8") from None

    def text(self) -> str:
        """Return text that must be there."""
        found = self.string()
        if found is None:
            raise self.bad("no text where there must be some")
        return found

    def data(self) -> bytes:
        """Return bytes with their length; none are no bytes."""
        size = self.varint() - 1 if self._flexible else self.int32()
        return b"" if size == -1 else self._take(size)

    def int32s(self) -> Sequence[int]:
        """Pass over an array of numbers of four bytes, and return it."""
        count = self.count(4)
        at = self._at
        self._at += 4 * count
        return Struct(f">{count}i").unpack_from(self._data, at) if count else ()

    def skip(self, size: int) -> None:
        """Pass over bytes."""
        self._take(size)

    def tags(self) -> None:
        """Pass over tagged fields, where there may be some."""
        if self._flexible:
            for _ in range(self.varint()):
                self.varint()
                self._take(self.varint())

    def end(self) -> None:
        """Say that this is all."""
        if self._at != self._end:
            raise self.bad(f"{self._end - self._at} bytes more than it should have")

    def _take(self, size: int) -> bytes:
        stop = self._at + size
        if size < 0 or stop > self._end:
            raise self.bad(f"{size} bytes where {self._end - self._at} are left")
        piece = self._data[self._at : stop]
        self._at = stop
        return piece

    def bad(self, why: str) -> BadAnswer:
        """Return what says that this is no answer."""
        return BadAnswer(f"byte {self._at}: {why}")
