"""Message ids on the wire: 16 hex digits for plain clients, 8 raw bytes and 8 of trace for Youzan's.

Owns both forms, one by one and in runs of FIN. A raw id may hold a space or a newline, so it is cut by position; which
form a connection uses is decided at SUB and not here. All 64 bits can come from outside, so ids are signed: no message
has a negative one, and arrays hold them all.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from penstock.columns import SMALL

FIN_BYTES = 21

_FIN = np.frombuffer(b"FIN ", "V4")
_LINE = struct.Struct("4s16s1s")

Ids = npt.NDArray[np.int64]


def hex_id(text: bytes) -> int | None:
    """Return the id that 16 hex digits say, None if they do not."""
    try:
        raw = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        return None
    return int.from_bytes(raw, "big", signed=True) if len(raw) == 8 else None


def hex_ids(text: bytes) -> Ids | None:
    """Return the ids that 16 hex digits each say, None if some do not."""
    try:
        return np.frombuffer(bytes.fromhex(text.decode("ascii")), ">u8").astype(np.int64)
    except ValueError:
        return None


def raw_id(text: bytes) -> int | None:
    """Return the id in 16 raw bytes, None for 0, which no message has."""
    return int.from_bytes(text[:8], "big", signed=True) or None


def fin_run(data: bytes, pos: int, end: int, raw: bool) -> list[int] | Ids | None:
    """Return the ids of the FIN lines from here on, None if the first is no good one. Each line is FIN_BYTES long."""
    lines = (end - pos) // FIN_BYTES
    if lines > SMALL:
        grid = np.frombuffer(data, np.uint8, lines * FIN_BYTES, pos).reshape(lines, FIN_BYTES)
        alike = (np.ascontiguousarray(grid[:, :4]).view("V4").ravel() == _FIN) & (grid[:, 20] == 10)
        run = lines if alike.all() else int(alike.argmin())
        if run > SMALL:
            ids = _raw_run(grid[:run]) if raw else hex_ids(np.ascontiguousarray(grid[:run, 4:20]).tobytes())
            if ids is not None and len(ids) == run:
                return ids
    elif lines > 1 and (some := _few_run(data, pos, lines, raw)) is not None:
        return some
    few: list[int] = []
    while data.startswith(b"FIN ", pos) and pos + FIN_BYTES <= end and data[pos + 20] == 10 and len(few) < SMALL:
        text = data[pos + 4 : pos + 20]
        id_ = raw_id(text) if raw else hex_id(text)
        if id_ is None:
            break
        few.append(id_)
        pos += FIN_BYTES
    return few or None


def _few_run(data: bytes, pos: int, lines: int, raw: bool) -> list[int] | None:
    """Return the ids of a handful of lines if all of them are good."""
    heads, texts, ends = zip(*_LINE.iter_unpack(memoryview(data)[pos : pos + lines * FIN_BYTES]), strict=True)
    if heads.count(b"FIN ") != lines or ends.count(b"\n") != lines:
        return None
    if raw:
        ids = [int.from_bytes(text[:8], "big", signed=True) for text in texts]
        return ids if all(ids) else None
    try:
        digits = bytes.fromhex(b"".join(texts).decode("ascii"))
    except ValueError:
        return None
    return list(struct.unpack(f">{lines}q", digits)) if len(digits) == 8 * lines else None


def _raw_run(grid: npt.NDArray[np.uint8]) -> Ids | None:
    ids = np.ascontiguousarray(grid[:, 4:12]).view(">u8").ravel()
    return ids.astype(np.int64) if ids.all() else None
