"""M3's Messages, both ways. A read becomes columns: above SMALL rows numpy and Arrow, below plain lists.

Budget: 0.3 us a message from 1,000 in a read on.
Invariant: however the wire cuts a stream, the same messages come out, up to the first bytes that are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock import varints
from penstock.columns import SMALL, Buffer, Cuts
from penstock.m3 import alike
from penstock.m3.acks import ack
from penstock.m3.alike import Alike
from penstock.m3.entries import (
    ENTRY_BYTES_MAX,
    METADATA,
    TAGS,
    Column,
    Metadata,
    Metadatas,
    entry,
    metadata,
    metadatas,
    write_entries,
)
from penstock.m3.frames import FRAME_BYTES_MAX, HEAD, Frames, fitting
from penstock.m3.wire import BYTES, BadMessage, bytes_field, fields
from penstock.varints import Places, Reader, Writer, varint

_VALUE = 2 << 3 | BYTES
_UINT64_MAX = (1 << 64) - 1


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


class MessageReader:
    """What a producer sends, message by message."""

    __slots__ = ("frames",)

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frames = Frames(bytes_max)

    def feed(self, data: bytes) -> Messages | None:
        """Return the messages that are there whole now, None if none is; `frames.fault` tells whether more can come."""
        data, starts, stops = self.frames.cut(data)
        if not len(starts):
            return None
        if isinstance(starts, np.ndarray) and isinstance(stops, np.ndarray):
            found = _table(data, starts, stops)
            if found is None:
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
                self.frames.forget()
                self.frames.fault = f"not a Message: {error}"
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
    if end - at < 2 or data[at] != METADATA or data[at + 1] > ENTRY_BYTES_MAX:
        return None
    stop = at + 2 + data[at + 1]
    said = [0, 0, 0]
    at += 2
    if stop > end:
        return None
    for place, tag in enumerate(TAGS):
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


def _table(data: bytes, starts: Places, stops: Places) -> Messages | None:
    """Return messages that are written alike, down to the length of their values; None if they are not."""
    first, count = int(starts[0]), len(starts)
    size = int(stops[0]) - first
    if (
        int(stops[-1]) - first != count * (size + HEAD.size) - HEAD.size
        or not (np.diff(starts) == size + HEAD.size).all()
    ):
        return None
    rows = Alike(np.frombuffer(data, np.uint8, count * (size + HEAD.size), first - HEAD.size).reshape(count, -1))
    said = rows.nested(METADATA, HEAD.size, rows.size)
    # A head of two bytes, which is the shortest way to write it, is an entry as it stands.
    if said is None or said[0] != HEAD.size + 2 or said[1] - HEAD.size > ENTRY_BYTES_MAX:
        return None
    shards, at = rows.optional(TAGS[0], said[0], said[1])
    for tag in TAGS[1:]:
        at = rows.passed(tag, at, said[1])
    if at != said[1]:
        return None
    value = rows.nested(_VALUE, at, rows.size) if at < rows.size else (at, at)
    if value is None or value[1] != rows.size:
        return None
    values = rows.column(*value)
    _, edges, body = values.buffers()
    return Messages(
        count,
        np.full(count, shards, np.uint64) if isinstance(shards, int) else shards,
        np.frombuffer(edges, np.int32, count + 1),
        body,
        rows.column(HEAD.size, said[1]),
    )


def columns(data: bytes, starts: Places, stops: Places) -> Messages | None:
    """Return messages that are written as everybody writes them, None if one of them is not; behind them is PAD."""
    reader = Reader(data)
    raw = reader.raw
    at, end, good = reader.nested(METADATA, starts, stops)
    if not (good & (end - starts <= ENTRY_BYTES_MAX)).all():
        return None
    shards = alike.first(raw, at, raw[starts + 1], TAGS)
    if shards is None:
        found = metadatas(reader, at, end)
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


def encoded(said: Metadata, value: bytes, bytes_max: int = FRAME_BYTES_MAX) -> bytes:
    """Return the frame of one message."""
    body = entry(said) + bytes_field(2, value) if value else entry(said)
    return HEAD.pack(fitting(len(body), bytes_max)) + body


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
    lengths = np.diff(places)
    if int(lengths.min()) == int(lengths.max()):
        bodies = np.frombuffer(values, np.uint8, int(places[-1] - places[0]), int(places[0])).reshape(len(said), -1)
        table = _encode_table(said, bodies, bytes_max, zeros=zeros)
        if table is not None:
            return np.arange(len(said) + 1, dtype=np.int32) * np.int32(table.shape[1]), pa.py_buffer(table)
    head, sizes = _heads_alike(said, lengths, zeros=zeros) or _heads(said, places)
    fitting(int(sizes.max()), bytes_max)
    bodies = pa.Array.from_buffers(
        pa.binary(), len(said), [None, pa.py_buffer(np.ascontiguousarray(cuts, np.int32)), pa.py_buffer(values)]
    )
    wire = pc.binary_join_element_wise(head, bodies, b"")
    _, edges, body = wire.buffers()
    return np.frombuffer(edges, np.int32, len(said) + 1), body


def _encode_table(said: Metadatas, bodies: alike.Table, bytes_max: int, *, zeros: bool) -> alike.Table | None:
    """Return the frames of messages whose frames all have one length, a row each; None of others."""
    head = bytearray()
    varying: list[tuple[int, alike.Numbers, int]] = []
    for tag, column in zip(TAGS, said, strict=True):
        numbers = np.asarray(column, np.uint64)
        least, most = int(numbers.min()), int(numbers.max())
        number = varint(least)
        if len(varint(most)) != len(number) or not (least or zeros):
            return None
        head.append(tag)
        if least != most:
            varying.append((len(head), numbers, len(number)))
        head += number
    inner, size = len(head), bodies.shape[1]
    if size:
        head += bytes((_VALUE,)) + varint(size)
    head[:0] = HEAD.pack(fitting(2 + len(head) + size, bytes_max)) + bytes((METADATA, inner))
    table = np.empty((len(bodies), len(head) + size), np.uint8)
    table[:, : len(head)] = np.frombuffer(head, np.uint8)
    for at, numbers, width in varying:
        alike.write(table, HEAD.size + 2 + at, numbers, width)
    table[:, len(head) :] = bodies
    return table


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
    table[:, 4:6] = METADATA, inner
    at = 6
    for tag, values, width in zip((*TAGS, _VALUE), numbers, widths, strict=True):
        table[:, at] = tag
        alike.write(table, at + 1, values, width)
        at += 1 + width
    edges = np.arange(0, table.size + 1, table.shape[1], dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(said), [None, pa.py_buffer(edges), pa.py_buffer(table)]), sizes


def _heads(said: Metadatas, cuts: Places) -> tuple[pa.Array, Places]:
    """Return what stands before each value, and the size of each frame's content."""
    count, lengths = len(said), np.diff(cuts).astype(np.uint64)
    inner = Writer(count)
    write_entries(inner, said)
    has_value = None if lengths.all() else lengths != 0
    inner.constant(bytes((_VALUE,)), has_value)
    inner.numbers(lengths, has_value)
    sizes = inner.sizes + lengths.astype(np.int64)
    whole = Writer(count)
    whole.fixed(sizes.astype(">u4").view(np.uint8).reshape(count, 4))
    whole.take(inner)
    return whole.column(), sizes
