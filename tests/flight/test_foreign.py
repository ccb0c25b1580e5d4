"""A client in another language, with Arrow's own library and nothing of ours, finds its way: Go publishes and reads."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bench import supply
from tests.flight.parts import Flown, body_batch, many
from tests.served import PATIENCE_S


@pytest.fixture(scope="module")
def reader() -> Path:
    """The program; without it a test would show nothing, so it fails."""
    try:
        return supply.flight_reader()
    except supply.Missing as missing:
        pytest.fail(str(missing))


def run(reader: Path, node: Flown, *arguments: str) -> subprocess.CompletedProcess[str]:
    *flags, topic = arguments
    command = [str(reader), *flags, f"127.0.0.1:{node.flight.port}", *topic.split()]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_go_reads_every_column(reader: Path, flown: Flown) -> None:
    columns = {
        "key": pa.array([b"k", None], pa.binary()), "tag": pa.array(["red", None]), "due": pa.array([1, None]),
        "traffic": pa.array([-1, None]), "bucket": pa.array([7, None], pa.int32()),
        "headers": pa.array([b'{"a":1}', None], pa.binary()),
    }  # fmt: skip
    flown.put("t", body_batch(b"one", b"\x00\xff", **columns))
    first, second = rows(run(reader, flown, "t"))
    assert (base64.b64decode(first["body"]), first["offset"], first["source"]) == (b"one", 0, "flight")
    assert (first["tag"], first["due"], first["traffic"], first["bucket"]) == ("red", 1, -1, 7)
    assert [base64.b64decode(first[name]) for name in ("key", "headers")] == [b"k", b'{"a":1}']
    assert set(second) == {"offset", "timestamp", "body", "source"}
    assert base64.b64decode(second["body"]) == b"\x00\xff"


def test_go_reads_all_shards_of_a_long_topic(reader: Path, flown: Flown) -> None:
    flown.act("create-topic", name="t", settings={"shards": 3})
    for number in range(30):
        keys = pa.array([b"%d" % (number * 1000 + row) for row in range(1000)], pa.binary())
        flown.put("t", many(1000, number * 1000).append_column("key", keys))
    found = [base64.b64decode(row["body"]) for row in rows(run(reader, flown, "t"))]
    assert sorted(found) == sorted(b"body %d" % number for number in range(30_000))


def test_go_publishes(reader: Path, flown: Flown) -> None:
    found = rows(run(reader, flown, "-put", "t hello world"))
    assert [(base64.b64decode(row["body"]), row["tag"]) for row in found] == [(b"hello", "go"), (b"world", "go")]
    assert flown.bodies("t") == [b"hello", b"world"]


def test_go_is_told_what_is_wrong(reader: Path, flown: Flown, tmp_path: Path) -> None:
    done = run(reader, flown, "none")
    assert done.returncode == 1
    assert "not_found: there is no topic 'none'" in done.stderr
    with Flown(tmp_path / "guarded", token="secret") as node:
        node.do(lambda: node.node.create_topic("t").now())
        assert "Unauthenticated" in run(reader, node, "t").stderr
        assert rows(run(reader, node, "-token=secret", "t")) == []
