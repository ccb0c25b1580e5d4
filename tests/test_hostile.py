"""A short form of the proof that hostile clients cost the others nothing: every attack, on a few connections."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proofs.checks import Checks
from tests.proofs.hostile import prove


def test_hostile_clients_cost_the_others_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checks = Checks()
    prove(tmp_path, 4.0, 60, "128MiB", checks)
    assert checks.failed == 0, capsys.readouterr().out
