"""One shard's two partitions, as their owner writes them: what waits to be sent, and what was.

Owns the order in which changes are sent, the notes of where bytes are, checkpoints and what they let go.
Knows nothing of local files: an `Inode` hands out its bytes.
Invariant: `files` is what a new owner would read. Whoever was told that a change is kept was told so after it was sent,
and after all that was handed in before it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.columns import Buffer
from penstock.log.kafka.files import OVERHEAD_BYTES, RECORD_BYTES, Files, Node, is_segment
from penstock.log.kafka.record import Op, cut_record, log_record, state_record
from penstock.log.kafka.store import Partition, Record, Store

#: A state partition smaller than this is never worth a checkpoint.
CHECKPOINT_BYTES = 256 << 10
#: A note goes along with other changes once so much of the log is in none, and by itself after this much: so much of
#: the log's end is read by a new owner at most.
NOTE_ALONG_BYTES = 1 << 20
NOTE_BYTES = 4 << 20
#: Records of one file sent before their answers are waited for: those who wait for a few bytes come between.
RECORDS_AT_ONCE = 4
#: No record is larger: Kafka takes 100 MB, and one publish of millions of tiny messages is a frame beyond that.
PIECE_BYTES = 64 << 20
#: So much of a segment that was not sent is kept in memory at most; what is behind that is read back from the disk.
FRESH_BYTES = 4 << 20
#: So few bytes are sent without a thread that waits for the answer: what a lone message has, and some more.
SOON_BYTES = 16 << 10

_log = logging.getLogger(__name__)


class Sender(Protocol):
    """What has the writer of the slot."""

    store: Store

    def check(self) -> None:
        """Raise what ended it, if something did."""

    def send(self, partition: Partition, records: Sequence[Record]) -> Sequence[int]:
        """Return the offsets of records once they are kept; after an error nothing is sent any more."""

    def send_soon(self, partition: Partition, record: Record, told: Callable[[int | OSError], None]) -> bool:
        """Send a record without waiting; `told` hears on some thread. False where that cannot be: nothing is sent."""


class Inode:
    """A file that is open or could be, under whatever name; what of it is sent, and what waits."""

    __slots__ = (
        "counted",
        "cut",
        "cuts",
        "fresh",
        "growers",
        "guard",
        "is_segment",
        "loading",
        "mark",
        "missing",
        "name",
        "node",
        "part",
        "read_last",
        "readers",
        "run_from",
        "sending",
        "sent",
        "unsent",
    )

    def __init__(self, part: Part, node: Node, name: str, *, is_segment: bool) -> None:
        self.part = part
        self.node = node
        #: Its name below the topic's directory; empty once it was removed.
        self.name = name
        self.is_segment = is_segment
        #: Its bytes up to here are in Kafka.
        self.sent = 0
        #: It ends here now, which Kafka has not heard.
        self.cut: int | None = None
        #: A small file's bytes behind that.
        self.unsent: list[bytes] = []
        #: A segment's length, and where its last append begins.
        self.mark = (0, 0)
        #: Where records of a segment's bytes end at the latest, each with the start of the append before it.
        self.cuts: deque[tuple[int, int]] = deque()
        self.run_from = 0
        #: Appends that were not sent, each with its position and size, as far as they are kept in memory.
        self.fresh: deque[tuple[int, int, Sequence[Buffer]]] = deque()
        #: How much of what was sent the cache has heard of.
        self.counted = 0
        #: Ranges of a segment's bytes that are in Kafka alone.
        self.missing: list[tuple[int, int]] = []
        self.loading = threading.Lock()
        self.sending = threading.Lock()
        #: Who reads it now and who appends to it, counted under the guard; nothing of it goes from here meanwhile.
        self.guard = threading.Lock()
        self.readers = self.growers = 0
        #: Which read of all was the last of this one.
        self.read_last = 0

    @property
    def here_bytes(self) -> int:
        """How much of a segment is on the local disk."""
        return self.mark[0] - sum(high - low for low, high in self.missing)

    def grown(self, size: int, parts: Sequence[Buffer] = ()) -> None:
        """Note that so much was appended to a segment; on the loop. Nobody may change the parts any more."""
        at, last = self.mark
        if parts and at + size - self.sent <= FRESH_BYTES:
            self.fresh.append((at, size, parts))
        else:
            self.fresh.clear()
        start = self.run_from
        if at > start and (at + size - start > RECORD_BYTES or not start):  # the schema has a record of its own
            self.cuts.append((at, last))
            self.run_from = at
        self.mark = (at + size, at)

    def taken(self, at: int, size: int) -> bytes | None:
        """Return appends from memory, and keep them no longer; None if they must be read. By whoever sends."""
        found: list[Buffer] = []
        have = at
        while have < at + size:
            try:  # the loop may have let all of it go a moment ago
                begin, count, parts = self.fresh.popleft()
            except IndexError:
                return None
            if begin == have:
                found += parts
                have += count
            elif begin > have:
                return None
        return b"".join(found) if have == at + size else None

    def add(self, data: bytes) -> None:
        """Note that bytes were appended to a small file."""
        with self.part.mutex:
            self.unsent.append(data)
            self.part.dirty[self] = None

    def shorten(self, length: int) -> None:
        """Note that the file ends earlier."""
        with self.part.mutex:
            base = self.sent if self.cut is None else self.cut
            if length < base:
                self.cut, base = length, length
                self.part.dirty[self] = None
            if self.is_segment:
                self.mark, self.run_from = (length, length), min(self.run_from, length)
                self.cuts = deque(each for each in self.cuts if each[0] <= length)
                self.missing = [(low, min(high, length)) for low, high in self.missing if low < length]
                self.fresh.clear()
            else:
                rest = b"".join(self.unsent)[: length - base]
                self.unsent = [rest] if rest else []

    def changes(self) -> list[Op]:
        """Hand out what a small file has to say; the caller has the mutex, and sends it."""
        ops = []
        number = self.node.id
        if self.cut is not None:
            ops.append(Op("cut", number, at=self.cut))
            self.sent, self.cut = self.cut, None
        data, self.unsent = b"".join(self.unsent), []
        for start in range(0, len(data), RECORD_BYTES):
            piece = data[start : start + RECORD_BYTES]
            ops.append(Op("append", number, at=self.sent, data=piece))
            self.sent += len(piece)
        return ops


class Part:
    """The partitions of one shard."""

    def __init__(self, sender: Sender, state: Partition, log: Partition, files: Files, *, is_new: bool) -> None:
        self.state = state
        self.log = log
        self.files = files
        #: Held for moments, on the loop, too.
        self.mutex = threading.Lock()
        #: Names that were changed, in order.
        self.pending: list[Op] = []
        #: Small files with bytes that are not sent, and segments that were cut.
        self.dirty: dict[Inode, None] = {}
        self.inodes: dict[str, Inode] = {}
        #: Bytes of the state partition since its last checkpoint began.
        self.bytes = 0
        #: Behind the last record of the log's partition that is known.
        self.log_end = files.until
        self._sender = sender
        self._is_new = is_new
        # Held while something is sent: what is sent first is applied first.
        self._sending = threading.Lock()
        #: Where the log's partition ended, as far as was known, when each send that is under way began.
        self._floors: dict[object, int] = {}
        self._unnoted_bytes = 0
        self._cut_before = 0
        #: What a checkpoint would have taken when it was last looked at.
        self._alive_bytes = 0

    def change(self, op: Op) -> None:
        """Hand in a change of a name; the caller has the mutex."""
        self.pending.append(op)

    def flush(self, *, note: bool = False) -> int | None:
        """Return once everything handed in so far is kept; blocking. The offset of the first of it, if there was any.

        What others have handed in goes along, so that those who wait for their turn find it done.
        """
        with self._sending:
            self._sender.check()
            with self.mutex:
                # What files hold goes first: a name that is kept has all that was there when it was given.
                dirty, self.dirty = self.dirty, {}
                changed = [inode.changes() for inode in dirty if inode.name and not inode.is_segment]
                ops = [op for each in changed for op in each] + self.pending
                self.pending = []
                # What is let go is before the last note: a new owner can tell it from what others have removed.
                goes = any(op.kind == "remove" and is_segment(op.name) for op in ops)
                if note or goes or self._unnoted_bytes >= NOTE_ALONG_BYTES:
                    ops.append(self._note())
            if not ops:
                return None
            records = [state_record(op) for op in ops]
            if self._is_new:
                records[:0] = [state_record(Op("begin")), state_record(Op("end"))]
            offsets = self._sender.send(self.state, records)
            self._is_new = False
            removed = self._apply(ops)
            self.bytes += sum(len(record.value) + OVERHEAD_BYTES for record in records)
            if removed:
                self._let_go()
            if self.bytes > max(CHECKPOINT_BYTES, 2 * self._alive_bytes):
                self._alive_bytes = self.files.alive_bytes  # it costs something to know
                if self.bytes > 2 * self._alive_bytes:
                    self._checkpoint()
            return offsets[0]

    def send(self, inode: Inode, read: Callable[[int, int], bytes]) -> None:
        """Return once a segment's bytes so far are in the log's partition; blocking."""
        with inode.sending:
            self._sender.check()
            if not inode.name:
                return
            end, last_at = inode.mark
            if inode.cut is not None:
                self._send_cut(inode)
            while inode.sent < end:
                self._send_some(inode, end, last_at, read)
        if self._unnoted_bytes >= NOTE_BYTES:
            self.flush(note=True)

    def _send_cut(self, inode: Inode) -> None:
        with self.mutex:
            cut, inode.cut = inode.cut or 0, None
            inode.sent = cut
        self._sender.send(self.log, [cut_record(inode.node.id, inode.name, cut)])
        with self.mutex:
            self.files.shorten(inode.node, cut)

    def _send_some(self, inode: Inode, end: int, last_at: int, read: Callable[[int, int], bytes]) -> None:
        node, at = inode.node, inode.sent
        records: list[Record] = []
        while at < end and len(records) < RECORDS_AT_ONCE:
            stop, last = end, last_at
            while inode.cuts and inode.cuts[0][0] <= at:
                inode.cuts.popleft()
            if inode.cuts and inode.cuts[0][0] < end:
                stop, last = inode.cuts[0]
            stop = min(stop, at + PIECE_BYTES)
            data = inode.taken(at, stop - at)
            if data is None:
                data = read(at, stop - at)
            records.append(log_record(node.id, inode.name, at, data, last))
            at = stop
        token = self._sends()
        try:
            offsets = self._sender.send(self.log, records)
        except OSError:
            del self._floors[token]
            raise
        self._sent(inode, records, offsets, token)

    def send_soon(self, inode: Inode, told: Callable[[BaseException | None], None]) -> bool:
        """Send the few bytes that a segment grew by without waiting; `told` hears on some thread, once they are kept.

        False where they are not few, or somebody would have to wait: nothing is done then. On the loop.
        """
        if not inode.sending.acquire(blocking=False):
            return False
        record = self._few(inode)
        if record is not None:
            token = self._sends()

            def answered(answer: int | OSError) -> None:
                error: BaseException | None = None
                try:
                    if isinstance(answer, OSError):
                        error = answer
                        del self._floors[token]
                    else:
                        self._sent(inode, [record], [answer], token)
                finally:
                    inode.sending.release()
                told(error)

            if self._sender.send_soon(self.log, record, answered):
                return True
            del self._floors[token]
            inode.fresh.appendleft((inode.sent, len(record.value), [record.value]))
        inode.sending.release()
        return False

    def _few(self, inode: Inode) -> Record | None:
        """Return what a segment grew by as one record, if it can go without a thread; the caller has `sending`."""
        at, (end, last_at) = inode.sent, inode.mark
        size = end - at
        if not at or not 0 < size <= SOON_BYTES or not inode.name or inode.cut is not None:
            return None  # the schema is a record of its own
        if self._unnoted_bytes + size >= NOTE_BYTES:
            return None
        while inode.cuts and inode.cuts[0][0] <= at:
            inode.cuts.popleft()
        if inode.cuts and inode.cuts[0][0] < end:
            return None
        data = inode.taken(at, size)
        return None if data is None else log_record(inode.node.id, inode.name, at, data, last_at)

    def _sends(self) -> object:
        """Know where the log ended when a send began."""
        token = object()
        with self.mutex:
            self._floors[token] = self.log_end
        return token

    def _sent(self, inode: Inode, records: Sequence[Record], offsets: Sequence[int], token: object) -> None:
        """Note where bytes of a segment are now; the caller has `sending`."""
        node = inode.node
        with self.mutex:
            if inode.name:  # else it was removed meanwhile
                self.files.nodes.setdefault(node.id, node)
            for record, offset in zip(records, offsets, strict=True):
                if inode.name:
                    self.files.grow(node, inode.sent, len(record.value), offset)
                inode.sent += len(record.value)
                self._unnoted_bytes += len(record.value)
            self.log_end = max(self.log_end, offsets[-1] + 1)
            del self._floors[token]

    def _note(self) -> Op:
        """Return where bytes are that no note tells of; the caller has the mutex."""
        self._unnoted_bytes = 0
        return self.files.note(min([*self._floors.values(), self.log_end]))

    def _apply(self, ops: Sequence[Op]) -> bool:
        """Do what was sent; tell whether segments went with it."""
        with self.mutex:
            for op in ops:
                inode = self.inodes.get(op.file)
                if inode is not None:  # the node is the inode's, which may have grown already
                    self.files.nodes.setdefault(op.file, inode.node)
                if op.kind != "note":
                    self.files.apply(op)
            if not any(op.kind in ("remove", "rename") for op in ops):
                return False
            gone = [inode for number, inode in self.inodes.items() if number not in self.files.nodes and not inode.name]
            for inode in gone:
                del self.inodes[inode.node.id]
            return any(inode.is_segment for inode in gone)

    def _let_go(self) -> None:
        """Let the log's records go before the first that is still needed."""
        with self.mutex:
            firsts = [node.extents[0].first for node in self.files.nodes.values() if node.extents]
            before = min([*firsts, self.files.until])
        if before > self._cut_before:
            self._cut(self.log, before)
            self._cut_before = before

    def _checkpoint(self) -> None:
        """Tell all of it anew, and let what is before that go."""
        with self.mutex:
            self._note()
            inner = list(self.files.checkpoint())
        inside = [state_record(op, inside=True) for op in inner]
        records = [state_record(Op("begin")), *inside, state_record(Op("end"))]
        offsets = self._sender.send(self.state, records)
        self.bytes = sum(len(record.value) + OVERHEAD_BYTES for record in records)
        self._cut(self.state, offsets[0])

    def _cut(self, partition: Partition, before: int) -> None:
        try:
            self._sender.store.cut(partition, before)
        except OSError as error:  # the next one lets these go as well
            _log.warning("%s %s keeps more than it need: %s", partition.topic, partition.number, error)
