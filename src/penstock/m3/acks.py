"""M3's Acks, both ways: entries of many messages in few frames."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa

from penstock.columns import SMALL, Buffer, Cuts
from penstock.m3 import alike
from penstock.m3.entries import METADATA, TAGS, Metadata, Metadatas, metadata, metadatas
from penstock.m3.frames import FRAME_BYTES_MAX, HEAD, Frames, FrameTooLarge
from penstock.m3.wire import BadMessage, fields
from penstock.varints import Places, Reader


class Acks(NamedTuple):
    """Frames that were made, and how many entries are in each."""

    wire: bytes
    frames: int


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
            wire.append(HEAD.pack(size))
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


class AckReader:
    """What a consumer sends back."""

    __slots__ = ("frames",)

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frames = Frames(bytes_max)

    def feed(self, data: bytes) -> Metadatas | None:
        """Return what all Acks say that are there whole now, None if they say nothing."""
        data, starts, stops = self.frames.cut(data)
        tables = [_table(data, int(start), int(stop)) for start, stop in zip(starts, stops, strict=True)]
        whole = [each for each in tables if each is not None]
        if whole and len(whole) == len(tables):
            return whole[0] if len(whole) == 1 else Metadatas(*map(np.concatenate, zip(*whole, strict=True)))
        places = [_entry_places(data, int(start), int(stop)) for start, stop in zip(starts, stops, strict=True)]
        canonical = [each for each in places if each is not None]
        if len(canonical) == len(places) and sum(len(ats) for ats, _ in canonical) > SMALL:
            ats, ends = (np.concatenate([each[side] for each in canonical]) for side in (0, 1))
            found = metadatas(Reader(data), ats, ends)
            if found is not None:
                return found
        return self._each(data, starts, stops)

    def _each(self, data: bytes, starts: Sequence[int] | Places, stops: Sequence[int] | Places) -> Metadatas | None:
        said: list[Metadata] = []
        for start, stop in zip(starts, stops, strict=True):
            try:
                said += ack(data, int(start), int(stop))
            except BadMessage as error:
                self.frames.forget()
                self.frames.fault = f"not an Ack: {error}"
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
    if not (table[:, :2] == (METADATA, size - 2)).all() or size == 2:
        return None
    found = alike.columns(table[:, 2:], TAGS)
    if found is None:
        return None
    return Metadatas(*(np.full(count, each, np.uint64) if isinstance(each, int) else each for each in found))


def _entry_places(data: bytes, at: int, stop: int) -> tuple[Places, Places] | None:
    """Return where the entries of an Ack begin and end; None if one is not written as everybody does."""
    size = 2 + data[at + 1] if at + 1 < stop else 1
    count = (stop - at) // size
    if count > SMALL and count * size == stop - at:  # ids next to each other have the same length, but for a few
        heads = np.frombuffer(data, np.uint8, stop - at, at).reshape(count, size)[:, :2]
        if (heads[:, 0] == METADATA).all() and (heads[:, 1] == size - 2).all() and size < 0x82:
            ats = np.arange(count) * size + (at + 2)
            return ats, ats + (size - 2)
    starts, ends = [], []
    while at < stop:
        end = at + 2 + data[at + 1] if at + 1 < stop else stop + 1
        if data[at] != METADATA or end > stop or data[at + 1] >= 0x80:
            return None
        starts.append(at + 2)
        ends.append(end)
        at = end
    return np.array(starts, np.int64), np.array(ends, np.int64)


def ack(data: bytes, at: int = 0, end: int | None = None) -> list[Metadata]:
    """Return what one Ack says; BadMessage where it is none."""
    return [metadata(field.data()) for field in fields(data[at:end]) if field.number == 1]
