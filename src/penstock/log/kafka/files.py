"""The files of one shard as a state partition tells them: their names, what small ones hold, where segments are.

Owns what each change does. The owner applies what it has sent, a new owner what it reads: both come to the same.
Knows nothing of local files, of sending, or of what is in a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from penstock.errors import CorruptionError
from penstock.log.kafka.record import Extent, Note, Op, Piece, op_of
from penstock.log.kafka.store import Stored
from penstock.log.manifest import DATA_SUFFIX, NEW_SUFFIX, STAGED_SUFFIX

#: Bytes of a file in one record; an append that is larger is one record all the same.
RECORD_BYTES = 1 << 20
#: What a record takes beside its value, about; it counts when it is decided whether old ones should go.
OVERHEAD_BYTES = 100


#: Made here, by one thread: msgspec learns a type when it first reads one, and dies where two threads do at once.
_note_decoder = msgspec.json.Decoder(Note)


def is_segment(name: str) -> bool:
    """Tell whether a file's bytes go to the log's partition: a segment's, and those of what is staged."""
    return name.removesuffix(NEW_SUFFIX).endswith((DATA_SUFFIX, STAGED_SUFFIX))


class Node:
    """A file, whatever its name: the bytes of a small one, and where those of a segment are."""

    __slots__ = ("_ended", "content", "extents", "id")

    def __init__(self, number: str) -> None:
        self.id = number
        self.content = bytearray()
        self.extents: list[Extent] = []
        #: Nothing may be joined to the last extent: between its records and the next lie some that count no more.
        self._ended = False

    @property
    def size(self) -> int:
        """How long a segment is."""
        return self.extents[-1].end if self.extents else 0

    def grow(self, at: int, size: int, offset: int) -> int:
        """Note that bytes of a segment are in a record; return the number of the extent that changed."""
        last = self.extents[-1] if self.extents else None
        if last is not None and not self._ended and last.size + size <= RECORD_BYTES:
            self.extents[-1] = Extent(last.at, last.size + size, last.first, offset)
        else:
            self.extents.append(Extent(at, size, offset, offset))
        self._ended = False
        return len(self.extents) - 1

    def shorten(self, length: int) -> None:
        """Note that a segment ends earlier."""
        while self.extents and self.extents[-1].at >= length:
            self.extents.pop()
        if self.extents and self.extents[-1].end > length:
            last = self.extents[-1]
            self.extents[-1] = last._replace(size=length - last.at)
        self._ended = True

    def replace(self, extents: list[Extent]) -> None:
        """Take in what a note says."""
        for extent in extents:
            while self.extents and self.extents[-1].at >= extent.at:
                self.extents.pop()
            self.extents.append(extent)
        self._ended = True  # it may have been cut


