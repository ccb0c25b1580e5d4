"""The line from a task to the node: what is staged over it, and what happens when the node goes away or is full."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.client import retry
from penstock.client.connection import Unreachable
from penstock.config import NodeConfig
from penstock.dialects.flight.config import FlightConfig
from penstock.disk import LocalFile
from penstock.errors import Refusal
from penstock.pipeline import stage
from penstock.pipeline.stage import Attempt, Line
from penstock.pipeline.target import Target, parsed
from tests.flight.parts import Flown, lasting_port, many


def target(node: Flown, topic: str = "t") -> Target:
    return parsed({"url": f"grpc://127.0.0.1:{node.flight.port}", "topic": topic})


def staged_files(node: Flown) -> list[str]:
    return os.listdir(node.path / "staging")


@pytest.fixture
def flown(tmp_path: Path) -> Iterator[Flown]:
    with Flown(tmp_path / "data") as node:
        yield node


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PAUSE_S_MAX", 0.05)


def test_task_stages_and_the_driver_commits(flown: Flown) -> None:
    with Line(target(flown)) as line:
        attempts, rows = line.stage("q", 0, iter([many(10), many(5, 10)]))
        assert (len(attempts), rows) == (1, 15)
        assert "t" not in flown.node.topics
        line.commit("q", 0, list(attempts))
        line.commit("q", 0, list(attempts))
    assert len(flown.bodies("t")) == 15


def test_task_without_rows_stages_nothing(flown: Flown) -> None:
    with Line(target(flown)) as line:
        assert line.stage("q", 0, iter([])) == ((), 0)
        line.commit("q", 0, [])
    assert staged_files(flown) == []


def test_long_task_stages_in_several_loads(flown: Flown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "LOAD_BYTES", 2 * many(100).nbytes)
    with Line(target(flown)) as line:
        attempts, rows = line.stage("q", 0, (many(100, 100 * number) for number in range(5)))
        assert (len(attempts), rows) == (3, 500)
        line.commit("q", 0, list(attempts))
    assert flown.bodies("t") == [b"body %d" % number for number in range(500)]


def test_large_batch_is_cut_to_what_a_node_takes(tmp_path: Path) -> None:
    sizes = [10, 3 << 20, 10, *(1000 for _ in range(20_000))]
    batch = pa.record_batch({"body": pa.array([b"x" * size for size in sizes], pa.binary())})
    own = FlightConfig(port=0, max_batch_size=5 << 20)
    limits = NodeConfig(message_bytes=4 << 20)
    with Flown(tmp_path / "data", flight=own, node=limits) as node, Line(target(node)) as line:
        attempts, rows = line.stage("q", 0, iter([batch]))
        assert rows == len(sizes)
        line.commit("q", 0, list(attempts))
        assert [len(body) for body in node.bodies("t")] == sizes


@pytest.mark.usefixtures("short")
def test_node_that_comes_back_gets_what_it_lost(tmp_path: Path) -> None:
    port = lasting_port()
    with Flown(tmp_path / "data", flight=FlightConfig(port=port)) as first:
        goal = target(first)

        def batches() -> Iterator[pa.RecordBatch]:
            yield many(10)
            first.stop()
            second.__enter__()
            yield many(10, 10)

        second = Flown(tmp_path / "data", flight=FlightConfig(port=port))
        try:
            with Line(goal) as line:
                attempts, rows = line.stage("q", 0, batches())
                assert (len(attempts), rows) == (1, 20)
                line.commit("q", 0, list(attempts))
            assert second.bodies("t") == [b"body %d" % number for number in range(20)]
            assert staged_files(second) == []
        finally:
            second.stop()


@pytest.mark.usefixtures("short")
def test_node_that_stays_away_is_named(tmp_path: Path) -> None:
    with Flown(tmp_path / "data") as node:
        goal = target(node)
    with Line(goal, patience_s=0.1) as line:
        with pytest.raises(Unreachable, match=f"no node answers at {goal.access.url}"):
            line.stage("q", 0, iter([many(1)]))
        with pytest.raises(Unreachable):
            line.commit("q", 0, [])
        line.abort("q", 0, [Attempt("t", "a")])  # says nothing: the node sweeps


@pytest.mark.usefixtures("short")
def test_full_disk_is_waited_for(flown: Flown, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [3]
    append = LocalFile.append

    def full(self: LocalFile, parts: list[bytes]) -> int:
        if "/staging/" in self.path and left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return append(self, parts)

    monkeypatch.setattr(LocalFile, "append", full)
    with Line(target(flown)) as line:
        attempts, rows = line.stage("q", 0, iter([many(10), many(10, 10)]))
        assert (left, rows) == ([0], 20)
        assert len(staged_files(flown)) == 1
        line.commit("q", 0, list(attempts))
    assert len(flown.bodies("t")) == 20


@pytest.mark.usefixtures("short")
def test_disk_that_stays_full_is_said(flown: Flown, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: LocalFile, parts: list[bytes]) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Line(target(flown), patience_s=0.1) as line:
        line.stage("q", 0, iter([many(1)]))  # the topic is there
        monkeypatch.setattr(LocalFile, "append", full)
        with pytest.raises(Refusal, match="no room to stage: No space left on device") as told:
            line.stage("q", 0, iter([many(10)]))
        monkeypatch.undo()
    assert told.value.code == "disk_full"


def test_rows_that_cannot_be_messages_are_refused_at_once(flown: Flown) -> None:
    bad = pa.record_batch({"body": pa.array([b"x", None], pa.binary())})
    with Line(target(flown)) as line, pytest.raises(Refusal, match="row 1 has no body") as told:
        line.stage("q", 0, iter([many(1), bad]))
    assert told.value.code == "bad_column"
    assert staged_files(flown) == []


def test_what_goes_wrong_in_spark_stays_what_it_is(flown: Flown) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield many(10)
        raise OSError("the executor's socket is gone")

    with Line(target(flown)) as line, pytest.raises(OSError, match="the executor's socket is gone"):
        line.stage("q", 0, batches())
    assert "t" not in flown.node.topics


def test_wrong_token_is_told_at_once(tmp_path: Path) -> None:
    with Flown(tmp_path / "data", token="right") as node:
        with Line(target(node)) as line, pytest.raises(Refusal) as told:
            line.stage("q", 0, iter([many(1)]))
        assert told.value.code == "unauthorized"


@pytest.mark.parametrize(
    ("column", "bad", "said"),
    [
        ("headers", b"[1]", "row 1: headers are no JSON object"),
        ("body", None, "row 1 has no body: it is null"),
    ],
)
def test_row_that_the_node_refuses_is_shown(flown: Flown, column: str, bad: bytes | None, said: str) -> None:
    def batch(start: int) -> dict[str, list[bytes | None]]:
        names = [b"%d" % number for number in range(start, start + 3)]
        return {"key": [*names], "body": [*names], "headers": [b"{}"] * 3}

    good, other = batch(0), batch(10)
    other[column][1] = bad
    batches = [
        pa.record_batch({name: pa.array(cells, pa.binary()) for name, cells in each.items()}) for each in (good, other)
    ]
    with Line(target(flown)) as line, pytest.raises(Refusal) as told:
        line.stage("q", 0, iter(batches))
    body = "b'11'" if column != "body" else "null"
    assert said in str(told.value)
    assert f"(its key is b'11', its body {body})" in str(told.value)
    assert "t" not in flown.node.topics
