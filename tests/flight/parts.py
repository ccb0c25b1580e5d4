"""A node that speaks Flight on a free port, and plain pyarrow clients for it."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Self

import pyarrow as pa
import pyarrow.flight as flight

from penstock.client.wire import Notice, Order, Ranges, Stored, decoded, encoded, ranges_of
from penstock.dialects.flight.config import FlightConfig
from penstock.dialects.flight.server import FlightListener
from tests.served import PATIENCE_S, Served

Row = dict[str, Any]


def lasting_port() -> int:
    """Return a port that nobody is given by chance while its listener is away."""
    while True:
        port = Random().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Flown(Served):
    """A node with a Flight listener beside the others."""

    def __init__(self, path: Path, **config: Any) -> None:
        super().__init__(path, **{"flight": FlightConfig(port=0), **config})
        self.flight: FlightListener
        self._clients: list[flight.FlightClient] = []

    def __enter__(self) -> Self:
        super().__enter__()
        running = self.node.served["flight"].running
        assert isinstance(running, FlightListener)
        self.flight = running
        return self

    def stop(self) -> None:
        """End clients, the listener and the node."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        super().stop()

    def connect(self, token: str = "", **options: Any) -> flight.FlightClient:
        """Return a client with a connection of its own."""
        scheme = "grpc+tls" if self.config.tls_cert else "grpc"
        # Clients in one process would share a connection unless they differ in something.
        apart = [("penstock.test", len(self._clients) + 1), ("grpc.use_local_subchannel_pool", 1)]
        client = flight.FlightClient(f"{scheme}://localhost:{self.flight.port}", generic_options=apart, **options)
        self._clients.append(client)
        return client

    @property
    def client(self) -> flight.FlightClient:
        """A client for whatever needs none of its own."""
        return self._clients[0] if self._clients else self.connect()

    def put(
        self, topic: str | None, *batches: pa.RecordBatch, sequences: Iterable[str] = (), **more: Any
    ) -> list[Stored]:
        """Publish batches, each answered before the next is sent."""
        command = flight.FlightDescriptor.for_command(json.dumps({"publish": {"topic": topic, **more}}))
        writer, answers = self.client.do_put(command, batches[0].schema, limited())
        keys = iter(sequences)
        found = []
        with writer:
            for batch in batches:
                key = next(keys, None)
                if key is None:
                    writer.write_batch(batch)
                else:
                    writer.write_with_metadata(batch, json.dumps({"sequence": key}).encode())
                found.append(decoded(answers.read().to_pybytes(), Stored))
            writer.done_writing()
        return found

    def read(self, topic: str, **ticket: Any) -> pa.Table:
        """Read a range of a shard."""
        asked = flight.Ticket(json.dumps({"topic": topic, **ticket}))
        return self.client.do_get(asked, limited()).read_all()

    def bodies(self, topic: str, **ticket: Any) -> list[bytes]:
        """Read bodies."""
        found: list[bytes] = self.read(topic, columns=["body"], **ticket)["body"].to_pylist()
        return found

    def act(self, action: str, /, **body: Any) -> Any:
        """Do an action."""
        (result,) = self.client.do_action(flight.Action(action, json.dumps(body).encode()), limited())
        return json.loads(result.body.to_pybytes())

    def subscribe(
        self, topic: str, subscription: str, *, client: flight.FlightClient | None = None, **more: Any
    ) -> Held:
        """Open an exchange."""
        return Held(client or self.client, {"topic": topic, "subscription": subscription, **more})

    def faults(self) -> dict[str, int]:
        """Return what was counted against Flight clients, by code."""
        ledger = self.do(lambda: list(self.node.ledger.entries()))
        return {
            entry.reason.removeprefix("flight:"): entry.count for entry in ledger if entry.reason.startswith("flight:")
        }


class Held:
    """One end of an exchange."""

    def __init__(self, client: flight.FlightClient, document: Row) -> None:
        command = flight.FlightDescriptor.for_command(json.dumps({"subscribe": document}))
        self.writer, self.reader = client.do_exchange(command, limited())
        self.notices: list[Notice] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def order(self, **order: Any) -> None:
        """Say something."""
        self.writer.write_metadata(encoded(Order(**order)))

    def next(self) -> pa.RecordBatch | Notice:
        """Return what the node says next."""
        chunk = self.reader.read_chunk()
        if chunk.data is not None:
            return chunk.data
        notice = decoded(chunk.app_metadata.to_pybytes(), Notice)
        self.notices.append(notice)
        return notice

    def rows(self, count: int) -> list[Row]:
        """Return this many rows."""
        found: list[Row] = []
        while len(found) < count:
            said = self.next()
            if isinstance(said, Notice):
                raise AssertionError(f"{said} instead of rows")
            found += said.to_pylist()
        assert len(found) == count
        return found

    def ping(self, number: int = 1) -> Notice:
        """Wait until everything said before is written down; return the notice that says so."""
        self.order(ping=number)
        said = self.next()
        assert isinstance(said, Notice), said.to_pylist()
        assert said.pong == number
        return said

    def close(self) -> None:
        """Leave."""
        try:
            self.writer.close()
        except pa.ArrowException:
            pass  # the node ended it first


def limited() -> flight.FlightCallOptions:
    """Return options of a call that cannot hang for ever."""
    return flight.FlightCallOptions(timeout=PATIENCE_S)


def ids(rows: Iterable[Row]) -> Ranges:
    """Return the ids of rows, as orders name them."""
    return ranges_of([row["id"] for row in rows])


def body_batch(*bodies: bytes, **columns: Any) -> pa.RecordBatch:
    """Return a batch with bodies and other columns."""
    return pa.record_batch({"body": pa.array(bodies, pa.binary()), **columns})


def many(count: int, start: int = 0) -> pa.RecordBatch:
    """Return a batch of different bodies."""
    return body_batch(*(b"body %d" % number for number in range(start, start + count)))


def in_chunks(table: pa.Table) -> Iterator[int]:
    """Return the sizes of a table's pieces."""
    return (len(batch) for batch in table.to_batches())
