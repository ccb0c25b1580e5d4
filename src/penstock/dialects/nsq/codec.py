"""NSQ's bytes: whole reads into commands, deliveries into frames. No sockets, no clock, no delivery rules.

A command is a tuple: the wire's word, then its arguments; runs of PUB to one topic and runs of FIN become one
command over columns. A fault is the command ("fault", code, text). After a fault nothing more is decoded, because
every fault found here is fatal on the wire.

Invariant: any cut of the stream into reads gives the same commands, apart from how runs are grouped.
"""

from __future__ import annotations

import re
import struct
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.message import SMALL, Buffer, Cuts, Rows

MAGIC = b"  V2"
SOURCE = "nsq"

#: A line without an end longer than this is not NSQ; upstream's reader has the same bound.
LINE_BYTES_MAX = 16 * 1024

#: Runs of PUB shorter than this, or with bodies larger than that, are cut in a Python loop: below it Arrow's call
#: overhead costs more than it saves, above it copying bytes is all that counts.
RUN_BYTES_MIN = 16_000
RUN_BODY_BYTES_MAX = 600

#: A run that breaks off this early means bodies that contain the command text: the loop is then the better way.
RUN_ROWS_MIN = 32

NAME = re.compile(rb"[.a-zA-Z0-9_-]+(#ephemeral)?")
NAME_BYTES_MAX = 64

Command: TypeAlias = "tuple[object, ...]"

_U32 = struct.Struct(">I").unpack_from
_split = pc.get_function("split_pattern")
_slice = pc.get_function("binary_slice")
_join = pc.get_function("binary_join_element_wise")
_JOIN_OPTIONS = pc.JoinOptions(null_handling="emit_null")
_EMPTY = pa.scalar(b"", pa.binary())


class Limits(NamedTuple):
    """What one connection may send."""

    message_bytes_max: int
    body_bytes_max: int


def is_name(name: bytes) -> bool:
    """Tell whether NSQ takes this as the name of a topic or channel."""
    return 1 <= len(name) <= NAME_BYTES_MAX and NAME.fullmatch(name) is not None


