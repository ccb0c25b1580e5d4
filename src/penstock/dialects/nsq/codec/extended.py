"""Message frames of Youzan's extension: raw ids with their trace, a version and a header, the place in the queue.

Owns the three additions, each of which a client may have or not; without any of them it is a plain frame. Up to SMALL
rows a Python loop, above that numpy and Arrow, with the same bytes.
"""

from __future__ import annotations

import struct
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import SMALL, Buffer, Cuts, Offsets
from penstock.dialects.nsq.codec.frames import MESSAGE, Attempts, binary, fixed, hex_bytes, joined
from penstock.message import Batch, int64s

#: The version byte of a message without a header, and of one with.
NO_HEADER, JSON_HEADER = 0, 4

_BITS = (1 << 64) - 1
_HEAD = struct.Struct(">IIqH16s").pack
_ID = struct.Struct(">QQ").pack
_DETAILS = struct.Struct(">QI").pack
_HEADER = struct.Struct(">BH").pack
_HEADS = np.dtype([("size", ">u4"), ("type", ">u4"), ("time", ">i8"), ("attempts", ">u2"), ("id", "V16")])
_IDS = np.dtype([("id", ">u8"), ("trace", ">u8")])
_PLACES = np.dtype([("offset", ">u8"), ("size", ">u4")])
_HEADERS = np.dtype([("version", "u1"), ("size", ">u2")])


class Form(NamedTuple):
    """What one client's message frames have beyond plain ones."""

    #: Ids are 8 raw bytes and 8 of the trace id.
    raw: bool = False
    #: A version byte, and the header if there is one.
    extended: bool = False
    #: Queue offset and raw size.
    detailed: bool = False


PLAIN = Form()


def whole(form: Form, first_id: int, batch: Batch, edges: Offsets | None) -> tuple[Buffer, Cuts]:
    """Return the frames of a batch at its first delivery, back to back, and where each begins.

    `edges` is where each row and the end stand in the queue, for detailed frames. Budget: 200 ns a row from 1,000 on.
    """
    rows = np.arange(batch.count)
    if batch.count <= SMALL:
        return _few(form, first_id, batch, rows, 1, edges)
    return _many(form, first_id, batch, None, 1, edges)


def some(form: Form, first_id: int, batch: Batch, rows: Offsets, attempts: Attempts, edges: Offsets | None) -> Buffer:
    """Return the frames of picked rows of a batch, back to back."""
    make = _few if len(rows) <= SMALL else _many
    return make(form, first_id, batch, rows, attempts, edges)[0]


def _few(
    form: Form, first_id: int, batch: Batch, rows: Offsets, attempts: Attempts, edges: Offsets | None
) -> tuple[Buffer, Cuts]:
    out: list[bytes] = []
    for number, row in enumerate(rows.tolist()):
        rest = _addition(form, batch, row, edges) + batch.row_body(row)
        tries = attempts if isinstance(attempts, int) else int(attempts[number])
        if form.raw:
            id_ = _ID(first_id + row, int(batch.row_value("trace", row) or 0) & _BITS)
        else:
            id_ = b"%016x" % (first_id + row)
        out.append(_HEAD(len(rest) + 30, MESSAGE, batch.row_time(row), tries, id_) + rest)
    return b"".join(out), [0, *accumulate(map(len, out))]


def _addition(form: Form, batch: Batch, row: int, edges: Offsets | None) -> bytes:
    """Return what stands between id and body."""
    out = b""
    if form.extended:
        header = batch.row_value("headers", row)
        out = _HEADER(JSON_HEADER, len(header)) + header if isinstance(header, bytes) else bytes([NO_HEADER])
    if edges is not None:
        out += _DETAILS(int(edges[row]), int(edges[row + 1] - edges[row]))
    return out


def _many(
    form: Form, first_id: int, batch: Batch, rows: Offsets | None, attempts: Attempts, edges: Offsets | None
) -> tuple[Buffer, Cuts]:
    ids = first_id + (np.arange(batch.count) if rows is None else rows)
    cuts, body = np.asarray(batch.cuts, np.int32), batch.body
    bodies = binary(cuts, body)
    if rows is not None:
        bodies = bodies.take(pa.array(rows))
    sizes = np.asarray(pc.binary_length(bodies), np.int64) + 30
    parts: list[pa.Array] = []
    if form.extended:
        headers = _column(batch, "headers", rows, len(ids))
        versions, lengths = _versions(headers, len(ids))
        sizes += lengths
        parts.append(versions)
        if headers is not None:
            parts.append(headers.fill_null(b"") if headers.null_count else headers)
    if edges is not None:
        starts = edges[:-1] if rows is None else edges[rows]
        places = np.empty(len(ids), _PLACES)
        places["offset"] = starts
        places["size"] = (edges[1:] if rows is None else edges[rows + 1]) - starts
        sizes += _PLACES.itemsize
        parts.append(fixed(places))
    heads = np.empty(len(ids), _HEADS)
    heads["size"] = sizes
    heads["type"] = MESSAGE
    time = batch.timestamp
    heads["time"] = time if isinstance(time, int) or rows is None else np.asarray(time)[rows]
    heads["attempts"] = attempts
    heads["id"] = _raw_bytes(ids, _column(batch, "trace", rows, len(ids))) if form.raw else hex_bytes(ids)
    return joined([fixed(heads), *parts, bodies])


def _column(batch: Batch, name: str, rows: Offsets | None, count: int) -> pa.Array | None:
    column = batch.columns.get(name)
    if column is None:
        return None
    array = column if isinstance(column, pa.Array) else pa.array(column)
    taken = array if rows is None else array.take(pa.array(rows))
    return None if taken.null_count == count else taken


def _versions(headers: pa.Array | None, count: int) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return the version bytes, with the header's length where there is one, and how many bytes all that is."""
    none = pa.scalar(bytes([NO_HEADER]), pa.binary())
    if headers is None:
        return pa.repeat(none, count), np.ones(count, np.int64)
    lengths = np.asarray(pc.fill_null(pc.binary_length(headers), 0), np.int64)
    heads = np.empty(count, _HEADERS)
    heads["version"] = JSON_HEADER
    heads["size"] = lengths
    if not headers.null_count:
        return fixed(heads), lengths + 3
    valid = headers.is_valid()
    return pc.if_else(valid, fixed(heads), none), np.where(np.asarray(valid), lengths + 3, 1)


def _raw_bytes(ids: Offsets, traces: pa.Array | None) -> npt.NDArray[np.void]:
    out = np.zeros(len(ids), _IDS)
    out["id"] = ids
    if traces is not None:
        out["trace"] = int64s(traces)[0].view(np.uint64)
    return out.view("V16")
