"""The examples of timelines run as they stand."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import environment

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_reminder_service_runs_in_one_command() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "reminders.py"), "1s second thing", "0s first thing"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.partition(" (")[0] for line in done.stdout.splitlines()] == ["first thing", "second thing"]


def test_a_lost_rack_is_served_by_the_other(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    example = runpy.run_path(str(EXAMPLES / "rack_loss.py"))
    found = example["lose_a_rack"](url, seconds=2.0)
    assert found["delivered"] == found["messages"] == 400
    assert found["early"] == 0
    assert found["gap ms"] < 60_000
