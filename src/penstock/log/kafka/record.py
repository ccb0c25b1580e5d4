"""What a record of a shared log says: the format that docs/cluster.md describes, and its check.

Owns the headers. Knows nothing of files beyond their numbers and names, or of Kafka.
Invariant: a record without our headers is passed over, and what small files hold is never believed if its CRC-32C is
not the one in its headers. The frames of segments have one each besides.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec
from fastcrc.crc32 import iscsi as crc32c

from penstock.errors import CorruptionError
from penstock.log.kafka.store import Record, Stored
from penstock.log.layout import layout_at
from penstock.log.manifest import NEW_SUFFIX, STAGED_SUFFIX

VERSION = b"1"
#: Frames of a record that are walked through to count its rows; of more, the first and the last tell.
WALKED_FRAMES = 32

_log = logging.getLogger(__name__)


class Extent(NamedTuple):
    """Bytes of a file, and the records of the log's partition that hold them, with others' between them perhaps."""

    at: int
    size: int
    first: int
    last: int

    @property
    def end(self) -> int:
        """The position behind its last byte."""
        return self.at + self.size


class Note(msgspec.Struct):
    """Where bytes of segment files are."""

    #: Records of the log's partition from here on are not in any note yet.
    until: int
    #: By file; one that begins where a known one does takes its place.
    extents: dict[str, list[Extent]]


class Op(NamedTuple):
    """One change of a directory of files."""

    #: open, begin, end; make, file, append, cut, rename, remove, note.
    kind: str
    file: str = ""
    name: str = ""
    to: str = ""
    at: int = 0
    data: bytes = b""


def state_record(op: Op, *, inside: bool = False) -> Record:
    """Return a change as a record of a state partition; `inside` of a checkpoint."""
    headers = {"penstock": VERSION, "op": op.kind.encode(), "crc": b"%08x" % crc32c(op.data)}
    if op.file:
        headers["file"] = op.file.encode()
    if op.name:
        headers["name"] = op.name.encode()
    if op.to:
        headers["to"] = op.to.encode()
    if op.kind in ("append", "cut"):
        headers["at"] = b"%d" % op.at
    if inside:
        headers["in"] = b"1"
    return Record(op.data, headers)


def is_ours(stored: Stored, where: str) -> bool:
    """Tell whether Penstock wrote a record; what anybody else wrote is left alone, and said aloud."""
    if "penstock" in stored.headers:
        return True
    _log.error(
        "%s: the record at %s is none of Penstock's and is passed over. Nobody else may write there; take the right "
        "to do so from whoever did",
        where,
        stored.offset,
    )
    return False


def op_of(stored: Stored, where: str) -> tuple[Op, bool]:
    """Return the change that a record tells, and whether it is inside of a checkpoint."""
    headers = _checked(stored, where)
    if not _intact(stored):
        raise CorruptionError(f"{where}: the CRC of the record at {stored.offset} is wrong")
    try:
        op = Op(
            headers["op"].decode(),
            headers.get("file", b"").decode(),
            headers.get("name", b"").decode(),
            headers.get("to", b"").decode(),
            int(headers.get("at", b"0")),
            stored.value,
        )
    except (KeyError, ValueError) as error:
        raise CorruptionError(f"{where}: the record at {stored.offset} cannot be read: {error!r}") from error
    return op, "in" in headers


class Piece(NamedTuple):
    """Bytes of one segment file, or, where there are none, that it ends here now."""

    file: str
    at: int
    data: bytes
    #: Whether they are those that were sent.
    intact: bool = True
    is_cut: bool = False


def log_record(file: str, name: str, at: int, data: bytes, last_at: int) -> Record:
    """Return bytes of a segment file as a record of the log's partition; `last_at` is where its last frame begins."""
    headers = {
        "penstock": VERSION,
        "op": b"data",
        "file": file.encode(),
        "name": name.encode(),
        "at": b"%d" % at,
        "crc": b"%08x" % crc32c(data),
    }
    is_staged = name.removesuffix(NEW_SUFFIX).endswith(STAGED_SUFFIX)  # rows that have no offsets yet
    rows = rows_of(data, last_at - at) if 0 < at <= last_at and not is_staged else None  # or it goes on with a larger
    if rows is not None:
        headers["first"], headers["rows"] = b"%d" % rows[0], b"%d" % rows[1]
    return Record(data, headers)


def cut_record(file: str, name: str, at: int) -> Record:
    """Return that a segment file ends at a position now."""
    headers = {"penstock": VERSION, "op": b"cut", "file": file.encode(), "name": name.encode(), "at": b"%d" % at}
    return Record(b"", {**headers, "crc": b"%08x" % crc32c(b"")})


def piece_of(stored: Stored, where: str) -> Piece:
    """Return what a record of the log's partition holds."""
    headers = _checked(stored, where)
    try:
        file, at, kind = headers["file"].decode(), int(headers["at"]), headers["op"]
    except (KeyError, ValueError) as error:
        raise CorruptionError(f"{where}: the record at {stored.offset} cannot be read: {error!r}") from error
    return Piece(file, at, stored.value, _intact(stored), kind == b"cut")


def rows_of(data: bytes, last_at: int) -> tuple[int, int] | None:
    """Return the first offset and the number of rows of adjoining frames; None where there are none."""
    at = first = rows = 0
    try:
        for number in range(WALKED_FRAMES):
            layout = layout_at(data, at)
            first = layout.first(data, at) if not number else first
            rows += layout.rows(data, at)
            at += layout.body_at + layout.body_bytes(data, at)
            if at >= len(data):
                return first, rows
            if not number and at < last_at and len(data) > WALKED_FRAMES * at:
                break  # many like it
        layout = layout_at(data, last_at)
        return first, layout.first(data, last_at) + layout.rows(data, last_at) - first
    except (CorruptionError, ValueError):  # the end-of-stream marker, alone or behind the last
        return (first, rows) if rows else None


def _checked(stored: Stored, where: str) -> dict[str, bytes]:
    headers = dict(stored.headers)
    version = headers.get("penstock", b"?")
    if version != VERSION:
        text = version.decode("ascii", "replace")
        raise CorruptionError(f"{where}: the record at {stored.offset} has version {text}; this Penstock reads 1")
    return headers


def _intact(stored: Stored) -> bool:
    return stored.headers.get("crc") == b"%08x" % crc32c(stored.value)
