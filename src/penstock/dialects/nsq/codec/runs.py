"""Many messages cut out of one buffer at once: runs of one command, items of an MPUB, what stands before bodies.

Pure functions on bytes. Small groups are cut in a Python loop, large ones by numpy and Arrow, with the same result.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import SMALL
from penstock.dialects.nsq.codec.words import SOURCE
from penstock.message import Rows

#: Runs of PUB shorter than this, or with bodies larger than that, are cut in a Python loop: below it Arrow's call
#: overhead costs more than it saves, above it copying bytes is all that counts.
RUN_BYTES_MIN = 16_000
RUN_BODY_BYTES_MAX = 600

#: A run that breaks off this early means bodies that contain the command text: the loop is then the better way.
RUN_ROWS_MIN = 32

Headers: TypeAlias = "list[bytes | None] | pa.Array"

_U32 = struct.Struct(">I").unpack_from
_U64 = struct.Struct(">q").unpack_from
_split = pc.get_function("split_pattern")
_slice = pc.get_function("binary_slice")


def run(data: bytes, pos: int, end: int, header: bytes, least: int, most: int) -> Rows | None:
    """Decode many commands with the same line, each with one body; None if this cannot be done from here.

    A body has more than `least` bytes and at most `most`.
    """
    head = len(header) + 4
    size = _U32(data, pos + head - 4)[0]
    stride = head + size
    count = (end - pos) // stride
    grid = np.frombuffer(data, np.uint8, count * stride, pos).reshape(count, stride)
    alike = np.ascontiguousarray(grid[:, :head]).view(f"V{head}").ravel() == np.frombuffer(data, f"V{head}", 1, pos)
    same = count if alike.all() else int(alike.argmin())
    if same >= RUN_ROWS_MIN:
        body = np.ascontiguousarray(grid[:same, head:]).data.cast("B")
        return Rows(same, np.arange(0, same * size + 1, size, dtype=np.int32), body, SOURCE)
    whole = pa.Array.from_buffers(
        pa.binary(), 1, [None, pa.py_buffer(np.array([pos + len(header), end], np.int32)), pa.py_buffer(data)]
    )
    parts = _split.call([whole], pc.SplitPatternOptions(header)).values
    cuts = np.frombuffer(parts.buffers()[1], np.int32)[: len(parts) + 1]
    raw = np.frombuffer(parts.buffers()[2], np.uint8)
    lengths = np.diff(cuts)
    if lengths[-1] < 4:
        lengths = lengths[:-1]
    if len(lengths) == 0:
        return None
    at = cuts[: len(lengths)]
    sizes = raw[at].astype(np.int64) << 24
    for byte, shift in ((1, 16), (2, 8), (3, 0)):
        sizes |= raw[np.minimum(at + byte, len(raw) - 1)].astype(np.int64) << shift
    good = (sizes == lengths - 4) & (sizes > least) & (sizes <= most)
    rows = len(good) if good.all() else int(good.argmin())
    if rows <= SMALL:
        return None
    bodies = _slice.call([parts.slice(0, rows)], pc.SliceOptions(4, len(data)))
    buffers = bodies.buffers()
    return Rows(rows, np.frombuffer(buffers[1], np.int32)[: rows + 1], buffers[2], SOURCE)


def equal_items(data: bytes, start: int, stop: int, count: int, least: int, most: int) -> Rows | None:
    """Return the items of an MPUB if all are of one size and good; None if somebody must look at each."""
    if count <= SMALL or start + 4 > stop:
        return None
    size = _U32(data, start)[0]
    if not least < size <= most or (size + 4) * count != stop - start:
        return None
    grid = np.frombuffer(data, np.uint8, stop - start, start).reshape(count, size + 4)
    if not (grid[:, :4] == grid[0, :4]).all():
        return None
    body = np.ascontiguousarray(grid[:, 4:]).data.cast("B")
    return Rows(count, np.arange(0, count * size + 1, size, dtype=np.int32), body, SOURCE)


def gathered_items(data: bytes, start: int, ends: Sequence[int]) -> Rows:
    """Return the items of an MPUB, whose ends were found one by one."""
    count = len(ends)
    if count <= SMALL:
        starts = [start, *ends[:-1]]
        return Rows.of([data[a + 4 : b] for a, b in zip(starts, ends, strict=True)], SOURCE)
    # header, body, header, body ...: Arrow gathers every second value in one pass
    cuts = np.empty(2 * count + 1, np.int32)
    cuts[0], cuts[2::2] = start, ends
    cuts[1::2] = cuts[:-1:2] + 4
    return _rows(_pieces(cuts, data), 2, 1)


def split_headers(rows: Rows) -> tuple[Headers, Rows, int]:
    """Return headers and messages of bodies that begin with a header's length, up to the first that is too short.

    The number is how many are good. No header is None in a list and b"" in an array.
    """
    if rows.count <= SMALL:
        return _split_few(rows)
    cuts = np.asarray(rows.cuts, np.int32)
    raw = np.frombuffer(rows.body, np.uint8)
    at = cuts[:-1]
    sizes = (raw[at].astype(np.int32) << 8) | raw[at + 1]
    fits = np.diff(cuts) > sizes + 2
    good = rows.count if fits.all() else int(fits.argmin())
    edges = np.empty(3 * good + 1, np.int32)
    edges[0::3] = cuts[: good + 1]
    edges[1::3] = at[:good] + 2
    edges[2::3] = at[:good] + 2 + sizes[:good]
    pieces = _pieces(edges, rows.body)
    headers = pieces.take(pa.array(np.arange(1, 3 * good, 3, dtype=np.int32)))
    messages = _rows(pieces, 3, 2)
    if good <= SMALL:
        return [header or None for header in headers.to_pylist()], _small(messages), good
    return headers, messages, good


def split_traces(rows: Rows) -> Rows:
    """Return messages and, as their column, the trace ids that stand before them."""
    if rows.count <= SMALL:
        bodies = _bodies(rows)
        return Rows.of([body[8:] for body in bodies], SOURCE, {"trace": [_U64(body)[0] for body in bodies]})
    cuts = np.asarray(rows.cuts, np.int32)
    edges = np.empty(2 * rows.count + 1, np.int32)
    edges[0::2] = cuts
    edges[1::2] = cuts[:-1] + 8
    pieces = _pieces(edges, rows.body)
    traces = pieces.take(pa.array(np.arange(0, 2 * rows.count, 2, dtype=np.int32)))
    numbers = np.frombuffer(traces.buffers()[2], ">i8", rows.count).astype(np.int64)
    messages = _rows(pieces, 2, 1)
    messages.columns = {"trace": pa.array(numbers)}
    return messages


def _split_few(rows: Rows) -> tuple[Headers, Rows, int]:
    headers: list[bytes | None] = []
    bodies: list[bytes] = []
    for body in _bodies(rows):
        stop = 2 + (body[0] << 8 | body[1])
        if len(body) <= stop:
            break
        headers.append(body[2:stop] or None)
        bodies.append(body[stop:])
    return headers, Rows.of(bodies, SOURCE), len(bodies)


def _bodies(rows: Rows) -> list[bytes]:
    whole = rows.body if isinstance(rows.body, bytes) else bytes(memoryview(rows.body))
    cuts = rows.cuts
    return [whole[cuts[row] : cuts[row + 1]] for row in range(rows.count)]


def _small(rows: Rows) -> Rows:
    return Rows.of(_bodies(rows), SOURCE)


def _pieces(edges: npt.NDArray[np.int32], body: object) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), pa.py_buffer(body)])


def _rows(pieces: pa.Array, step: int, first: int) -> Rows:
    """Return every `step`-th piece as a body."""
    count = len(pieces) // step
    buffers = pieces.take(pa.array(np.arange(first, len(pieces), step, dtype=np.int32))).buffers()
    return Rows(count, np.frombuffer(buffers[1], np.int32)[: count + 1], buffers[2], SOURCE)
