"""M3Msg's frames: `uint32 big-endian size`, then a Message towards consumers or an Ack back from them.

Owns both streams, both ways. A read becomes columns: above SMALL rows numpy and Arrow, below plain lists.
Budget: 0.3 us a message from 1,000 in a read on.
Invariant: however the wire cuts a stream, the same messages come out, up to the first bytes that are none.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock import varints
from penstock.columns import SMALL, Buffer, Cuts
from penstock.errors import PenstockError
from penstock.m3.wire import BYTES, BadMessage, bytes_field, fields, number_field
from penstock.varints import PAD, Places, Reader, Writer

#: Upstream's limit of what a frame may hold, which both ends may choose.
FRAME_BYTES_MAX = 4 * 1024 * 1024
#: What one entry of an Ack may weigh: three numbers of ten bytes, their tags, and a head.
ENTRY_BYTES_MAX = 2 + 3 * 11

_HEAD = struct.Struct(">I")
_METADATA, _VALUE = 1 << 3 | BYTES, 2 << 3 | BYTES
_SHARD, _ID, _SENT = 1 << 3, 2 << 3, 3 << 3
_UINT64_MAX = (1 << 64) - 1
#: So many frames of one size in a row make it likely that more follow.
_ALIKE = 8
#: How many are then looked at together.
_RUN_MAX = 4096

Column: TypeAlias = "list[int] | npt.NDArray[np.uint64]"


class FrameTooLarge(PenstockError):
    """A frame larger than was agreed; nothing of it was written."""


class Metadata(NamedTuple):
    """What names a message between a producer and its consumer."""

    shard: int = 0
    id: int = 0
    sent_ns: int = 0


class Metadatas(NamedTuple):
    """What an Ack says of many messages, by columns."""

    shard: Column
    id: Column
    sent_ns: Column

    def __len__(self) -> int:
        return len(self.shard)


class Messages(msgspec.Struct, eq=False):
    """Messages of one read, by columns."""

    count: int
    metadata: Metadatas
    #: Values back to back, and where each begins.
    cuts: Cuts
    values: Buffer
    #: What an Ack says of each, as it came: one behind the other they are the content of an Ack.
    entries: list[bytes] | pa.Array


class Acks(NamedTuple):
    """Frames that were made, and how many entries are in each."""

    wire: bytes
    frames: int


_NONE: tuple[int, ...] = ()


class Frames:
    """The stream of one connection, cut into frames."""

    __slots__ = ("_bytes_max", "_have", "_need", "_pieces", "fault")

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = _HEAD.size
        #: Why nothing more can be read, empty while it can.
        self.fault = ""

    @property
    def held(self) -> int:
        """How many bytes are held of a frame that is not all there."""
        return self._have

    def cut(self, data: bytes) -> tuple[bytes, Sequence[int] | Places, Sequence[int] | Places]:
        """Return bytes, and where the contents of all whole frames in them begin and end."""
        if self.fault:
            return b"", _NONE, _NONE
        if self._have:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return b"", _NONE, _NONE
            data = b"".join(self._pieces)
        elif len(data) < self._need:
            self._pieces, self._have = [data], len(data)
            return b"", _NONE, _NONE
        starts, stops, at, need = self._cut(data)
        rest = b"" if self._is_broken() else data[at:]
        self._pieces, self._have, self._need = [rest], len(rest), need
        return data, starts, stops

    def _is_broken(self) -> bool:
        return bool(self.fault)

    def forget(self) -> None:
        """Hold nothing, and read nothing more."""
        self._pieces, self._have = [], 0
        self.fault = self.fault or "its connection is over"

    def _cut(self, data: bytes) -> tuple[Sequence[int] | Places, Sequence[int] | Places, int, int]:
        """Return where frames begin and end, where the last of them ends, and how many bytes the next one needs."""
        unpack, most, end = _HEAD.unpack_from, self._bytes_max, len(data)
        starts: list[int] = []
        stops: list[int] = []
        at, need, alike, before = 0, _HEAD.size, 0, -1
        while at + 4 <= end:
            (size,) = unpack(data, at)
            stop = at + 4 + size
            if size > most:
                self.fault = f"a frame of {size} bytes, above the {most} that a frame may have"
                break
            if stop > end:
                need = 4 + size
                break
            starts.append(at + 4)
            stops.append(stop)
            at = stop
            alike = alike + 1 if size == before else 0
            before = size
            if alike >= _ALIKE and end - at >= _ALIKE * (4 + size):
                alike = 0
                run = _run(data, at, 4 + size, size)
                starts.extend(range(at + 4, at + 4 + run * (4 + size), 4 + size))
                at += run * (4 + size)
                stops.extend(range(stop + 4 + size, at + 1, 4 + size))
        if len(starts) > SMALL:
            return np.array(starts, np.int64), np.array(stops, np.int64), at, need
        return starts, stops, at, need


def _run(data: bytes, at: int, step: int, size: int) -> int:
    """Return how many frames from here on have this size."""
    count = min((len(data) - at) // step, _RUN_MAX)
    alike = np.ndarray((count,), ">u4", data, at, (step,)) == size
    return count if alike.all() else int(alike.argmin())


class MessageReader(Frames):
    """What a producer sends, message by message."""

    __slots__ = ()

    def feed(self, data: bytes) -> Messages | None:
        """Return the messages that are there whole now, None if none is; `fault` tells whether more can come."""
        data, starts, stops = self.cut(data)
        if not len(starts):
            return None
        if isinstance(starts, np.ndarray) and isinstance(stops, np.ndarray):
            found = columns(data, starts, stops)
            if found is not None:
                return found
        return self._each(data, starts, stops)

    def _each(self, data: bytes, starts: Sequence[int] | Places, stops: Sequence[int] | Places) -> Messages | None:
        """Return messages one by one, up to the first that is none."""
        found: list[tuple[Metadata, bytes]] = []
        for start, stop in zip(starts, stops, strict=True):
            try:
                found.append(_plain(data, int(start), int(stop)) or message(data, int(start), int(stop)))
            except BadMessage as error:
                self.forget()
                self.fault = f"not a Message: {error}"
                break
        return together(found) if found else None


def together(found: Sequence[tuple[Metadata, bytes]]) -> Messages:
    """Return messages that were read one by one, in the shape that their number asks for."""
    count = len(found)
    shards, ids, sent = zip(*[metadata for metadata, _ in found], strict=True)
    values = [value for _, value in found]
    entries = [entry(metadata) for metadata, _ in found]
    cuts: Cuts = [0, *accumulate(map(len, values))]
    if count <= SMALL:
        return Messages(count, Metadatas(list(shards), list(ids), list(sent)), cuts, b"".join(values), entries)
    wide = Metadatas(*(np.array(each, np.uint64) for each in (shards, ids, sent)))
    return Messages(count, wide, np.array(cuts, np.int32), b"".join(values), pa.array(entries, pa.binary()))


def message(data: bytes, at: int = 0, end: int | None = None) -> tuple[Metadata, bytes]:
    """Return what one Message says; BadMessage where it is none."""
    found, value = Metadata(), b""
    for field in fields(data[at:end]):
        if field.number == 1:
            found = metadata(field.data(), found)
        elif field.number == 2:
            value = field.data()
    return found, value


def _plain(data: bytes, at: int, end: int) -> tuple[Metadata, bytes] | None:
    """Return the same of a Message that is written as everybody does, in a third of the time; None if it is not."""
    if end - at < 2 or data[at] != _METADATA or data[at + 1] > ENTRY_BYTES_MAX:
        return None
    stop = at + 2 + data[at + 1]
    said = [0, 0, 0]
    at += 2
    if stop > end:
        return None
    for place, tag in enumerate((_SHARD, _ID, _SENT)):
        if at < stop and data[at] == tag:
            number = shift = 0
            byte = 0x80
            while byte & 0x80:
                at += 1
                if at >= stop or shift > 63:
                    return None
                byte = data[at]
                number |= (byte & 0x7F) << shift
                shift += 7
            said[place] = number & _UINT64_MAX
            at += 1
    if at != stop:
        return None
    if stop == end:
        return Metadata(*said), b""
    # Of a value below 128 bytes; longer ones are worth the general way.
    if end - stop < 2 or data[stop] != _VALUE or data[stop + 1] != end - stop - 2 or data[stop + 1] >= 0x80:
        return None
    return Metadata(*said), data[stop + 2 : end]


def metadata(data: bytes, before: Metadata | None = None) -> Metadata:
    """Return what one Metadata says; a second one of the same message adds to the first, as protobuf has it."""
    said = list(before or (0, 0, 0))
    for field in fields(data):
        if field.number <= 3:
            said[field.number - 1] = field.whole()
    return Metadata(*said)


def columns(data: bytes, starts: Places, stops: Places) -> Messages | None:
    """Return messages that are written as everybody writes them, None if one of them is not."""
    reader = Reader(data + PAD)
    raw = reader.raw
    at, end, good = reader.nested(_METADATA, starts, stops)
    if not (good & (end - starts <= ENTRY_BYTES_MAX)).all():
        return None
    found = _metadatas(reader, at, end)
    if found is None:
        return None
    start, stop, good = reader.optional_nested(_VALUE, end, stops)
    if not (good & (stop == stops)).all():
        return None
    values = varints.slices(data, start, stop)
    # A head of two bytes, which is the shortest way to write it, is an entry as it stands.
    entries = varints.slices(data, starts, end)
    if not (raw[starts + 1] == end - at).all():
        return None
    _, edges, body = values.buffers()
    return Messages(len(starts), found, np.frombuffer(edges, np.int32, len(starts) + 1), body or b"", entries)


def _metadatas(reader: Reader, at: Places, end: Places) -> Metadatas | None:
    """Return what is said between these places; None if a piece is not written as everybody does."""
    found: list[npt.NDArray[np.uint64]] = []
    for tag in (_SHARD, _ID, _SENT):
        values, at, good = reader.optional(tag, at, end)
        if not good.all():
            return None
        found.append(values)
    return Metadatas(*found) if (at == end).all() else None


def entry(said: Metadata) -> bytes:
    """Return what an Ack says of one message, and a Message of itself."""
    return bytes_field(1, b"".join(number_field(no, value) for no, value in enumerate(said, 1)))


def encoded(said: Metadata, value: bytes, bytes_max: int = FRAME_BYTES_MAX) -> bytes:
    """Return the frame of one message."""
    body = entry(said) + bytes_field(2, value) if value else entry(said)
    return _HEAD.pack(_fitting(len(body), bytes_max)) + body


def encode(said: Metadatas, cuts: Cuts, values: Buffer, bytes_max: int = FRAME_BYTES_MAX) -> tuple[Cuts, Buffer]:
    """Return the frames of many messages back to back, and where each begins.

    FrameTooLarge if one of them is; nothing is encoded then.
    """
    if len(said) <= SMALL:
        view = memoryview(values)
        each = [
            encoded(
                Metadata(int(shard), int(id_), int(sent)), bytes(view[int(cuts[row]) : int(cuts[row + 1])]), bytes_max
            )
            for row, (shard, id_, sent) in enumerate(zip(*said, strict=True))
        ]
        return [0, *accumulate(map(len, each))], b"".join(each)
    head, sizes = _heads(said, np.asarray(cuts, np.int64))
    _fitting(int(sizes.max()), bytes_max)
    bodies = pa.Array.from_buffers(
        pa.binary(), len(said), [None, pa.py_buffer(np.ascontiguousarray(cuts, np.int32)), pa.py_buffer(values)]
    )
    wire = pc.binary_join_element_wise(head, bodies, b"")
    _, edges, body = wire.buffers()
    return np.frombuffer(edges, np.int32, len(said) + 1), body


def _heads(said: Metadatas, cuts: Places) -> tuple[pa.Array, Places]:
    """Return what stands before each value, and the size of each frame's content."""
    count, lengths = len(said), np.diff(cuts).astype(np.uint64)
    inner = Writer(count)
    _entries(inner, said)
    has_value = None if lengths.all() else lengths != 0
    inner.constant(bytes((_VALUE,)), has_value)
    inner.numbers(lengths, has_value)
    sizes = inner.sizes + lengths.astype(np.int64)
    whole = Writer(count)
    whole.fixed(sizes.astype(">u4").view(np.uint8).reshape(count, 4))
    whole.take(inner)
    return whole.column(), sizes


