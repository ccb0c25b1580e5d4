"""Publishing over one stream per topic: batches out, answers back, and nothing stored twice when a node goes away.

Owns the streams and the sequences. Each batch has a sequence of its own; what was not answered when a connection broke
is sent again with the same one, so the node stores it once. Blocking; several threads may publish.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import pyarrow as pa
import pyarrow.flight as flight

from penstock.client import wire
from penstock.client.connection import Connection, Unreachable
from penstock.client.retry import RetryPolicy
from penstock.columns import id_of
from penstock.errors import Refusal

#: Batches under way in one stream before an answer is waited for.
UNANSWERED_MAX = 4


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
    """Publishes to any topic of one node."""

    def __init__(self, connection: Connection, patience_s: float) -> None:
        self._connection = connection
        self._patience_s = patience_s
        self._producer = uuid.uuid4().hex
        self._numbers = count()
        self._streams: dict[tuple[str | None, bool, int | None], _Stream] = {}
        self._lock = threading.Lock()

    def publish(
        self, topic: str | None, batches: Iterator[pa.RecordBatch], *, create: bool = True, shard: int | None = None
    ) -> Receipt:
        """Send batches and return once all are as durable as their topic promises."""
        with self._lock:
            key = (topic, create, shard)
            stream = self._streams.get(key)
            if stream is None:
                stream = self._streams[key] = _Stream(
                    self._connection, wire.Publish(topic=topic, create=create, shard=shard, source="sdk")
                )
        places: list[tuple[str, int, int, int]] = []
        repeated = 0
        for stored in stream.send(self._numbered(batches), self._patience_s):
            places += [(place[0], place[1], place[2], place[3]) for place in stored.places]
            repeated += stored.repeated
        return Receipt(places, repeated)

    def _numbered(self, batches: Iterator[pa.RecordBatch]) -> Iterator[_Piece]:
        for batch in batches:
            yield _Piece(batch, wire.encoded(wire.Sequence(sequence=f"{self._producer}/{next(self._numbers)}")))

    def close(self) -> None:
        """End all streams."""
        with self._lock:
            for stream in self._streams.values():
                stream.close()
            self._streams.clear()


@dataclass(slots=True)
class _Piece:
    batch: pa.RecordBatch
    sequence: bytes


class _Stream:
    """One DoPut, opened when it is needed and again when it broke or the batches change their columns."""

    def __init__(self, connection: Connection, command: wire.Publish) -> None:
        self._connection = connection
        self._command = command
        self._lock = threading.Lock()
        self._schema: pa.Schema | None = None
        self._writer: flight.FlightStreamWriter | None = None
        self._answers: flight.FlightMetadataReader | None = None

    def send(self, pieces: Iterator[_Piece], patience_s: float) -> Iterator[wire.Stored]:
        """Yield the answer to each piece, in order."""
        with self._lock:
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
        retry = RetryPolicy(patience_s)
        while True:
            try:
                if self._writer is None:
                    for piece in unanswered:
                        self._write(piece)
                return self._answer()
            except (Unreachable, Refusal) as error:
                self._end()
                retry.rest(error)

    def _write(self, piece: _Piece) -> None:
        if self._writer is None:
            self._writer, self._answers = self._connection.put(self._command, piece.batch.schema)
            self._schema = piece.batch.schema
        with self._connection.told():
            self._writer.write_with_metadata(piece.batch, piece.sequence)

    def _answer(self) -> wire.Stored:
        if self._answers is None:
            raise Unreachable("the stream was closed")
        with self._connection.told():
            answer = self._answers.read()
        if answer is None or answer.size == 0:  # no bytes: the end of the stream says what went wrong
            self._fail()
        return wire.decoded(answer.to_pybytes(), wire.Stored)

    def _fail(self) -> None:
        """Learn from the end of the stream why there was no answer."""
        if self._writer is not None:
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

    def close(self) -> None:
        with self._lock:
            self._end()
