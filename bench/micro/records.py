"""Cost of making Kafka's record batches: CPU per batch and per message, beside confluent-kafka's producer.

Run: python -m bench.micro.records. The producer sends to a broker that takes it (it is started for that, if it can be
had), because it makes its batches only then: what it costs is the whole client, framing and sending included.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer

from bench.micro.headers import line
from bench.peers import Kafka
from bench.supply import Missing
from penstock.columns import SMALL, Column
from penstock.kafka.compression import Compression
from penstock.kafka.produce import Part, request
from penstock.kafka.records import Piece, laid_out, sealed

BODY_BYTES = 100
NOW_MS = 1_700_000_000_000
MESSAGES = 500_000


def piece(rows: int, *, varied: bool = False, keyed: bool = False, timed: bool = False) -> Piece:
    """Return messages as the log has them."""
    draw = np.random.default_rng(1)
    sizes = draw.integers(BODY_BYTES // 2, BODY_BYTES * 3 // 2, rows) if varied else np.full(rows, BODY_BYTES)
    cuts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    keys = [b"key %d" % (row % 100) for row in range(rows)] if keyed else None
    key: Column | None = keys if keys is None or rows <= SMALL else pa.array(keys, pa.binary())
    times = NOW_MS + np.arange(rows) // 7 if timed else NOW_MS
    return Piece(cuts.tolist() if rows <= SMALL else cuts, draw.bytes(int(cuts[-1])), times, key)


def batch(messages: Piece, compression: Compression) -> object:
    """Make a request of messages."""
    made = sealed(laid_out([messages]), compression)
    return request(8, [Part("topic", 0, made.pieces)], -1, 30_000)


def ours() -> None:
    """Print what our batches cost."""
    shapes: dict[str, Callable[[int], Piece]] = {
        "one size, one time": piece,
        "one size, a time each": partial(piece, timed=True),
        "varied sizes": partial(piece, varied=True),
        "with keys and times": partial(piece, keyed=True, timed=True),
    }
    for name, make in shapes.items():
        for rows in (1, 10, 100, 1_000, 10_000):
            line(name, rows, partial(batch, make(rows), Compression()))
    for codec in ("lz4", "zstd", "snappy", "gzip"):
        line(f"one size, {codec}", 1_000, partial(batch, piece(1_000), Compression(codec)))


def theirs() -> None:
    """Print what confluent-kafka's producer costs."""
    try:
        broker = Kafka()
    except Missing as missing:
        print(f"no broker for confluent-kafka: {missing}")
        return
    try:
        broker.start()
        body = np.random.default_rng(1).bytes(BODY_BYTES)
        settings = {"acks": "all", "linger.ms": 5, "queue.buffering.max.messages": MESSAGES, "log_level": 0}
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{broker.port}", **settings})
        for _ in range(3):
            before = time.process_time_ns()
            for _ in range(MESSAGES):
                producer.produce("bench", body)
            producer.flush()
            cost_ns = time.process_time_ns() - before
            name = "confluent-kafka, no callbacks, the whole client"
            print(f"{name:<52} {MESSAGES:>7,} rows: {cost_ns / MESSAGES:22.1f} ns/message")
    except Missing as missing:
        print(f"no broker for confluent-kafka: {missing}")
    finally:
        broker.remove()


if __name__ == "__main__":
    ours()
    theirs()
