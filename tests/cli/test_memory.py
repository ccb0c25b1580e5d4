"""What one client made a node hold goes back to the system once that client is refused or gone."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.cli.program import SECONDS_MAX, Node

MIB = 1 << 20


def resident(node: Node) -> int:
    """Return how many MiB of a node are in memory."""
    pages = Path(f"/proc/{node.process.pid}/statm").read_text().split()[1]
    return int(pages) * 4096 // MIB


def settles_below(node: Node, most: int) -> None:
    """Wait until a node is no larger than this, in MiB."""
    end = time.monotonic() + SECONDS_MAX
    while (size := resident(node)) > most:
        assert time.monotonic() < end, f"{size} MiB are resident, {most} would do"
        time.sleep(0.05)


def put(client: flight.FlightClient, batch: pa.RecordBatch) -> None:
    """Publish a batch, compressed."""
    packed = flight.FlightCallOptions(timeout=30, write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
    writer, answers = client.do_put(flight.FlightDescriptor.for_path("t"), batch.schema, packed)
    writer.write_batch(batch)
    writer.done_writing()
    answers.read()
    writer.close()


def test_batch_that_is_small_on_the_wire_costs_nothing_once_it_is_refused(tmp_path: Path) -> None:
    large = pa.record_batch({"body": pa.array([bytes(MIB)] * 300)})
    with Node(tmp_path) as node:
        before = resident(node)
        with flight.connect(f"grpc://127.0.0.1:{node.port('flight.port')}") as client:
            for _ in range(3):
                with pytest.raises(flight.FlightError, match="message_too_big: a batch of 314"):
                    put(client, large)
            settles_below(node, before + 60)
        assert "flight:message_too_big" in node.ok("ledger").out
