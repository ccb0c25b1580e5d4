"""One transaction under way: reads a staged batch, appends its parts, reads the next, and is finished whatever dies.

Each appended batch carries its place in the transaction as its producer sequence, so one that is taken up again adds
only what is missing. Runs on the node's loop; files are read in the executor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from struct import pack
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa

from penstock.clock import SECOND
from penstock.errors import CorruptionError, Refusal
from penstock.intake.mark import BITS, mark
from penstock.intake.receipt import Receipt
from penstock.intake.spread import picked, spread, stored_before
from penstock.intake.staging import TOPIC, digest, home_of, name_of, topic_of
from penstock.message import Rows
from penstock.registry.answer import Answer
from penstock.transactions.record import Past, TransactionRecord

if TYPE_CHECKING:
    from penstock.log.shard import Shard
    from penstock.node.node import Node
    from penstock.node.topic import Topic

#: What committed rows say of where they came from.
SOURCE = "spark"
#: What a moment refused (a full disk, a rate) is tried again, because the commit was promised: first after this long,
#: then less and less often.
RETRY_NS = SECOND
RETRY_NS_MAX = 60 * SECOND
#: A topic that is getting more shards is looked at again after this long.
HELD_NS = SECOND // 100
#: How far a long commit got is written down this often: sequences are only known for the topic's dedup window.
NOTE_NS = 30 * SECOND
#: Marks of so many batches are kept: as many as Spark keeps in a checkpoint, so that one put back is recognised.
PAST_MAX = 100

_log = logging.getLogger(__name__)

#: (rows, it was committed before), or why not.
Committed = Callable[[tuple[int, bool] | None, BaseException | None], None]


def marked(batch: pa.RecordBatch) -> int:
    """Return the mark of staged rows, which their topic is a part of."""
    topic = topic_of(batch.schema)
    return mark(batch) + (len(batch) * crc32(topic.encode()) if topic is not None else 0)


class Piece(NamedTuple):
    """A staged batch."""

    #: (attempt, batch in it).
    place: tuple[int, int]
    batch: pa.RecordBatch
    mark: int


class Transaction:
    """A transaction that was written down, until it is finished."""

    def __init__(
        self,
        node: Node,
        record: TransactionRecord,
        put: Callable[[TransactionRecord], Answer[None]],
        finished: Callable[[TransactionRecord], None],
    ) -> None:
        self.waiting: list[Committed] = []
        #: Staged attempts that are looked at when it is finished.
        self.spared: set[str] = set()
        #: Why it cannot be finished; empty while it can.
        self.failed = ""
        self._node = node
        self._record = record
        self._put = put
        self._finished = finished
        self._rows = record.rows
        self._mark = record.mark
        self._incarnation = record.incarnation
        self._reached = record.reached
        self._parts = set(record.parts)
        self._noted_ns = node.clock.monotonic()
        self._batches: Iterator[Piece] | None = None
        self._touched: dict[Shard, None] = {}
        self._left = 0
        self._failure: BaseException | None = None
        self._retry_ns = RETRY_NS
        self._is_abandoned = False

    @property
    def topic(self) -> str | None:
        """Where all of it goes; None if its rows say that."""
        return self._record.topic

    @property
    def _is_over(self) -> bool:
        """Whether another process takes it up."""
        return self._is_abandoned or self._node.stopping

    def abandon(self, error: Refusal) -> None:
        """Leave it to another node, and tell who waits."""
        self._is_abandoned = True
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done(None, error)

    def begin(self) -> None:
        """Go on from where the record says it got."""
        if self._is_abandoned:
            return
        self._batches = self._staged(self._reached)
        self._next()

    def _staged(self, reached: tuple[int, int]) -> Iterator[Piece]:
        record = self._record
        for number, attempt in enumerate(record.attempts):
            if number < reached[0]:
                continue
            for place, batch in enumerate(self._node.staging.batches(name_of(record.query, record.batch, attempt))):
                if (number, place) >= reached:
                    yield Piece((number, place), batch, 0 if record.is_old else marked(batch))

    def _next(self) -> None:
        batches = self._batches
        self._node.disk.submit("read", lambda: next(batches, None) if batches else None, self._loaded)

    def _loaded(self, found: Piece | None, error: BaseException | None) -> None:
        if self._is_over:
            return
        if isinstance(error, CorruptionError):
            self._give_up(error)
        elif error is not None:
            self._fail(error)
        elif found is None:
            self._sync()
        else:
            self._append(found)

    # --- append ---------------------------------------------------------------------------------------------------

    def _append(self, piece: Piece) -> None:
        """Append a batch once all its topics are there."""
        groups = list(_by_topic(piece.batch))
        missing = next((name for name, _ in groups if name not in self._node.topics), None)
        if missing is None:
            self._append_to(piece, groups)
        else:
            self._node.obtain(missing).then(
                lambda _, error: self._append(piece) if error is None else self._fail(error)
            )

    def _append_to(self, piece: Piece, groups: list[tuple[str, Rows]]) -> None:
        self._failure = None
        self._left = 1
        place, batch, _ = piece
        asked = home_of(batch.schema)
        if any(self._node.topic(name).intake.is_held for name, _ in groups):
            clock = self._node.clock  # it is getting more shards, which will be known in a moment
            clock.call_at(clock.monotonic() + HELD_NS, partial(self._append, piece))
            return
        try:
            for name, rows in groups:
                topic = self._node.topic(name)
                if self._record.topic is not None and topic.record.incarnation != self._incarnation:
                    self._begin_anew(topic.record.incarnation)
                    return
                home = place[0] if asked is None else asked
                rows = self._missing(topic, rows, home, place)
                shards = len(topic.shards)
                for shard, part, _ in self._split(rows, shards, home % shards):
                    number = _number(topic, shard, shards)
                    if (name, number) in self._parts:
                        continue  # a try before this one came so far
                    part.sequence = self._sequence(place, number)
                    if topic.settings.durability != "memory":
                        self._touched[topic.shards[shard]] = None
                    self._left += 1
                    topic.publish(part, self, partial(self._appended, piece, (name, number)), shard)
        except Refusal as refusal:
            self._failure = refusal
        self._appended(piece, None, None, None)

    def _split(self, rows: Rows, shards: int, home: int) -> list[tuple[int, Rows, list[int]]]:
        if not rows.count:
            return []
        return spread(rows, shards, home) if shards > 1 and "key" in rows.columns else [(home, rows, [])]

    def _missing(self, topic: Topic, rows: Rows, home: int, place: tuple[int, int]) -> Rows:
        """Return the rows that a try before this one did not append while the topic had fewer shards."""

        def known(shard: int, shards: int) -> int | None:
            number = _number(topic, shard, shards)
            there = (topic.name, number) in self._parts or topic.intake.known(self._sequence(place, number)) is not None
            return 0 if there else None

        counts = [growth.shards for growth in topic.record.grown]
        there = stored_before(rows, counts, lambda shards: home % shards, known) if counts else {}
        return picked(rows, [row for row in range(rows.count) if row not in there]) if there else rows

    def _begin_anew(self, incarnation: int) -> None:
        """Write all of it: what there was went with a topic that was deleted meanwhile."""
        self._incarnation = incarnation
        self._reached, self._rows = (0, 0), 0
        self._mark = None if self._record.is_old else 0
        self._parts.clear()
        self.begin()

    def _appended(
        self, piece: Piece, part: tuple[str, int] | None, _: Receipt | None, error: BaseException | None
    ) -> None:
        self._failure = self._failure or error
        self._left -= 1
        if error is None and part is not None:
            self._parts.add(part)
        if self._left or self._is_abandoned:
            return
        if self._failure is not None:
            self._fail(self._failure)
            return
        self._rows += len(piece.batch)
        self._mark = None if self._mark is None else (self._mark + piece.mark) & BITS
        self._reached = (piece.place[0], piece.place[1] + 1)
        self._parts.clear()
        now_ns = self._node.clock.monotonic()
        if now_ns - self._noted_ns > NOTE_NS:
            self._noted_ns = now_ns
            self._sync_then(self._note, self._fail)
        else:
            self._next()

    def _sequence(self, place: tuple[int, int], number: int) -> bytes:
        """Return the name of one append for ever: the same rows get the same one when the commit is taken up again."""
        record = self._record
        name = bytes.fromhex(digest(record.query if record.topic is None else record.key))
        if record.begun:  # what is known by the other names may have been other rows
            name += pack(">I", record.begun)
        return b"commit " + name + pack(">QII", record.batch, *place) + pack(">H" if number <= 0xFFFF else ">I", number)

    # --- down -----------------------------------------------------------------------------------------------------

    def _sync(self) -> None:
        self._sync_then(self._finish, self._fail)

    def _sync_then(self, then: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        """Sync what was appended first: what the registry says is done must be there after a power loss."""
        left = len(self._touched)
        failure: BaseException | None = None

        def synced(error: BaseException | None) -> None:
            nonlocal left, failure
            left -= 1
            failure = failure or error
            if left or self._is_abandoned:
                return
            if failure is not None:
                failed(failure)
            else:
                self._touched.clear()
                then()

        if not left:
            then()
        for shard in list(self._touched):
            shard.sync(synced)

    def _note(self) -> None:
        """Write down how far it got, and go on."""
        self._put(self._progress()).then(self._noted)

    def _noted(self, _: None, error: Exception | None) -> None:
        if error is not None:
            self._fail(error)
        else:
            self._next()

    def _progress(self) -> TransactionRecord:
        """Return its record as far as it got."""
        parts = tuple(sorted(self._parts))
        return msgspec.structs.replace(
            self._record,
            incarnation=self._incarnation,
            rows=self._rows,
            mark=self._mark,
            reached=self._reached,
            parts=parts,
        )

    def _finish(self) -> None:
        past = Past(self._record.batch, self._rows, self._mark, self._node.clock.now())
        record = msgspec.structs.replace(self._progress(), done=True, past=(*self._record.past, past)[-PAST_MAX:])
        self._put(record).then(partial(self._written, record))

    def _written(self, record: TransactionRecord, _: None, error: Exception | None) -> None:
        if error is not None:
            self._fail(error)
        if error is not None or self._is_abandoned:
            return
        self._finished(record)
        for done in self.waiting:
            done((self._rows, False), None)
        self.waiting.clear()

    def _fail(self, error: BaseException) -> None:
        """Tell who waits, and try again later: the commit was promised, and others may have seen a part of it."""
        if self._is_abandoned:
            return
        _log.warning("batch %d of query %s is not committed yet: %s", self._record.batch, self._record.query, error)
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done(None, error)
        if not self._node.stopping:
            # It may take longer than sequences are known, and the node may die meanwhile.
            self._sync_then(self._note_failed, self._again)

    def _give_up(self, error: CorruptionError) -> None:
        """End here: what was staged is lost, and no later try can find it."""
        record = self._record
        where = "its topics" if record.topic is None else f"topic {record.topic}"
        self.failed = (
            f"batch {record.batch} of query {record.query} cannot be finished: {error}. {self._rows} rows of it are in "
            f"{where}. Run the query once with option repeats set to any: it writes the whole batch again, and these "
            "rows come twice"
        )
        _log.error("%s", self.failed)
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done(None, Refusal("conflict", self.failed))
        if not self._node.stopping:  # so that the next process adds nothing twice before it comes here
            self._sync_then(lambda: self._put(self._progress()).then(_ignored), lambda _: None)

    def anew(self, attempts: tuple[str, ...]) -> TransactionRecord:
        """Return the record of a transaction that writes all of the batch with other attempts."""
        nothing = msgspec.structs.replace(self._record, rows=0, reached=(0, 0), parts=())
        mark = None if self._record.is_old else 0
        return msgspec.structs.replace(nothing, attempts=attempts, mark=mark, begun=self._record.begun + 1)

    def _note_failed(self) -> None:
        self._put(self._progress()).then(lambda _, error: self._again(error))

    def _again(self, _: BaseException | None) -> None:
        clock = self._node.clock
        clock.call_at(clock.monotonic() + self._retry_ns, self.begin)
        self._retry_ns = min(2 * self._retry_ns, RETRY_NS_MAX)


def _ignored(_: None, __: Exception | None) -> None:
    """Do without an answer."""


def _number(topic: Topic, shard: int, shards: int) -> int:
    """Return the number of a part, which is its shard until the topic grows: then keys have other shards."""
    first = topic.record.grown[-1].first if topic.record.grown else shards
    return shard if shards == first else shards << 16 | shard


def _by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, Rows]]:
    """Yield (topic, its rows in order)."""
    topic = topic_of(batch.schema)
    if topic is not None:
        yield topic, Rows.of_arrow(batch, SOURCE)
        return
    if not len(batch):
        return
    names = batch.column(TOPIC).dictionary_encode()
    codes = names.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    sorted_batch = batch.take(pa.array(order))
    cuts = [0, *(np.flatnonzero(np.diff(codes[order])) + 1).tolist(), len(batch)]
    for number, (start, end) in enumerate(pairwise(cuts)):
        yield names.dictionary[number].as_py(), Rows.of_arrow(sorted_batch.slice(start, end - start), SOURCE)
