"""What Flight carries on this machine: rows put and got a second, one-row round trips, and reading small batches.

Run it with `python -m bench.micro.flight [directory]`. The node is a process of its own with its default settings
(durability os); the client is this process. Rates are medians of three.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.flight as flight

ROWS = 10_000
BATCHES = 200
BODY_BYTES = 100
#: Batches a client lets the node owe it an answer for.
AHEAD = 8
SMALL_BATCHES = 3_000
SMALL_ROWS = 20
REPEATS = 3


def batch_of(rows: int) -> pa.RecordBatch:
    """Return rows of equal size that differ."""
    bodies = [b"%0*d" % (BODY_BYTES, row) for row in range(rows)]
    return pa.record_batch({"body": pa.array(bodies, pa.binary())})


def put(client: flight.FlightClient, topic: str, batch: pa.RecordBatch, count: int, ahead: int) -> float:
    """Return the rows a second that are published and answered."""
    began = time.perf_counter()
    writer, answers = client.do_put(flight.FlightDescriptor.for_path(topic), batch.schema)
    for number in range(count):
        writer.write_batch(batch)
        if number >= ahead:
            answers.read()
    for _ in range(min(ahead, count)):
        answers.read()
    seconds = time.perf_counter() - began
    writer.close()
    return count * len(batch) / seconds


def get(client: flight.FlightClient, topic: str, rows: int, columns: list[str] | None) -> float:
    """Return the rows a second that are read."""
    ticket = {"topic": topic} | ({"columns": columns} if columns else {})
    began = time.perf_counter()
    found = sum(len(chunk.data) for chunk in client.do_get(flight.Ticket(json.dumps(ticket))))
    assert found >= rows
    return found / (time.perf_counter() - began)


def cpu_s(pid: int) -> float:
    """Return the CPU a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def show(what: str, pid: int, measure: Callable[[int], float], rows: int) -> None:
    """Print a rate and what it costs the node."""
    before = cpu_s(pid)
    rates = [measure(number) for number in range(REPEATS)]
    cost = (cpu_s(pid) - before) / REPEATS / rows * 1e9
    print(f"{what:<58} {median(rates) / 1e6:6.2f} M rows/s, {cost:5.0f} ns of the node's CPU a row")


def main() -> None:
    """Print every number."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as place:
        ready = Path(place) / "ready"
        keys = (
            "api.port",
            "flight.port",
            "sqs.port",
            "dynamiq.port",
            "m3msg.port",
            "timeline.port",
            "nsq.tcp_port",
            "nsq.http_port",
            "nsq.lookup_tcp_port",
            "nsq.lookup_http_port",
        )
        command = [
            sys.executable,
            "-m",
            "penstock.cli",
            "up",
            "-q",
            "--data",
            f"{place}/data",
            "--ready-file",
            str(ready),
        ]
        node = subprocess.Popen([*command, *(f"--set={key}=0" for key in keys)])
        try:
            while not ready.exists():
                time.sleep(0.01)
            port = json.loads(ready.read_text())["ports"]["flight.port"]
            measure(flight.connect(f"grpc://127.0.0.1:{port}"), node.pid)
        finally:
            node.terminate()
            node.wait()


def measure(client: flight.FlightClient, pid: int) -> None:
    """Print what one node does."""
    large, small, one = batch_of(ROWS), batch_of(SMALL_ROWS), batch_of(1)
    total = ROWS * BATCHES
    put(client, "warm", large, 20, AHEAD)
    show(
        f"put {ROWS:,}-row batches of {BODY_BYTES} B", pid, lambda n: put(client, f"t{n}", large, BATCHES, AHEAD), total
    )

    def got(columns: list[str] | None, number: int) -> float:
        return get(client, f"t{number}", total, columns)

    for columns in (["offset", "timestamp", "body"], ["body"], None):
        what = ", ".join(columns) if columns else "all 17 columns"
        show(f"get {what}", pid, partial(got, columns), total)
    count = SMALL_BATCHES * SMALL_ROWS
    show(f"put {SMALL_ROWS}-row batches", pid, lambda n: put(client, f"s{n}", small, SMALL_BATCHES, AHEAD), count)
    show(
        f"get what {SMALL_ROWS}-row batches left, offset, timestamp, body",
        pid,
        lambda n: get(client, f"s{n}", count, ["offset", "timestamp", "body"]),
        count,
    )
    show("put 1-row batches, each answered", pid, lambda n: put(client, f"o{n}", one, SMALL_BATCHES, 0), SMALL_BATCHES)


if __name__ == "__main__":
    main()
