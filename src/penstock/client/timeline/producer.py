"""A producer of a timeline: creates messages in batches, each once, and deletes what it has not let go of yet.

Ids are made here, so that what was sent over a connection that broke can be sent again: the node refuses the second one
of an id, which then means that the first is stored. Several threads may use one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType

import pyarrow as pa

from penstock.client.outgoing import Bytes, Moment
from penstock.client.timeline import wire
from penstock.client.timeline.asking import Asking, Piece
from penstock.client.timeline.drift import Drift, Sample
from penstock.client.timeline.error import RefusedRow, RefusedRows
from penstock.client.timeline.link import Link
from penstock.client.timeline.outgoing import Row, Schedulable, Scheduled, batch_of, message_id_of, rows_of
from penstock.client.timeline.wire import Kind

#: One request holds no more, unless a single message is larger.
BATCH_MESSAGES = 3000
BATCH_BYTES = 62_500

#: While it sends, it tells the node so often what time it is here, so that somebody is warned of clocks that are off.
PING_S = 1.0


class Producer:
    """Creates messages for one producer group, which owns them."""

    def __init__(
        self,
        link: Link,
        *,
        batch_messages: int = BATCH_MESSAGES,
        batch_bytes: int = BATCH_BYTES,
        on_drift: Callable[[float], object] | None = None,
    ) -> None:
        self._link = link
        self._batch_messages = batch_messages
        self._batch_bytes = batch_bytes
        self._creating = Asking(link, "create-messages", wire.CREATED)
        self._changing = Asking(link, "change", wire.CHANGED)
        self._lock = threading.Lock()
        self._buffer: list[Row] = []
        self._buffered_bytes = 0
        self._pinged_s = -PING_S
        self._on_drift = on_drift
        self._drift = Drift()
        self._drift_url = ""
        self._was_drifting = False

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def create(self, messages: Schedulable, *, due: Moment | None = None) -> list[bytes]:
        """Create one message or many, and return their ids once they are stored.

        `due` says when, for messages that do not say it themselves: a time, or from now on (`"5s"`), which is counted
        by the clock of the node. `RefusedRows` names those that the node refused; the others are stored.
        """
        rows = rows_of(messages, due)
        self._send(rows)
        return [row.message_id for row in rows]

    def create_batch(self, batch: pa.RecordBatch, *, relative: bool = False) -> list[bytes]:
        """Create the messages of an Arrow batch with the columns due_ms, body and, if they have ids, message_id.

        Large batches go as they are given, cut only at `batch_messages`.
        """
        count = len(batch)
        if "message_id" not in batch.schema.names:
            ids = pa.array([message_id_of(None) for _ in range(count)], pa.binary())
            batch = batch.append_column("message_id", ids)
        batch = batch.select(wire.CREATED.names).cast(wire.CREATED)
        step = self._batch_messages
        pieces = (_creating(batch.slice(at, step), relative, at) for at in range(0, count, step))
        self._carry_out(pieces, count)
        found: list[bytes] = batch.column("message_id").to_pylist()
        return found

    def add(self, body: Bytes, *, due: Moment | None = None, message_id: Bytes | None = None) -> bytes:
        """Buffer a message and return its id; it goes with others once a batch is full, or with `flush`."""
        (row,) = rows_of(Scheduled(body, due, message_id), None)
        with self._lock:
            self._buffer.append(row)
            self._buffered_bytes += len(row.body)
            full = len(self._buffer) >= self._batch_messages or self._buffered_bytes >= self._batch_bytes
        if full:
            self.flush()
        return row.message_id

    def flush(self) -> None:
        """Send what is buffered, and return once it is stored."""
        with self._lock:
            rows, self._buffer, self._buffered_bytes = self._buffer, [], 0
        self._send(rows)

    def delete(self, message_ids: Bytes | Iterable[Bytes]) -> int:
        """Delete messages of this group that nobody has on lease; return how many there were.

        `RefusedRows` names those that somebody works on, and those of other groups.
        """
        if isinstance(message_ids, bytes | bytearray | memoryview | str):
            message_ids = [message_ids]
        ids = [message_id_of(each, row) for row, each in enumerate(message_ids)]
        refused: list[RefusedRow] = []
        done = 0
        pieces = (_deleting(ids[at : at + BATCH_MESSAGES], at) for at in range(0, len(ids), BATCH_MESSAGES))
        for piece, replies in self._changing.ask(pieces):
            kinds = replies.column("kind").to_pylist()
            done += kinds.count(Kind.NONE) + (kinds.count(Kind.MESSAGE_NOT_FOUND) if piece.unsure else 0)
            refused += refused_in(piece, replies, (Kind.NONE, Kind.MESSAGE_NOT_FOUND))
        if refused:
            raise RefusedRows("delete", refused, len(ids))
        return done

    def close(self) -> None:
        """Send what is buffered, and end the session."""
        try:
            self.flush()
        finally:
            self._creating.close()
            self._changing.close()
            self._link.close()

    def _send(self, rows: list[Row]) -> None:
        if rows:
            self._carry_out(self._pieces(rows), len(rows))

    def _carry_out(self, pieces: Iterator[Piece], count: int) -> None:
        refused: list[RefusedRow] = []
        for piece, replies in self._creating.ask(pieces):
            done = (Kind.NONE, Kind.DUPLICATE_ID) if piece.unsure else (Kind.NONE,)
            refused += refused_in(piece, replies, done)
        try:
            self._ping()  # behind all answers: what it tells the program may raise
        finally:
            if refused:
                raise RefusedRows("create", sorted(refused), count)

    def _ping(self) -> None:
        now_s = time.monotonic()
        if now_s - self._pinged_s >= PING_S:
            self._pinged_s = now_s
            sample = self._link.ping(time.time() * 1000)
            if sample is not None:
                self._note_drift(sample)

    def _note_drift(self, sample: Sample) -> None:
        if self._drift_url != self._link.url:  # another node has another clock
            self._drift_url = self._link.url
            self._drift.clear()
        self._drift.add(sample)
        drifts, told = self._drift.is_active, self._was_drifting
        self._was_drifting = drifts
        if drifts != told and self._on_drift is not None:
            self._on_drift(self._drift.offset_ms)

    def _pieces(self, rows: list[Row]) -> Iterator[Piece]:
        """Cut rows into requests: so many, so many bytes, and all of them with one meaning of their times."""
        start = size = 0
        for at, row in enumerate(rows):
            full = at - start >= self._batch_messages or size + len(row.body) > self._batch_bytes
            if at > start and (full or row.relative != rows[start].relative):
                yield _creating(batch_of(rows[start:at]), rows[start].relative, start)
                start, size = at, 0
            size += len(row.body)
        yield _creating(batch_of(rows[start:]), rows[start].relative, start)


def _creating(batch: pa.RecordBatch, relative: bool, first: int) -> Piece:
    def words(session: str, number: int) -> wire.CreateMessages:
        return wire.CreateMessages(session_id=session, number=number, relative=relative)

    return Piece(words, batch, first)


def _deleting(ids: list[bytes], first: int) -> Piece:
    nothing = pa.nulls(len(ids), pa.uint16())
    columns = [pa.array(ids, pa.binary()), nothing, nothing, pa.nulls(len(ids), pa.uint64())]
    return Piece(_delete, pa.record_batch(columns, schema=wire.CHANGED), first)


def _delete(session: str, number: int) -> wire.Change:
    return wire.Change(session_id=session, command="delete", number=number)


def refused_in(piece: Piece, replies: pa.RecordBatch, done: tuple[int, ...]) -> list[RefusedRow]:
    """Return the rows of a piece that were refused."""
    kinds: list[int] = replies.column("kind").to_pylist()
    if not any(kinds):
        return []
    ids, texts = replies.column("message_id").to_pylist(), replies.column("text").to_pylist()
    return [
        RefusedRow(piece.first + row, ids[row], kind, texts[row] or "")
        for row, kind in enumerate(kinds)
        if kind not in done
    ]
