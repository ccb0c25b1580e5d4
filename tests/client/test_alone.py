"""The SDK imports where nothing of the server is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys

class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"cramjam", "fastcrc", "httptools", "mmh3", "msgspec", "rich",
                                      "typer", "uvloop", "polars", "pandas"}:
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Wall())
from penstock.client import AsyncClient, AsyncTimeline, Client, Timeline
print(sorted({name.partition(".")[0] for name in sys.modules} & {"penstock", "pyarrow", "numpy", "msgspec"}))
"""


def test_client_needs_pyarrow_and_numpy_only() -> None:
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env={"PYTHONPATH": str(source)}, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['numpy', 'penstock', 'pyarrow']"
