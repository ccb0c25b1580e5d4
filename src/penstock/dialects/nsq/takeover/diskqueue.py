"""nsqd's queue files: records, positions and names, from bytes to columns. Upstream's form and Youzan's.

Sans-IO: whoever calls has the bytes already. A file becomes arrays, never one object per message.
Invariant: a record that is reported whole lies inside the bytes it was found in, and so do its header and body.
"""

from __future__ import annotations

import re
import struct
from array import array
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.columns import Offsets

#: Time, attempts and id stand before a body; a shorter record was never written.
HEAD_BYTES = 8 + 2 + 16
#: Where in an extended record its header begins, after the version and two bytes of length.
HEADER_AT = HEAD_BYTES + 3
#: Youzan's counter stops here; what is above carries a mark in its highest four bits.
ATTEMPTS_MAX = 4000
EXTENDED = 0xA000
#: What the byte after the id says about what follows it: nothing, a bare tag, a JSON header.
NO_HEADER, TAG, JSON = 0, 2, 4

#: nsqd takes times from its clock: 2001 to 2065. Anything else is no record, whatever its length says.
TIME_NS_MIN, TIME_NS_MAX = 10**18, 3 * 10**18

#: Heads are looked at this many at a time: 20 MB of index arrays.
HEADS_AT_A_TIME = 1 << 16

Data: TypeAlias = "bytes | memoryview"
Mask: TypeAlias = npt.NDArray[np.bool_]

_LENGTH = struct.Struct(">i")
_HEX = np.zeros(256, np.bool_)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = True

_NAME = r"[.a-zA-Z0-9_-]{1,64}"
_FILE = re.compile(rf"({_NAME})(?:[:;]({_NAME}))?\.diskqueue\.(\d{{6,}}|meta)\.dat")
_POSITION = re.compile(rb"\s*(-?\d+)\s+(\d+),(\d+)\s+(\d+),(\d+)\s*")
_WRITER = re.compile(rb"\s*(\d+)\s+(\d+),(\d+),(\d+)\s+(?:\xae\x83)?")
_READER = re.compile(rb"\s*(\d+)\s+(\d+)\s+(\d+),(\d+),(\d+)\s+(\d+),(\d+),(\d+)\s+(?:\xae\x83)?")


class Place(NamedTuple):
    """A position in a queue: the number of a file, and a byte in it."""

    file: int
    position: int


class Damage(NamedTuple):
    """Where a file is not what nsqd writes, and why."""

    position: int
    reason: str


class Scan(NamedTuple):
    """The records of one file: where each begins after its length, and how long it is."""

    starts: Offsets
    lengths: Offsets
    #: Where the chain of records broke off; nothing after it can be found again.
    damage: Damage | None


class Heads(NamedTuple):
    """What stands before the bodies, one value per record."""

    time_ns: Offsets
    attempts: npt.NDArray[np.uint16]
    #: The 16 bytes of the id as two numbers, whatever they mean.
    id_high: npt.NDArray[np.uint64]
    id_low: npt.NDArray[np.uint64]
    #: Whether the id is Youzan's: a number and a trace id, not 16 hex digits.
    raw: Mask
    #: NO_HEADER, TAG or JSON.
    version: npt.NDArray[np.uint8]
    #: Where in the file the body begins; it ends with the record. A header lies between HEADER_AT and the body.
    body_starts: Offsets
    #: Records that are none: their length fits, their content does not.
    bad: Mask


class Channel(msgspec.Struct, frozen=True):
    """A channel in nsqd's list of what it has."""

    name: str
    paused: bool = False


class Listed(msgspec.Struct, frozen=True):
    """A topic in nsqd's list of what it has; Youzan's has one entry per partition."""

    name: str
    paused: bool = False
    channels: list[Channel] | None = None


class Listing(msgspec.Struct, frozen=True):
    """`nsqd.dat`: what a stopped nsqd would open again."""

    topics: list[Listed] | None = None
    version: str = ""


def scan(data: Data, start: int, end: int) -> Scan:
    """Follow the lengths from record to record. Budget: 0.3 us a record."""
    starts = array("q")
    found = starts.append
    length_at = _LENGTH.unpack_from
    damage = None
    at = start
    while at < end:
        left = end - at - 4
        if left < 0:
            damage = Damage(at, f"the file ends inside the length of a record, after {left + 4} of 4 bytes")
            break
        length = length_at(data, at)[0]
        if length < HEAD_BYTES:
            damage = Damage(at, f"a record of {length} bytes is too short to be one")
            break
        if length > left:
            damage = Damage(at, f"a record of {length} bytes is cut off after {left}")
            break
        at += 4
        found(at)
        at += length
    begins = np.frombuffer(starts, np.int64) if starts else np.empty(0, np.int64)
    return Scan(begins, np.diff(begins, append=at + 4) - 4, damage)


