"""DoExchange: one consumer of a subscription, with credit, acks, extends and releases.

The call's own thread reads orders and carries each out on the loop; what the loop hands out goes down an `Outlet`.
Leases belong to the exchange and die with it.
Invariant: what is handed out goes to the client in the order it was leased, and notices keep their place between.
"""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

import msgspec
import pyarrow.flight as flight

from penstock.callers import Caller
from penstock.client.wire import Notice, Order, Subscribe, decoded, encoded
from penstock.clock import MILLISECOND
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.delivery.subscription import Subscription
from penstock.delivery.wanted import wanted
from penstock.dialect import Peer
from penstock.dialects.flight.get import columns_of
from penstock.dialects.flight.leased import record_batches, schema_of
from penstock.dialects.flight.order import check, ids_of, parts_of, runs_of
from penstock.dialects.flight.outlet import Outlet
from penstock.dialects.flight.places import Reads
from penstock.dialects.flight.service import Service, moved
from penstock.errors import Refusal
from penstock.filters.match import BadFilter, ExtFilter, HeaderFilter
from penstock.filters.sample import ALL
from penstock.filters.tag import TAG_BYTES_MAX
from penstock.intake.limits import check_delay
from penstock.node.topic import Topic
from penstock.registry.answer import Answer

#: What goes to the client.
Item: TypeAlias = "list[Delivery] | Notice"


def consume(
    service: Service,
    document: Subscribe,
    reader: Reads,
    writer: flight.MetadataRecordBatchWriter,
    caller: Caller,
) -> None:
    """Serve one consumer until it or the node ends."""
    exchange = Exchange(service, document, caller)
    service.bridge.ask(lambda settle: exchange.join().then(settle))

    def heard(chunk: flight.FlightStreamChunk) -> None:
        if chunk.data is not None:
            raise Refusal("bad_request", "an exchange takes orders as metadata, and no batches")
        order = decoded(chunk.app_metadata.to_pybytes() if chunk.app_metadata else b"{}", Order)
        check(order)
        for part in parts_of(order):
            service.bridge.call(partial(exchange.apply, part))

    exchange.outlet.converse(
        exchange.schema, reader, writer, write=partial(exchange.write, writer), heard=heard, leave=exchange.leave
    )


