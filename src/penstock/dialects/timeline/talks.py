"""Exchanges by which producers create and everybody changes messages: batches up, what became of them down."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.callers import Caller
from penstock.client.timeline.wire import CHANGED, CREATED, REPLIED, Change, CreateMessages, Kind, Reply
from penstock.client.wire import decoded, encoded
from penstock.columns import Offsets
from penstock.dialects.timeline.errors import KINDS, Fault
from penstock.errors import Refusal
from penstock.offers import Stream
from penstock.registry.answer import Answer

if TYPE_CHECKING:
    from penstock.dialects.timeline.service import Service

#: Batches of one client that are under way; more are read once some are answered.
UNDERWAY_MAX = 16

Words = TypeVar("Words", CreateMessages, Change)


class Talk(Generic[Words]):
    """One exchange. Every batch is answered, in the order in which they came."""

    def __init__(
        self,
        service: Service,
        words: type[Words],
        op: str,
        carry_out: Callable[[Words, pa.RecordBatch], Answer[pa.RecordBatch]],
        stream: Stream,
    ) -> None:
        self._service = service
        self._words: type[Words] = words
        self._op = op
        self._carry_out: Callable[[Words, pa.RecordBatch], Answer[pa.RecordBatch]] = carry_out
        self._stream = stream
        self._replies: deque[tuple[int, Answer[pa.RecordBatch]]] = deque()
        #: Given once there is room for more.
        self._room: Answer[None] | None = None
        self._ended = False

    def received(self, batch: pa.RecordBatch | None, metadata: bytes) -> Answer[None] | None:
        """Take a batch and its words."""
        words = decoded(metadata, self._words)
        try:
            if batch is None:
                raise Fault(Kind.PROTOCOL, "there is no batch beside these words")
            answer = self._carry_out(words, batch)
        except (Fault, Refusal) as error:
            answer = Answer.refused(error)
        self._replies.append((words.number, answer))
        answer.then(lambda _, __: self._reply())
        if len(self._replies) >= UNDERWAY_MAX:
            self._room = Answer()
        return self._room

    def _reply(self) -> None:
        while self._replies and self._replies[0][1].is_given and not self._ended:
            number, answer = self._replies.popleft()
            try:
                self._stream.send(answer.now(), encoded(Reply(number=number)))
            except Exception as error:
                told = self._service.fault_of(error).error(self._op)
                self._stream.send(None, encoded(Reply(number=number, error=told)))
        if self._room is not None and len(self._replies) < UNDERWAY_MAX:
            room, self._room = self._room, None
            room.give(None)

    def drained(self) -> None:
        """Go on: nobody who waits for answers is sent more than it asked for."""

    def closed(self) -> None:
        """Answer nobody any more."""
        self._ended = True
        self._replies.clear()
        if self._room is not None:
            room, self._room = self._room, None
            room.give(None)


def create_talk(service: Service, caller: Caller, raw: bytes, stream: Stream) -> Talk[CreateMessages]:
    """Open the way by which a producer creates messages."""
    publisher = object()

    def carry_out(words: CreateMessages, batch: pa.RecordBatch) -> Answer[pa.RecordBatch]:
        rows = _shaped(batch, CREATED)
        return service.create_messages(caller, publisher, words, rows)

    return Talk(service, CreateMessages, "create-messages", carry_out, stream)


def change_talk(service: Service, caller: Caller, raw: bytes, stream: Stream) -> Talk[Change]:
    """Open the way by which messages are deleted, extended and released."""

    def carry_out(words: Change, batch: pa.RecordBatch) -> Answer[pa.RecordBatch]:
        return service.change_messages(caller, words, _shaped(batch, CHANGED))

    return Talk(service, Change, "change", carry_out, stream)


def _shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the columns of a schema, or refuse it."""
    try:
        if batch.schema.names != schema.names:
            batch = batch.select(schema.names)
        return batch if batch.schema == schema else batch.cast(schema)
    except (KeyError, pa.ArrowException) as error:
        raise Fault(Kind.PROTOCOL, f"the columns are not {', '.join(schema.names)}: {error}") from None


_NONE = np.empty(0, np.int64)
_TEXTS = {0: None, **{int(kind): known.text for kind, known in KINDS.items()}}


def replied(
    ids: pa.BinaryArray,
    kinds: np.ndarray[tuple[int], np.dtype[np.int32]],
    expiration_ms: Offsets | int,
    versions: Offsets | int,
) -> pa.RecordBatch:
    """Return what became of messages as rows."""
    count = len(ids)
    texts = pa.nulls(count, pa.string())
    if kinds.any():
        texts = pa.array([_TEXTS[kind] for kind in kinds.tolist()], pa.string())
        versions = np.where(kinds == 0, versions, 0)
    return pa.record_batch(
        [
            ids,
            pa.array(kinds.astype(np.uint16)),
            texts,
            _or_null(expiration_ms, count, np.uint64),
            _or_null(versions, count, np.uint16),
        ],
        REPLIED,
    )


def _or_null(values: Offsets | int, count: int, kind: type[np.uint64 | np.uint16]) -> pa.Array:
    """Return numbers, or the one that all rows have; null where it is 0."""
    if isinstance(values, int):
        values = np.full(count, values) if values else _NONE
    if not values.any():
        return pa.nulls(count, pa.from_numpy_dtype(kind))
    return pa.array(values.astype(kind), mask=None if values.all() else values == 0)


def whole(column: pa.Array, default: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return numbers without a sign, the default for nulls; what is too large for the core stays the largest there."""
    filled = pc.fill_null(column, default) if column.null_count else column
    return np.minimum(np.asarray(filled, np.uint64), np.uint64((1 << 63) - 1)).astype(np.int64)
