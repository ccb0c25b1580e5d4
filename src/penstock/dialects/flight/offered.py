"""What other dialects let Flight carry: their actions, and exchanges whose one end is theirs.

Owns the way between such an exchange's threads and its talk on the loop, and what every exchange is bounded by. Knows
nothing of what is said. Invariant: whatever happens to the call, the talk hears `closed` once.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.flight as flight

from penstock.callers import Action as Right
from penstock.callers import Caller
from penstock.client.wire import Notice, encoded
from penstock.dialect import Peer
from penstock.dialects.flight.bridge import Settle
from penstock.dialects.flight.outlet import Outlet
from penstock.dialects.flight.places import Reads
from penstock.dialects.flight.service import Service
from penstock.errors import Refusal, hint
from penstock.node.topic import Topic
from penstock.offers import Action, Opening, Talk

#: What a batch weighs in the count of unread bytes beside its columns.
BATCH_BYTES = 64


def actions(service: Service) -> dict[str, Action]:
    """Return the actions of all dialects by their names on the wire; on the loop."""
    return {
        f"{dialect}.{name}": action
        for dialect, offer in service.node.offers.items()
        for name, action in offer.actions.items()
    }


def openings(service: Service) -> dict[str, Opening]:
    """Return the exchanges of all dialects by their names on the wire; on the loop."""
    return {
        f"{dialect}.{name}": opening
        for dialect, offer in service.node.offers.items()
        for name, opening in offer.exchanges.items()
    }


def carry_out(service: Service, caller: Caller, name: str, content: bytes) -> bytes:
    """Return what another dialect's action answers."""

    def begin(settle: Settle[bytes]) -> None:
        known = actions(service)
        action = known.get(name)
        if action is None:
            near = hint(name, known, "is its dialect on?", repr)
            raise Refusal("bad_request", f"there is no action {name!r}; {near}")
        caller.doing = name
        action(caller, content or b"{}").then(settle)

    return service.bridge.ask(begin)


def consume(
    service: Service,
    name: str,
    document: bytes,
    reader: Reads,
    writer: flight.MetadataRecordBatchWriter,
    caller: Caller,
) -> None:
    """Serve one exchange of another dialect until its client ends it."""
    exchange = Offered(service, name, caller)
    schema = service.bridge.call(partial(exchange.open, document))

    def heard(chunk: flight.FlightStreamChunk) -> None:
        batch: pa.RecordBatch | None = chunk.data
        if batch is not None:
            _check(batch, service.batch_bytes_max)
        said = chunk.app_metadata.to_pybytes() if chunk.app_metadata else b""
        service.bridge.ask(partial(exchange.hear, batch, said))

    exchange.outlet.converse(
        schema, reader, writer, write=partial(exchange.write, writer), heard=heard, leave=exchange.leave
    )


class Sent(NamedTuple):
    """What goes down in one message."""

    batch: pa.RecordBatch | None
    metadata: bytes


class Offered:
    """One open exchange, and its stream as its dialect sees it. All but `write` runs on the loop."""

    def __init__(self, service: Service, name: str, caller: Caller) -> None:
        self.outlet: Outlet[Sent] = Outlet(service, caller.address, self._drained, self.end)
        self._service = service
        self._name = name
        self._caller = caller
        self._rights: set[tuple[Right, str]] = set()
        self._talk: Talk | None = None
        self._ended = False
        self._opened_ns = service.node.clock.now()

    def open(self, document: bytes) -> pa.Schema:
        """Begin the dialect's side; return the schema of what it sends."""
        service = self._service
        service.check_room()
        known = openings(service)
        opening = known.get(self._name)
        if opening is None:
            near = hint(self._name, known, "is its dialect on?", repr)
            raise Refusal("bad_request", f"there is no exchange {self._name!r}; {near}")
        self._caller.doing = self._name
        talk = opening.open(self._caller, document, self)
        if self._ended:
            talk.closed()
        else:
            self._talk = talk
        service.open_exchange(self, self._caller, self._changed, self.end)
        return opening.schema

    def hear(self, batch: pa.RecordBatch | None, metadata: bytes, settle: Settle[None]) -> None:
        """Hand over what the client said; settles once it may say more."""
        answer = self._talk.received(batch, metadata) if self._talk is not None else None
        if answer is None:
            settle(None, None)
        else:
            answer.then(settle)

    def leave(self) -> None:
        """End it: the client is gone."""
        self._service.close_exchange(self, self._caller)
        self._close()

    def serves(self, topic: Topic) -> bool:
        """Tell whether a topic's messages go down here: that is its dialect's to say, which ends it itself."""
        return False

    def peer(self) -> Peer:
        """Return who talks."""
        topic = next((topic for _, topic in sorted(self._rights)), "")
        return Peer(self._caller.address, "flight.port", self._name, self._opened_ns, topic)

    # --- the stream, as its dialect sees it -----------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """How much of what was sent is not on its way yet."""
        return self.outlet.unsent_bytes

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be sent for now."""
        return self.outlet.is_full

    def send(self, batch: pa.RecordBatch | None, metadata: bytes = b"") -> None:
        """Send rows, or words, or both."""
        if self._ended:
            return
        size = (batch.nbytes if batch is not None else 0) + len(metadata) + BATCH_BYTES
        self.outlet.put(Sent(batch, metadata), size, len(batch) if batch is not None else 0)

    def end(self, why: str = "") -> None:
        """Tell the client that it is over; it ends the call then."""
        if not self._ended:
            self._ended = True
            self.outlet.put(Sent(None, encoded(Notice(end=why))))
            self._close()

    def needs(self, right: Right, topic: str) -> None:
        """Refuse a caller without a right now, and end the stream once it has lost it."""
        self._caller.check(right, topic)
        self._rights.add((right, topic))

    def _close(self) -> None:
        self._ended = True
        self.outlet.leave()
        talk, self._talk = self._talk, None
        if talk is not None:
            talk.closed()

    def _drained(self) -> None:
        if self._talk is not None and not self.outlet.is_full:
            self._talk.drained()

    def _changed(self) -> None:
        """End it for somebody who is known no more, or may not do any more what it does here."""
        caller = self._caller
        if not caller.is_known:
            self.end("unauthorized: what was shown does not count any more")
            return
        for right, topic in sorted(self._rights):
            if not caller.may(right, topic):
                self.end(f"forbidden: {caller} may not {right} topic {topic} any more")

    # --- on the writer's thread -----------------------------------------------------------------------------------

    def write(self, writer: flight.MetadataRecordBatchWriter, items: list[Sent]) -> None:
        """Write what was sent."""
        for batch, metadata in items:
            if batch is None:
                writer.write_metadata(metadata)
            elif metadata:
                writer.write_with_metadata(batch, metadata)
            else:
                writer.write_batch(batch)


def _check(batch: pa.RecordBatch, bytes_max: int) -> None:
    """Refuse rows that cannot be read safely, or are too many."""
    if batch.nbytes > bytes_max:
        limit = f"{bytes_max} (flight.max_batch_size, never above memory.input_bytes)"
        text = f"a batch of {batch.nbytes} bytes is over the limit of {limit}; send smaller batches"
        raise Refusal("message_too_big", text)
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise Refusal("bad_column", f"the batch cannot be used: {str(error)[:300]}") from None
