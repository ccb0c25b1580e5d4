"""Rows on their way to another node, and what became of them on the way back: frames, a batch each.

    length (u32) · length of the head (u32) · head (msgpack) · cuts (i32 each) · bodies back to back
    length (u32) · answer (msgpack)

Up to SMALL rows the optional columns are lists in the head; above that an Arrow record batch in it. Bytes in, rows out;
nothing per message. Numbers are little-endian.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.columns import COLUMNS, OPTIONAL_COLUMNS, SMALL, Buffer, Column, Cuts
from penstock.errors import PenstockError, Refusal
from penstock.intake.receipt import PartRefusal, Receipt
from penstock.message import Rows

#: One batch of the largest kind that any dialect takes, with room to spare.
FRAME_BYTES_MAX = 256 << 20
#: More is not read out of a head: names, a sequence, columns.
_LENGTHS = struct.Struct("<II")
_LENGTH = struct.Struct("<I")


class BadFrame(PenstockError):
    """What came is no frame."""


class Head(msgspec.Struct, array_like=True):
    """What a batch says beside its rows."""

    #: Names it in the answer.
    number: int
    #: Whose order it keeps.
    publisher: int
    topic: str
    incarnation: int
    shard: int | None
    count: int
    source: str
    sequence: bytes = b""
    columns: dict[str, list[Any]] = {}
    names: list[str] = []
    arrow: bytes = b""
    #: It is answered once it survives a power loss, whatever the topic promises.
    synced: bool = False
    #: The window of its rows' keys ends when it comes, and not at the last append.
    passes_time: bool = False


class Stored(msgspec.Struct, array_like=True, tag=1):
    """Where a batch went."""

    number: int
    first_id: int
    count: int
    elsewhere: dict[int, int] | None
    repeated: int


class Unstored(msgspec.Struct, array_like=True, tag=2):
    """Why it did not; which rows are stored all the same."""

    number: int
    code: str
    text: str
    retry_ns: int
    ids: dict[int, int] | None


_pack = msgspec.msgpack.Encoder().encode
_head = msgspec.msgpack.Decoder(Head).decode
_answer = msgspec.msgpack.Decoder(Stored | Unstored).decode


def written(head: Head, rows: Rows) -> list[Buffer]:
    """Return the bytes of a batch, in parts: bodies are not copied."""
    _fill(head, rows)
    cuts = rows.cuts
    ends = struct.pack(f"<{len(cuts)}i", *cuts) if isinstance(cuts, list) else cuts.astype("<i4", copy=False).tobytes()
    packed = _pack(head)
    size = 4 + len(packed) + 4 * (rows.count + 1) + len(rows.body)
    if size > FRAME_BYTES_MAX:
        raise Refusal("message_too_big", f"{size} bytes are more than one node brings another; publish fewer at once")
    return [_LENGTHS.pack(size, len(packed)) + packed, ends, rows.body]


def _fill(head: Head, rows: Rows) -> None:
    columns = rows.columns
    if columns and rows.count <= SMALL:
        head.columns = {
            name: column if isinstance(column, list) else column.to_pylist() for name, column in columns.items()
        }
    elif columns:
        arrays = [
            each if isinstance(each, pa.Array) else pa.array(each, COLUMNS[name]) for name, each in columns.items()
        ]
        head.names = list(columns)
        head.arrow = pa.record_batch(arrays, _schema(head.names)).serialize().to_pybytes()


def read(frame: bytes) -> tuple[Head, Rows]:
    """Return a batch, of a frame without its first length."""
    try:
        start = 4 + _LENGTH.unpack_from(frame)[0]
        head = _head(memoryview(frame)[4:start])
        body_at = start + 4 * (head.count + 1)
        cuts: Cuts
        if head.count <= SMALL:
            cuts = list(struct.unpack_from(f"<{head.count + 1}i", frame, start))
        else:
            cuts = np.frombuffer(frame, "<i4", head.count + 1, start)
        body = frame[body_at:]
        is_right = cuts[0] == 0 and cuts[-1] == len(body) and head.count > 0
        if not is_right or (not isinstance(cuts, list) and (np.diff(cuts) < 0).any()):
            raise BadFrame("the cuts of a batch do not fit its bodies")
        return head, Rows(head.count, cuts, body, head.source, _columns(head), head.sequence)
    except (struct.error, ValueError, KeyError, msgspec.MsgspecError, UnicodeDecodeError, pa.ArrowException) as error:
        raise BadFrame(f"a batch cannot be read: {error}") from None


def _columns(head: Head) -> dict[str, Column]:
    columns: dict[str, Column] = dict(head.columns)
    if head.arrow:
        batch = pa.ipc.read_record_batch(pa.py_buffer(head.arrow), _schema(head.names))
        batch.validate()
        columns = dict(zip(head.names, batch.columns, strict=True))
    for name, column in columns.items():
        if name not in OPTIONAL_COLUMNS or len(column) != head.count:
            raise BadFrame(f"column {name[:64]} does not fit its batch")
    return columns


def _schema(names: list[str]) -> pa.Schema:
    return pa.schema([(name, COLUMNS[name]) for name in names])


def answered(number: int, receipt: Receipt | None, error: BaseException | None) -> bytes:
    """Return the bytes of what became of a batch."""
    answer: Stored | Unstored
    if receipt is not None:
        answer = Stored(number, receipt.first_id, receipt.count, receipt.elsewhere, receipt.repeated)
    elif isinstance(error, Refusal):
        ids = error.ids if isinstance(error, PartRefusal) else None
        code = "unavailable" if error.code == "elsewhere" else error.code
        answer = Unstored(number, code, str(error), error.retry_ns, ids)
    else:
        answer = Unstored(number, "unavailable", f"the node failed inside: {error!r}", 0, None)
    packed = _pack(answer)
    return _LENGTH.pack(len(packed)) + packed


def told(frame: bytes) -> tuple[int, Receipt | None, Refusal | None]:
    """Return what an answer says, of a frame without its length."""
    try:
        answer = _answer(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFrame(f"an answer cannot be read: {error}") from None
    if isinstance(answer, Stored):
        return answer.number, Receipt(answer.first_id, answer.count, None, answer.elsewhere, answer.repeated), None
    try:
        if answer.ids is not None:
            return answer.number, None, PartRefusal(answer.code, answer.text, answer.ids)
        return answer.number, None, Refusal(answer.code, answer.text, answer.retry_ns)
    except KeyError:  # the other node is newer
        return answer.number, None, Refusal("unavailable", f"{answer.code}: {answer.text}")


class Frames:
    """Takes the bytes of frames as they come."""

    __slots__ = ("_held", "_parts", "_wanted")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._held = 0
        self._wanted = 4

    @property
    def held(self) -> int:
        """How many bytes are of no whole frame."""
        return self._held

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that are whole now, without their lengths."""
        self._parts.append(data)
        self._held += len(data)
        if self._held < self._wanted:
            return []
        whole = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        at, found, end = 0, list[bytes](), len(whole)
        self._wanted = 4
        while end - at >= 4:
            size = _LENGTH.unpack_from(whole, at)[0]
            if size > FRAME_BYTES_MAX:
                raise BadFrame(f"a frame of {size} bytes is over the limit of {FRAME_BYTES_MAX}")
            if end - at < 4 + size:
                self._wanted = 4 + size
                break
            found.append(whole[at + 4 : at + 4 + size])
            at += 4 + size
        self._parts = [whole[at:]] if at < end else []
        self._held = end - at
        return found
