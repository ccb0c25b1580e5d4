"""Publishing over one stream per topic: batches out, answers back, and nothing stored twice when a node goes away.

Owns the streams and the sequences. Each batch has a sequence of its own; what was not answered when a connection broke
is sent again with the same one, so the topic has it once, whichever node it is on by then. Batches whose rows name
their topics go as they are while one node has all of these, else by topic. Blocking; several threads may publish.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, count, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from penstock.client import wire
from penstock.client.connection import Connection, Unreachable
from penstock.client.nodes import Nodes
from penstock.client.retry import RetryPolicy
from penstock.columns import id_of
from penstock.errors import Elsewhere, Refusal

#: Batches under way in one stream before an answer is waited for.
UNANSWERED_MAX = 4
#: Rows that name their topics go in batches that no node cuts: one that is cut by its topics is known again then.
MIXED_ROWS_MAX = 16_384
MIXED_BYTES_MAX = 1 << 20
TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where published messages are: (topic, shard, first offset, count), in their order."""

    places: list[tuple[str, int, int, int]] = field(default_factory=list)
    #: How many repeat an older message and were not stored again.
    repeated: int = 0

    @property
    def count(self) -> int:
        """How many messages this is about."""
        return sum(place[3] for place in self.places)

    def ids(self) -> Iterator[int]:
        """Yield the id of each message, in order."""
        for _, shard, first, rows in self.places:
            yield from range(id_of(shard, first), id_of(shard, first) + rows)