def _entries(writer: Writer, said: Metadatas) -> None:
    inner = Writer(len(said))
    for tag, values in zip((_SHARD, _ID, _SENT), said, strict=True):
        inner.optional(tag, np.asarray(values, np.uint64))
    writer.constant(bytes((_METADATA,)))
    writer.fixed(inner.sizes.astype(np.uint8)[:, None])
    writer.take(inner)


def entries(said: Metadatas) -> list[bytes] | pa.Array:
    """Return what Acks say of many messages, each."""
    if len(said) <= SMALL:
        return [entry(Metadata(int(shard), int(id_), int(sent))) for shard, id_, sent in zip(*said, strict=True)]
    writer = Writer(len(said))
    _entries(writer, said)
    return writer.column()


def acks(pieces: Sequence[list[bytes] | pa.Array], bytes_max: int = FRAME_BYTES_MAX) -> Acks:
    """Return the Ack frames that say this, in order: one, or as many as it takes to keep each within bounds.

    Upstream makes one whatever it weighs, and loses what is above the limit.
    """
    bodies: list[Buffer] = []
    wire: list[Buffer] = []
    size = frames = 0

    def close() -> None:
        nonlocal size, frames
        if bodies:
            wire.append(_HEAD.pack(size))
            wire.extend(bodies)
            bodies.clear()
            size, frames = 0, frames + 1

    for piece in pieces:
        for body in _fitted(piece, bytes_max):
            if size + len(body) > bytes_max:
                close()
            bodies.append(body)
            size += len(body)
    close()
    return Acks(b"".join(wire), frames)


