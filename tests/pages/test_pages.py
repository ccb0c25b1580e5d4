"""Every command and snippet of README and docs runs, from the page itself; what cannot run here is looked at."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from penstock.cli.app import app
from penstock.cli.table import load
from penstock.relays.m3msg.topology import read as read_topology
from tests.cli.program import SECONDS_MAX, Node, environment
from tests.pages.blocks import PAGES, ROOT, Block, Command, blocks, commands, is_pipeline

ALL = blocks()

DEFAULTS = {
    "flight.port": 7071,
    "api.port": 7070,
    "nsq.http_port": 4151,
    "nsq.tcp_port": 4150,
    "dynamiq.port": 8081,
    "timeline.port": 9000,
}
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


class Tour:
    """A reader at a terminal: one node on free ports, which looks like the one the pages speak of."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.node = Node(directory, data="penstock-data")
        programs = directory / "bin"
        programs.mkdir()
        penstock = programs / "penstock"
        penstock.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock.cli "$@"\n')
        penstock.chmod(0o755)
        self.variables = environment(
            PATH=f"{programs}{os.pathsep}{os.environ['PATH']}", PENSTOCK_URL=self.node.url, PYTHONUNBUFFERED="1"
        )

    def here(self, text: str) -> str:
        """Return a text of a page with the ports of this node."""
        for key, default in DEFAULTS.items():
            text = re.sub(rf"(127\.0\.0\.1|localhost):{default}\b", f"127.0.0.1:{self.node.port(key)}", text)
        return text.replace("Client()", f'Client("grpc://127.0.0.1:{self.node.port("flight.port")}")')

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run something to its end."""
        return subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            cwd=self.directory,
            env=self.variables,
            timeout=SECONDS_MAX,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def begun(self, command: str) -> str:
        """Run what goes on for ever until it has printed a line, and return that."""
        with subprocess.Popen(
            ["timeout", str(SECONDS_MAX), "bash", "-c", f"exec {command}"],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=self.directory,
            env=self.variables,
        ) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.terminate()
        return line


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tour]:
    tour = Tour(tmp_path_factory.mktemp("tour"))
    with tour.node:
        yield tour


def of(*languages: str) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in ALL if block.language in languages]


@pytest.mark.parametrize("block", of("console", "python"))
def test_what_a_page_shows_runs(tour: Tour, block: Block) -> None:
    """In the order of the pages: a reader who goes through one has done what stands above."""
    if block.language == "python":
        compile(block.text, str(block), "exec")
    if block.excuse:
        return
    if block.language == "python":
        done = tour.run(sys.executable, "-c", tour.here(block.text))
        assert done.returncode == 0, f"{block}: {done.stderr}"
        return
    for command in commands(block):
        if is_endless(command):
            assert tour.begun(tour.here(command.text)), f"{block}: {command.text} printed nothing"
            continue
        done = tour.run("bash", "-c", tour.here(command.text))
        assert done.returncode == 0, f"{block}: {command.text}: {done.stderr}"
        if command.prints:
            assert done.stdout.splitlines() == command.prints, f"{block}: {command.text}"


def is_endless(command: Command) -> bool:
    words = shlex.split(command.text, comments=True)
    return words[:2] in (["penstock", "tail"], ["penstock", "top"]) and not {"--max", "--no-follow"} & set(words)


@pytest.mark.parametrize("block", of("console"))
def test_what_never_ends_stands_last_or_says_what_ends_it(block: Block) -> None:
    for command in commands(block)[:-1]:
        assert "Ctrl-C" in command.text or not is_endless(command), f"{block}: {command.text}"


@pytest.mark.parametrize("block", of("json"))
def test_documents_of_a_page_can_be_read(block: Block) -> None:
    left = block.text.strip()
    while left:  # several documents may follow each other
        _, end = json.JSONDecoder().raw_decode(left)
        left = left[end:].strip()


@pytest.mark.parametrize("block", [each for each in of("toml") if not is_pipeline(each.values[0])])
def test_a_configuration_of_a_page_is_one_that_a_node_would_start_with(block: Block, tmp_path: Path) -> None:
    """Those of pipelines are checked where Spark is: tests/pipeline/test_pages.py."""

    def here(found: re.Match[str]) -> str:
        """Return a file of the reader's own, for a path in a page."""
        path = tmp_path / found[1]
        path.touch(mode=0o600)
        path.write_text("0123456789abcdef" * 4)
        return f'"{path}"'

    file = tmp_path / "page.toml"
    file.write_text(re.sub(r'"/etc/penstock/([a-z.-]+)"', here, block.text))
    if "placements" in tomllib.loads(block.text):
        topology = read_topology(os.fspath(file))
        assert topology.topics, block
        assert topology.placements, block
    else:
        load(os.fspath(file), {}, {})


