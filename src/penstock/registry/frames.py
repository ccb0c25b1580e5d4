"""The file of the embedded registry: a header, then one checked frame per change.

Owns the bytes only. A frame is `u32 length, u32 CRC-32C, msgpack of (revision, key, value)`; the checksum starts from
the frame's position and length, so that a frame is valid at its own place only.
Invariant: what `scan` returns was written here, in this order; a bad end is cut, a bad middle is an error.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec
from fastcrc.crc32 import iscsi as crc32c

from penstock.errors import CorruptionError
from penstock.registry.registry import KEY_BYTES_MAX, VALUE_BYTES_MAX

#: The number is the version of the format.
HEADER = b"penstock registry 1\n"
HEADER_STEM = HEADER[:-2]

_PREFIX = struct.Struct("<II")
PREFIX_BYTES = _PREFIX.size
#: Key, value, and room for what msgpack adds.
PAYLOAD_BYTES_MAX = KEY_BYTES_MAX + VALUE_BYTES_MAX + 64


class Change(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One put (or delete, where the value is None); an empty key marks the end of a compacted start."""

    revision: int
    key: str
    value: bytes | None


class Scan(NamedTuple):
    """The changes of a file with their frame sizes, and where the good part ends."""

    changes: list[tuple[Change, int]]
    end: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Change).decode


def frame(change: Change, position: int) -> bytes:
    """Return the bytes of a change that will stand at this position of the file."""
    payload = _encode(change)
    return _PREFIX.pack(len(payload), _checksum(payload, position)) + payload


def scan(data: bytes, path: str) -> Scan:
    """Return everything a file holds; `path` is for the errors."""
    if not data.startswith(HEADER):
        raise CorruptionError(_not_a_registry(data, path))
    changes: list[tuple[Change, int]] = []
    position, revision = len(HEADER), 0
    while (found := _frame_at(data, position)) and found[0].revision >= revision:
        changes.append(found)
        revision = found[0].revision
        position += found[1]
    # Only the last frame can have been unsynced, so a good frame after a bad one proves damage, not a torn write.
    later = next((at for at in range(position, len(data)) if _frame_at(data, at)), None)
    if later is not None:
        raise CorruptionError(
            f"{path}: damaged at byte {position}; {len(changes)} changes before it are good, and more follow from byte "
            f"{later} on. Move the file away and put the one of a backup in its place (`penstock restore`)"
        )
    return Scan(changes, position)


def _frame_at(data: bytes, position: int) -> tuple[Change, int] | None:
    if position + PREFIX_BYTES > len(data):
        return None
    length, checksum = _PREFIX.unpack_from(data, position)
    end = position + PREFIX_BYTES + length
    if not 0 < length <= PAYLOAD_BYTES_MAX or end > len(data):
        return None
    payload = data[position + PREFIX_BYTES : end]
    if _checksum(payload, position) != checksum:
        return None
    try:
        return _decode(payload), PREFIX_BYTES + length
    except msgspec.MsgspecError:
        return None


def _checksum(payload: bytes, position: int) -> int:
    return crc32c(payload, (position ^ len(payload)) & 0xFFFFFFFF)


def _not_a_registry(data: bytes, path: str) -> str:
    way_out = "Put the file of a backup in its place (`penstock restore`), or move it away if there is no data to keep"
    if data.startswith(HEADER_STEM):
        version = data[len(HEADER_STEM) :].partition(b"\n")[0][:20]
        return f'{path}: a registry of format "{version.decode("ascii", "replace")}", this program knows "1"'
    if HEADER.startswith(data):
        return f"{path}: cut off after {len(data)} bytes, before its first entry. {way_out}"
    return f"{path}: not a registry; it starts with {data[:16]!r}. {way_out}"