class Decoder:
    """Commands of one connection."""

    __slots__ = ("_body_bytes_max", "_dead", "_have", "_header", "_message_bytes_max", "_need", "_pieces", "_topic")

    def __init__(self, limits: Limits) -> None:
        self._message_bytes_max = limits.message_bytes_max
        self._body_bytes_max = limits.body_bytes_max
        #: The last PUB line with its newline, and its topic: pipelined publishes repeat it.
        self._header = b""
        self._topic = ""
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = 0
        self._dead = False

    def feed(self, data: bytes) -> list[Command]:
        """Decode one read."""
        header = self._header
        if header and not self._have and data.startswith(header):
            # A read that is one PUB to the same topic as before, whole: what waiting publishers send.
            at = len(header) + 4
            if 0 < len(data) - at <= self._message_bytes_max and _U32(data, at - 4)[0] == len(data) - at:
                body = data[at:]
                return [("PUB", self._topic, Rows(1, [0, len(body)], body, SOURCE), 1)]
        if self._dead:
            return []
        if self._have:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._have = 0
        out: list[Command] = []
        self._need = 0
        pos = self._parse(data, out)
        if pos < len(data) and not self._dead:
            rest = data[pos:] if pos else data
            self._pieces.append(rest)
            self._have = len(rest)
        return out

    def _parse(self, data: bytes, out: list[Command]) -> int:
        pos, end = 0, len(data)
        header = self._header
        head = len(header) + 4
        starts = data.startswith
        bodies: list[bytes] = []
        runs = True
        while pos < end:
            if header and starts(header, pos):
                at = pos + head
                if at > end:
                    break
                size = _U32(data, at - 4)[0]
                if size == 0 or size > self._message_bytes_max:
                    self._publish(out, bodies)
                    return self._fault(out, "E_BAD_MESSAGE", self._bad_size("PUB", size))
                stop = at + size
                if stop > end:
                    self._need = stop - pos
                    break
                if runs and size < RUN_BODY_BYTES_MAX and end - pos > RUN_BYTES_MIN:
                    self._publish(out, bodies)
                    bodies = []
                    rows = self._run(data, pos, end)
                    if rows is not None:
                        out.append(("PUB", self._topic, rows, rows.count))
                        pos += int(rows.cuts[-1]) + rows.count * head
                    runs = rows is not None and rows.count >= RUN_ROWS_MIN
                    if rows is not None:
                        continue
                bodies.append(data[at:stop])
                pos = stop
                continue
            if bodies:
                self._publish(out, bodies)
                bodies = []
            if starts(b"FIN ", pos):
                step = self._fin(data, pos, end, out)
            else:
                step = self._line(data, pos, end, out)
                if self._dead:
                    return end
                if header is not self._header:
                    header = self._header
                    head = len(header) + 4
            if step < 0:
                break
            pos = step
        self._publish(out, bodies)
        return pos

    def _publish(self, out: list[Command], bodies: list[bytes]) -> None:
        count = len(bodies)
        if count == 1:
            body = bodies[0]
            out.append(("PUB", self._topic, Rows(1, [0, len(body)], body, SOURCE), 1))
        elif count:
            out.append(("PUB", self._topic, Rows.of(bodies, SOURCE), count))

    def _run(self, data: bytes, pos: int, end: int) -> Rows | None:
        """Decode many PUBs to the same topic at once; None if this cannot be done from here."""
        header = self._header
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
        good = (sizes == lengths - 4) & (sizes > 0) & (sizes <= self._message_bytes_max)
        rows = len(good) if good.all() else int(good.argmin())
        if rows <= SMALL:
            return None
        bodies = _slice.call([parts.slice(0, rows)], pc.SliceOptions(4, len(data)))
        buffers = bodies.buffers()
        return Rows(rows, np.frombuffer(buffers[1], np.int32)[: rows + 1], buffers[2], SOURCE)

    def _fin(self, data: bytes, pos: int, end: int, out: list[Command]) -> int:
        """Decode a run of FIN lines with 16-digit ids."""
        lines = (end - pos) // 21
        if lines > SMALL:
            grid = np.frombuffer(data, np.uint8, lines * 21, pos).reshape(lines, 21)
            alike = (np.ascontiguousarray(grid[:, :4]).view("V4").ravel() == np.frombuffer(b"FIN ", "V4")) & (
                grid[:, 20] == 10
            )
            run = lines if alike.all() else int(alike.argmin())
            if run > SMALL:
                ids = hex_ids(np.ascontiguousarray(grid[:run, 4:20]).tobytes())
                if ids is not None and len(ids) == run:
                    out.append(("FIN", ids))
                    return pos + run * 21
        few: list[int] = []
        while data.startswith(b"FIN ", pos) and pos + 21 <= end and data[pos + 20] == 10 and len(few) < SMALL:
            id_ = hex_id(data[pos + 4 : pos + 20])
            if id_ is None:
                break
            few.append(id_)
            pos += 21
        if few:
            out.append(("FIN", few))
            return pos
        return self._line(data, pos, end, out)

    def _line(self, data: bytes, pos: int, end: int, out: list[Command]) -> int:
        """Decode one command of any kind; -1 if it is not all there."""
        stop = data.find(b"\n", pos, pos + LINE_BYTES_MAX + 1)
        if stop < 0:
            if end - pos > LINE_BYTES_MAX:
                self._dead = True
                out.append(("hang up",))
            return -1
        line = data[pos:stop]
        words = (line[:-1] if line.endswith(b"\r") else line).split(b" ")
        name = words[0]
        after = stop + 1
        if name == b"PUB":
            return self._pub_line(data, pos, after, words, out)
        if name in (b"MPUB", b"DPUB", b"IDENTIFY", b"AUTH"):
            return self._with_body(data, pos, after, end, words, out)
        out.append((name.decode("latin-1"), words[1:]))
        return after

    def _pub_line(self, data: bytes, pos: int, after: int, words: list[bytes], out: list[Command]) -> int:
        if self._topic_of(words, out) is None:
            return -1
        self._header = data[pos:after]
        self._topic = words[1].decode("ascii")
        return pos

    def _topic_of(self, words: list[bytes], out: list[Command]) -> str | None:
        name = words[0].decode("ascii")
        if len(words) < (3 if name == "DPUB" else 2):
            self._fault(out, "E_INVALID", f"{name} insufficient number of parameters")
            return None
        if not is_name(words[1]):
            self._fault(out, "E_BAD_TOPIC", f'{name} topic name "{words[1].decode("latin-1")}" is not valid')
            return None
        return words[1].decode("ascii")

    def _with_body(self, data: bytes, pos: int, after: int, end: int, words: list[bytes], out: list[Command]) -> int:
        name = words[0].decode("ascii")
        topic = ""
        if name in ("MPUB", "DPUB"):
            found = self._topic_of(words, out)
            if found is None:
                return -1
            topic = found
        if after + 4 > end:
            self._need = after + 4 - pos
            return -1
        size: int = _U32(data, after)[0]
        if name == "DPUB":
            if size == 0 or size > self._message_bytes_max:
                return self._fault(out, "E_BAD_MESSAGE", self._bad_size(name, size))
        elif size == 0 or size > self._body_bytes_max:
            # The wire's length is signed: what is above 2^31 is a negative size to every other implementation.
            small = size == 0 or size >= 1 << 31
            text = f"invalid body size {size if size < 1 << 31 else size - (1 << 32)}"
            return self._fault(
                out, "E_BAD_BODY", f"{name} {text if small else f'body too big {size} > {self._body_bytes_max}'}"
            )
        start, stop = after + 4, after + 4 + size
        if stop > end:
            self._need = stop - pos
            return -1
        if name == "MPUB":
            rows = self._mpub(data, start, stop, out)
            if rows is None:
                return -1
            out.append(("MPUB", topic, rows))
        elif name == "DPUB":
            body = data[start:stop]
            out.append(("DPUB", topic, Rows(1, [0, size], body, SOURCE), words[2]))
        else:
            out.append((name, words[1:], data[start:stop]))
        return stop

    def _mpub(self, data: bytes, start: int, stop: int, out: list[Command]) -> Rows | None:
        """Decode the items of an MPUB body, which is all there."""
        count = _U32(data, start)[0] if stop - start >= 4 else 0
        if count == 0 or count > (self._body_bytes_max - 4) // 5:
            shown = count if count < 1 << 31 else count - (1 << 32)
            self._fault(out, "E_BAD_BODY", f"MPUB invalid message count {shown}")
            return None
        return self.items(data, start + 4, stop, count, out)

    def items(self, data: bytes, start: int, stop: int, count: int, out: list[Command]) -> Rows | None:
        """Decode `count` length-prefixed bodies that fill start .. stop exactly."""
        if count > SMALL and start + 4 <= stop:
            size = _U32(data, start)[0]
            if 0 < size <= self._message_bytes_max and (size + 4) * count == stop - start:
                grid = np.frombuffer(data, np.uint8, stop - start, start).reshape(count, size + 4)
                if (grid[:, :4] == grid[0, :4]).all():
                    body = np.ascontiguousarray(grid[:, 4:]).data.cast("B")
                    return Rows(count, np.arange(0, count * size + 1, size, dtype=np.int32), body, SOURCE)
        ends: list[int] = []
        at = start
        for number in range(count):
            size = _U32(data, at)[0] if at + 4 <= stop else -1
            if size == 0 or size > self._message_bytes_max:
                self._fault(out, "E_BAD_MESSAGE", self._bad_size("MPUB", size, number))
                return None
            at += 4 + size
            if size < 0 or at > stop:
                self._fault(out, "E_BAD_BODY", f"MPUB message({number}) goes beyond the body")
                return None
            ends.append(at)
        if at != stop:
            self._fault(out, "E_BAD_BODY", f"MPUB body has {stop - at} bytes after its {count} messages")
            return None
        if count <= SMALL:
            starts = [start, *ends[:-1]]
            return Rows.of([data[a + 4 : b] for a, b in zip(starts, ends, strict=True)], SOURCE)
        # header, body, header, body ...: Arrow gathers every second value in one pass
        cuts = np.empty(2 * count + 1, np.int32)
        cuts[0], cuts[2::2] = start, ends
        cuts[1::2] = cuts[:-1:2] + 4
        pairs = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(cuts), pa.py_buffer(data)])
        buffers = pairs.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int32))).buffers()
        return Rows(count, np.frombuffer(buffers[1], np.int32)[: count + 1], buffers[2], SOURCE)

    def _bad_size(self, name: str, size: int, number: int | None = None) -> str:
        item = "" if number is None else f"({number})"
        if size == 0 or size >= 1 << 31:
            return f"{name} invalid message{item} body size {size if size < 1 << 31 else size - (1 << 32)}"
        return f"{name} message too big {size} > {self._message_bytes_max}"

    def _fault(self, out: list[Command], code: str, text: str) -> int:
        out.append(("fault", code, text))
        self._dead = True
        return -1