class Exchange:
    """One open exchange. `join`, `apply`, `leave` and what delivery calls run on the loop; `write` does not."""

    def __init__(self, service: Service, document: Subscribe, caller: Caller) -> None:
        self.outlet: Outlet[Item] = Outlet(service, caller.address, self._go_on, self.end)
        self._names = columns_of(document.columns)
        self.schema = schema_of(self._names)
        self._service = service
        self._document = document
        self._caller = caller
        self._keep = wanted(filter_of(document), _percent(document))
        self._topic: Topic
        self._seat: Seat | None = None
        self._ended = False
        self._joined_ns = 0

    # --- on the loop ----------------------------------------------------------------------------------------------

    def join(self) -> Answer[None]:
        """Become a consumer of the subscription."""
        service, document = self._service, self._document
        service.check_room()
        found = service.obtain(
            self._caller, "receive", document.topic, create=document.create and document.create_topic
        )
        return found.then_ask(lambda topic: self._subscribe(topic).then_make(partial(self._sit_down, topic)))

    def _subscribe(self, topic: Topic) -> Answer[Subscription]:
        document = self._document
        if document.shard is not None:
            topic.shard(document.shard)
        if document.subscription in topic.subscriptions or not document.create:
            return Answer.of(topic.subscription(document.subscription))
        what = f"subscription {document.subscription}, by its first use"
        self._service.node.gate.granted(self._caller, "create", topic.name, what)
        return topic.create_subscription(document.subscription, earliest=document.earliest)

    def _sit_down(self, topic: Topic, subscription: Subscription) -> None:
        service, document = self._service, self._document
        service.check_open()
        if self._ended:
            raise Refusal("gone", "the client is gone")
        settings = subscription.settings
        lease_ns = settings.lease_ns if document.lease_ms is None else document.lease_ms * MILLISECOND
        if not 0 < lease_ns <= settings.lease_max_ns:
            most = settings.lease_max_ns // MILLISECOND
            raise Refusal("bad_request", f"lease_ms is {document.lease_ms}; this subscription allows 1 to {most}")
        self._topic = topic
        self._seat = topic.attach(
            subscription,
            self._deliver,
            lease_ns=lease_ns,
            name=self._caller.address,
            tag=document.tag or "",
            keep=self._keep,
            shard=document.shard,
            evict=self._evict,
            consumer=document.consumer or "",
            rack=document.rack or "",
        )
        self._joined_ns = service.node.clock.now()
        service.open_exchange(self, self._caller, self._changed, self.end)

    def apply(self, order: Order) -> None:
        """Carry out one order."""
        seat = self._seat
        if seat is None or self._ended:
            return  # it will read why
        seat.begin()
        try:
            refused = self._carry_out(seat, order)
            if order.ping is not None:  # the answer means that what came before it is written down
                seat.flush()
                seat.subscription.keeping.wait(partial(self._answer, refused, order.ping))
            elif refused:
                self.outlet.put(Notice(refused=runs_of(refused)))
        finally:
            seat.end()

    def _answer(self, refused: list[int], ping: int, error: BaseException | None) -> None:
        """Tell what became of an order and of those before it."""
        if error is not None:
            self.end(f"unavailable: {error}")
        elif not self._ended:
            self.outlet.put(Notice(refused=runs_of(refused), pong=ping))

    def _carry_out(self, seat: Seat, order: Order) -> list[int]:
        """Do what an order says, as one step; return the ids that are not on lease here."""
        refused: list[int] = []
        if order.ack:
            refused += seat.ack(ids_of(order.ack))
        if order.extend:
            lease_ns = seat.lease_ns if order.lease_ms is None else order.lease_ms * MILLISECOND
            refused += seat.extend(ids_of(order.extend), lease_ns)
        if order.release:
            delay_ns = order.delay_ms * MILLISECOND
            check_delay(self._document.topic, delay_ns, self._topic.settings.max_due_ns)
            refused += seat.release(ids_of(order.release), delay_ns)
        if order.credit is not None:
            seat.set_credit(order.credit)
        return refused

    def leave(self) -> None:
        """End the exchange."""
        self._service.close_exchange(self, self._caller)
        self._detach()

    def _detach(self) -> None:
        """Give up what is leased and be a consumer no more."""
        self.outlet.leave()
        seat, self._seat = self._seat, None
        if seat is not None:
            seat.close()

    def serves(self, topic: Topic) -> bool:
        """Tell whether it is a topic's."""
        return self._topic is topic

    def peer(self) -> Peer:
        """Return who consumes."""
        held = self._seat.in_flight if self._seat is not None else 0
        place = self._topic.name, self._document.subscription
        return Peer(self._caller.address, "flight.port", "", self._joined_ns, *place, held)

    def end(self, why: str) -> None:
        """Tell the client that it is over; it ends the call then."""
        if not self._ended:
            self._ended = True
            self._detach()
            self.outlet.put(Notice(end=why))

    def _changed(self) -> None:
        """End it for somebody who is known no more, or may not receive any more."""
        if not self._caller.is_known:
            self.end("unauthorized: what was shown does not count any more")
        elif not self._caller.may("receive", self._document.topic):
            self.end(f"forbidden: {self._caller} may not receive topic {self._document.topic} any more")

    def _evict(self) -> None:
        document = self._document
        gone = f"gone: subscription {document.subscription} of topic {document.topic} was deleted"
        self.end(moved(self._topic) if self._topic.is_leaving else gone)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        size = sum(_size(delivery) for delivery in deliveries)
        self.outlet.put(deliveries, size, sum(delivery.count for delivery in deliveries))
        if self.outlet.is_full and self._seat is not None:
            self._seat.block()

    def _go_on(self) -> None:
        """Let the client have more once it has read most of what there was."""
        if self._seat is not None and not self.outlet.is_full:
            self._seat.unblock()

    # --- on the writer's thread -----------------------------------------------------------------------------------

    def write(self, writer: flight.MetadataRecordBatchWriter, items: list[Item]) -> None:
        """Write what was handed out, small deliveries together."""
        deliveries: list[Delivery] = []
        for item in items:
            if isinstance(item, Notice):
                self._write_rows(writer, deliveries)
                deliveries = []
                writer.write_metadata(encoded(item))
            else:
                deliveries += item
        self._write_rows(writer, deliveries)

    def _write_rows(self, writer: flight.MetadataRecordBatchWriter, deliveries: list[Delivery]) -> None:
        for batch in record_batches(deliveries, self._names, self.schema):
            writer.write_batch(batch)


def filter_of(document: Subscribe) -> HeaderFilter | None:
    """Return the header filter that a consumer asks for, and check its tag on the way."""
    if document.tag is not None and not 0 < len(document.tag.encode("utf-8", "replace")) <= TAG_BYTES_MAX:
        raise Refusal("bad_request", f"a tag has 1 to {TAG_BYTES_MAX} bytes")
    if document.filter is None:
        return None
    try:
        return msgspec.convert(document.filter, ExtFilter).compiled()
    except (BadFilter, msgspec.ValidationError) as error:
        raise Refusal("bad_request", f"the filter cannot be used: {error}") from None


def _percent(document: Subscribe) -> int:
    percent = ALL if document.sample_percent is None else document.sample_percent
    if not 1 <= percent <= ALL:
        raise Refusal("bad_request", f"sample_percent is {percent}; it must be from 1 to {ALL}")
    return percent


def _size(delivery: Delivery) -> int:
    """Return about how many bytes a delivery is."""
    return len(delivery.batch.body) * delivery.count // delivery.batch.count + 64 * delivery.count
