"""The file of the embedded registry: a header, one checked frame per change, and after each a mark that it was synced.

Owns the bytes only. A frame is `u32 length, u32 CRC-32C, msgpack of (revision, ((key, value), ...))`; the checksum
starts from the frame's position and length, so that a frame is valid at its own place only. A mark is `u32 0, u32
CRC-32C, u64 revision`. It is written after the sync of its frame and needs none of its own: the next frame's covers it.
So a bad end without a mark was never confirmed to anybody and is cut, and a bad frame before a mark is damage.
Invariant: what `scan` returns was written here, in this order, and no change between two of them is missing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from fastcrc.crc32 import iscsi as crc32c

from penstock.errors import CorruptionError
from penstock.registry.registry import CHANGE_BYTES_MAX

#: The number is the version of the format.
HEADER = b"penstock registry 2\n"
HEADER_STEM = HEADER[:-2]
#: One key per frame and no marks.
OLD_HEADER = b"penstock registry 1\n"
WAY_OUT = (
    "`penstock registry rebuild` makes a new one from what is on disk and keeps this one aside; "
    "`penstock restore` makes a data directory of a backup"
)

_PREFIX = struct.Struct("<II")
PREFIX_BYTES = _PREFIX.size
_MARK = struct.Struct("<IIQ")
MARK_BYTES = _MARK.size
#: Keys, values, and room for what msgpack adds.
PAYLOAD_BYTES_MAX = CHANGE_BYTES_MAX + (64 << 10)


class Change(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Keys put (or deleted, where the value is None) in one step; no keys mark the end of a compacted start."""

    revision: int
    edits: tuple[tuple[str, bytes | None], ...]


class _OldChange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    revision: int
    key: str
    value: bytes | None


class Scan(NamedTuple):
    """The changes of a file with their frame sizes, where the good part ends, and whether that is marked as synced."""

    changes: list[tuple[Change, int]]
    end: int
    is_marked: bool
    is_old: bool


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Change).decode
_decode_old = msgspec.msgpack.Decoder(_OldChange).decode


def frame(change: Change, position: int) -> bytes:
    """Return the bytes of a change that will stand at this position of the file."""
    payload = _encode(change)
    return _PREFIX.pack(len(payload), _checksum(payload, position)) + payload


def mark(revision: int, position: int) -> bytes:
    """Return the mark, to stand at this position, that everything before it was synced."""
    return _MARK.pack(0, crc32c(b"%d" % revision, position & 0xFFFFFFFF), revision)


def scan(data: bytes, path: str) -> Scan:
    """Return everything a file holds; `path` is for the errors."""
    is_old = data.startswith(OLD_HEADER)
    if not is_old and not data.startswith(HEADER):
        raise CorruptionError(_not_a_registry(data, path))
    changes: list[tuple[Change, int]] = []
    end, revision, is_marked = len(HEADER), 0, False
    for position, size, change, marked in _good_parts(data, is_old):
        if (change.revision if change else marked) < revision:
            continue  # bytes of another time that fit by chance
        missing = marked > revision if change is None else change.revision > revision + 1
        if position > end and missing:
            raise CorruptionError(
                f"{path}: damaged at byte {end}; {len(changes)} changes before it are good, and what follows from "
                f"byte {position} on shows that there were more. {WAY_OUT}"
            )
        if change is not None:
            changes.append((change, size))
            revision = change.revision
        end, is_marked = position + size, change is None
    return Scan(changes, end, is_marked, is_old)


def salvage(data: bytes) -> list[Change]:
    """Return whatever changes of a damaged file can still be read, in order."""
    is_old = data.startswith(OLD_HEADER)
    return [change for _, _, change, _ in _good_parts(data, is_old) if change is not None]


def _good_parts(data: bytes, is_old: bool) -> Iterator[tuple[int, int, Change | None, int]]:
    """Yield (position, size, change or None, revision of a mark) of all that is whole, wherever it stands."""
    position = len(HEADER)
    while position + PREFIX_BYTES <= len(data):
        found = _frame_at(data, position, is_old)
        if found is not None:
            yield position, found[1], found[0], 0
            position += found[1]
        elif revision := _mark_at(data, position):
            yield position, MARK_BYTES, None, revision
            position += MARK_BYTES
        else:
            position += 1


def _frame_at(data: bytes, position: int, is_old: bool) -> tuple[Change, int] | None:
    length, checksum = _PREFIX.unpack_from(data, position)
    end = position + PREFIX_BYTES + length
    if not 0 < length <= PAYLOAD_BYTES_MAX or end > len(data):
        return None
    payload = data[position + PREFIX_BYTES : end]
    if _checksum(payload, position) != checksum:
        return None
    try:
        if not is_old:
            return _decode(payload), PREFIX_BYTES + length
        old = _decode_old(payload)
    except msgspec.MsgspecError:
        return None
    return Change(old.revision, ((old.key, old.value),) if old.key else ()), PREFIX_BYTES + length


def _mark_at(data: bytes, position: int) -> int:
    """Return the revision of the mark at a position, 0 if there is none."""
    if position + MARK_BYTES > len(data):
        return 0
    zero, _, revision = _MARK.unpack_from(data, position)
    if zero or not revision or data[position : position + MARK_BYTES] != mark(revision, position):
        return 0
    return int(revision)


def _checksum(payload: bytes, position: int) -> int:
    return crc32c(payload, (position ^ len(payload)) & 0xFFFFFFFF)


def _not_a_registry(data: bytes, path: str) -> str:
    if data.startswith(HEADER_STEM):
        version = data[len(HEADER_STEM) :].partition(b"\n")[0][:20]
        return f'{path}: a registry of format "{version.decode("ascii", "replace")}", this program knows "2"'
    if HEADER.startswith(data):
        return f"{path}: cut off after {len(data)} bytes, before its first entry. {WAY_OUT}"
    return f"{path}: not a registry; it starts with {data[:16]!r}. {WAY_OUT}"
