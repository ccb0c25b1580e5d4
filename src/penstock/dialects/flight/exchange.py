"""DoExchange: one consumer of a subscription, with credit, acks, extends and releases.

The call's own thread reads orders and carries each out on the loop; a second thread writes what the loop hands out.
Leases belong to the exchange and die with it.
Invariant: what is handed out goes to the client in the order it was leased, and notices keep their place between.
"""

from __future__ import annotations

from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
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
from penstock.dialects.flight.faults import GONE
from penstock.dialects.flight.get import columns_of
from penstock.dialects.flight.leased import ROWS_MAX, record_batches, schema_of
from penstock.dialects.flight.order import check, ids_of, parts_of, runs_of
from penstock.dialects.flight.put import chunks
from penstock.dialects.flight.service import Service
from penstock.errors import Refusal
from penstock.filters.match import BadFilter, ExtFilter, HeaderFilter
from penstock.filters.sample import ALL
from penstock.filters.tag import TAG_BYTES_MAX
from penstock.intake.limits import check_delay
from penstock.node.topic import Topic
from penstock.registry.answer import Answer

#: Bytes of bodies on their way to a client that does not read; beyond it, the client gets nothing more.
UNREAD_BYTES_MAX = 16 << 20

#: What goes to the client; None ends it.
Item: TypeAlias = "list[Delivery] | Notice | None"


def consume(
    service: Service,
    document: Subscribe,
    reader: flight.MetadataRecordBatchReader,
    writer: flight.MetadataRecordBatchWriter,
    caller: Caller,
) -> None:
    """Serve one consumer until it or the node ends."""
    exchange = Exchange(service, document, caller)
    service.bridge.ask(lambda settle: exchange.join().then(settle))
    thread = Thread(target=exchange.write, args=(writer,), name="flight-exchange", daemon=True)
    try:
        writer.begin(exchange.schema)
        thread.start()
        for chunk in chunks(reader):
            if chunk.data is not None:
                raise Refusal("bad_request", "an exchange takes orders as metadata, and no batches")
            order = decoded(chunk.app_metadata.to_pybytes() if chunk.app_metadata else b"{}", Order)
            check(order)
            for part in parts_of(order):
                service.bridge.call(partial(exchange.apply, part))
    finally:
        service.bridge.tell(exchange.leave)
        exchange.queue.put(None)
        if thread.ident is not None:
            thread.join()


class Exchange:
    """One open exchange. `join`, `apply`, `leave` and what delivery calls run on the loop; `write` is a thread."""

    def __init__(self, service: Service, document: Subscribe, caller: Caller) -> None:
        self.queue: SimpleQueue[Item] = SimpleQueue()
        self._names = columns_of(document.columns)
        self.schema = schema_of(self._names)
        self._service = service
        self._document = document
        self._caller = caller
        self._keep = wanted(filter_of(document), _percent(document))
        self._topic: Topic
        self._seat: Seat | None = None
        #: Bytes handed out and bytes written; one is the loop's to change, the other the writer's.
        self._handed_bytes = 0
        self._written_bytes = 0
        self._blocked = False
        self._ended = False
        self._joined_ns = 0

    # --- on the loop ----------------------------------------------------------------------------------------------

    def join(self) -> Answer[None]:
        """Become a consumer of the subscription."""
        service, document = self._service, self._document
        service.check_open()
        if len(service.exchanges) >= service.exchanges_max:
            text = f"{service.exchanges_max} exchanges are open, which is all that flight.exchanges_max allows"
            raise Refusal("rate_limited", f"{text}: close one, or raise it")
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
        )
        self._joined_ns = service.node.clock.now()
        self._caller.on_change = self._changed
        service.node.gate.follow(self._caller)
        service.exchanges[self] = self.end

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
            if refused or order.ping is not None:
                self.queue.put(Notice(refused=runs_of(refused), pong=order.ping))
        finally:
            seat.end()

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
        self._service.exchanges.pop(self, None)
        self._caller.on_change = None
        self._service.node.gate.leave(self._caller)
        self._detach()

    def _detach(self) -> None:
        """Give up what is leased and be a consumer no more."""
        seat, self._seat = self._seat, None
        if seat is not None:
            seat.close()

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
            self.queue.put(Notice(end=why))

    def _changed(self) -> None:
        """End it for somebody who is known no more, or may not receive any more."""
        if not self._caller.is_known:
            self.end("unauthorized: what was shown does not count any more")
        elif not self._caller.may("receive", self._document.topic):
            self.end(f"forbidden: {self._caller} may not receive topic {self._document.topic} any more")

    def _evict(self) -> None:
        self.end(f"gone: subscription {self._document.subscription} of topic {self._document.topic} was deleted")

    def _deliver(self, deliveries: list[Delivery]) -> None:
        self.queue.put(deliveries)
        self._handed_bytes += sum(_size(delivery) for delivery in deliveries)
        if self._handed_bytes - self._written_bytes > UNREAD_BYTES_MAX and self._seat is not None:
            self._seat.block()
            self._blocked = True
            self._go_on()  # the writer may have caught up just now

    def _go_on(self) -> None:
        """Let the client have more once it has read most of what there was."""
        seat = self._seat
        if not self._blocked or seat is None or self._handed_bytes - self._written_bytes > UNREAD_BYTES_MAX // 2:
            return
        self._blocked = False
        if not self._service.node.stopping:
            self._service.node.clock.call_soon(seat.unblock)

    # --- on the writer's thread -----------------------------------------------------------------------------------

    def write(self, writer: flight.MetadataRecordBatchWriter) -> None:
        """Write what is handed out until the exchange ends."""
        try:
            while self._write_some(writer):
                if self._blocked:
                    self._service.bridge.tell(self._go_on)
        except GONE:
            return  # the client is gone; the other thread hears of it too
        except Exception as error:
            self._service.bridge.tell(partial(self._service.node.report_bug, "flight exchange", error))
            self._service.bridge.tell(partial(self.end, "bug: the node failed at this; its log says how"))

    def _write_some(self, writer: flight.MetadataRecordBatchWriter) -> bool:
        """Write the next item and the deliveries that follow it at once; False at the end."""
        item = self.queue.get()
        deliveries: list[Delivery] = []
        while isinstance(item, list):
            deliveries += item
            if sum(delivery.count for delivery in item) >= ROWS_MAX // 4:
                break
            try:
                item = self.queue.get_nowait()
            except Empty:
                item = []
                break
        for batch in record_batches(deliveries, self._names, self.schema):
            writer.write_batch(batch)
        self._written_bytes += sum(_size(delivery) for delivery in deliveries)
        if isinstance(item, Notice):
            writer.write_metadata(encoded(item))
        return item is not None


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
