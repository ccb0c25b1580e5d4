"""What README and docs show of Spark runs from the page itself: one node, one session, a few rows.

Paths and addresses are swapped for those of the node, because Java, which was there before, has a directory of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock import pipeline
from penstock.pipeline.run import runner
from tests.cli.program import SECONDS_MAX, Done, environment, inside
from tests.flight.parts import Flown
from tests.pages.blocks import WITH_SPARK, Block, Command, blocks, commands, is_pipeline

#: A toml fence with a name is a file that commands below it speak of.
ALL = [block for block in blocks() if block.excuse == WITH_SPARK or re.match(r"# \S+\.toml\n", block.text)]
DEFAULT = Path(__file__).parents[2] / "src/penstock/cli/default-pipeline.toml"
#: How far back the messages begin: windows of a minute are closed, and the last two minutes have some.
AGO_S = 100


class Reader:
    """A reader at a terminal and at a Python prompt, which knows what the page said above."""

    def __init__(self, spark: SparkSession, node: Flown, directory: Path) -> None:
        self.spark, self.node, self.directory = spark, node, directory
        self.prompts: dict[str, dict[str, Any]] = {}
        programs = directory / "bin"
        programs.mkdir()
        penstock = programs / "penstock"
        penstock.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock.cli "$@"\n')
        penstock.chmod(0o755)
        self.variables = {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PENSTOCK_URL": f"http://127.0.0.1:{node.api.port}",
            "PENSTOCK_DATA_DIR": str(node.path),
        }

    def here(self, text: str) -> str:
        """Return a text of a page with the node's address, paths that Java finds, too, and times of today."""
        text = text.replace("grpc://host:7071", f"grpc://127.0.0.1:{self.node.flight.port}")
        for hour, time_s in ((8, time.time() - 3600), (20, time.time() + 3600)):
            text = text.replace(f"datetime(2026, 1, 31, {hour})", f"datetime{time.gmtime(time_s)[:6]}")
        return re.sub(r'"(penstock-data|[a-z]+-checkpoint|counts)(?=["/])', rf'"{self.directory}/\1', text)

    def python(self, block: Block) -> None:
        """Run a snippet after those above it, and what it started until there is nothing more to do."""
        exec(compile(self.here(block.text), str(block), "exec"), self.prompts.setdefault(block.page, {}))
        for query in self.spark.streams.active:
            query.processAllAvailable()
            query.stop()

    def console(self, block: Block) -> None:
        """Run the commands of a fence; something came in meanwhile."""
        self.node.publish("demo.metrics", "login:1|c")
        left = commands(block)
        while left:
            command = left.pop(0)
            words = shlex.split(command.text, comments=True)
            if words[:3] == ["penstock", "pipeline", "run"] or "--follow" in words:
                self._until_stopped(words, [left.pop(0) for _ in range(_beside(left))])
            elif words[1] == "tail":
                assert self._begun(command.text), f"{block}: {command.text} printed nothing"
            elif words[1] == "pipeline":
                done = self.inside(*words[1:])
                assert done.code == 0, f"{block}: {command.text}: {done.error}"
            else:
                self.bash(command.text)

    def inside(self, *words: str) -> Done:
        """Run a command in this process, which has Spark."""
        return inside(*words, cwd=self.directory, stdin=b"", **self.variables)

    def bash(self, text: str) -> str:
        """Run a command as it stands there."""
        done = subprocess.run(
            ["bash", "-c", text],
            capture_output=True,
            text=True,
            cwd=self.directory,
            env=environment(**self.variables),
            timeout=SECONDS_MAX,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{text}: {done.stderr}"
        return done.stdout

    def _begun(self, text: str) -> bytes:
        with subprocess.Popen(
            ["timeout", str(SECONDS_MAX), "bash", "-c", f"exec {text}"],
            stdout=subprocess.PIPE,
            cwd=self.directory,
            env=environment(**self.variables),
        ) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.terminate()
        return line

    def _until_stopped(self, words: list[str], beside: list[Command]) -> None:
        """Run a pipeline; once it has done a batch, run what the page says of another terminal, or stop it."""
        failed: list[BaseException] = []

        def other_terminal() -> None:
            try:
                self._wait_for_a_batch()
                for command in beside:
                    self.bash(command.text)
                if beside:
                    return
            except BaseException as error:
                failed.append(error)
            os.kill(os.getpid(), signal.SIGTERM)

        terminal = threading.Thread(target=other_terminal)
        terminal.start()
        done = self.inside(*words[1:])
        terminal.join()
        assert not failed, (failed, done)
        assert done.code == 0, done

    def _wait_for_a_batch(self) -> None:
        """Wait until all queries of the pipeline have done a batch."""
        end = time.monotonic() + SECONDS_MAX
        while time.monotonic() < end:
            for path in self.node.path.glob("pipelines/*/status.json"):
                with contextlib.suppress(ValueError, OSError):
                    told = json.loads(path.read_bytes())
                    if told["state"] == "running" and all(query["batch"] >= 0 for query in told["queries"]):
                        return
            time.sleep(0.05)
        raise AssertionError("no pipeline ran")


def _beside(left: list[Command]) -> int:
    """Return how many commands are for another terminal, while the one before them runs."""
    words = [shlex.split(command.text, comments=True) for command in left]
    stop = [number for number, each in enumerate(words, 1) if each[:3] == ["penstock", "pipeline", "stop"]]
    return stop[0] if stop else 0


@pytest.fixture(scope="module")
def reader(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    directory = tmp_path_factory.mktemp("pages")
    before = {name: spark.conf.get(name) for name in ("spark.sql.shuffle.partitions",)}
    with Flown(directory / "penstock-data", ahead_s=-AGO_S) as node, pytest.MonkeyPatch.context() as patch:
        _announced(node)
        patch.chdir(directory)

        def session(*_: object, **__: object) -> SparkSession:
            return spark

        for module in (pipeline, runner, sys.modules["penstock.pipeline.session"]):
            patch.setattr(module, "session", session)
        made = Reader(spark, node, directory)
        _publish(node)
        yield made
    for name, value in before.items():
        assert value is not None
        spark.conf.set(name, value)


def _announced(node: Flown) -> None:
    """Write what readers of the directory find the node by; it is a part of the program, not of the node."""
    places = {"pid": os.getpid(), "flight": f"grpc://127.0.0.1:{node.flight.port}"}
    (node.path / "node.json").write_text(json.dumps(places))


def _publish(node: Flown) -> None:
    """Publish what the pages speak of, over a while."""
    node.publish("greetings", "hello", "bonjour")
    for _ in range(4):
        for topic in ("demo.metrics", "metrics"):
            node.publish(topic, "login:1|c\ntook:320|ms", traffic=5)
        for topic in ("orders", "clicks"):
            node.publish(topic, '{"total":12}', key="a", tag="eu", headers={"source": "shop"})
        node.advance(AGO_S / 4)


@pytest.mark.parametrize("block", [pytest.param(block, id=str(block)) for block in ALL])
def test_what_a_page_shows_of_spark_runs(reader: Reader, block: Block) -> None:
    """In the order of the pages: a reader who goes through one has done what stands above."""
    if block.language == "toml":
        name = block.text.split()[1]
        (reader.directory / name).write_text(block.text)
        return
    if "penstock pipeline status default" in block.text:
        assert reader.inside("pipeline", "run", str(DEFAULT), "--once").code == 0
    run: Callable[[Block], None] = reader.python if block.language == "python" else reader.console
    run(block)


@pytest.mark.parametrize("block", [pytest.param(block, id=str(block)) for block in blocks() if is_pipeline(block)])
def test_a_pipeline_of_a_page_is_one_that_would_run(block: Block, tmp_path: Path) -> None:
    """What a page leaves out of one, where it shows a step alone, is put around it."""
    found = tomllib.loads(block.text)
    steps, sinks = found.get("steps", {}), found.get("sinks", {})
    taken = {each["from"] for each in (*steps.values(), *sinks.values())}
    sources = {name: {"topic": name} for name in taken - set(steps)} | found.get("sources", {})
    more = [f'[sources.{name}]\ntopic = "{name}"' for name in set(sources) - set(found.get("sources", {}))]
    more += [f'[sinks.of-{name}]\nfrom = "{name}"\ntopic = "of-{name}"' for name in set(steps) - taken]
    file = tmp_path / "page.toml"
    file.write_text("\n".join([block.text, *more]))
    with Flown(tmp_path / "penstock-data") as node:
        for source in sources.values():
            node.publish(source["topic"], "login:1|c")
        _announced(node)
        done = inside("pipeline", "check", file, cwd=tmp_path)
    assert done.code == 0, done.error


def test_a_replay_of_the_readme_that_runs_twice_adds_nothing_twice(reader: Reader) -> None:
    said = [command for block in ALL if block.language == "console" for command in commands(block)]
    (command,) = [command for command in said if "nothing is added twice" in command.text]
    words = shlex.split(command.text, comments=True)
    topic = words[words.index("--to") + 1]
    found = []
    for _ in range(2):
        reader.node.publish("demo.metrics", "login:1|c")
        assert reader.inside(*words[1:]).code == 0
        found.append(reader.node.bodies(topic))
    assert found[0]
    assert found[0] == found[1]
