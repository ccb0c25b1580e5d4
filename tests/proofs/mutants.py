"""Proof that the simulation finds bugs: each of the planted ones, within 300 seeds.

A mutant is a patch in `tests/mutants/`. It is applied to a copy of the sources, and the simulation runs on the copy;
the seed that finds the bug must pass without the patch, so that it is the planted bug that was found.

    python -m tests.proofs.mutants [NAME ...]
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.proofs.checks import Checks

PROJECT = Path(__file__).resolve().parents[2]
MUTANTS = PROJECT / "tests" / "mutants"

SEEDS = 300

FOUND = re.compile(r"^seed (\d+) broke a promise \S+ (.*)$", re.MULTILINE)


def main(names: list[str]) -> int:
    """Try every mutant, or those that are named."""
    checks = Checks()
    patches = sorted(MUTANTS.glob("*.patch"))
    chosen = [patch for patch in patches if not names or patch.stem in names]
    checks.check(bool(chosen), f"{len(chosen)} mutants in {MUTANTS.relative_to(PROJECT)}")
    for patch in chosen:
        with tempfile.TemporaryDirectory(prefix="penstock-mutant-") as directory:
            _prove(checks, patch, Path(directory))
    return checks.code()


def _prove(checks: Checks, patch: Path, directory: Path) -> None:
    name = patch.stem
    shutil.copytree(PROJECT / "src", directory / "src", ignore=shutil.ignore_patterns("__pycache__"))
    applied = _run(["git", "apply", "-C1", str(patch)], directory)
    if applied.returncode:
        checks.check(False, f"{name}: the patch does not fit the sources any more", applied.stderr.strip())
        return
    sources = directory / "src"
    run = _simulate(sources, f"1..{SEEDS}")
    found = FOUND.search(run.stdout)
    if found is None:
        checks.check(False, f"{name}: not found within {SEEDS} seeds", *run.stdout.splitlines()[-5:], run.stderr[-500:])
        return
    seed, promise = found.groups()
    clean = _simulate(PROJECT / "src", f"{seed}..{seed}")
    checks.check(clean.returncode == 0, f"{name}: found by seed {seed}, which passes without it ({promise})")


def _simulate(sources: Path, seeds: str) -> subprocess.CompletedProcess[str]:
    """Run seeds on the sources of a directory; the first that fails ends it."""
    where = _run([sys.executable, "-c", "import penstock; print(penstock.__file__)"], PROJECT, sources)
    if not Path(where.stdout.strip()).is_relative_to(sources):
        raise RuntimeError(f"the simulation would run on {where.stdout.strip()}, not on {sources}")
    return _run([sys.executable, "-m", "tests.simulation", "--seeds", seeds], PROJECT, sources)


def _run(command: list[str], directory: Path, sources: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if sources is not None:
        environment["PYTHONPATH"] = str(sources)
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
