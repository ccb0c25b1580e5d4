"""The page of settings that people read."""

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def test_the_page_of_settings_says_what_the_tree_says() -> None:
    command = [sys.executable, "scripts/configuration"]
    made = subprocess.check_output(command, cwd=PROJECT, env={"PYTHONPATH": str(PROJECT / "src")}, text=True)
    assert made == (PROJECT / "docs/configuration.md").read_text(), "`make docs` writes it again"