class Publisher:
    """Publishes to any topic of a node, or of its cluster."""

    def __init__(self, nodes: Nodes, patience_s: float) -> None:
        self._nodes = nodes
        self._patience_s = patience_s
        self._producer = uuid.uuid4().hex
        self._numbers = count()
        self._streams: dict[tuple[str | None, bool, int | None], _Stream] = {}
        self._lock = threading.Lock()
        #: Topics are on several nodes: rows that name theirs are sent to each by itself.
        self._apart = False
        self._end_beats = nodes.on_beat(self._beat)

    def publish(
        self, topic: str | None, batches: Iterator[pa.RecordBatch], *, create: bool = True, shard: int | None = None
    ) -> Receipt:
        """Send batches and return once all are as durable as their topic promises."""
        if topic is None:
            answers = self._mixed(self._numbered(piece for batch in batches for piece in _cut(batch)), create, shard)
        else:
            answers = self._stream(topic, create, shard).send(self._numbered(batches), self._patience_s)
        places: list[tuple[str, int, int, int]] = []
        repeated = 0
        for stored in answers:
            places += [(place[0], place[1], place[2], place[3]) for place in stored.places]
            repeated += stored.repeated
        return Receipt(places, repeated)

    def _stream(self, topic: str | None, create: bool, shard: int | None) -> _Stream:
        with self._lock:
            key = (topic, create, shard)
            stream = self._streams.get(key)
            if stream is None:
                stream = self._streams[key] = _Stream(
                    self._nodes, wire.Publish(topic=topic, create=create, shard=shard, source="sdk")
                )
            return stream

    def _mixed(self, pieces: Iterator[_Piece], create: bool, shard: int | None) -> Iterator[wire.Stored]:
        """Yield the answer to each piece whose rows name their topics, in order."""
        unanswered: deque[_Piece] = deque()

        def noted() -> Iterator[_Piece]:
            for piece in pieces:
                unanswered.append(piece)
                yield piece

        if not self._apart:
            try:
                for stored in self._stream(None, create, shard).send(noted(), self._patience_s):
                    unanswered.popleft()
                    yield stored
                return
            except Elsewhere:
                self._apart = True
        for piece in chain(unanswered, pieces):
            yield self._by_topic(piece, create, shard)

    def _by_topic(self, piece: _Piece, create: bool, shard: int | None) -> wire.Stored:
        """Send the rows of each topic to its node, under the sequence of all of them, and return where they are."""
        column = piece.batch.column(TOPIC)
        if column.null_count:
            raise Refusal("bad_column", f"row {column.is_null().to_pylist().index(True)} has no {TOPIC}")
        coded = column.dictionary_encode()
        codes, rows = np.asarray(coded.indices), piece.batch.drop_columns([TOPIC])
        at = np.zeros((len(rows), 2), np.int64)  # shard, offset
        repeated = 0
        names: list[str] = coded.dictionary.to_pylist()
        for code, name in enumerate(names):
            picked = np.flatnonzero(codes == code)
            part = _Piece(rows.take(pa.array(picked)), piece.sequence)
            (stored,) = self._stream(name, create, shard).send(iter((part,)), self._patience_s)
            at[picked] = [(place[1], place[2] + row) for place in stored.places for row in range(place[3])]
            repeated += stored.repeated
        breaks = np.flatnonzero((np.diff(codes) != 0) | (np.diff(at[:, 0]) != 0) | (np.diff(at[:, 1]) != 1)) + 1
        bounds = [0, *breaks.tolist(), len(rows)]
        places = [[names[codes[low]], int(at[low, 0]), int(at[low, 1]), high - low] for low, high in pairwise(bounds)]
        return wire.Stored(places=places, repeated=repeated)

    def _numbered(self, batches: Iterator[pa.RecordBatch]) -> Iterator[_Piece]:
        for batch in batches:
            yield _Piece(batch, wire.encoded(wire.Sequence(sequence=f"{self._producer}/{next(self._numbers)}")))

    def _beat(self) -> None:
        """End streams that nobody used for a while; the next batch begins another."""
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.rest()

    def close(self) -> None:
        """End all streams."""
        self._end_beats()
        with self._lock:
            for stream in self._streams.values():
                stream.close()
            self._streams.clear()


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield rows that name their topics in batches that no node cuts."""
    if len(batch) <= 1 or (len(batch) <= MIXED_ROWS_MAX and batch.nbytes <= MIXED_BYTES_MAX):
        yield batch
        return
    half = len(batch) // 2
    yield from _cut(batch.slice(0, half))
    yield from _cut(batch.slice(half))


@dataclass(slots=True)
class _Piece:
    batch: pa.RecordBatch
    sequence: bytes


class _Stream:
    """One DoPut, opened when it is needed and again when it broke or the batches change their columns."""

    def __init__(self, nodes: Nodes, command: wire.Publish) -> None:
        self._nodes = nodes
        self._command = command
        #: To the node that it goes to.
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._is_used = False
        self._schema: pa.Schema | None = None
        self._writer: flight.FlightStreamWriter | None = None
        self._answers: flight.FlightMetadataReader | None = None

    def send(self, pieces: Iterator[_Piece], patience_s: float) -> Iterator[wire.Stored]:
        """Yield the answer to each piece, in order."""
        with self._lock:
            self._is_used = True
            unanswered: deque[_Piece] = deque()
            more = True
            while more or unanswered:
                piece = next(pieces, None) if more and len(unanswered) < UNANSWERED_MAX else None
                if piece is None:
                    more = more and len(unanswered) >= UNANSWERED_MAX
                    if unanswered:
                        answer = self._patiently(unanswered, patience_s)
                        unanswered.popleft()
                        yield answer
                    continue
                if self._schema is not None and not piece.batch.schema.equals(self._schema):
                    while unanswered:  # another schema is another stream
                        answer = self._patiently(unanswered, patience_s)
                        unanswered.popleft()
                        yield answer
                    self._end()
                unanswered.append(piece)
                self._try(piece)

    def _try(self, piece: _Piece) -> None:
        """Write a piece; what goes wrong shows again when its answer is waited for."""
        try:
            self._write(piece)
        except (Unreachable, Refusal):
            self._end()

    def _patiently(self, unanswered: deque[_Piece], patience_s: float) -> wire.Stored:
        """Return the answer to the oldest piece; while no node answers, send everything again."""
        topic = self._command.topic
        way = self._nodes.way(topic, RetryPolicy(patience_s))
        while True:
            try:
                if self._writer is None:
                    for piece in unanswered:
                        self._write(piece)
                return self._answer()
            except (Unreachable, Refusal) as error:
                self._end()
                if topic is None and isinstance(error, Elsewhere):
                    raise  # of one of its topics; each is asked for by itself then
                way.failed(self._connection, error)

    def _write(self, piece: _Piece) -> None:
        if self._writer is None:
            self._connection = self._nodes.to(self._command.topic)
            self._writer, self._answers = self._connection.put(self._command, piece.batch.schema)
            self._schema = piece.batch.schema
        assert self._connection is not None
        with self._connection.told():
            self._writer.write_with_metadata(piece.batch, piece.sequence)

    def _answer(self) -> wire.Stored:
        if self._answers is None or self._connection is None:
            raise Unreachable("the stream was closed")
        with self._connection.told():
            answer = self._answers.read()
        if answer is None or answer.size == 0:  # no bytes: the end of the stream says what went wrong
            self._fail()
        return wire.decoded(answer.to_pybytes(), wire.Stored)

    def _fail(self) -> None:
        """Learn from the end of the stream why there was no answer."""
        if self._writer is not None and self._connection is not None:
            with self._connection.told():
                self._writer.close()
        raise Unreachable("the node ended the stream")

    def _end(self) -> None:
        writer, self._writer, self._answers, self._schema = self._writer, None, None, None
        if writer is not None:
            try:
                writer.close()
            except (pa.ArrowException, OSError):
                return  # it broke; that is why it is closed

    def rest(self) -> None:
        """End it if nobody used it since this was last asked."""
        if self._lock.acquire(blocking=False):
            try:
                if not self._is_used:
                    self._end()
                self._is_used = False
            finally:
                self._lock.release()

    def close(self) -> None:
        with self._lock:
            self._end()
