"""An empty Python environment outside the project, filled only from the locks, for proofs.

Owns how pip is called. Nothing of the environment that runs the proof can be imported there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]

#: Installing may have to fetch a hundred megabytes.
INSTALL_S_MAX = 600.0


class Broken(Exception):
    """A command that should have succeeded did not."""


class Environment:
    """One environment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.python = path / "bin" / "python"
        venv.create(path, symlinks=True, with_pip=False)

    def install(self, *arguments: str) -> None:
        """Let the pip of the proof's own environment install into this one."""
        pip("--python", str(self.python), "install", "--quiet", *arguments)

    def run(self, *command: str, text: str = "") -> str:
        """Run a program of this environment, away from the project, and return what it printed."""
        return run(str(self.path / "bin" / command[0]), *command[1:], directory=self.path, text=text)


def pip(*arguments: str) -> None:
    """Call pip."""
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments)


def run(*command: str, directory: Path | None = None, text: str = "") -> str:
    """Run a command that must succeed, as a shell without our variables would, and return what it printed."""
    answer = subprocess.run(
        command,
        cwd=directory,
        env=clean(),
        input=text,
        capture_output=True,
        text=True,
        timeout=INSTALL_S_MAX,
        check=False,
    )
    if answer.returncode:
        raise Broken(f"{' '.join(command[:6])} ended with {answer.returncode}: {answer.stderr[-2000:].strip()}")
    return answer.stdout


def clean() -> dict[str, str]:
    """Return the environment without what would lead Python or Penstock back to the project."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PENSTOCK", "VIRTUAL"))}


def locked(*names: str) -> str:
    """Return the part of the development lock that pins these packages, hashes included."""
    entries = re.findall(
        r"^(?:\S.*\\\n(?: .*\\\n)*.*\n)", (PROJECT / "requirements/dev.lock").read_text(), re.MULTILINE
    )
    found = [entry for entry in entries if re.split(r"[=\[ ]", entry, maxsplit=1)[0] in names]
    if len(found) < len(names):
        raise Broken(f"requirements/dev.lock does not pin all of {', '.join(names)}")
    return "".join(found)
