"""Frames: responses, errors, and messages for plain clients, encoded many at a time.

Owns the frame itself and the plain message in it. Up to SMALL rows a Python loop, above that numpy and Arrow, with
the same bytes.
"""

from __future__ import annotations

import struct
from itertools import repeat
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import SMALL, Buffer, Cuts

RESPONSE, ERROR, MESSAGE = range(3)

#: Up to here slices that are joined cost less than a call of Arrow.
GATHER_ROWS_MAX = 128

_FRAME = struct.Struct(">II").pack
_TRACED = struct.Struct(">II2sQQQI").pack
_HEAD = struct.Struct(">IIqH16s").pack
_HEADS = np.dtype([("size", ">u4"), ("type", ">u4"), ("time", ">i8"), ("attempts", ">u2"), ("id", "V16")])
_HEAD_BYTES = _HEADS.itemsize
_BITS = (1 << 64) - 1

_join = pc.get_function("binary_join_element_wise")
_JOIN_OPTIONS = pc.JoinOptions(null_handling="emit_null")
_EMPTY = pa.scalar(b"", pa.binary())


def frame(kind: int, data: bytes) -> bytes:
    """Return a response or error frame."""
    return _FRAME(4 + len(data), kind) + data


OK = frame(RESPONSE, b"OK")
HEARTBEAT = frame(RESPONSE, b"_heartbeat_")
CLOSE_WAIT = frame(RESPONSE, b"CLOSE_WAIT")


def error(code: str, text: str) -> bytes:
    """Return an error frame; clients need both words."""
    return frame(ERROR, f"{code} {text}".encode())


def traced(id_: int, trace: int, queue_offset: int, raw_size: int) -> bytes:
    """Return the response to a publish that asked where its message went."""
    return _TRACED(34, RESPONSE, b"OK", id_, trace & _BITS, queue_offset, raw_size)


Times: TypeAlias = "int | list[int] | npt.NDArray[np.int64]"
Attempts: TypeAlias = "int | npt.NDArray[np.uint16]"


def messages(
    first_id: int, count: int, time: Times, attempts: Attempts, cuts: Cuts, body: Buffer
) -> tuple[Buffer, Cuts]:
    """Return message frames of rows with ids in a row, back to back, and where each begins.

    Budget: 60 ns a row from 1,000 rows on, 1 us for a lone one.
    """
    if count <= SMALL:
        return _few_messages(first_id, count, time, attempts, cuts, body)
    return _many_messages(np.arange(first_id, first_id + count), time, attempts, np.asarray(cuts, np.int32), body)


def lone(id_: int, time: int, body: bytes) -> bytes:
    """Return the frame of one message on its first delivery. Budget: 0.5 us."""
    return _HEAD(len(body) + 30, MESSAGE, time, 1, b"%016x" % id_) + body


def _few_messages(
    first_id: int, count: int, time: Times, attempts: Attempts, cuts: Cuts, body: Buffer
) -> tuple[Buffer, Cuts]:
    if count == 1 and type(body) is bytes and type(attempts) is int:
        at = time if isinstance(time, int) else int(time[0])
        wire = _HEAD(len(body) + 30, MESSAGE, at, attempts, b"%016x" % first_id) + body
        return wire, [0, len(wire)]
    edges = cuts if isinstance(cuts, list) else cuts.tolist()
    whole = body if isinstance(body, bytes) else bytes(memoryview(body))
    times = repeat(time) if isinstance(time, int) else map(int, time)
    tries = repeat(attempts) if isinstance(attempts, int) else map(int, attempts)
    out: list[bytes] = []
    begins = [0]
    low, begin, id_ = edges[0], 0, first_id
    for high, at, nth in zip(edges[1:], times, tries, strict=False):
        size = high - low
        out += _HEAD(size + 30, MESSAGE, at, nth, b"%016x" % id_), whole[low:high]
        begin += _HEAD_BYTES + size
        begins.append(begin)
        low, id_ = high, id_ + 1
    return b"".join(out), begins


def _many_messages(
    ids: npt.NDArray[np.int64], time: Times, attempts: Attempts, cuts: npt.NDArray[np.int32], body: Buffer
) -> tuple[Buffer, Cuts]:
    count = len(ids)
    heads = np.empty(count, _HEADS)
    heads["size"] = np.diff(cuts) + 30
    heads["type"] = MESSAGE
    heads["time"] = time
    heads["attempts"] = attempts
    heads["id"] = hex_bytes(ids)
    return joined([fixed(heads), binary(cuts, body)])


def picked(
    ids: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    time: Times,
    attempts: Attempts,
    cuts: Cuts,
    body: Buffer,
) -> Buffer:
    """Return message frames of picked rows of a batch, back to back."""
    if len(rows) <= SMALL:
        view = memoryview(body)
        out: list[Buffer] = []
        for number, row in enumerate(rows.tolist()):
            low, high = int(cuts[row]), int(cuts[row + 1])
            at = time if isinstance(time, int) else int(time[row])
            tries = attempts if isinstance(attempts, int) else int(attempts[number])
            out.append(_HEAD(high - low + 30, MESSAGE, at, tries, b"%016x" % int(ids[number])))
            out.append(view[low:high])
        return b"".join(out)
    buffers = binary(np.asarray(cuts, np.int32), body).take(pa.array(rows)).buffers()
    times = time if isinstance(time, int) else np.asarray(time)[rows]
    return _many_messages(ids, times, attempts, np.frombuffer(buffers[1], np.int32)[: len(rows) + 1], buffers[2])[0]


def gathered(whole: tuple[Buffer, Cuts], rows: npt.NDArray[np.int64]) -> Buffer:
    """Return frames of picked rows, cut out of those of their whole batch. Budget: 100 ns a row."""
    frames, cuts = whole
    if len(rows) > GATHER_ROWS_MAX:
        buffers = binary(np.asarray(cuts, np.int32), frames).take(pa.array(rows)).buffers()
        size = int(np.frombuffer(buffers[1], np.int32)[len(rows)])
        return memoryview(buffers[2])[:size]
    edges = np.asarray(cuts)
    view = memoryview(frames)
    return b"".join([view[low:high] for low, high in zip(edges[rows].tolist(), edges[rows + 1].tolist(), strict=True)])


# --- what both kinds of message frames are joined from ---------------------------------------------------------------


def hex_bytes(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
    """Return ids as 16 hex digits each."""
    return np.frombuffer(ids.astype(">u8").tobytes().hex().encode("ascii"), "V16")


def fixed(values: npt.NDArray[np.void]) -> pa.Array:
    """Return values of one size as an Arrow array of bytes."""
    size, count = values.dtype.itemsize, len(values)
    cuts = pa.py_buffer(np.arange(0, size * count + 1, size, dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), count, [None, cuts, pa.py_buffer(values)])


def binary(cuts: npt.NDArray[np.int32], body: Buffer) -> pa.Array:
    """Return bodies as an Arrow array."""
    return pa.Array.from_buffers(pa.binary(), len(cuts) - 1, [None, pa.py_buffer(cuts), pa.py_buffer(body)])


def joined(parts: list[pa.Array]) -> tuple[Buffer, Cuts]:
    """Return the rows of several arrays put together, back to back, and where each begins."""
    buffers = _join.call([*parts, _EMPTY], _JOIN_OPTIONS).buffers()
    cuts = np.frombuffer(buffers[1], np.int32)[: len(parts[0]) + 1]
    return memoryview(buffers[2])[: int(cuts[-1])], cuts
