"""The planted bugs fit the sources; that the simulation finds them is for `make prove-mutants`, which takes longer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
PATCHES = sorted((PROJECT / "tests" / "mutants").glob("*.patch"))


def test_there_are_some() -> None:
    assert PATCHES


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_planted_bug_fits_the_sources(patch: Path) -> None:
    done = subprocess.run(
        ["git", "apply", "--check", "-C1", str(patch)], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
