"""DoPut as a publish: batches in, one answer for each, after the topic's durability.

Owns the way of a batch from the client's stream to the loop. It is handed over in pieces, and the next batch is read
once this one is in the log.
Invariant: what was answered is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.flight as flight

from penstock.callers import Caller
from penstock.client.wire import Publish, Sequence, decoded
from penstock.dialects.flight.answers import Answers, Place
from penstock.dialects.flight.bridge import Settle, settled
from penstock.dialects.flight.columns import TOPIC, Intake, pieces
from penstock.dialects.flight.places import Reads
from penstock.dialects.flight.service import Service
from penstock.errors import Refusal
from penstock.intake.receipt import Receipt
from penstock.message import Rows
from penstock.node.topic import Topic

#: A batch may name this many topics.
TOPICS_MAX = 1000
SEQUENCE_BYTES_MAX = 256
SOURCE_BYTES_MAX = 64

#: Rows for a topic, and where they stood in the batch; None for all of it.
Part: TypeAlias = tuple[str, Rows, "npt.NDArray[np.int64] | None"]


def chunks(reader: Reads) -> Iterator[flight.FlightStreamChunk]:
    """Yield what a client sends until it ends its stream."""
    while True:
        try:
            yield reader.read_chunk()
        except StopIteration:
            return
        except OSError:
            raise flight.FlightCancelledError("the client is gone") from None


def publish(
    service: Service,
    document: Publish,
    reader: Reads,
    writer: flight.FlightMetadataWriter,
    caller: Caller,
) -> None:
    """Carry out one stream of batches."""
    check_source(document.source)
    intake = Intake(
        reader.schema,
        topics=document.topic is None,
        message_bytes_max=service.message_bytes_max,
        batch_bytes_max=service.batch_bytes_max,
    )
    topics = Topics(service, caller, create=document.create, shard=document.shard)
    if document.topic is not None:
        topics.need([document.topic])
    stream = _Stream(service, document, caller)
    answers = Answers(writer)
    try:
        for chunk in chunks(reader):
            service.check_open()
            if chunk.data is None:
                raise Refusal("bad_request", "metadata without a batch: there is nothing to publish")
            sequence = _sequence(chunk.app_metadata)
            batch = intake.checked(chunk.data)
            if document.topic is None:
                topics.need(batch.column(TOPIC).unique().to_pylist())
            # As a whole: a batch of which a part was refused would pay for the rest again with every retry.
            service.admit(caller, batch.num_rows, batch.nbytes)
            stored = [stream.store(piece, sequence, number) for number, piece in enumerate(pieces(batch))]
            answers.add(stored, batch.nbytes)
            # What the thread reads next may be long in coming; this batch shall not wait for that.
            del chunk, batch, stored
    finally:
        answers.finish()
    answers.check()


class Topics:
    """The topics that a stream has named so far; each is there before rows for it are taken."""

    def __init__(self, service: Service, caller: Caller, *, create: bool, shard: int | None = None) -> None:
        self._service = service
        self._caller = caller
        self._create = create
        self._shard = shard
        self._known: set[str] = set()

    def need(self, names: list[str]) -> None:
        """Make topics, or refuse those that cannot be had; one step of the loop for each that is new."""
        if len(names) > TOPICS_MAX:
            raise Refusal("bad_request", f"a batch names {len(names)} topics, more than {TOPICS_MAX}; send several")
        for name in names:
            if name not in self._known:
                self._service.bridge.ask(partial(self._check, name))
                self._known.add(name)

    def _check(self, name: str, settle: Settle[None]) -> None:
        self._service.obtain(self._caller, "publish", name, create=self._create).then_make(self._check_shard).then(
            settle
        )

    def _check_shard(self, topic: Topic) -> None:
        if self._shard is not None:
            topic.shard(self._shard)


def check_source(source: str) -> None:
    """Refuse what cannot stand in the column `source`."""
    if not 0 < len(source.encode("utf-8", "replace")) <= SOURCE_BYTES_MAX or not source.isprintable():
        raise Refusal("bad_request", f"source is 1 to {SOURCE_BYTES_MAX} bytes of plain text, not {source[:80]!r}")


def _sequence(metadata: pa.Buffer | None) -> bytes:
    if metadata is None or not metadata.size:
        return b""
    sequence = decoded(metadata.to_pybytes(), Sequence).sequence.encode("utf-8", "surrogatepass")
    if not 0 < len(sequence) <= SEQUENCE_BYTES_MAX:
        text = f"a sequence has 1 to {SEQUENCE_BYTES_MAX} bytes, not {len(sequence)}"
        raise Refusal("bad_request", text)
    return sequence


class _Stream:
    """One publisher's way to the loop."""

    def __init__(self, service: Service, document: Publish, caller: Caller) -> None:
        self._service = service
        self._document = document
        self._caller = caller
        self._publisher = service.publisher(caller.address)

    def store(self, batch: pa.RecordBatch, sequence: bytes, number: int) -> Future[list[Place]]:
        """Hand rows to the loop, and return once they are in the log, or why they are not."""
        # A batch that is cut has a sequence for each piece; the first has the plain one, as if it was never cut.
        key = b"%b/%d" % (sequence, number) if sequence and number else sequence
        parts = self._parts(batch, key)
        future: Future[list[Place]] = self._service.bridge.ask(partial(self._offer, parts))
        if future.done() and (error := future.exception()) is not None:
            raise error
        return future

    def _parts(self, batch: pa.RecordBatch, sequence: bytes) -> list[Part]:
        source, topic = self._document.source, self._document.topic
        if topic is not None:
            return [(topic, Rows.of_arrow(batch, source, sequence), None)]
        coded = batch.column(TOPIC).dictionary_encode()
        names: list[str] = coded.dictionary.to_pylist()
        rows = batch.drop_columns([TOPIC])
        if len(names) == 1:
            return [(names[0], Rows.of_arrow(rows, source, sequence), None)]
        codes = np.asarray(coded.indices)
        picks = [np.flatnonzero(codes == code) for code in range(len(names))]
        return [
            (name, Rows.of_arrow(rows.take(pa.array(pick)), source, sequence), pick)
            for name, pick in zip(names, picks, strict=True)
        ]

    def _offer(self, parts: list[Part], settle: Settle[Future[list[Place]]]) -> None:
        """Publish on the loop; settles once the log has the rows, with the future of their durability."""
        document, node = self._document, self._service.node
        missing = next((name for name, _, _ in parts if name not in node.topics), None)
        if missing is not None:  # deleted since it was made for this stream
            again = partial(self._offer, parts, settle)
            made = self._service.obtain(self._caller, "publish", missing, create=document.create)
            made.then(lambda _, error: again() if error is None else settle(None, error))
            return
        topics = [node.reach(self._caller, "publish", name) for name, _, _ in parts]
        stored: Future[list[Place]] = Future()
        gathering = _Gathering(parts, stored)
        for number, (topic, (_, rows, _)) in enumerate(zip(topics, parts, strict=True)):
            topic.publish(rows, self._publisher, partial(gathering.done, number), document.shard)
        if stored.done():
            settle(stored, None)
        else:  # the topic's own turn comes first: what it refuses is known by then
            self._service.bridge.watch(stored)
            node.clock.call_soon(partial(settle, stored, None))


class _Gathering:
    """Waits until all parts of a batch are told of."""

    def __init__(self, parts: list[Part], stored: Future[list[Place]]) -> None:
        self._parts = parts
        self._stored = stored
        self._receipts: list[Receipt | None] = [None] * len(parts)
        self._left = len(parts)
        self._error: BaseException | None = None

    def done(self, number: int, receipt: Receipt | None, error: BaseException | None) -> None:
        self._receipts[number] = receipt
        self._error = self._error or error
        self._left -= 1
        if self._left:
            return
        if self._error is not None:
            settled(self._stored, None, self._error)
            return
        places = zip(self._parts, self._receipts, strict=True)
        settled(self._stored, [(name, receipt, rows) for (name, _, rows), receipt in places if receipt], None)
