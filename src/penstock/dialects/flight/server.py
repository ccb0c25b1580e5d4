"""The Flight server: each call of the protocol handed to its module, and an orderly end.

Owns the gRPC listener, which has threads of its own. Thin: what a call does is in `put`, `get`, `exchange`, `actions`.
Invariant: after `close` no call and no connection of it is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

import pyarrow.flight as flight

from penstock.callers import Caller
from penstock.client.wire import Publish, Read, decoded
from penstock.config import Config
from penstock.dialect import Bound, Peer, Sample
from penstock.dialects.flight import actions, exchange, get, info, offered, put, stage
from penstock.dialects.flight.auth import CALLER, Callers
from penstock.dialects.flight.bridge import Bridge
from penstock.dialects.flight.command import Elsewhere, exchange_of, put_of, size_of, topic_of
from penstock.dialects.flight.places import hang_up
from penstock.dialects.flight.service import Service
from penstock.node.node import Node

#: The endpoint of these connections.
LISTENER = "flight.port"

#: How long clients have to end their calls by themselves, and how often the others are hung up on.
GRACE_S = 1.0
CUT_S = 0.2


class Server(flight.FlightServerBase):  # type: ignore[misc]
    """What Flight's threads call."""

    def __init__(self, service: Service, location: str, config: Config) -> None:
        self._service = service
        certificates = []
        if config.tls_cert:
            with open(config.tls_cert, "rb") as cert, open(config.tls_key, "rb") as key:
                certificates = [(cert.read(), key.read())]
        super().__init__(
            location,
            tls_certificates=certificates,
            middleware={CALLER: Callers()},
        )

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Publish or stage batches."""
        service, peer = self._service, context.peer()
        with service.called(peer, size_of(descriptor)):
            document, caller = put_of(descriptor), self._caller(context)
            with service.puts.taken(peer) as place, service.entered(caller):
                batches = place.reading(service.halves.reader(peer, reader))
                if isinstance(document, Publish):
                    put.publish(service, document, batches, writer, caller)
                else:
                    stage.write(service, caller, document, batches, writer, context.is_cancelled)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Read a range of a shard."""
        with self._service.called(context.peer(), len(ticket.ticket)):
            return get.stream(self._service, decoded(ticket.ticket, Read), self._caller(context))

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        """Consume a subscription, or talk to another dialect."""
        service, peer = self._service, context.peer()
        with service.called(peer, size_of(descriptor)):
            document, caller = exchange_of(descriptor), self._caller(context)
            said = service.halves.reader(peer, reader)
            with service.entered(caller):
                if isinstance(document, Elsewhere):
                    offered.consume(service, *document, said, writer, caller)
                else:
                    exchange.consume(service, document, said, writer, caller)

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """Tell all topics; criteria is the beginning of their names."""
        with self._service.called(context.peer(), len(criteria)):
            prefix = bytes(criteria).decode("utf-8", "replace")
            service, caller = self._service, self._caller(context)
            return iter([info.flight_info(service, each) for each in info.all_topics(service, caller, prefix)])

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Tell one topic."""
        with self._service.called(context.peer(), size_of(descriptor)):
            service, name, caller = self._service, topic_of(descriptor), self._caller(context)
            found = service.bridge.call(lambda: info.one_topic(service, caller, name))
            return info.flight_info(service, found)

    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        """Tell the schema of a topic, which is that of all topics."""
        return flight.SchemaResult(self.get_flight_info(context, descriptor).schema)

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[flight.Result]:
        """Do something that is no stream."""
        with self._service.called(context.peer(), action.body.size if action.body is not None else 0):
            return [flight.Result(actions.carry_out(self._service, self._caller(context), action))]

    def list_actions(self, context: flight.ServerCallContext) -> list[flight.ActionType]:
        """Tell what can be done."""
        with self._service.called(context.peer()):
            self._caller(context)
            return actions.described(self._service)

    def _caller(self, context: flight.ServerCallContext) -> Caller:
        """Return who calls, if it may be here at all."""
        gate = self._service.node.gate
        identity = context.get_middleware(CALLER).identity(gate, context.peer())
        caller = Caller(gate, context.peer(), LISTENER, identity, asks_token=True)

        def enter() -> None:
            gate.noted(caller)
            caller.check_known()

        if gate.trouble(caller) is not None or not gate.is_noted(caller):
            self._service.bridge.call(enter)
        return caller


class FlightListener:
    """Flight at work on a node."""

    def __init__(self, server: Server, service: Service) -> None:
        #: The port that was bound, also where any free one was asked for.
        self.port: int = server.port
        self.service = service
        self._server = server

    async def drain(self) -> None:
        """Leave the port open: gRPC has no way to let go of it alone, and a stopping node refuses by itself."""

    async def close(self) -> None:
        """End every call: those that can be told are told, the others are hung up on."""
        service, loop = self.service, asyncio.get_running_loop()
        service.closing = True
        service.end_exchanges()
        ended = asyncio.Event()

        def shut_down() -> None:
            self._server.shutdown()
            loop.call_soon_threadsafe(ended.set)

        Thread(target=shut_down, name="flight-shutdown", daemon=True).start()
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), GRACE_S)
        service.halves.close()
        service.bridge.stop()
        while not ended.is_set():
            hang_up(self.port)
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), CUT_S)

    def samples(self) -> Iterator[Sample]:
        """Return how many consume; other calls are over before anybody could look at them."""
        yield Sample("exchanges", "gauge", "Exchanges that are open over Flight.", len(self.service.exchanges))

    def peers(self) -> Iterator[Peer]:
        """Return who consumes."""
        return (exchange.peer() for exchange in list(self.service.exchanges))


async def serve_flight(node: Node, config: Config, bound: Bound) -> FlightListener:
    """Serve a node over Flight; OSError if the address cannot be bound."""
    location = bound.endpoint.place(bound.port)
    loop = asyncio.get_running_loop()
    service = Service(node, config, Bridge(loop))
    try:
        server = Server(service, location, config)
    except flight.FlightError as error:
        raise OSError(f"Flight cannot listen on {location}: {error}") from error
    bound.port = service.puts.port = service.gets.port = server.port
    service.halves.watch(server.port)
    return FlightListener(server, service)
