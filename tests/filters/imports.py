"""Which modules a filter brings with it: Spark executors load filters without a node."""

from __future__ import annotations

import subprocess
import sys


def loaded_by(module: str) -> list[str]:
    """Return the modules of ours that a fresh interpreter has after importing one."""
    script = f"import sys, {module}; print(*sorted(m for m in sys.modules if m.split('.')[0] == 'penstock'))"
    out = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    return out.stdout.split()
