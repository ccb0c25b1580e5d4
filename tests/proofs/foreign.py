"""Proof that segments are plain Arrow: pyarrow and Polars read them where Penstock is not installed.

A node stores messages of several kinds over NSQ and the admin API and seals its segments. Then a Python environment
that holds pyarrow and Polars alone reads the files, and what it finds is compared with what `/api/v1` says.

    python -m tests.proofs.foreign
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.proofs import stranger
from tests.proofs.checks import Checks
from tests.proofs.client import Client, dpub, mpub, pub
from tests.proofs.environment import Broken, Environment, locked
from tests.proofs.process import DEADLINE_S, Died, Process

#: Every topic fills a few segments of the least size.
SEGMENT_BYTES = 64 * 1024
ROWS = 1500

TOPICS: dict[str, dict[str, object]] = {
    "lone": {},
    "batched": {},
    "delayed": {},
    "columns": {},
    "synced": {"durability": "fsync"},
    "lz4": {"compression": "lz4"},
    "zstd": {"compression": "zstd"},
}

Row = dict[str, Any]


def fill(process: Process) -> None:
    """Publish messages of several kinds."""
    bodies = [b"%d " % number + bytes(range(256))[: number % 257] * 2 for number in range(1, ROWS + 1)]
    client = Client(process.ports["nsq.tcp_port"])
    for topic in ("lone", "synced", "lz4"):
        # A few at a time: each becomes a small batch of its own, which sealing then merges.
        for start in range(0, ROWS, 10):
            some = bodies[start : start + 10]
            client.send(b"".join(pub(topic, body) for body in some))
            replies(client, len(some))
    for topic in ("batched", "zstd"):
        for start in range(0, ROWS, 500):
            client.command(mpub(topic, bodies[start : start + 500]))
    for number, body in enumerate(bodies):
        client.send(pub("delayed", body) if number % 3 else dpub("delayed", 3_600_000, body))
    replies(client, len(bodies))
    client.close()
    lines = [json.dumps(line(number, body)).encode() + b"\n" for number, body in enumerate(bodies)]
    for start, count in spans(len(lines)):
        process.call("POST", "/topics/columns/messages", b"".join(lines[start : start + count]))


def replies(client: Client, count: int) -> None:
    """Wait for so many OKs."""
    for _ in range(count):
        if client.reply() != b"OK":
            raise Died("a publish was refused")


def spans(total: int) -> Iterator[tuple[int, int]]:
    """Yield runs of rows: lone ones first, so that both forms of a batch meet every column, then growing ones."""
    start, count = 0, 1
    while start < total:
        yield start, count
        start += count
        count = 1 if start < 40 else min(count * 2, 400)


def line(number: int, body: bytes) -> Row:
    """Return a message for the API; which columns it has depends on its number."""
    found: Row = {"body_base64": base64.b64encode(body).decode()}
    if number % 2:
        found |= {"key": f"customer {number % 7}", "headers": {"number": number, "text": "päckchen"}}
    if number % 3 == 0:
        found |= {"due": "1h", "traffic": (1 << 63) + number, "tag": f"tag-{number % 5}"}
    if number >= ROWS // 2:  # a wider schema from here on
        found |= {"event_time": "2026-01-31T12:00:00.123456789Z", "route": -number, "trace": number}
    return found


def manifests(process: Process) -> dict[str, tuple[Path, Row]]:
    """Return where each topic's only shard is, and its manifest."""
    found = {}
    for topic in TOPICS:
        number = process.call("GET", f"/topics/{topic}")["number"]
        path = process.data / "topics" / str(number) / "0"
        found[topic] = (path, json.loads((path / "manifest").read_bytes()))
    return found


def is_settled(topic: str, manifest: Row) -> bool:
    """Tell whether all but the last segment are sealed, and rewritten where that merges or compresses batches."""
    segments = manifest["segments"]
    compression = TOPICS[topic].get("compression", "none")
    return len(segments) > 1 and all(
        segment["sealed"] and segment["batches"] == 1 and segment["compression"] == compression
        for segment in segments[:-1]
    )


