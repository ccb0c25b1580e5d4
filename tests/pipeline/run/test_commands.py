"""The commands on pipelines and jobs, as a person types them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.cli.app import run
from penstock.pipeline.lake.table import table
from penstock.pipeline.run import runner
from tests.flight.parts import Flown, many

FILE = """
[sources.in]
topic = "in"

[steps.once]
from = "in"
job = "dedupe"
by = "body"

[sinks.copy]
from = "once"
topic = "copy"
"""

SHUFFLES = "spark.sql.shuffle.partitions"


@pytest.fixture
def node(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flown]:
    monkeypatch.chdir(tmp_path)  # where checkpoints go
    before = spark.conf.get(SHUFFLES)
    with Flown(tmp_path / "node") as made:
        made.put("in", many(100))
        yield made
    assert before is not None
    spark.conf.set(SHUFFLES, before)


def said(node: Flown, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Run a command; return what it printed, or what it complained about."""
    capsys.readouterr()
    assert run(["pipeline", *words, "--url", f"grpc://127.0.0.1:{node.flight.port}"]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def test_a_topic_is_archived_compacted_replayed_and_reported_on(
    spark: SparkSession, node: Flown, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("archive", "in", "--table", "lake", "--from", "50")
    archived = json.loads(said(node, capsys, *words, "--json"))
    assert (archived["table"], archived["rows"], archived["files"]) == ("lake", 50, 1)
    node.put("in", many(20, 100))
    assert "lake: 70 rows in 2 files" in said(node, capsys, *words)
    assert run(["pipeline", "compact", "lake", "--keep-hours", "0"]) == 0
    assert "lake: 2 files are 1 now" in capsys.readouterr().out
    assert table("lake").read(spark).count() == 70

    replay = ("replay", "--table", "lake", "--to", "again")
    assert "70 messages" in said(node, capsys, *replay, "--dry-run")
    assert "again" not in node.node.topics
    said(node, capsys, *replay)
    assert len(node.bodies("again")) == 70
    assert "nothing to do" in said(node, capsys, *replay)
    assert len(node.bodies("again")) == 70
    counts = json.loads(said(node, capsys, "replay", "in", "--to", "x", "--from", "110", "--dry-run", "--json"))
    assert (counts["rows"], counts["shares"][0]["to"]) == (10, "x")

    assert "report.html: 190 messages of 2 topics" in said(node, capsys, "report")
    assert "<svg" in Path("report.html").read_text()


def test_a_damaged_file_of_a_table_stops_no_archive_and_is_named_by_every_command(
    spark: SparkSession, node: Flown, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("archive", "in", "--table", "lake", "--format", "parquet")
    said(node, capsys, *words)
    (path,) = Path("lake").resolve().rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:100])
    for first in (100, 120):
        node.put("in", many(20, first))
        assert "files" in said(node, capsys, *words)
    assert run(["pipeline", "compact", "lake", "--format", "parquet", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["files_before"], done["files_after"], [str(path) in each for each in done["damaged"]]) == (
        3,
        2,
        [True],
    )
    assert run(["pipeline", "compact", "lake", "--format", "parquet"]) == 0
    assert f"{path} is damaged: " in capsys.readouterr().out
    replay = ("replay", "--table", "lake", "--format", "parquet", "--to", "again")
    for more in (("--dry-run",), ()):
        complaint = said(node, capsys, *replay, *more, code=1)
        assert f"{path} is damaged: " in complaint.splitlines()[-1]
    assert "again" not in node.node.topics


def test_a_file_is_checked_explained_and_run(node: Flown, capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.toml").write_text(FILE)
    checked = said(node, capsys, "check", "p.toml", "--explain")
    assert checked.endswith("p.toml is good: 1 query: once\n")
    explained = said(node, capsys, "explain", "p.toml")
    assert "query once: in → once → copy, every 10s" in explained
    assert "== Physical Plan ==" in explained
    assert "== Physical Plan ==" in checked
    (query,) = json.loads(said(node, capsys, "explain", "p.toml", "--json"))["queries"]
    assert (query["name"], query["steps"], query["sinks"]) == ("once", ["once"], ["copy"])
    assert "== Physical Plan ==" in query["plan"]
    told = [json.loads(line) for line in said(node, capsys, "run", "p.toml", "--once", "--json").splitlines()]
    assert [told[0]["state"], told[-1]["state"]] == ["starting", "stopped"]
    assert told[-1]["queries"][0]["rows_total"] == 100
    assert len(node.bodies("copy")) == 100
    assert run(["pipeline", "list"]) == 0


ROLLED = """
[sources.in]
topic = "in"
[steps.once]
from = "in"
job = "dedupe"
within = "15m"
[steps.rolled]
from = "once"
job = "rollup"
lateness = "20s"
[sinks.out]
from = "rolled"
topic = "out"
"""


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flown]:
    """A node, and no Spark."""

    def session(*_: object, **__: object) -> SparkSession:
        raise AssertionError("Spark was started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "session", session)
    with Flown(tmp_path / "node") as made:
        made.put("in", many(1))
        yield made


def test_a_check_starts_no_spark_and_says_what_waits_for_what(bare: Flown, capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.toml").write_text(ROLLED)
    checked = said(bare, capsys, "check", "p.toml")
    assert "p.toml is good: 1 query: rolled (columns were not looked at: --explain does, with Spark)" in checked
    assert "note: windows of steps.rolled close 15m after their end, not 20s: steps.once before it waits" in checked
    assert json.loads(said(bare, capsys, "check", "p.toml", "--json"))["notes"]
    Path("p.toml").write_text(ROLLED.replace("[steps.rolled]", 'lateness = "20s"\n[steps.rolled]'))
    checked = said(bare, capsys, "check", "p.toml")
    assert "p.toml is good" in checked
    assert "note:" not in checked
    Path("p.toml").write_text(ROLLED.replace("[steps.rolled]", 'lateness = "1m"\n[steps.rolled]'))
    note = 'windows of steps.rolled close 1m after their end, not 20s: steps.once says lateness = "1m"'
    assert json.loads(said(bare, capsys, "check", "p.toml", "--json")) == {
        "name": "p",
        "queries": ["rolled"],
        "notes": [note],
    }


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("archive", "inn", "--table", "lake"), "there is no topic inn; did you mean in?"),
        (("archive", "in", "--table", "lake", "--format", "dlta"), "format is dlta"),
        (("archive", "in", "--table", "lake", "--from", "soon"), "from is 'soon'"),
        (("replay", "in", "--to", "x", "--times", "old"), "--times old: original, shift or none"),
        (("replay", "--to", "x"), "what is to be replayed?"),
        (("report", "--from", "soon"), "--from 'soon' is no time"),
        (("report", "-o", "nowhere/report.html"), "there is no directory nowhere"),
        (("run", "nowhere.toml"), "nowhere.toml cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    node: Flown, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], complaint: str
) -> None:
    assert complaint in said(node, capsys, *words, code=2)
