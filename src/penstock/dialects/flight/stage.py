"""DoPut as a stage: batches checked like a publish, written to a file and synced, and answered once.

Runs on Flight's thread; the node only takes note of a complete attempt.
Invariant: a stream that was cut leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight

from penstock.callers import Caller
from penstock.callers.account import SLOW_NS
from penstock.client.wire import Stage, Staged, encoded
from penstock.clock import SECOND
from penstock.dialects.flight.columns import TOPIC, Intake, pieces
from penstock.dialects.flight.faults import GONE
from penstock.dialects.flight.places import Reads
from penstock.dialects.flight.put import Topics, chunks
from penstock.dialects.flight.service import Service
from penstock.errors import Elsewhere, Refusal
from penstock.intake.limits import check_due
from penstock.intake.staging import name_of

#: What was begun is not refused for its rate: all of it would come again. It is slowed by so much for each batch.
STAGE_NS_MAX = 30 * SECOND


def write(
    service: Service,
    caller: Caller,
    document: Stage,
    reader: Reads,
    writer: flight.FlightMetadataWriter,
    is_cancelled: Callable[[], bool],
) -> None:
    """Carry out one stream of batches."""
    intake = Intake(
        reader.schema,
        topics=document.topic is None,
        message_bytes_max=service.message_bytes_max,
        batch_bytes_max=service.batch_bytes_max,
    )
    if document.home is not None and document.home < 0:
        raise Refusal("bad_request", f"'home' of a stage is the number of a shard, not {document.home}")
    node = service.node
    topics = Topics(service, caller, create=document.create)
    if document.topic is None and node.share is not None:
        raise Elsewhere("", "", "in a cluster each topic has a node: stage the rows of one topic at a time")
    if document.topic is not None and document.create and node.share is None:
        # The commit makes it: a write that fails leaves no topic behind.
        service.bridge.call(partial(node.check_obtainable, caller, "publish", document.topic))
    elif document.topic is not None:
        topics.need([document.topic])
    schema = intake.checked(_empty(reader.schema)).schema
    staged = node.staging.writer(
        document.query, document.batch, document.attempt, document.topic, schema, document.home
    )
    is_begun = False
    try:
        for chunk in chunks(reader):
            service.check_open()
            if chunk.data is None:
                raise Refusal("bad_request", "metadata without a batch: there is nothing to stage")
            batch = intake.checked(chunk.data)
            if document.topic is None:
                topics.need(batch.column(TOPIC).unique().to_pylist())
            service.admit(
                caller, batch.num_rows, batch.nbytes, STAGE_NS_MAX if is_begun else SLOW_NS, is_begun=is_begun
            )
            is_begun = True
            if "due" in batch.schema.names:
                service.bridge.call(partial(_check_due, service, document, batch))
            for piece in pieces(batch):
                staged.write(piece)
        if is_cancelled():
            raise Refusal("bad_request", "the stream was cut before its end; nothing of it is staged")
        staged.finish()
    except BaseException:
        staged.discard()
        raise
    service.bridge.call(lambda: node.staging.add(document.query, document.batch, document.attempt, node.clock.now()))
    try:
        writer.write(encoded(Staged(rows=staged.rows, bytes=staged.bytes)))
    except GONE:
        # Nobody commits what nobody was told of.
        attempt = name_of(document.query, document.batch, document.attempt)
        service.bridge.call(partial(node.staging.remove, [attempt]))
        raise flight.FlightCancelledError("the client is gone") from None


def _check_due(service: Service, document: Stage, batch: pa.RecordBatch) -> None:
    """Refuse now what a commit would be refused for again and again."""
    names = [document.topic] if document.topic is not None else batch.column(TOPIC).unique().to_pylist()
    now_ns = service.node.clock.now()
    for name in names:
        column = batch.column("due")
        if document.topic is None:
            column = column.filter(pc.equal(batch.column(TOPIC), name))
        topic = service.node.topics.get(name)
        settings = service.node.config.topic.settings() if topic is None else topic.settings
        check_due(name, column, settings.max_due_ns, now_ns)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
