"""A node with a pipeline beside it, in processes of their own; a script stands in for the pipeline."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import beside
from penstock.cli.runner import Program
from penstock.config import Config, PipelineConfig
from penstock.errors import ConfigError
from tests.cli import program
from tests.cli.processes import is_alive, pids, script, text, until
from tests.cli.program import Node, penstock

#: `penstock up` whose pipeline is a script; which one, and what is missing, the environment says.
STAND_IN = """
import os, sys
from penstock.cli import beside

def program(config, pipeline):
    return made(config, pipeline)._replace(
        command=[sys.executable, os.environ["STAND_IN"], pipeline.file, config.data_dir], missing=list
    )

made, beside.program = beside.program, program
from penstock.cli.app import run
sys.exit(run(sys.argv[1:]))
"""

#: A pipeline that reports to its node, and commits something when it is asked to stop.
REPORTING = """
import json, os, signal, socket, subprocess, sys, time
from penstock.client.connection import Access, Connection
from penstock.client.wire import PipelineReport

file, data = sys.argv[1:]
with open(os.path.join(data, "node.json")) as node:
    url = json.load(node)["flight"]
connection = Connection(Access(url, os.environ.get("PENSTOCK_TOKEN", "")), 30)
started_ms = int(time.time() * 1000)

def report(state):
    connection.report(
        PipelineReport(name="shop", pid=os.getpid(), host=socket.gethostname(), state=state, started_ms=started_ms)
    )

def end(*_):
    os.stat(os.path.join(data, "node.json"))
    connection.act("create-topic", {"name": "committed"})
    report("stopped")
    print("stopped", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, end)
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
with open("pids", "a") as notes:
    notes.write(f"{os.getpid()}\\n{child.pid}\\n")
print("running", flush=True)
report("running")
while True:
    time.sleep(60)
