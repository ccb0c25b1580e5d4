"""The example in the docs runs as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cli.program import environment

EXAMPLE = Path(__file__).parents[2] / "examples" / "sdk.py"


def test_example_of_the_sdk_runs(url: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), url], capture_output=True, text=True, timeout=60, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "a shirt (key b'customer 7', headers {'lang': 'fr'})",
        "a hat, later (key None, headers {})",
        "1000 clicks",
    ]