@pytest.mark.parametrize("block", [each for each in of("python") if each.values[0].excuse.startswith("part of ")])
def test_a_snippet_that_is_part_of_a_file_is_that_part(block: Block) -> None:
    name = block.excuse.removeprefix("part of ").partition(",")[0]

    def plain(text: str) -> str:
        return "\n".join(line.strip() for line in text.splitlines() if line.strip())

    assert plain(block.text) in plain((ROOT / name).read_text()), f"{block}: {name} says something else"


def test_commands_stand_in_fences_that_are_run() -> None:
    for block in ALL:
        known = ("", "console", "sh", "python", "json", "toml")
        assert block.language in known, f"{block}: nobody looks at {block.language}"
        if block.language == "sh":
            assert block.excuse, f"{block}: write a console fence, or say above it why it is not run"
        if block.language == "":
            for line in block.text.splitlines():
                assert not line.startswith("penstock "), f"{block}: write it as $ {line} in a console fence"


def test_files_that_a_page_names_are_there() -> None:
    folders = ("src", "tests", "bench", "examples", "scripts", "deploy")
    there = [f"/{path.relative_to(ROOT).as_posix()}" for folder in folders for path in (ROOT / folder).rglob("*.py")]
    for page in PAGES:
        for name in re.findall(r"`([a-z_0-9/]+\.py)`", page.read_text()):
            assert any(path.endswith(f"/{name}") for path in there), f"{page.name} names {name}"


def said(page: Path) -> Iterator[str]:
    """Yield the commands a page names, in its text and in its fences."""
    text = page.read_text()
    yield from re.findall(r"`((?:penstock|make) [^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    for block in ALL:
        if ROOT / block.page == page and block.language == "console":
            for command in commands(block):
                yield from re.split(r"\s*(?:;|&&|\|)\s*", command.text)
        elif ROOT / block.page == page and block.language == "sh":
            yield from block.text.splitlines()
        elif ROOT / block.page == page and block.language == "":
            yield from (line for line in block.text.splitlines() if line.startswith("make "))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_and_options_that_a_page_names_are_there(page: Path) -> None:
    program = typer.main.get_command(app)
    for command in said(page):
        words = shlex.split(command, comments=True)
        if words and words[0] == "make":
            targets = [word for word in words[1:] if re.fullmatch("[a-z][a-z-]*", word)]
            assert set(targets) <= MAKE_TARGETS, f"{page}: {command}"
        if not words or words[0] != "penstock":
            continue
        at: Any = program
        for word in words[1:]:
            choices = [choice for choice in word.split("|") if choice in getattr(at, "commands", {})]
            if choices:
                at = at.commands[choices[0]]
            elif word == "--help":
                continue
            elif word.startswith("-"):
                known = {option for parameter in at.params for option in (*parameter.opts, *parameter.secondary_opts)}
                assert word.partition("=")[0] in known, f"{page}: `{command}`: {word} is no option"
            elif getattr(at, "commands", None):
                raise AssertionError(f"{page}: `{command}`: there is no {word}")
