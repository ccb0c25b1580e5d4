"""Publish, read and consume over Arrow Flight with pyarrow alone: no code of Penstock's.

    python examples/flight_only.py [grpc://127.0.0.1:7071] [topic]

Any Flight client in any language does the same: what is not a record batch is a small JSON document
(docs/dialects/flight.md).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight


def options() -> flight.FlightCallOptions:
    token = os.environ.get("PENSTOCK_TOKEN")
    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    return flight.FlightCallOptions(timeout=30, headers=headers)


def publish(client: flight.FlightClient, topic: str, batch: pa.RecordBatch) -> Any:
    """Send one batch and return where its rows are."""
    writer, answers = client.do_put(flight.FlightDescriptor.for_path(topic), batch.schema, options())
    with writer:
        writer.write_batch(batch)
        return json.loads(answers.read().to_pybytes())["places"]


def read(client: flight.FlightClient, topic: str) -> pa.Table:
    """Read everything there is of a topic, shard by shard."""
    info = client.get_flight_info(flight.FlightDescriptor.for_path(topic), options())
    return pa.concat_tables(client.do_get(endpoint.ticket, options()).read_all() for endpoint in info.endpoints)


def consume(client: flight.FlightClient, topic: str, subscription: str, count: int) -> list[bytes]:
    """Take messages under a lease and ack them; what is not acked would come again."""
    command = {"subscribe": {"topic": topic, "subscription": subscription, "columns": ["body"]}}
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(json.dumps(command)), options())
    bodies: list[bytes] = []
    with writer:
        writer.write_metadata(json.dumps({"credit": count}).encode())
        while len(bodies) < count:
            batch = reader.read_chunk().data
            if batch is None:
                continue
            bodies += batch["body"].to_pylist()
            acked = [[id_, 1] for id_ in batch["id"].to_pylist()]
            writer.write_metadata(json.dumps({"ack": acked, "ping": 1}).encode())
        while not reader.read_chunk().app_metadata:  # until the pong: what was acked is written down
            pass
    return bodies


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "grpc://127.0.0.1:7071"
    topic = sys.argv[2] if len(sys.argv) > 2 else "flights"
    with flight.connect(url) as client:
        batch = pa.record_batch({"body": [b"LH 400", b"BA 117"], "key": [b"FRA", b"LHR"], "tag": ["a380", None]})
        print("stored at", publish(client, topic, batch))
        table = read(client, topic).select(["offset", "key", "tag", "body"])
        print("read", table.num_rows, "rows; the last:", table.slice(table.num_rows - 1).to_pylist()[0])
        print("consumed", consume(client, topic, "example", 2))
        print("topics:", [bytes(info.descriptor.path[0]).decode() for info in client.list_flights(b"", options())])


if __name__ == "__main__":
    main()
