"""Batches to a node and what became of each row, over one exchange: creates, deletes, extends, releases.

Owns the exchange, opened when it is needed and again when it broke or the session is another one. A few batches are
under way together. Invariant: every batch is answered once; one that was sent over a connection that broke says so.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import pyarrow as pa
import pyarrow.flight as flight

from penstock.client import wire as native
from penstock.client.connection import Connection, Unreachable, refusal_of
from penstock.client.timeline import wire
from penstock.client.timeline.error import TimelineError
from penstock.client.timeline.link import Link, SessionRetry
from penstock.client.timeline.wire import Kind
from penstock.errors import PenstockError

#: Batches under way before an answer is waited for.
UNANSWERED_MAX = 4


@dataclass(slots=True)
class Piece:
    """One batch to send."""

    #: Its words, from the session's token and its number.
    words: Callable[[str, int], wire.CreateMessages | wire.Change]
    batch: pa.RecordBatch
    #: Which row of all that was given the first one is.
    first: int = 0
    #: It may have been carried out before, over a connection that broke.
    unsure: bool = False


class Asking:
    """One exchange of a session."""

    def __init__(self, link: Link, name: str, schema: pa.Schema) -> None:
        self._link = link
        self._name = name
        self._schema = schema
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._connection: Connection | None = None
        self._writer: flight.FlightStreamWriter | None = None
        self._reader: flight.FlightStreamReader | None = None
        self._generation = 0
        self._session = ""

    def ask(self, pieces: Iterator[Piece]) -> Iterator[tuple[Piece, pa.RecordBatch]]:
        """Yield each piece with the rows that answer it; a refusal of a whole piece is raised."""
        with self._lock:
            retry = SessionRetry(self._link.patience_s)
            left: deque[Piece] = deque()
            under_way: deque[Piece] = deque()
            more = True
            try:
                while True:
                    try:
                        while len(under_way) < UNANSWERED_MAX:
                            if not left and more:
                                piece = next(pieces, None)
                                more = piece is not None
                                if piece is not None:
                                    left.append(piece)
                            if not left or not self._is_ready(waits=bool(under_way)):
                                break
                            self._write(left[0])
                            under_way.append(left.popleft())
                        if not under_way:
                            return
                        reply, rows = self._read()
                        piece = under_way.popleft()
                        if reply.error is not None and reply.error.message:
                            piece.unsure = piece.unsure or reply.error.kind == Kind.BROKER_TIMEOUT
                            left.append(piece)
                            raise TimelineError(reply.error)
                        retry.renew()
                        yield piece, rows
                    except PenstockError as error:
                        if not isinstance(error, TimelineError):
                            for each in under_way:
                                each.unsure = True
                            left.extendleft(reversed(under_way))
                            under_way.clear()
                            self._end()
                        self._link.trouble(error)
                        retry.rest(error, lambda: self._link.forget(self._session))
            finally:
                if under_way:  # their answers must not be taken for others
                    self._end()

    def close(self) -> None:
        """End the exchange."""
        with self._lock:
            self._end()

    def _is_ready(self, *, waits: bool) -> bool:
        """Open the exchange of the present session; False where answers in an older one are waited for."""
        self._link.keep_pause()
        self._session = self._link.session()
        if self._writer is not None and self._generation != self._link.generation:
            if waits:
                return False
            self._end()
        if self._writer is None:
            self._connection = self._link.connection()
            self._writer, self._reader = self._connection.talk(f"timeline.{self._name}")
            self._generation = self._link.generation
            with self._connection.told():
                self._writer.begin(self._schema)
        return True

    def _write(self, piece: Piece) -> None:
        assert self._connection is not None
        assert self._writer is not None
        words = piece.words(self._session, next(self._numbers))
        with self._connection.told():
            self._writer.write_with_metadata(piece.batch, native.encoded(words))

    def _read(self) -> tuple[wire.Reply, pa.RecordBatch]:
        if self._reader is None or self._connection is None:
            raise Unreachable("the exchange was closed")
        with self._connection.told():
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                raise Unreachable(f"{self._link.url} ended the exchange") from None
        said = chunk.app_metadata.to_pybytes() if chunk.app_metadata is not None else b"{}"
        if chunk.data is None and b'"end"' in said:
            end = native.decoded(said, native.Notice).end
            if end is not None:
                raise refusal_of(end)
        return native.decoded(said, wire.Reply), chunk.data

    def _end(self) -> None:
        writer, self._writer, self._reader = self._writer, None, None
        if writer is not None:
            try:
                writer.close()
            except (pa.ArrowException, OSError):
                return  # it broke; that is why it is closed
