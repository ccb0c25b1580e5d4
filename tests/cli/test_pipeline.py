"""Commands on pipelines that need no Spark: list, status, stop, and what is wrong with a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.app import run
from penstock.client.wire import PipelineReport, QueryReport
from penstock.pipeline.run.home import Home
from tests.cli.program import Node, inside

FILE = """
[sources.a]
topic = "t"
[sinks.b]
from = "a"
topic = "u"
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def home(data: Path, name: str, state: str = "running", pid: int = 0) -> Home:
    made = Home(str(data / "pipelines" / name), name)
    with made.owned():
        queries = [QueryReport(name="q", state=state, batch=3, rows_total=1200)]
        told = PipelineReport(name=name, pid=pid or os.getpid(), host="h", state=state, started_ms=1, queries=queries)
        made.tell(told)
    return made


def test_pipelines_are_listed_with_what_became_of_them(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home(data, "ended", "stopped")
    home(data, "gone")
    busy = home(data, "busy")
    with busy.owned():
        assert run(["pipeline", "list", "--data", str(data)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["busy", "running", str(os.getpid())],
        ["ended", "stopped", "-"],
        ["gone", "died", "-"],
    ]
    assert run(["pipeline", "list", "--data", str(data), "--json"]) == 0
    assert [each["state"] for each in json.loads(capsys.readouterr().out)] == ["died", "stopped", "died"]


def test_where_none_ran_the_list_says_so(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "list", "--data", str(data)]) == 0
    assert capsys.readouterr().out == "no pipeline has run here\n"


def test_status_shows_the_queries(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home(data, "shop", "stopped")
    assert run(["pipeline", "status", "shop", "--data", str(data)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"shop: stopped, pid {os.getpid()}, on ")
    assert "1,200" in out
    assert run(["pipeline", "status", "shap", "--data", str(data)]) == 1
    assert "there is no pipeline shap here; there are: shop" in capsys.readouterr().err


def test_stop_ends_the_process_that_runs_it(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = (
        "import sys, time\nfrom penstock.pipeline.run.home import Home\n"
        "with Home(sys.argv[1], 'shop').owned():\n    print('on', flush=True)\n    time.sleep(60)\n"
    )
    path = str(data / "pipelines" / "shop")
    with subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"on\n"
        assert run(["pipeline", "stop", "shop", "--data", str(data)]) == 0
        assert f"pipeline shop (pid {holder.pid}) has ended" in capsys.readouterr().out
    assert run(["pipeline", "stop", "shop", "--data", str(data)]) == 1
    assert "pipeline shop does not run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("topic", "topik"), "has no key topik; did you mean topic?"),
        (('from = "a"', 'from = "b"'), "there is no source or step b"),
        (('topic = "u"', 'topic = "t"'), "goes in a circle"),
    ],
)
def test_a_file_that_cannot_run_is_a_usage_error(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], said: str
) -> None:
    file = tmp_path / "p.toml"
    file.write_text(FILE.replace(*change))
    data.mkdir()
    assert run(["pipeline", "check", str(file), "--data", str(data)]) == 2
    assert said in capsys.readouterr().err


def test_both_ways_to_name_a_node_are_one_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.toml"
    file.write_text(FILE)
    assert run(["pipeline", "run", str(file), "--data", "d", "--url", "grpc://h"]) == 2
    assert "--data and --url both say which node" in capsys.readouterr().err


def reported(node: Node, topic: str, directory: Path, *arguments: str, **variables: str) -> str:
    """Return what a report on a topic says it counted."""
    before, behind = arguments[: arguments.index("|")], arguments[arguments.index("|") + 1 :]
    variables = {"XDG_CONFIG_HOME": str(directory), **variables}
    done = inside(*before, "pipeline", "report", topic, *behind, cwd=directory, stdin=b"", **variables)
    assert done.code == 0, done
    return done.out


@pytest.mark.parametrize("way", ["before", "flight before", "context", "context in use", "environment", "behind"])
def test_a_pipeline_speaks_to_the_node_that_was_named(node: Node, topic: str, tmp_path: Path, way: str) -> None:
    node.ok("pub", topic, "a")
    flight = f"grpc://127.0.0.1:{node.port('flight.port')}"
    if way.startswith("context"):
        inside("context", "add", "here", "--url", node.url, cwd=tmp_path, XDG_CONFIG_HOME=str(tmp_path))
    arguments = {
        "before": ["--url", node.url, "|"],
        "flight before": ["--url", flight, "|"],
        "context": ["--context", "here", "|"],
        "behind": ["|", "--url", node.url],
    }.get(way, ["|"])
    variables = {"PENSTOCK_URL": node.url} if way == "environment" else {}
    assert "1 message of 1 topic" in reported(node, topic, tmp_path, *arguments, **variables)


def test_what_stands_behind_wins_over_what_stands_before(node: Node, topic: str, tmp_path: Path) -> None:
    node.ok("pub", topic, "a")
    nowhere = "http://127.0.0.1:1"
    data = str(node.cwd / "data")
    assert "1 message" in reported(node, topic, tmp_path, "--url", nowhere, "|", "--data", data)
    assert "1 message" in reported(node, topic, tmp_path, "|", "--url", node.url, PENSTOCK_URL=nowhere)


def test_a_file_that_names_its_node_has_it_but_for_what_the_command_line_says(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(FILE + '[node]\nurl = "grpc://127.0.0.1:1"\n')
    done = inside("pipeline", "check", str(file), cwd=tmp_path, PENSTOCK_URL=node.url)
    assert "127.0.0.1:1" in done.error
    done = inside("--url", node.url, "pipeline", "check", str(file), cwd=tmp_path)
    assert "there is no topic t" in done.error


def test_a_named_node_that_runs_on_this_directory_is_read_from_its_files(node: Node, topic: str) -> None:
    node.ok("pub", topic, "a")
    done = inside(
        "pipeline",
        "replay",
        topic,
        "--to",
        f"{topic}-again",
        cwd=node.cwd,
        PENSTOCK_URL=node.url,
        PENSTOCK_DATA_DIR="data",
    )
    assert (done.code, (node.cwd / "data" / "pipelines").exists()) == (0, True), done
    assert not (node.cwd / "penstock-pipelines").exists()


def test_nobody_at_the_address_is_an_error_and_not_the_directory_here(node: Node, topic: str) -> None:
    done = inside("--url", "http://127.0.0.1:1", "pipeline", "report", topic, cwd=node.cwd)
    assert (done.code, "http://127.0.0.1:1 cannot be reached" in done.error) == (3, True)


def test_pipelines_on_nodes_elsewhere_are_listed_too(tmp_path: Path) -> None:
    home(tmp_path / "penstock-data", "near", "stopped")
    with Home(str(tmp_path / "penstock-pipelines" / "far"), "far").owned():
        done = inside("pipeline", "list", cwd=tmp_path)
    assert [line.split()[0] for line in done.out.splitlines()[1:]] == ["far", "near"]


def test_a_token_before_the_command_goes_to_the_node_of_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "elsewhere").mkdir()
    with Node(tmp_path, PENSTOCK_TOKEN="s3cret") as node:
        asked = ("pipeline", "report", "t")
        done = inside("--url", node.url, "--token-file", "../token", *asked, cwd=tmp_path / "elsewhere")
        assert "there is no topic t" in done.error
        assert "wants a token" in inside("--url", node.url, *asked, cwd=tmp_path / "elsewhere").error
