"""M3Msg's frames: `uint32 big-endian size`, then a Message towards consumers or an Ack back from them.

Owns where frames begin and end. Invariant: however the wire cuts a stream, the same frames come out, up to the first
that is too large.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from penstock.columns import SMALL
from penstock.errors import PenstockError
from penstock.varints import PAD, Places

#: Upstream's limit of what a frame may hold, which both ends may choose.
FRAME_BYTES_MAX = 4 * 1024 * 1024

HEAD = struct.Struct(">I")
#: So many frames of one size in a row make it likely that more follow.
_ALIKE = 8
_NONE: tuple[int, ...] = ()


class FrameTooLarge(PenstockError):
    """A frame larger than was agreed; nothing of it was written."""


class Frames:
    """The stream of one connection, cut into frames."""

    __slots__ = ("_bytes_max", "_have", "_need", "_pieces", "fault")

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = HEAD.size
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
        unpack, most = HEAD.unpack_from, self._bytes_max
        pieces: list[Places] = []
        starts: list[int] = []
        at, need = 0, HEAD.size
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


def fitting(size: int, bytes_max: int) -> int:
    """Return the size of a message, or raise that it is too large for a frame."""
    if size > bytes_max:
        raise FrameTooLarge(f"a message of {size} bytes, above the {bytes_max} that a frame may have")
    return size