def _fitted(piece: list[bytes] | pa.Array, bytes_max: int) -> list[Buffer]:
    """Return entries back to back, cut where they would not fit into a frame."""
    if isinstance(piece, list):
        whole: Buffer = b"".join(piece)
        if len(whole) <= bytes_max:
            return [whole] if whole else []
        cuts: Cuts = [0, *accumulate(map(len, piece))]
    else:
        _, edges, body = piece.buffers()
        cuts = np.frombuffer(edges, np.int32, len(piece) + 1, piece.offset * 4)
        whole = memoryview(body)[int(cuts[0]) : int(cuts[-1])] if body is not None else b""
        if len(whole) <= bytes_max:
            return [whole] if len(whole) else []
        cuts = cuts - cuts[0]
    view, places, found, at = memoryview(whole), np.asarray(cuts, np.int64), [], 0
    while at < len(places) - 1:
        stop = int(np.searchsorted(places, places[at] + bytes_max, "right")) - 1
        if stop == at:
            raise FrameTooLarge(f"an entry of an Ack does not fit into a frame of {bytes_max} bytes")
        found.append(cast(Buffer, view[int(places[at]) : int(places[stop])]))
        at = stop
    return found


class AckReader(Frames):
    """What a consumer sends back."""

    __slots__ = ()

    def feed(self, data: bytes) -> Metadatas | None:
        """Return what all Acks say that are there whole now, None if they say nothing."""
        data, starts, stops = self.cut(data)
        places = [_entry_places(data, int(start), int(stop)) for start, stop in zip(starts, stops, strict=True)]
        canonical = [each for each in places if each is not None]
        if len(canonical) == len(places) and sum(len(ats) for ats, _ in canonical) > SMALL:
            ats, ends = (np.concatenate([each[side] for each in canonical]) for side in (0, 1))
            found = _metadatas(Reader(data + PAD), ats, ends)
            if found is not None:
                return found
        return self._each(data, starts, stops)

    def _each(self, data: bytes, starts: Sequence[int] | Places, stops: Sequence[int] | Places) -> Metadatas | None:
        said: list[Metadata] = []
        for start, stop in zip(starts, stops, strict=True):
            try:
                said += ack(data, int(start), int(stop))
            except BadMessage as error:
                self.forget()
                self.fault = f"not an Ack: {error}"
                break
        if not said:
            return None
        lists = [list(each) for each in zip(*said, strict=True)]
        return Metadatas(*lists) if len(said) <= SMALL else Metadatas(*(np.array(each, np.uint64) for each in lists))


