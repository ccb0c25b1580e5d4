"""The pipeline that runs beside a node: which file it is (`pipeline.file`), where it keeps what, how it is run.

Invariant: what is not asked for is neither imported nor started.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import re
import shlex
import socket
import sys
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.runner import Program, Runner, State
from penstock.client.wire import PipelineReport
from penstock.errors import ConfigError, Refusal
from penstock.node.pipelines import NOBODY

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.node.node import Node

OFF = "off"
DEFAULT = "default"
DEFAULT_FILE = Path(__file__).with_name("default-pipeline.toml")

#: What the default pipeline makes of the demo's topic; said here too, so that a person can be shown the way.
DEMO_TOPIC = "demo.metrics"
ROLLUP_TOPIC = "demo.rollup"
TABLES = "lake"

#: A pipeline needs them, a node does not.
NEEDED = ("pyspark", "deltalake")


class Declared(NamedTuple):
    """A pipeline that shall run beside a node."""

    name: str
    file: str
    log: str
    is_default: bool


def declared(config: Config) -> Declared | None:
    """Return the pipeline that a configuration asks for; None for none."""
    chosen = config.pipeline.file
    if chosen in ("", OFF):
        return None
    is_default = chosen == DEFAULT
    file = DEFAULT_FILE if is_default else Path(chosen)
    name = name_of(file)
    log = os.path.join(config.data_dir, "pipelines", re.sub(r"[^\w.-]", "_", name, flags=re.ASCII) + ".log")
    return Declared(name, str(file), log, is_default)


def name_of(file: Path) -> str:
    """Return the name of a pipeline: the one its file gives it, else the file's own."""
    try:
        document = tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(
            f'pipeline.file = "{file}" cannot be read: {error.strerror}. Name a pipeline\'s file, "default" or "off".'
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f'pipeline.file = "{file}" is not valid TOML: {error}') from error
    name = document.get("name")
    return name if isinstance(name, str) and name else file.stem


def missing() -> list[str]:
    """Return what this environment lacks for a pipeline; it may be installed while the node runs."""
    importlib.invalidate_caches()
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def program(config: Config, pipeline: Declared) -> Program:
    """Return how a pipeline is run."""
    command = [sys.executable, "-m", "penstock.cli", "pipeline", "run", pipeline.file]
    return Program(
        name=f"pipeline {pipeline.name}",
        command=[*command, "--data", config.data_dir, "--plain"],
        log=pipeline.log,
        missing=missing,
        setup=shlex.split(config.pipeline.setup),
        remedy="`make pipeline` or pip install 'penstock[spark]' installs that",
        variables=(("PENSTOCK_TOKEN", config.token),) if config.token else (),
    )


class Beside:
    """What runs beside a node: nothing, or a pipeline and what it reads."""

    def __init__(self, config: Config, node: Node, random: Random) -> None:
        self._node = node
        self._pipeline = declared(config)
        self._demo = self._runner = None
        if self._pipeline is not None:
            self._runner = Runner(program(config, self._pipeline), self._tell)
            if self._pipeline.is_default:
                from penstock.cli.demo import Demo

                self._demo = Demo(node, random)

    def start(self) -> None:
        """Begin; the node listens and can be found."""
        if self._demo is not None:
            self._demo.start()
        if self._runner is not None:
            self._runner.start()

    async def stop(self, say: Callable[[str], None]) -> None:
        """End everything while the node still takes what the pipeline has to commit."""
        if self._demo is not None:
            say("  demo")
            self._demo.stop()
        if self._runner is not None and self._pipeline is not None:
            say(f"  pipeline {self._pipeline.name}: it commits the batch it is at")
            await self._runner.stop()

    def _tell(self, state: State, error: str) -> None:
        """Let the node show what the pipeline cannot tell, because it does not run."""
        assert self._pipeline is not None
        name, pipelines = self._pipeline.name, self._node.pipelines
        now_ms = self._node.clock.now() // 1_000_000
        report = PipelineReport(name=name, pid=NOBODY, host=socket.gethostname(), state=state, started_ms=now_ms)
        try:
            if state != "starting":  # of the process that the node has heard last
                with suppress(Refusal):
                    report = pipelines.one(name).report
            pipelines.report(dataclasses.replace(report, state=state, error=error))
        except Refusal as refusal:
            self._node.count_fault("runner", refusal.code, str(refusal), self._pipeline.file)
