"""A Flight client as load: batches put without waiting for each answer, and a shard read back.

Owns the client's side of the Flight rows. Knows nothing of how a node is started. pyarrow does the work per row, so
that Python runs once a batch and the client stays far from being what is measured.
"""

from __future__ import annotations

import json
import time

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from bench.generator import LoadFailed, Run

ROWS = 10_000
BODY_BYTES = 100
#: Batches that the node may owe an answer for.
AHEAD = 8
#: What Redis and NATS tell with a body: its place and its time.
COLUMNS = ("offset", "timestamp", "body")
DIFFERENT = 8


def batches() -> list[pa.RecordBatch]:
    """Return batches whose bodies differ in their first 32 bytes, as those of the load generator do."""
    source = np.random.default_rng(1)
    made = []
    for _ in range(DIFFERENT):
        cells = np.full((ROWS, BODY_BYTES), ord("x"), np.uint8)
        cells[:, :32] = source.integers(ord("a"), ord("z") + 1, (ROWS, 32), np.uint8)
        cuts = np.arange(0, (ROWS + 1) * BODY_BYTES, BODY_BYTES, dtype=np.int32)
        body = pa.Array.from_buffers(pa.binary(), ROWS, [None, pa.py_buffer(cuts), pa.py_buffer(cells)])
        made.append(pa.record_batch({"body": body}))
    return made


def put(port: int, topic: str, *, seconds: float = 0.0, count: int = 0) -> Run:
    """Publish for a while, or `count` rows; the clock stops with the last answer."""
    given = batches()
    with flight.connect(f"grpc://127.0.0.1:{port}") as client:
        writer, answers = client.do_put(flight.FlightDescriptor.for_path(topic), given[0].schema)
        sent = answered = 0
        began = time.perf_counter()
        end = began + seconds
        while sent * ROWS < count if count else time.perf_counter() < end:
            writer.write_batch(given[sent % DIFFERENT])
            sent += 1
            if sent - answered > AHEAD:
                answered += _taken(answers)
        while answered < sent:
            answered += _taken(answers)
        took = time.perf_counter() - began
        writer.close()
    return Run(sent * ROWS, took)


def get(port: int, topic: str, count: int) -> Run:
    """Read a shard from its beginning to its end, which must hold this many rows."""
    with flight.connect(f"grpc://127.0.0.1:{port}") as client:
        ticket = flight.Ticket(json.dumps({"topic": topic, "columns": COLUMNS}))
        began = time.perf_counter()
        found = sum(len(chunk.data) for chunk in client.do_get(ticket))
        took = time.perf_counter() - began
    if found != count:
        raise LoadFailed(f"the node keeps {count} rows and gave {found}")
    return Run(found, took)


def _taken(answers: flight.FlightMetadataReader) -> int:
    if answers.read() is None:
        raise LoadFailed("the node ended the stream without an answer")
    return 1
