"""Commits: what tasks staged becomes messages, once per (query, topic, batch), whatever dies in between (ruling 16).

The registry knows which commit of a query to a topic is under way, or was the last, and the marks of those before. Each
appended batch carries its place in the commit as its producer sequence, so a commit that is taken up again adds only
what is missing. Runs on the node's loop; files are read in the executor.
Invariant: a commit that was written down is finished, by this process or by the next one, before anything else may
follow it in its query; one that is taken for written has the rows of the one that was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from struct import pack
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa

from penstock.answer import Answer
from penstock.clock import SECOND
from penstock.errors import Refusal
from penstock.intake.mark import BITS, mark
from penstock.intake.receipt import Receipt
from penstock.intake.spread import picked, spread, stored_before
from penstock.intake.staging import TOPIC, digest, home_of, name_of, topic_of
from penstock.message import Rows
from penstock.times import shown

if TYPE_CHECKING:
    from penstock.log.shard import Shard
    from penstock.node import Node
    from penstock.topic import Topic

KEYS = "commit/"
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
#: Committed queries are remembered this long after their last commit.
FORGET_NS = 30 * 24 * 3600 * SECOND
#: Marks of so many batches are kept: as many as Spark keeps in a checkpoint, so that one put back is recognised.
PAST_MAX = 100

_log = logging.getLogger(__name__)

#: (rows, it was committed before), or why not.
Committed = Callable[[tuple[int, bool] | None, BaseException | None], None]


class Past(msgspec.Struct, frozen=True, array_like=True):
    """A batch that was committed."""

    batch: int
    rows: int
    #: None: by a version that made none.
    mark: int | None
    done_ns: int


class CommitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The last commit of a query to a topic, as the registry keeps it."""

    query: str
    batch: int
    attempts: tuple[str, ...]
    #: None: the rows name their topics, or a version made it that did not tell topics apart (see `is_old`).
    topic: str | None = None
    #: That of the topic, which is another one when it was deleted and made anew.
    incarnation: int = 0
    done: bool = False
    rows: int = 0
    #: Of the rows so far; None in a record of a version that made none.
    mark: int | None = None
    #: (attempt, batch in it): everything before is in the log.
    reached: tuple[int, int] = (0, 0)
    #: (topic, shard): what of the batch at that place is in the log, too; see `_number`.
    parts: tuple[tuple[str, int], ...] = ()
    changed_ns: int = 0
    #: The batches that were committed before, the last of them last, and this one once it is done.
    past: tuple[Past, ...] = ()

    @property
    def is_old(self) -> bool:
        """Whether a version made it that knew one last commit for each query, whatever its topics."""
        return self.mark is None

    @property
    def key(self) -> str:
        """Where the registry keeps it."""
        return _key(self.query, self.topic)

    def found(self, batch: int) -> Past | None:
        """Return what is remembered of a batch."""
        if self.done and self.is_old and batch == self.batch:
            return Past(batch, self.rows, None, self.changed_ns)
        return next((past for past in self.past if past.batch == batch), None)


def _key(query: str, topic: str | None) -> str:
    return KEYS + digest(query) + (f"/{digest(topic)}" if topic is not None else "")


#: What to do about a batch that is another than the one of its number.
_WAY_OUT = (
    "Two queries share this name: a checkpoint was copied, or an older one was put back. Give this one a "
    "checkpointLocation (a batch write: a txnAppId, or a txnVersion above the last) of its own"
)
#: Only the last batch is ever repeated by the query that wrote it.
_IF_THE_SAME = ". If it is the same query, and its rows come out otherwise each time, set option repeats to any"


class _Asked(NamedTuple):
    """A commit that was asked for."""

    query: str
    batch: int
    attempts: tuple[str, ...]
    names: list[str]
    any_rows: bool
    done: Committed


class Seen(NamedTuple):
    """What staged attempts hold."""

    rows: int
    mark: int
    #: What their rows name.
    topics: frozenset[str]


