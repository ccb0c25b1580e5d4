"""Commits: what tasks staged becomes messages, once for each (query, batch), whatever dies in between (ruling 16).

The registry knows which commit of a query is under way, or was the last. Each appended batch carries its place in the
commit as its producer sequence, so a commit that is taken up again adds only what is missing. Runs on the node's loop;
files are read in the executor.
Invariant: a commit that was written down is finished, by this process or by the next one, before anything else may
follow it in its query.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from struct import pack
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from penstock.clock import SECOND
from penstock.errors import Refusal
from penstock.inlet import Receipt
from penstock.intake.spread import spread
from penstock.intake.staging import TOPIC, digest, home_of, name_of, topic_of
from penstock.message import Rows

if TYPE_CHECKING:
    from penstock.log.shard import Shard
    from penstock.node import Node

KEYS = "commit/"
#: What committed rows say of where they came from.
SOURCE = "spark"
#: What a moment refused (a full disk, a rate) is tried again, because the commit was promised: first after this long,
#: then less and less often.
RETRY_NS = SECOND
RETRY_NS_MAX = 60 * SECOND
#: How far a long commit got is written down this often: sequences are only known for the topic's dedup window.
NOTE_NS = 30 * SECOND
#: Committed queries are remembered this long after their last commit.
FORGET_NS = 30 * 24 * 3600 * SECOND

_log = logging.getLogger(__name__)

#: (rows, it was committed before), or why not.
Committed = Callable[[tuple[int, bool] | None, BaseException | None], None]


class CommitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The last commit of a query, as the registry keeps it."""

    query: str
    batch: int
    attempts: tuple[str, ...]
    done: bool = False
    rows: int = 0
    #: (attempt, batch in it): everything before is in the log.
    reached: tuple[int, int] = (0, 0)
    #: (topic, shard): what of the batch at that place is in the log, too.
    parts: tuple[tuple[str, int], ...] = ()
    changed_ns: int = 0


