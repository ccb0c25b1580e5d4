"""Stretches of small frames, found and checked many at a time.

Owns the quick way through one-row batches, which is how a lone publisher writes. Knows nothing of columns.
Invariant: a run holds intact frames of one layout, each beginning where the one before it ended, in bytes and in
offsets; where the quick way finds anything odd it finds nothing, and the caller looks frame by frame.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from fastcrc.crc32 import iscsi as crc32c

from penstock.errors import CorruptionError
from penstock.log.layout import CRC_DIGITS, DIGITS, FIRST_AT, Layout, checked, layout_at, remember

#: Frames up to this size are worth the quick way; larger ones cost more in their CRC than in the steps around it.
SMALL_BYTES = 8 << 10
#: Frames taken in one go: about half a millisecond with the interpreter lock held.
RUN_FRAMES = 512
#: Fewer frames are quicker one by one.
RUN_FRAMES_MIN = 16

Integers = npt.NDArray[np.int64]

_I64 = struct.Struct("<q")
_ZERO = ord("0")
_NIBBLES = np.full(256, -1, np.int64)
_NIBBLES[[ord(digit) for digit in "0123456789abcdef"]] = np.arange(16)
_POWERS = 16 ** np.arange(7, -1, -1, dtype=np.int64)


class Frame(NamedTuple):
    """An intact frame found in some bytes."""

    at: int
    end: int
    layout: Layout
    rows: int
    first: int


class Run:
    """Adjoining frames of one layout, as arrays."""

    __slots__ = ("ats", "ends", "firsts", "layout", "rows")

    def __init__(self, layout: Layout, ats: Integers, ends: Integers, rows: Integers, firsts: Integers) -> None:
        self.layout = layout
        self.ats = ats
        self.ends = ends
        self.rows = rows
        self.firsts = firsts

    @classmethod
    def of(cls, frame: Frame) -> Run:
        """Return a run of one frame."""
        at, end, layout, rows, first = frame
        return cls(layout, *(np.array([value], np.int64) for value in (at, end, rows, first)))

    def __len__(self) -> int:
        return len(self.ats)

    def frame(self, number: int) -> Frame:
        """Return one frame of the run."""
        return Frame(
            int(self.ats[number]),
            int(self.ends[number]),
            self.layout,
            int(self.rows[number]),
            int(self.firsts[number]),
        )

    def part(self, start: int, stop: int) -> Run:
        """Return some of its frames."""
        return Run(
            self.layout, self.ats[start:stop], self.ends[start:stop], self.rows[start:stop], self.firsts[start:stop]
        )

    @property
    def mergeable(self) -> bool:
        """Whether its frames may become one batch: nothing in them must stay apart."""
        layout = self.layout
        return not layout.compressed and not layout.sequence_bytes and layout.aligned


def frame_at(data: bytes, at: int, limit: int) -> Frame:
    """Return the frame that begins at a position; CorruptionError if there is no intact one."""
    layout, end = checked(data, at, limit)
    return Frame(at, end, layout, layout.rows(data, at), layout.first(data, at))


def run_from(data: bytes, at: int, limit: int) -> Run | None:
    """Return the run of small frames that begins at a position, None if there is none worth it."""
    try:
        layout = layout_at(data, at)
    except CorruptionError:
        return None
    if at & 7 or not layout.aligned:
        return None
    ats: list[int] = []
    body_at, size_at, prefix = layout.body_at, layout.body_bytes_at, data[at : at + 8]
    unpack = _I64.unpack_from
    while len(ats) < RUN_FRAMES and at + body_at <= limit and data[at : at + 8] == prefix:
        size = unpack(data, at + size_at)[0]
        end = at + body_at + size
        if not 0 <= size < SMALL_BYTES or end > limit:
            break
        ats.append(at)
        at = end
    if len(ats) < RUN_FRAMES_MIN:
        return None
    return verified(data, ats, [*ats[1:], at])


def verified(data: bytes, ats: Sequence[int] | Integers, ends: Sequence[int] | Integers) -> Run | None:
    """Return the frames at these places as a run if every one of them is intact and follows the one before."""
    starts, stops = np.asarray(ats, np.int64), np.asarray(ends, np.int64)
    low, high = int(starts[0]), int(stops[-1])
    if (starts & 7).any() or high > len(data) or (stops - starts < 8).any():
        return None
    try:
        layout = layout_at(data, low)
    except CorruptionError:
        return None
    words = np.frombuffer(data, "<i8", len(data) // 8)
    places = starts >> 3
    if not layout.aligned or int(places[-1]) + (layout.body_at >> 3) > len(words):
        return None
    sizes = words[places + (layout.body_bytes_at >> 3)]
    heads = words[places[:, None] + np.arange(layout.body_at >> 3)]
    if (starts + layout.body_at + sizes != stops).any() or not layout.all_match(heads):
        return None
    raw = np.frombuffer(data, np.uint8)
    digits = (starts + layout.value_at)[:, None]
    wanted = _hex(raw[digits + np.arange(CRC_DIGITS)])
    firsts = _hex(raw[digits + np.arange(FIRST_AT, FIRST_AT + DIGITS)])
    rows = words[places + (layout.rows_at >> 3)]
    if wanted is None or firsts is None or (firsts[1:] != firsts[:-1] + rows[:-1]).any() or (rows <= 0).any():
        return None
    copy = bytearray(data[low:high])
    np.frombuffer(copy, np.uint8)[digits - low + np.arange(CRC_DIGITS)] = _ZERO
    view = memoryview(copy)
    bounds = zip((starts - low).tolist(), (stops - low).tolist(), strict=True)
    found = [crc32c(view[start:stop]) for start, stop in bounds]
    if found != wanted.tolist():
        return None
    if not layout.known:
        remember(layout)
    return Run(layout, starts, stops, rows, firsts)


def _hex(digits: npt.NDArray[np.uint8]) -> Integers | None:
    """Return rows of hex digits as numbers, None if any is no digit."""
    nibbles = _NIBBLES[digits]
    if (nibbles < 0).any():
        return None
    value: Integers = nibbles[:, :8] @ _POWERS
    if digits.shape[1] == DIGITS:
        value = (value << 32) + nibbles[:, 8:] @ _POWERS
    return value