class Commits:
    """The commits of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        #: By the record's key.
        self._running: dict[str, _Run] = {}
        #: Commits that are being written down.
        self._beginning: dict[str, Answer[CommitRecord]] = {}
        #: Batches committed since the node started.
        self.committed = 0

    def resume(self) -> None:
        """Finish what was under way when the node died."""
        for record in self._records():
            if not record.done:
                self._start(record)

    def commit(self, query: str, batch: int, attempts: list[str], done: Committed, *, any_rows: bool = False) -> None:
        """Make what these attempts staged visible; `done` hears once, when it is as durable as can be.

        A batch that is there already is not added again, and must be the same one, or the call is refused. With
        `any_rows` the last one may have other rows: a query that draws lots repeats it so after a crash.
        """
        try:
            names = [name_of(query, batch, attempt) for attempt in attempts]
            if len(set(names)) < len(names):
                raise Refusal("bad_request", "an attempt is named twice")
            if not names:  # no rows, so there is nothing that could be there twice, or be missing
                done((0, False), None)
                return
            asked = _Asked(query, batch, tuple(attempts), names, any_rows, done)
            record = self._before(asked)
            if record is None or (record.done and batch > record.batch):
                self._begin(asked, record)
                return
            if record.done:
                self._repeated(asked, record)
                return
            elif record.batch != batch:
                text = f"batch {record.batch} of query {query} is not finished yet; batch {batch} must wait for it"
                raise Refusal("conflict", text)
        except Refusal as refusal:
            done(None, refusal)
            return
        self._join(asked, record)

    def _join(self, asked: _Asked, record: CommitRecord) -> None:
        """Wait for a commit with others who do."""
        run = self._running.get(record.key) or self._start(record)
        if asked.attempts == record.attempts:
            run.waiting.append(asked.done)
        else:  # What others staged was promised. Once it is there, these rows are held against it.
            run.spared.update(asked.names)
            run.waiting.append(partial(self._after, asked))

    def _after(self, asked: _Asked, answer: tuple[int, bool] | None, error: BaseException | None) -> None:
        if error is not None:
            asked.done(None, error)
        else:
            self.commit(asked.query, asked.batch, list(asked.attempts), asked.done, any_rows=asked.any_rows)

    def abort(self, query: str, batch: int, attempts: list[str]) -> None:
        """Drop attempts, unless they are being committed."""
        if not any(not record.done and record.batch == batch for record in self._of_query(query)):
            self._node.staging.remove([name_of(query, batch, attempt) for attempt in attempts])

    def sweep(self) -> None:
        """Drop what nobody committed in time, and queries nobody heard of for long."""
        now_ns = self._node.steady.now()
        needed: set[str] = set()
        for record in self._records():
            if not record.done:
                needed.update(name_of(record.query, record.batch, attempt) for attempt in record.attempts)
            elif now_ns - record.changed_ns > FORGET_NS:
                self._node.catalog.remove([record.key])
        swept = self._node.staging.sweep(now_ns, needed)
        if swept:
            self._node.ledger.add("staged", "", swept, now_ns, "staged and not committed within a day")

    # --- which one is it ------------------------------------------------------------------------------------------

    def _before(self, asked: _Asked) -> CommitRecord | None:
        """Return the last commit of this query to this topic."""
        missing = [name for name in asked.names if not self._node.staging.has(name)]
        if not missing:
            return self._last(asked.query, self._node.staging.topic(asked.names))
        for record in self._of_query(asked.query):
            if record.batch == asked.batch and record.attempts == asked.attempts:
                return record  # staged no more because it is committed, and the driver did not hear it
        attempt = asked.attempts[asked.names.index(missing[0])]
        text = (
            f"attempt {attempt} of batch {asked.batch} of query {asked.query} is not staged, or was swept after a day"
        )
        raise Refusal("not_found", text)

    def _last(self, query: str, topic: str | None) -> CommitRecord | None:
        record = self._record(_key(query, topic))
        if record is None and topic is not None:
            old = self._record(_key(query, None))
            return old if old is not None and old.is_old else None
        if record is not None and record.done and record.topic is not None:
            there = self._node.topics.get(record.topic)
            if there is None or there.record.incarnation != record.incarnation:
                return None  # it was written to a topic that was deleted
        return record

    def _begin(self, asked: _Asked, last: CommitRecord | None) -> None:
        """Write a commit down, then start it; one at a time of a query and topic."""
        name = self._node.staging.topic(asked.names)
        key = _key(asked.query, name)
        if key in self._beginning:
            again = partial(self.commit, asked.query, asked.batch, list(asked.attempts), any_rows=asked.any_rows)
            self._beginning[key].then(lambda _, __: again(asked.done))
            return

        def write(topic: Topic | None) -> Answer[CommitRecord]:
            record = CommitRecord(
                query=asked.query,
                batch=asked.batch,
                attempts=asked.attempts,
                topic=name,
                incarnation=0 if topic is None else topic.record.incarnation,
                mark=0,
                past=last.past if last is not None else (),
            )
            old = last is not None and last.key != record.key  # one which this one follows
            return self._put(record, [last.key] if old and last is not None else []).then_make(lambda _: record)

        def told(record: CommitRecord | None, error: Exception | None) -> None:
            self._beginning.pop(key, None)
            if record is None:
                asked.done(None, error)
            else:
                self._join(asked, record)

        begun: Answer[CommitRecord] = self._topic(name).then_ask(write)
        self._beginning[key] = begun
        begun.then(told)

    def _topic(self, name: str | None) -> Answer[Topic | None]:
        if name is None:
            return Answer.of(None)
        topic: Answer[Topic | None] = self._node.obtain(name).then_make(lambda found: found)
        return topic

    def _repeated(self, asked: _Asked, record: CommitRecord) -> None:
        """Answer for a batch that was committed before, if it is that one."""
        if asked.batch == record.batch and asked.attempts == record.attempts:
            self._known(asked, record, record.rows)
            return
        past = record.found(asked.batch)
        if past is None:
            raise Refusal(
                "conflict",
                f"batch {asked.batch} of query {asked.query} is not among the last ones that were written to "
                f"{_where(record)}, and the last one is {record.batch}: nothing of it is written, because it cannot be "
                f"told whether it is there. {_WAY_OUT}",
            )
        if asked.any_rows and asked.batch == record.batch:
            self._known(asked, record, past.rows)
            return
        read = partial(_seen, self._node.staging.batches, asked.names)
        self._node.disk.submit("read", read, partial(self._compared, asked, record, past))

    def _compared(
        self, asked: _Asked, record: CommitRecord, past: Past, seen: Seen | None, error: BaseException | None
    ) -> None:
        if seen is None:
            asked.done(None, error)
            return
        try:
            self._tell_apart(asked, record, past, seen)
            self._known(asked, record, past.rows)
        except Refusal as refusal:
            asked.done(None, refusal)

    def _tell_apart(self, asked: _Asked, record: CommitRecord, past: Past, seen: Seen) -> None:
        many = "row" if seen.rows == 1 else "rows"
        anew = [name for name in sorted(seen.topics) if not self._was_there(name, past.done_ns)]
        if seen.rows != past.rows:
            found = f"{seen.rows} {many}"
        elif past.mark is not None and seen.mark != past.mark:
            found = f"{seen.rows} other {many}"
        elif anew:
            found = f"the same, but topic {anew[0]} was made anew since"
        else:
            return
        raise Refusal(
            "conflict",
            f"batch {asked.batch} of query {asked.query} was written to {_where(record)} on {shown(past.done_ns)} with "
            f"{past.rows} rows; what comes under this number now has {found}, and nothing of it is written. {_WAY_OUT}"
            f"{_IF_THE_SAME if asked.batch == record.batch else ''}",
        )

    def _was_there(self, name: str, time_ns: int) -> bool:
        topic = self._node.topics.get(name)
        return topic is not None and topic.record.created_ns <= time_ns

    def _known(self, asked: _Asked, record: CommitRecord, rows: int) -> None:
        """Answer that a batch is there."""
        now = self._record(record.key)
        if now is not None and now.done and now.batch == asked.batch and now.attempts != asked.attempts:
            # Its attempts go; the driver may not hear this and ask again.
            put = self._put(msgspec.structs.replace(now, attempts=asked.attempts))
        else:
            put = Answer.of(None)

        def told(_: None, error: Exception | None) -> None:
            if error is not None:
                asked.done(None, error)
            else:
                self._node.staging.remove(asked.names)
                asked.done((rows, True), None)

        put.then(told)

    # --- what is under way ----------------------------------------------------------------------------------------

    def _start(self, record: CommitRecord) -> _Run:
        run = self._running[record.key] = _Run(self._node, record, self._put, self._finished)
        run.begin()
        return run

    def _finished(self, record: CommitRecord) -> None:
        spared = self._running.pop(record.key).spared
        self.committed += 1
        staging = self._node.staging
        names = {name_of(record.query, record.batch, attempt) for attempt in record.attempts}
        # Attempts of tasks that lost, and of a driver that died: their batch is committed.
        lost = () if record.is_old else staging.of_query(record.query, record.topic, record.batch)
        staging.remove(sorted((names | set(lost)) - spared))

    def _records(self) -> list[CommitRecord]:
        return [_decoded(entry.value) for entry in self._node.catalog.registry.list(KEYS).values()]

    def _of_query(self, query: str) -> list[CommitRecord]:
        found = self._node.catalog.registry.list(_key(query, None)).values()
        return [_decoded(entry.value) for entry in found]

    def _record(self, key: str) -> CommitRecord | None:
        entry = self._node.catalog.registry.get(key)
        return _decoded(entry.value) if entry else None

    def _put(self, record: CommitRecord, replaced: Sequence[str] = ()) -> Answer[None]:
        record = msgspec.structs.replace(record, changed_ns=self._node.clock.now())
        return self._node.catalog.put(record.key, msgspec.msgpack.encode(record), replaced)


def _decoded(value: bytes) -> CommitRecord:
    return msgspec.msgpack.decode(value, type=CommitRecord)


def _where(record: CommitRecord) -> str:
    if record.is_old:
        return "its topics"
    return "the topics its rows name" if record.topic is None else f"topic {record.topic}"


def _seen(batches: Callable[[str], Iterator[pa.RecordBatch]], names: list[str]) -> Seen:
    """Return what attempts hold; blocking."""
    rows = total = 0
    topics: set[str] = set()
    for name in names:
        for batch in batches(name):
            rows += len(batch)
            total += _mark(batch)
            if topic_of(batch.schema) is None:
                topics.update(batch.column(TOPIC).unique().to_pylist())
    return Seen(rows, total & BITS, frozenset(topics))


def _mark(batch: pa.RecordBatch) -> int:
    topic = topic_of(batch.schema)
    return mark(batch) + (len(batch) * crc32(topic.encode()) if topic is not None else 0)


class Piece(NamedTuple):
    """A staged batch."""

    #: (attempt, batch in it).
    place: tuple[int, int]
    batch: pa.RecordBatch
    mark: int


class _Run:
    """One commit under way: reads a staged batch, appends its parts, reads the next."""

    def __init__(
        self,
        node: Node,
        record: CommitRecord,
        put: Callable[[CommitRecord], Answer[None]],
        finished: Callable[[CommitRecord], None],
    ) -> None:
        self.waiting: list[Committed] = []
        #: Staged attempts that are looked at when it is finished.
        self.spared: set[str] = set()
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

    def begin(self) -> None:
        """Go on from where the record says it got."""
        self._batches = self._staged(self._reached)
        self._next()

    def _staged(self, reached: tuple[int, int]) -> Iterator[Piece]:
        record = self._record
        for number, attempt in enumerate(record.attempts):
            if number < reached[0]:
                continue
            for place, batch in enumerate(self._node.staging.batches(name_of(record.query, record.batch, attempt))):
                if (number, place) >= reached:
                    yield Piece((number, place), batch, 0 if record.is_old else _mark(batch))

    def _next(self) -> None:
        batches = self._batches
        self._node.disk.submit("read", lambda: next(batches, None) if batches else None, self._loaded)

    def _loaded(self, found: Piece | None, error: BaseException | None) -> None:
        if self._node.stopping:
            return  # the next process takes it up
        if error is not None:
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
        if self._left:
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
            if left:
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

    def _progress(self) -> CommitRecord:
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

    def _written(self, record: CommitRecord, _: None, error: Exception | None) -> None:
        if error is not None:
            self._fail(error)
            return
        self._finished(record)
        for done in self.waiting:
            done((self._rows, False), None)
        self.waiting.clear()

    def _fail(self, error: BaseException) -> None:
        """Tell who waits, and try again later: the commit was promised, and others may have seen a part of it."""
        _log.warning("batch %d of query %s is not committed yet: %s", self._record.batch, self._record.query, error)
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done(None, error)
        if not self._node.stopping:
            # It may take longer than sequences are known, and the node may die meanwhile.
            self._sync_then(self._note_failed, self._again)

    def _note_failed(self) -> None:
        self._put(self._progress()).then(lambda _, error: self._again(error))

    def _again(self, _: BaseException | None) -> None:
        clock = self._node.clock
        clock.call_at(clock.monotonic() + self._retry_ns, self.begin)
        self._retry_ns = min(2 * self._retry_ns, RETRY_NS_MAX)


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