class Commits:
    """The commits of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._running: dict[str, _Run] = {}
        #: Batches committed since the node started.
        self.committed = 0

    def resume(self) -> None:
        """Finish what was under way when the node died."""
        for record in self._records():
            if not record.done:
                self._start(record)

    def commit(self, query: str, batch: int, attempts: list[str], done: Committed) -> None:
        """Make what these attempts staged visible; `done` hears once, when it is as durable as can be."""
        try:
            names = [name_of(query, batch, attempt) for attempt in attempts]
            record = self._record(query)
            if record is not None and (batch < record.batch or (batch == record.batch and record.done)):
                self._node.staging.remove(names)
                done((record.rows if batch == record.batch else 0, True), None)
                return
            if record is None or record.done:
                self._check(query, batch, attempts, names)
                record = CommitRecord(query=query, batch=batch, attempts=tuple(attempts))
                self._put(record)
            elif record.batch != batch:
                text = f"batch {record.batch} of query {query} is not finished yet; batch {batch} must wait for it"
                raise Refusal("conflict", text)
            # Otherwise it was promised to others: a replay with other attempts gets what they staged.
        except Refusal as refusal:
            done(None, refusal)
            return
        run = self._running.get(query) or self._start(record)
        run.waiting.append(done)

    def abort(self, query: str, batch: int, attempts: list[str]) -> None:
        """Drop attempts, unless they are being committed."""
        record = self._record(query)
        if record is None or record.done or record.batch != batch:
            self._node.staging.remove([name_of(query, batch, attempt) for attempt in attempts])

    def sweep(self) -> None:
        """Drop what nobody committed in time, and queries nobody heard of for long."""
        now_ns = self._node.clock.now()
        needed: set[str] = set()
        for record in self._records():
            if not record.done:
                needed.update(name_of(record.query, record.batch, attempt) for attempt in record.attempts)
            elif now_ns - record.changed_ns > FORGET_NS:
                self._node.catalog.registry.delete(KEYS + digest(record.query))
        swept = self._node.staging.sweep(now_ns, needed)
        if swept:
            self._node.ledger.add("staged", "", swept, now_ns, "staged and not committed within a day")

    def _check(self, query: str, batch: int, attempts: list[str], names: list[str]) -> None:
        if len(set(names)) < len(names):
            raise Refusal("bad_request", "an attempt is named twice")
        for attempt, name in zip(attempts, names, strict=True):
            if not self._node.staging.has(name):
                text = f"attempt {attempt} of batch {batch} of query {query} is not staged, or was swept after a day"
                raise Refusal("not_found", text)

    def _start(self, record: CommitRecord) -> _Run:
        run = self._running[record.query] = _Run(self._node, record, self._put, self._finished)
        run.begin()
        return run

    def _finished(self, record: CommitRecord) -> None:
        del self._running[record.query]
        self.committed += 1
        staging = self._node.staging
        names = {name_of(record.query, record.batch, attempt) for attempt in record.attempts}
        # Attempts of tasks that lost, and of a driver that died: their batch is committed.
        staging.remove(sorted(names | set(staging.of_query(record.query, record.batch))))

    def _records(self) -> list[CommitRecord]:
        entries = self._node.catalog.registry.list(KEYS).values()
        return [msgspec.msgpack.decode(entry.value, type=CommitRecord) for entry in entries]

    def _record(self, query: str) -> CommitRecord | None:
        entry = self._node.catalog.registry.get(KEYS + digest(query))
        return msgspec.msgpack.decode(entry.value, type=CommitRecord) if entry else None

    def _put(self, record: CommitRecord) -> None:
        record = msgspec.structs.replace(record, changed_ns=self._node.clock.now())
        self._node.catalog.registry.put(KEYS + digest(record.query), msgspec.msgpack.encode(record))


class _Run:
    """One commit under way: reads a staged batch, appends its parts, reads the next."""

    def __init__(
        self,
        node: Node,
        record: CommitRecord,
        put: Callable[[CommitRecord], None],
        finished: Callable[[CommitRecord], None],
    ) -> None:
        self.waiting: list[Committed] = []
        self._node = node
        self._record = record
        self._put = put
        self._finished = finished
        self._rows = record.rows
        self._reached = record.reached
        self._parts = set(record.parts)
        self._noted_ns = node.clock.monotonic()
        self._batches: Iterator[tuple[tuple[int, int], pa.RecordBatch]] | None = None
        self._touched: dict[Shard, None] = {}
        self._left = 0
        self._failure: BaseException | None = None
        self._retry_ns = RETRY_NS

    def begin(self) -> None:
        """Go on from where the record says it got."""
        self._batches = self._staged(self._reached)
        self._next()

    def _staged(self, reached: tuple[int, int]) -> Iterator[tuple[tuple[int, int], pa.RecordBatch]]:
        record = self._record
        for number, attempt in enumerate(record.attempts):
            if number < reached[0]:
                continue
            for place, batch in enumerate(self._node.staging.batches(name_of(record.query, record.batch, attempt))):
                if (number, place) >= reached:
                    yield (number, place), batch

    def _next(self) -> None:
        batches = self._batches
        self._node.disk.submit("read", lambda: next(batches, None) if batches else None, self._loaded)

    def _loaded(self, found: tuple[tuple[int, int], pa.RecordBatch] | None, error: BaseException | None) -> None:
        if self._node.stopping:
            return  # the next process takes it up
        if error is not None:
            self._fail(error)
        elif found is None:
            self._sync()
        else:
            self._append(*found)

    # --- append ---------------------------------------------------------------------------------------------------

    def _append(self, place: tuple[int, int], batch: pa.RecordBatch) -> None:
        self._failure = None
        self._left = 1
        asked = home_of(batch.schema)
        try:
            for name, rows in _by_topic(batch):
                topic = self._node.topic(name, create=True)
                shards = len(topic.shards)
                home = (place[0] if asked is None else asked) % shards
                parts = spread(rows, shards, home) if shards > 1 and "key" in rows.columns else [(home, rows, [])]
                for shard, part, _ in parts:
                    if (name, shard) in self._parts:
                        continue  # a try before this one came so far
                    part.sequence = self._sequence(place, shard)
                    if topic.settings.durability != "memory":
                        self._touched[topic.shards[shard]] = None
                    self._left += 1
                    topic.publish(part, self, partial(self._appended, place, len(batch), (name, shard)), shard)
        except Refusal as refusal:
            self._failure = refusal
        self._appended(place, len(batch), None, None, None)

    def _appended(
        self,
        place: tuple[int, int],
        count: int,
        part: tuple[str, int] | None,
        _: Receipt | None,
        error: BaseException | None,
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
        self._rows += count
        self._reached = (place[0], place[1] + 1)
        self._parts.clear()
        now_ns = self._node.clock.monotonic()
        if now_ns - self._noted_ns > NOTE_NS:
            self._noted_ns = now_ns
            self._sync_then(self._note, self._fail)
        else:
            self._next()

    def _sequence(self, place: tuple[int, int], shard: int) -> bytes:
        """Return the name of one append for ever: the same rows get the same one when the commit is taken up again."""
        record = self._record
        return b"commit " + bytes.fromhex(digest(record.query)) + pack(">QIIH", record.batch, *place, shard)

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
        try:
            self._put(self._progress())
        except Refusal as refusal:
            self._fail(refusal)
        else:
            self._next()

    def _progress(self) -> CommitRecord:
        parts = tuple(sorted(self._parts))
        return msgspec.structs.replace(self._record, rows=self._rows, reached=self._reached, parts=parts)

    def _finish(self) -> None:
        record = msgspec.structs.replace(self._progress(), done=True)
        try:
            self._put(record)
        except Refusal as refusal:
            self._fail(refusal)
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
        try:
            self._put(self._progress())
        except Refusal as refusal:
            self._again(refusal)
        else:
            self._again(None)

    def _again(self, _: BaseException | None) -> None:
        clock = self._node.clock
        clock.call_at(clock.monotonic() + self._retry_ns, self.begin)
        self._retry_ns = min(2 * self._retry_ns, RETRY_NS_MAX)


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