def heads(data: Data, starts: Offsets, lengths: Offsets) -> Heads:
    """Take the heads of records apart. Budget: 0.3 us a record."""
    parts = [
        _heads(np.frombuffer(data, np.uint8), starts[at : at + HEADS_AT_A_TIME], lengths[at : at + HEADS_AT_A_TIME])
        for at in range(0, max(len(starts), 1), HEADS_AT_A_TIME)
    ]
    return parts[0] if len(parts) == 1 else Heads(*map(np.concatenate, zip(*parts, strict=True)))


def _heads(data: npt.NDArray[np.uint8], starts: Offsets, lengths: Offsets) -> Heads:
    head = data[starts[:, None] + np.arange(HEAD_BYTES)]
    time_ns = head[:, :8].copy().view(">i8")[:, 0].astype(np.int64)
    marked = head[:, 8:10].copy().view(">u2")[:, 0].astype(np.uint16)
    ids = head[:, 10:26].copy().view(">u8").astype(np.uint64)
    raw = ~_HEX[head[:, 10:26]].all(axis=1)
    # Upstream counts attempts in all 16 bits; the marks are in Youzan's records only.
    mark = np.where(raw & (marked > ATTEMPTS_MAX), marked & 0xF000, 0)
    attempts = np.where(raw & (marked > ATTEMPTS_MAX), marked & 0x0FFF, marked).astype(np.uint16)
    bad = (time_ns < TIME_NS_MIN) | (time_ns > TIME_NS_MAX)
    bad |= raw & (ids[:, 0] == 0)
    bad |= (mark != 0) & (mark != EXTENDED)
    version, body_starts, broken = _extensions(data, starts, lengths, mark == EXTENDED)
    return Heads(time_ns, attempts, ids[:, 0], ids[:, 1], raw, version, body_starts, bad | broken)


def _extensions(
    data: npt.NDArray[np.uint8], starts: Offsets, lengths: Offsets, extended: Mask
) -> tuple[npt.NDArray[np.uint8], Offsets, Mask]:
    """Return version and body of each record, and which of the extended ones do not fit together."""
    version = np.zeros(len(starts), np.uint8)
    body = starts + HEAD_BYTES
    broken = np.zeros(len(starts), np.bool_)
    rows = np.flatnonzero(extended)
    broken[rows] = lengths[rows] < HEAD_BYTES + 1
    rows = rows[~broken[rows]]
    version[rows] = data[starts[rows] + HEAD_BYTES]
    body[rows] += 1
    broken[rows] = ~np.isin(version[rows], (NO_HEADER, TAG, JSON))
    rows = rows[(version[rows] != NO_HEADER) & ~broken[rows]]
    broken[rows] = lengths[rows] < HEADER_AT
    rows = rows[~broken[rows]]
    at = starts[rows] + HEADER_AT
    size = data[at - 2].astype(np.int64) << 8 | data[at - 1]
    fits = HEADER_AT + size <= lengths[rows]
    broken[rows[~fits]] = True
    body[rows[fits]] = (at + size)[fits]
    return version, body, broken


# --- names and positions ------------------------------------------------------------------------------------------


def file_name(name: str) -> tuple[str, str | None, int | None] | None:
    """Return (topic, channel or None, number or None for the positions) of an upstream queue file's name."""
    found = _FILE.fullmatch(name)
    if found is None:
        return None
    topic, channel, number = found.groups()
    return topic, channel, None if number == "meta" else int(number)


def positions(content: bytes) -> tuple[Place, Place] | None:
    """Return from where to where an upstream queue is unread, None if the file does not say."""
    found = _POSITION.fullmatch(content)
    if found is None:
        return None
    _, read_file, read_at, write_file, write_at = map(int, found.groups())
    return Place(read_file, read_at), Place(write_file, write_at)


def writer_end(content: bytes) -> Place | None:
    """Return where a queue of Youzan's ends."""
    found = _WRITER.fullmatch(content)
    return None if found is None else Place(int(found[2]), int(found[3]))


def reader_start(content: bytes) -> Place | None:
    """Return from where a channel of Youzan's has not finished everything."""
    found = _READER.fullmatch(content)
    return None if found is None else Place(int(found[3]), int(found[4]))


def listing(content: bytes) -> Listing | None:
    """Return what `nsqd.dat` lists, None if it cannot be read."""
    try:
        return msgspec.json.decode(content, type=Listing)
    except msgspec.MsgspecError:
        return None


def channels(content: bytes) -> list[Channel] | None:
    """Return the channels a partition of Youzan's has, None if the file cannot be read."""
    try:
        return msgspec.json.decode(content, type=list[Channel] | None) or []
    except msgspec.MsgspecError:
        return None
