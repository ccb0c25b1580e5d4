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
