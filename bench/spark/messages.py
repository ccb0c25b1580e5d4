"""The same messages in every place that Spark reads: a topic, Parquet files, a Kafka topic with two partitions.

Owns the content and the ways to it. Two shards, bodies of 100 bytes of which 90 are random, keys of 8 bytes, headers on
every second message. Invariant: the places hold equal rows; offsets agree, because each place was filled in order.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from bench.peers import Kafka, Penstock
from bench.spark.engine import Engine
from bench.spark.job import Job, Place

#: All messages, and few of them for micro-batches that cost nothing but themselves.
TOPIC, FEW = "messages", "few"
SHARDS = 2
BATCH_ROWS = 16_384
BODY_BYTES = 100
NUMBER_DIGITS = 10
#: Random ends of bodies; more would only cost memory.
POOL = 4096
#: Two of these files make a micro-batch of a million where Spark streams from files.
FILE_ROWS = 500_000

FIVE = ["shard", "offset", "timestamp", "key", "body"]
KAFKAS_FIVE = ["partition", "offset", "timestamp", "key", "value"]
#: How the connector is given large fetches; the first alone makes most of the difference.
TUNED = {
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": "8388608",
    "kafka.fetch.max.bytes": "67108864",
    "kafka.receive.buffer.bytes": "1048576",
}
#: The same for its producer.
TUNED_SINK = {"kafka.batch.size": "1048576", "kafka.linger.ms": "20", "kafka.buffer.memory": "134217728"}


def fill_topic(server: Penstock, topic: str, rows: int) -> None:
    """Publish messages over Flight, half to each shard."""
    with flight.connect(f"grpc://127.0.0.1:{server.flight_port}") as client:
        settings = {"name": topic, "settings": {"shards": SHARDS}}
        list(client.do_action(flight.Action("create-topic", json.dumps(settings).encode())))
        for shard in range(SHARDS):
            command = json.dumps({"publish": {"topic": topic, "shard": shard}})
            writer, answers = client.do_put(flight.FlightDescriptor.for_command(command), _batch(0, 1).schema)
            for first in range(0, rows // SHARDS, BATCH_ROWS):
                writer.write_batch(_batch(first, min(BATCH_ROWS, rows // SHARDS - first)))
                answers.read()
            writer.close()


def fill_files(engine: Engine, server: Penstock, path: str) -> None:
    """Write the topic to Parquet, uncompressed, all default columns."""
    options = {"path": path, "compression": "none", "maxRecordsPerFile": str(FILE_ROWS)}
    engine.run(Job(source=stored(server), sink=Place("parquet", options)))


def fill_kafka(engine: Engine, server: Penstock, kafka: Kafka, topic: str) -> None:
    """Publish a topic to Kafka, each row to the partition of its shard's number."""
    columns = ["key", "body AS value", "shard AS partition"]
    sink = Place("kafka", {"kafka.bootstrap.servers": address(kafka), "topic": topic, **TUNED_SINK})
    engine.run(Job(source=stored(server, topic), sink=sink, columns=columns))


def stored(server: Penstock, topic: str = TOPIC, **options: str) -> Place:
    """Return a topic as the files of its node."""
    return Place("penstock", {"path": str(server.node_data), "subscribe": topic, **options})


def served(server: Penstock, topic: str = TOPIC, **options: str) -> Place:
    """Return a topic as its node gives it over Flight."""
    return Place("penstock", {"url": f"grpc://127.0.0.1:{server.flight_port}", "subscribe": topic, **options})


def from_kafka(kafka: Kafka, topic: str = TOPIC, **options: str) -> Place:
    """Return a Kafka topic as the connector reads it."""
    return Place("kafka", {"kafka.bootstrap.servers": address(kafka), "subscribe": topic, **options})


def address(kafka: Kafka) -> str:
    """Return where a broker listens."""
    return f"127.0.0.1:{kafka.port}"


def _batch(first: int, rows: int) -> pa.RecordBatch:
    numbers = np.arange(first, first + rows)
    cells = np.empty((rows, BODY_BYTES), np.uint8)
    cells[:, :NUMBER_DIGITS] = _digits(numbers, NUMBER_DIGITS)
    cells[:, NUMBER_DIGITS:] = _POOL[numbers % POOL]
    keys = np.full((rows, 8), ord("k"), np.uint8)
    keys[:, 1:] = _digits(numbers, 7)
    headers = pa.array([b'{"a":"b"}' if number % 2 else None for number in range(rows)], pa.binary())
    return pa.record_batch({"body": _binary(cells), "key": _binary(keys), "headers": headers})


def _digits(
    numbers: np.ndarray[tuple[int], np.dtype[np.int64]], count: int
) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    powers = 10 ** np.arange(count - 1, -1, -1)
    return numbers[:, None] // powers % 10 + ord("0")


def _binary(cells: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> pa.Array:
    rows, size = cells.shape
    cuts = np.arange(0, rows * size + 1, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(cuts), pa.py_buffer(cells)])


_POOL = np.random.default_rng(1).integers(0, 256, (POOL, BODY_BYTES - NUMBER_DIGITS), np.uint8)