def hex_id(text: bytes) -> int | None:
    """Return the id that 16 hex digits say, None if they do not."""
    try:
        raw = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        return None
    return int.from_bytes(raw, "big") if len(raw) == 8 else None


def hex_ids(text: bytes) -> npt.NDArray[np.int64] | None:
    """Return the ids that 16 hex digits each say, None if some do not."""
    try:
        return np.frombuffer(bytes.fromhex(text.decode("ascii")), ">u8").astype(np.int64)
    except ValueError:
        return None


# --- frames -----------------------------------------------------------------------------------------------------------

RESPONSE, ERROR, MESSAGE = range(3)

_FRAME = struct.Struct(">II").pack
_HEAD = struct.Struct(">IIqH16s").pack
_HEADS = np.dtype([("size", ">u4"), ("type", ">u4"), ("time", ">i8"), ("attempts", ">u2"), ("id", "V16")])
_HEAD_BYTES = _HEADS.itemsize


def frame(kind: int, data: bytes) -> bytes:
    """Return a response or error frame."""
    return _FRAME(4 + len(data), kind) + data


OK = frame(RESPONSE, b"OK")
HEARTBEAT = frame(RESPONSE, b"_heartbeat_")
CLOSE_WAIT = frame(RESPONSE, b"CLOSE_WAIT")