def settled(process: Process) -> dict[str, tuple[Path, Row]]:
    """Wait until sealing is done."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        found = manifests(process)
        unsettled = [topic for topic, (_, manifest) in found.items() if not is_settled(topic, manifest)]
        if not unsettled:
            return found
        time.sleep(0.02)
    raise Died(f"the segments of {', '.join(unsettled)} were not sealed within {DEADLINE_S:.0f} s")


def told(process: Process, topic: str) -> list[Row]:
    """Return all rows of a topic as the API shows them, in the form in which a stranger reads them."""
    rows: list[Row] = []
    offset: object = "earliest"
    while True:
        page = process.call("GET", f"/topics/{topic}/messages?limit=1000&offset={offset}")
        rows += [as_stored(message) for message in page["messages"]]
        offset = page["next"]
        if offset >= page["end"]:
            return rows


def as_stored(message: Row) -> Row:
    """Turn what the API shows of a row into what is stored."""
    row: Row = {}
    for name, value in message.items():
        if name in ("id", "shard", "traffic_types"):
            continue
        if name in ("timestamp", "due", "event_time"):
            row[name] = nanoseconds(value)
        elif name == "traffic":
            row[name] = value - (1 << 64) if value >= 1 << 63 else value
        elif name.endswith("_base64"):
            row[name.removesuffix("_base64")] = base64.b64decode(value).hex()
        elif name in ("body", "key"):
            row[name] = value.encode().hex()
        else:
            row[name] = value
    return row


def nanoseconds(text: str) -> int:
    """Return the nanoseconds since 1970 of a time as the API shows it."""
    seconds, _, rest = text.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(seconds + "+00:00").timestamp()) * 1_000_000_000 + int(rest.ljust(9, "0"))


def compare(process: Process, environment: Environment, checks: Checks) -> None:
    """Let the stranger read everything, and compare."""
    found = settled(process)
    paths = {
        topic: [
            str(path / f"{segment['first']:020d}.{segment['generation']}.arrows") for segment in manifest["segments"]
        ]
        for topic, (path, manifest) in found.items()
    }
    names = "".join(f"{path}\n" for files in paths.values() for path in files)
    answer = json.loads(environment.run("python", "-I", stranger.__file__, text=names))
    checks.check(not answer["penstock"], "the environment that reads has pyarrow and Polars, and no Penstock")
    for topic, files in paths.items():
        expected = told(process, topic)
        count = process.call("GET", f"/topics/{topic}")["shards"][0]["rows"]
        for reader in ("by_pyarrow", "by_polars"):
            rows = [row for path in files for row in answer["files"][path][reader]]
            for row in rows:
                if "headers" in row:
                    row["headers"] = json.loads(bytes.fromhex(row["headers"]))
            wrong = [f"read {row}, told {other}" for row, other in zip(rows, expected, strict=False) if row != other]
            checks.check(
                len(rows) == len(expected) == count == ROWS and not wrong,
                f"{topic:8} {reader.replace('_', ' '):10} {len(rows)} rows in {len(files)} segments, as /api/v1 says",
                f"/api/v1 counts {count} and shows {len(expected)}",
                *wrong,
            )
    sealed = [segment for _, manifest in found.values() for segment in manifest["segments"] if segment["sealed"]]
    forms = {f"{segment['compression']} generation {segment['generation']}" for segment in sealed}
    checks.check(len(forms) == 4, f"{len(sealed)} of the segments are sealed: {', '.join(sorted(forms))}")


def main() -> int:
    """Run the proof and print one line per check."""
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="penstock-foreign-") as name:
        path = Path(name)
        process = Process(path / "data", f"topic.segment_bytes={SEGMENT_BYTES}")
        try:
            environment = Environment(path / "environment")
            lock = path / "foreign.lock"
            lock.write_text(locked("pyarrow", "polars", "polars-runtime-32"))
            environment.install("--require-hashes", "--no-deps", "--requirement", str(lock))
            process.start()
            for topic, settings in TOPICS.items():
                process.call("POST", "/topics", {"name": topic, "settings": settings})
            fill(process)
            compare(process, environment, checks)
            process.stop()
        except (Broken, Died) as error:
            checks.check(False, str(error))
        finally:
            process.abandon()
    return checks.code()


if __name__ == "__main__":
    sys.exit(main())