"""

TOKEN = "a token"


class Up(Node):
    """A node beside which a script runs as pipeline `shop`."""

    def __init__(self, directory: Path, code: str, *arguments: str) -> None:
        (directory / "shop.toml").write_text('name = "shop"\n')
        stand_in = script(directory, code)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(program, "COMMAND", [sys.executable, script(directory, STAND_IN, "up.py")])
            super().__init__(directory, "--pipeline", "shop.toml", *arguments, STAND_IN=stand_in, PENSTOCK_TOKEN=TOKEN)

    def pipeline(self) -> dict[str, Any]:
        """Return what the node tells of the pipeline; nothing where it knows none."""
        asked = urllib.request.Request(f"{self.url}/api/v1/pipelines", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            found: list[dict[str, Any]] = json.loads(answer.read())["pipelines"]
        return found[0] if found else {}


def test_a_pipeline_runs_beside_the_node_and_commits_before_it_stops(tmp_path: Path) -> None:
    with Up(tmp_path, REPORTING) as node:
        until(lambda: node.pipeline().get("state") == "running")
        first = node.pipeline()
        os.kill(first["pid"], signal.SIGKILL)
        until(lambda: node.pipeline()["pid"] != first["pid"] and node.pipeline()["state"] == "running")
        assert node.pipeline()["restarts"] == 1
        assert "pipeline shop was ended by SIGKILL (running); it starts again in 1 s" in node.errors()
        assert node.end() == 0, node.errors()
        assert "Traceback" not in node.errors()
    assert text(tmp_path / "data" / "pipelines" / "shop.log") == "running\nrunning\nstopped\n"
    assert not any(is_alive(pid) for pid in pids(tmp_path / "pids"))
    with Node(tmp_path) as node:
        assert "committed" in node.ok("topic", "list").out


def test_kill_9_of_the_node_leaves_nothing_of_the_pipeline(tmp_path: Path) -> None:
    with Up(tmp_path, REPORTING) as node:
        until(lambda: node.pipeline().get("state") == "running")
        assert node.end(signal.SIGKILL) == -signal.SIGKILL
        assert len(pids(tmp_path / "pids")) == 2
        until(lambda: not any(is_alive(pid) for pid in pids(tmp_path / "pids")))


def test_a_pipeline_that_fails_is_shown_with_the_reason(tmp_path: Path) -> None:
    with Up(tmp_path, "import sys; sys.exit('penstock: no such step')") as node:
        until(lambda: node.pipeline().get("state") == "failed")
        found = node.pipeline()
        assert found["error"].startswith("ended with code 1 (penstock: no such step); it starts again in ")
        assert found["pid"] == 0
        until(lambda: node.pipeline()["restarts"] == 1)
        assert node.call("pub", "greetings", "hello", PENSTOCK_TOKEN=TOKEN).code == 0
        assert node.end() == 0


def test_a_pipeline_file_that_cannot_be_used_is_said_once_by_the_real_runner(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("nonsense = 1\n")
    with Node(tmp_path, "--pipeline", "bad.toml") as node:
        until(lambda: "pipeline bad cannot run and is not started again before the node is: " in node.errors())
        assert node.ok("pub", "greetings", "hello").code == 0
        assert node.end() == 0
        assert node.errors().count("cannot run") == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--pipeline", "none.toml"], 'pipeline.file = "none.toml" cannot be read: No such file or directory.'),
        (["--pipeline", "odd.toml"], 'pipeline.file = "odd.toml" is not valid TOML: '),
        (["--pipeline", "default", "--set", "flight.enabled=false"], "pipeline.file needs flight.enabled = true"),
        (["--set", "pipeline.setup='"], "pipeline.setup cannot be read as a command: No closing quotation"),
    ],
)
def test_a_pipeline_that_cannot_be_had_is_one_line_before_anything_starts(
    tmp_path: Path, arguments: list[str], error: str
) -> None:
    (tmp_path / "odd.toml").write_text("[[")
    done = penstock("up", *arguments, cwd=tmp_path)
    assert (done.code, done.error.count("\n")) == (2, 1)
    assert error in done.error


def test_the_default_pipeline_comes_with_its_demo_and_the_banner_says_where_things_are(tmp_path: Path) -> None:
    ports = [f"--set={key}=0" for key in program.PORTS]
    with program.Running("up", "--pipeline", "default", *ports, cwd=tmp_path) as node:
        told = node.line(b"pipeline ").decode()
        assert told.split() == ["pipeline", "default", "starts", "now"]
        assert node.line().strip() == b"log ./penstock-data/pipelines/default.log"
        assert node.line().strip() == b"topic demo.metrics -> topic demo.rollup, tables in ./penstock-data/lake"
        node.line(b"penstock tail demo.metrics")
        until(lambda: (tmp_path / "penstock-data" / "node.json").exists())
        url = json.loads((tmp_path / "penstock-data" / "node.json").read_text())["api"]
        done = penstock("tail", "demo.metrics", "--max", "3", "--url", url, cwd=tmp_path)
        assert done.out.count("\n") == 3
        assert done.out.startswith("shop.")


def test_the_default_pipeline_has_the_topics_that_the_banner_names() -> None:
    content = beside.DEFAULT_FILE.read_text()
    assert beside.DEMO_TOPIC in content
    assert beside.ROLLUP_TOPIC in content


@pytest.mark.parametrize("chosen", ["off", ""])
def test_nothing_runs_beside_a_node_that_was_not_asked_to(chosen: str) -> None:
    assert beside.declared(Config(pipeline=PipelineConfig(file=chosen))) is None


def test_a_pipeline_is_called_as_its_file_says_or_is_called(tmp_path: Path) -> None:
    (tmp_path / "hourly.toml").write_text("")
    (tmp_path / "x.toml").write_text('name = "by/day é"\n')
    plain = beside.declared(Config(pipeline=PipelineConfig(file=str(tmp_path / "hourly.toml"))))
    named = beside.declared(Config(pipeline=PipelineConfig(file=str(tmp_path / "x.toml"))))
    default = beside.declared(Config(pipeline=PipelineConfig(file="default")))
    assert plain is not None
    assert named is not None
    assert default is not None
    assert (plain.name, plain.log) == ("hourly", "./penstock-data/pipelines/hourly.log")
    assert (named.name, named.log) == ("by/day é", "./penstock-data/pipelines/by_day__.log")
    assert (default.name, default.is_default) == ("default", True)


def test_a_pipeline_is_run_by_this_interpreter_with_the_nodes_token(tmp_path: Path) -> None:
    config = Config(data_dir="d", token="hush", pipeline=PipelineConfig(file="default", setup="make 'a b'"))
    pipeline = beside.declared(config)
    assert pipeline is not None
    found: Program = beside.program(config, pipeline)
    run = ["-m", "penstock.cli", "pipeline", "run", str(beside.DEFAULT_FILE), "--data", "d", "--plain"]
    assert found.command == [sys.executable, *run]
    assert found.setup == ["make", "a b"]
    assert found.variables == (("PENSTOCK_TOKEN", "hush"),)


def test_what_is_missing_is_looked_for_anew_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "NEEDED", ("penstock_test_missing",))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert beside.missing() == ["penstock_test_missing"]
    (tmp_path / "penstock_test_missing.py").write_text("")
    assert beside.missing() == []


def test_a_file_that_cannot_be_read_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        beside.name_of(tmp_path)