class Files:
    """All files of one partition."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.names: dict[str, str] = {}
        self.directories: dict[str, None] = {}
        #: Records of the log's partition from here on are in no note.
        self.until = 0
        #: Extents that no note has, by file: from this number on.
        self.unnoted: dict[str, int] = {}

    @property
    def alive_bytes(self) -> int:
        """About what a checkpoint would take."""
        extents = sum(len(node.extents) for node in self.nodes.values())
        content = sum(len(node.content) + OVERHEAD_BYTES for node in self.nodes.values())
        return content + 30 * extents + OVERHEAD_BYTES * len(self.directories)

    def node(self, number: str) -> Node:
        """Return a file, which may be new."""
        found = self.nodes.get(number)
        if found is None:
            found = self.nodes[number] = Node(number)
        return found

    def apply(self, op: Op) -> None:
        """Do one change; CorruptionError if it cannot follow those before it."""
        kind, name = op.kind, op.name
        if kind == "append":
            content = self.node(op.file).content
            if len(content) != op.at:
                raise CorruptionError(f"file {op.file} has {len(content)} bytes, and the next begin at {op.at}")
            content += op.data
        elif kind == "cut":
            del self.node(op.file).content[op.at :]
        elif kind == "file":
            self.node(op.file)
            if name:
                self._name(name, op.file)
        elif kind == "make":
            self.directories[name] = None
        elif kind == "rename":
            if name not in self.names:
                raise CorruptionError(f"{name} becomes {op.to}, but is not there")
            self._name(op.to, self.names.pop(name))
        elif kind == "remove":
            self._remove(name)
        elif kind == "note":
            self._note(op.data)
        elif kind != "open":
            raise CorruptionError(f"nobody knows what {kind!r} does; a newer Penstock wrote it")

    def read(self, piece: Piece, offset: int) -> bool:
        """Take in a record of the log's partition that is in no note; False if its file has no name any more."""
        node = self.nodes.get(piece.file)
        if node is None:
            return False
        if node.extents and offset <= node.extents[-1].last:
            return True  # a note had it before those that came in between
        if piece.is_cut:
            self.shorten(node, piece.at)
        elif piece.data:
            self.grow(node, piece.at, len(piece.data), offset)
        return True

    def grow(self, node: Node, at: int, size: int, offset: int) -> None:
        """Note that bytes of a segment are in a record."""
        number = node.grow(at, size, offset)
        self.unnoted[node.id] = min(number, self.unnoted.get(node.id, number))

    def shorten(self, node: Node, length: int) -> None:
        """Note that a segment ends earlier."""
        node.shorten(length)
        number = max(0, len(node.extents) - 1)
        self.unnoted[node.id] = min(number, self.unnoted.get(node.id, number))

    def note(self, until: int) -> Op:
        """Return where bytes are that no note tells of."""
        self.until = until
        unnoted, self.unnoted = self.unnoted, {}
        found = {number: self.nodes[number].extents[at:] for number, at in unnoted.items() if number in self.nodes}
        return note_of(until, found)

    def forget_nameless(self) -> None:
        """Drop what its owner had not given a name yet."""
        named = set(self.names.values())
        self.nodes = {number: node for number, node in self.nodes.items() if number in named}

    def checkpoint(self) -> Iterator[Op]:
        """Yield what makes the same of nothing."""
        for name in self.directories:
            yield Op("make", name=name)
        names = {number: name for name, number in self.names.items()}
        extents = {}
        for number, node in self.nodes.items():
            yield Op("file", number, names.get(number, ""))
            for at in range(0, len(node.content), RECORD_BYTES):
                yield Op("append", number, at=at, data=bytes(node.content[at : at + RECORD_BYTES]))
            if node.extents:
                extents[number] = list(node.extents)
        yield note_of(self.until, extents)

    def _name(self, name: str, number: str) -> None:
        before = self.names.pop(name, None)
        if before is not None and before != number:
            self.nodes.pop(before, None)
        self.names[name] = number

    def _remove(self, name: str) -> None:
        below = name + os.sep
        for each in [each for each in self.names if each == name or each.startswith(below)]:
            self.nodes.pop(self.names.pop(each), None)
        for each in [each for each in self.directories if each == name or each.startswith(below)]:
            del self.directories[each]

    def _note(self, data: bytes) -> None:
        try:
            note = _note_decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise CorruptionError(f"a note of where bytes are cannot be read: {error}") from error
        self.until = max(self.until, note.until)
        for number, extents in note.extents.items():
            self.node(number).replace(extents)


def note_of(until: int, extents: dict[str, list[Extent]]) -> Op:
    """Return the change that tells where bytes are."""
    return Op("note", data=msgspec.json.encode(Note(until, extents)))


class Replay:
    """A walk through a state partition, from its first record on."""

    def __init__(self, where: str) -> None:
        self.files: Files | None = None
        #: What a checkpoint has told so far; nothing, if it does not come to its end.
        self._unfinished: Files | None = None
        self._where = where
        #: Bytes since the last checkpoint began.
        self.bytes = 0
        self._begun = False

    def take(self, stored: Stored) -> None:
        """Take in the next record."""
        op, inside = op_of(stored, self._where)
        self.bytes += len(stored.value) + OVERHEAD_BYTES
        if op.kind == "begin":
            self._begun, self._unfinished, self.bytes = True, Files(), 0
        elif not self._begun:
            raise CorruptionError(
                f"{self._where} does not begin with a checkpoint: records at its beginning were removed, by whoever "
                "deleted records or set a retention there. What they told is lost; restore the topic from a copy."
            )
        elif op.kind == "end":
            self.files, self._unfinished = self._unfinished or self.files, None
        elif inside:
            if self._unfinished is not None:
                self._unfinished.apply(op)
        else:
            self._unfinished = None
            if self.files is not None:
                self.files.apply(op)
