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
from penstock.m3 import alike
from penstock.m3.wire import BYTES, BadMessage, bytes_field, fields, number_field
from penstock.varints import PAD, Places, Reader, Writer

#: Upstream's limit of what a frame may hold, which both ends may choose.
FRAME_BYTES_MAX = 4 * 1024 * 1024
#: What one entry of an Ack may weigh: three numbers of ten bytes, their tags, and a head.
ENTRY_BYTES_MAX = 2 + 3 * 11

_HEAD = struct.Struct(">I")
_METADATA, _VALUE = 1 << 3 | BYTES, 2 << 3 | BYTES
_SHARD, _ID, _SENT = 1 << 3, 2 << 3, 3 << 3
_TAGS = bytes((_SHARD, _ID, _SENT))
_UINT64_MAX = (1 << 64) - 1
#: So many frames of one size in a row make it likely that more follow.
_ALIKE = 8

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
    shard: Column
    #: Values back to back, and where each begins.
    cuts: Cuts
    values: Buffer
    #: What an Ack says of each, as it came: one behind the other they are the content of an Ack.
    entries: list[bytes] | pa.Array

    def names(self) -> list[Metadata]:
        """Return what each says of itself; whoever stores them needs no more than shards and entries."""
        listed = self.entries if isinstance(self.entries, list) else self.entries.to_pylist()
        return ack(b"".join(listed))


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

    def keep(self, data: bytes) -> None:
        """Put bytes aside until more come."""
        self._pieces.append(data)
        self._have += len(data)

    def cut(self, data: bytes) -> tuple[bytes, Sequence[int] | Places, Sequence[int] | Places]:
        """Return bytes, and where the contents of all whole frames in them begin and end; behind them is PAD."""
        if self.fault:
            return b"", _NONE, _NONE
        self.keep(data)
        if self._have < self._need:
            return b"", _NONE, _NONE
        data = b"".join([*self._pieces, PAD])
        starts, stops, at, need = self._cut(data, len(data) - len(PAD))
        rest = b"" if self._is_broken() else data[at : -len(PAD)]
        self._pieces, self._have, self._need = [rest] if rest else [], len(rest), need
        return data, starts, stops

    def _is_broken(self) -> bool:
        return bool(self.fault)

    def forget(self) -> None:
        """Hold nothing, and read nothing more."""
        self._pieces, self._have = [], 0
        self.fault = self.fault or "its connection is over"

    def _cut(self, data: bytes, end: int) -> tuple[Sequence[int] | Places, Sequence[int] | Places, int, int]:
        """Return where frames begin and end, where the last of them ends, and how many bytes the next one needs."""
        unpack, most = _HEAD.unpack_from, self._bytes_max
        pieces: list[Places] = []
        starts: list[int] = []
        at, need = 0, _HEAD.size
        # How often the last size came in a row, and the one that came often: many of it are then looked at together.
        before, same, usual, run = -1, 0, -1, _ALIKE
        while at + 4 <= end:
            (size,) = unpack(data, at)
            if size > most:
                self.fault = f"a frame of {size} bytes, above the {most} that a frame may have"
                break
            if at + 4 + size > end:
                need = 4 + size
                break
            starts.append(at + 4)
            at += 4 + size
            if size == usual:
                run = _run(data, at, size, min((end - at) // (4 + size), 2 * run + _ALIKE))
                if run:
                    pieces += [np.array(starts, np.int64), np.arange(run) * (4 + size) + (at + 4)]
                    starts.clear()
                    at += run * (4 + size)
                if run < _ALIKE:
                    usual = -1
            elif size == before:
                same += 1
                if same >= _ALIKE:
                    same, usual = 0, size
            else:
                same = 0
            before = size
        if pieces or len(starts) > SMALL:
            found = np.concatenate([*pieces, np.array(starts, np.int64)])
            return found, np.append(found[1:] - 4, at), at, need
        return starts, [*(start - 4 for start in starts[1:]), at][: len(starts)], at, need


def _run(data: bytes, at: int, size: int, count: int) -> int:
    """Return how many frames from here on have this size, up to so many."""
    if not count:
        return 0
    alike = np.ndarray((count,), ">u4", data, at, (4 + size,)) == size
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
    shards = [metadata.shard for metadata, _ in found]
    values = [value for _, value in found]
    entries = [entry(metadata) for metadata, _ in found]
    cuts: Cuts = [0, *accumulate(map(len, values))]
    if count <= SMALL:
        return Messages(count, shards, cuts, b"".join(values), entries)
    wide = np.array(shards, np.uint64)
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
    """Return messages that are written as everybody writes them, None if one of them is not; behind them is PAD."""
    reader = Reader(data)
    raw = reader.raw
    at, end, good = reader.nested(_METADATA, starts, stops)
    if not (good & (end - starts <= ENTRY_BYTES_MAX)).all():
        return None
    shards = alike.first(raw, at, raw[starts + 1], _TAGS)
    if shards is None:
        found = _metadatas(reader, at, end)
        if found is None:
            return None
        shards = np.asarray(found.shard, np.uint64)
    start, stop, good = reader.optional_nested(_VALUE, end, stops)
    if not (good & (stop == stops)).all():
        return None
    values = varints.slices(data, start, stop)
    # A head of two bytes, which is the shortest way to write it, is an entry as it stands.
    entries = varints.slices(data, starts, end)
    if not (raw[starts + 1] == end - at).all():
        return None
    _, edges, body = values.buffers()
    return Messages(len(starts), shards, np.frombuffer(edges, np.int32, len(starts) + 1), body or b"", entries)


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


def encode(
    said: Metadatas, cuts: Cuts, values: Buffer, bytes_max: int = FRAME_BYTES_MAX, *, zeros: bool = False
) -> tuple[Cuts, Buffer]:
    """Return the frames of many messages back to back, and where each begins.

    FrameTooLarge if one of them is; nothing is encoded then. With `zeros` a number that is 0 may be written as well:
    to readers it is the same, and heads of one length are put together faster.
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
    places = np.asarray(cuts, np.int64)
    head, sizes = _heads_alike(said, np.diff(places), zeros=zeros) or _heads(said, places)
    _fitting(int(sizes.max()), bytes_max)
    bodies = pa.Array.from_buffers(
        pa.binary(), len(said), [None, pa.py_buffer(np.ascontiguousarray(cuts, np.int32)), pa.py_buffer(values)]
    )
    wire = pc.binary_join_element_wise(head, bodies, b"")
    _, edges, body = wire.buffers()
    return np.frombuffer(edges, np.int32, len(said) + 1), body


def _heads_alike(said: Metadatas, lengths: Places, *, zeros: bool) -> tuple[pa.Array, Places] | None:
    """Return the same of messages whose heads all have one length; None of others."""
    numbers = [*(np.asarray(each, np.uint64) for each in said), lengths.astype(np.uint64)]
    widths = [alike.width(each) for each in numbers]
    if not all(widths) or not lengths.all() or not (zeros or all(each.all() for each in numbers)):
        return None
    inner = sum(widths[:3]) + 3
    if inner >= 0x80:
        return None
    sizes = lengths + (2 + inner + 1 + widths[3])
    table = np.empty((len(said), 4 + 2 + inner + 1 + widths[3]), np.uint8)
    table[:, :4] = sizes.astype(">u4").view(np.uint8).reshape(-1, 4)
    table[:, 4:6] = _METADATA, inner
    at = 6
    for tag, values, width in zip((*_TAGS, _VALUE), numbers, widths, strict=True):
        table[:, at] = tag
        alike.write(table, at + 1, values, width)
        at += 1 + width
    edges = np.arange(0, table.size + 1, table.shape[1], dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(said), [None, pa.py_buffer(edges), pa.py_buffer(table)]), sizes


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
        tables = [_table(data, int(start), int(stop)) for start, stop in zip(starts, stops, strict=True)]
        whole = [each for each in tables if each is not None]
        if whole and len(whole) == len(tables):
            return whole[0] if len(whole) == 1 else Metadatas(*map(np.concatenate, zip(*whole, strict=True)))
        places = [_entry_places(data, int(start), int(stop)) for start, stop in zip(starts, stops, strict=True)]
        canonical = [each for each in places if each is not None]
        if len(canonical) == len(places) and sum(len(ats) for ats, _ in canonical) > SMALL:
            ats, ends = (np.concatenate([each[side] for each in canonical]) for side in (0, 1))
            found = _metadatas(Reader(data), ats, ends)
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


def _table(data: bytes, at: int, stop: int) -> Metadatas | None:
    """Return what an Ack says whose entries are written alike; None of another one, and of a short one."""
    size = 2 + data[at + 1] if at + 1 < stop else stop + 1
    count = (stop - at) // size
    if count <= SMALL or count * size != stop - at:
        return None
    table = np.frombuffer(data, np.uint8, stop - at, at).reshape(count, size)
    if not (table[:, :2] == (_METADATA, size - 2)).all() or size == 2:
        return None
    found = alike.columns(table[:, 2:], _TAGS)
    if found is None:
        return None
    return Metadatas(*(np.full(count, each, np.uint64) if isinstance(each, int) else each for each in found))


def _entry_places(data: bytes, at: int, stop: int) -> tuple[Places, Places] | None:
    """Return where the entries of an Ack begin and end; None if one is not written as everybody does."""
    size = 2 + data[at + 1] if at + 1 < stop else 1
    count = (stop - at) // size
    if count > SMALL and count * size == stop - at:  # ids next to each other have the same length, but for a few
        heads = np.frombuffer(data, np.uint8, stop - at, at).reshape(count, size)[:, :2]
        if (heads[:, 0] == _METADATA).all() and (heads[:, 1] == size - 2).all() and size < 0x82:
            ats = np.arange(count) * size + (at + 2)
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