def _entry_places(data: bytes, at: int, stop: int) -> tuple[Places, Places] | None:
    """Return where the entries of an Ack begin and end; None if one is not written as everybody does."""
    size = 2 + data[at + 1] if at + 1 < stop else 1
    count = (stop - at) // size
    if count > SMALL and count * size == stop - at:  # ids next to each other have the same length, but for a few
        heads = np.frombuffer(data, np.uint8, stop - at, at).reshape(count, size)[:, :2]
        if (heads[:, 0] == _METADATA).all() and (heads[:, 1] == size - 2).all() and size < 0x82:
            ats = np.arange(at + 2, stop, size)
            return ats, ats + (size - 2)
    starts, ends = [], []
    while at < stop:
        end = at + 2 + data[at + 1] if at + 1 < stop else stop + 1
        if data[at] != _METADATA or end > stop or data[at + 1] >= 0x80:
            return None
        starts.append(at + 2)
        ends.append(end)
        at = end
    return np.array(starts, np.int64), np.array(ends, np.int64)


def ack(data: bytes, at: int = 0, end: int | None = None) -> list[Metadata]:
    """Return what one Ack says; BadMessage where it is none."""
    return [metadata(field.data()) for field in fields(data[at:end]) if field.number == 1]


def _fitting(size: int, bytes_max: int) -> int:
    if size > bytes_max:
        raise FrameTooLarge(f"a message of {size} bytes, above the {bytes_max} that a frame may have")
    return size
