"""A process of a proof that runs Spark: started with a job, watched, and killed with its Java machine.

Owns the process. Knows nothing of what the job is.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.proofs.process import DEADLINE_S, Died

ROOT = Path(__file__).resolve().parents[2]


class Child:
    """A process that does a job."""

    def __init__(self, module: str, job: Any, log: Path) -> None:
        self._log = log
        with log.open("ab") as file:
            self._child = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(dataclasses.asdict(job))],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=variables(),
                # It and its Java machine are killed together, as one.
                start_new_session=True,
            )

    def alive(self) -> None:
        """Raise if it has ended."""
        if self._child.poll() is not None:
            raise Died(f"a process ended with {self._child.returncode}: {self.last_words()}")

    def over(self) -> bool:
        """Return whether it came to its end, which must be a good one."""
        code = self._child.poll()
        if code:
            raise Died(f"a process ended with {code}: {self.last_words()}")
        return code == 0

    def ended(self, patience_s: float) -> None:
        """Wait for its end, which must be a good one."""
        try:
            self._child.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise Died(f"a process did not come to its end within {patience_s:.0f} s: {self.last_words()}") from None
        self.over()

    def kill(self) -> None:
        """Kill it as `kill -9` does, Java and Python."""
        os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait(DEADLINE_S)

    def abandon(self) -> None:
        """Leave nothing running, whatever went wrong."""
        if self._child.poll() is None:
            self.kill()

    def last_words(self) -> str:
        """Return the end of what it printed."""
        return self._log.read_text(errors="replace")[-3000:].strip()


def variables() -> dict[str, str]:
    """Return the environment of Spark's processes, in which workers find this project."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
