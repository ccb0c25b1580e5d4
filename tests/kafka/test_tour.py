"""README's two minutes to Kafka, from the page itself: from `to_dory` to a record that kcat reads."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.cli.program import SECONDS_MAX, Node, environment
from tests.kafka.brokers import Brokers
from tests.pages.blocks import blocks, commands


def test_readme_goes_from_to_dory_to_a_record_that_kcat_reads(
    one: Brokers, name: Callable[[str], str], tmp_path: Path
) -> None:
    shown = [block for block in blocks() if block.page == "README.md"]
    tour = next(block for block in shown if "to_dory" in block.text)
    settings = next(block for block in shown if "unix_datagram_path" in block.text)
    with tempfile.TemporaryDirectory(prefix="dory-") as directory:
        place = {"/tmp/dory.socket": f"{directory}/dory.socket", "127.0.0.1:9092": one.addresses}
        place["greetings"] = one.create(name("greetings"), 1)
        (tmp_path / "penstock.toml").write_text(_put(settings.text, place))
        with Node(tmp_path, "--config=penstock.toml", "--set=dory.http_port=0") as node:
            place["http://127.0.0.1:9091"] = f"http://127.0.0.1:{node.port('dory.http_port')}"
            up, *rest = commands(tour)
            assert up.text == "penstock up &"
            told = {command.text.split()[0]: (_ran(_put(command.text, place), tmp_path), command) for command in rest}
    assert told["kcat"][0].splitlines() == told["kcat"][1].prints == ["hello"]
    assert "bad topic msg count: 0" in told["curl"][0]


def _put(text: str, place: dict[str, str]) -> str:
    for there, here in place.items():
        text = text.replace(there, here)
    return text


def _ran(command: str, cwd: Path) -> str:
    words = shlex.split(command)
    if words[0] == "to_dory":
        words[:1] = [sys.executable, "-c", _ENTRY]
    done = subprocess.run(
        words, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, (command, done)
    return done.stdout


def _entry() -> str:
    """Return what runs the command that the package installs under this name."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    found = re.search(r'^to_dory = "([\w.]+):(\w+)"$', text, re.MULTILINE)
    assert found is not None
    return f"import sys; from {found[1]} import {found[2]}; sys.exit({found[2]}())"


_ENTRY = _entry()