def error(code: str, text: str) -> bytes:
    """Return an error frame; clients need both words."""
    return frame(ERROR, f"{code} {text}".encode())


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


def _few_messages(
    first_id: int, count: int, time: Times, attempts: Attempts, cuts: Cuts, body: Buffer
) -> tuple[Buffer, Cuts]:
    if count == 1 and type(body) is bytes and type(attempts) is int:
        at = time if isinstance(time, int) else int(time[0])
        wire = _HEAD(len(body) + 30, MESSAGE, at, attempts, b"%016x" % first_id) + body
        return wire, [0, len(wire)]
    edges = cuts if isinstance(cuts, list) else cuts.tolist()
    whole = body if isinstance(body, bytes) else bytes(memoryview(body))
    out = []
    for row in range(count):
        low, high = edges[row], edges[row + 1]
        at = time if isinstance(time, int) else int(time[row])
        tries = attempts if isinstance(attempts, int) else int(attempts[row])
        out.append(_HEAD(high - low + 30, MESSAGE, at, tries, b"%016x" % (first_id + row)))
        out.append(whole[low:high])
    begins = [0, *accumulate(_HEAD_BYTES + edges[row + 1] - edges[row] for row in range(count))]
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
    heads["id"] = np.frombuffer(ids.astype(">u8").tobytes().hex().encode("ascii"), "V16")
    head_cuts = pa.py_buffer(np.arange(0, _HEAD_BYTES * count + 1, _HEAD_BYTES, dtype=np.int32))
    left = pa.Array.from_buffers(pa.binary(), count, [None, head_cuts, pa.py_buffer(heads)])
    right = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(cuts), pa.py_buffer(body)])
    buffers = _join.call([left, right, _EMPTY], _JOIN_OPTIONS).buffers()
    return memoryview(buffers[2])[: int(cuts[-1]) - int(cuts[0]) + _HEAD_BYTES * count], np.frombuffer(
        buffers[1], np.int32
    )[: count + 1]


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
    edges = np.asarray(cuts, np.int32)
    all_bodies = pa.Array.from_buffers(pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), pa.py_buffer(body)])
    buffers = all_bodies.take(pa.array(rows)).buffers()
    times = time if isinstance(time, int) else np.asarray(time)[rows]
    return _many_messages(ids, times, attempts, np.frombuffer(buffers[1], np.int32)[: len(rows) + 1], buffers[2])[0]
