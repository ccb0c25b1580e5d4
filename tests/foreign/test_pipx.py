"""What people type who have a wheel and no checkout: `pipx install`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.foreign.drivers import ENVIRONMENT
from tests.proofs.environment import INSTALL_S_MAX, PROJECT, clean, pip


def test_pipx_installs_the_wheel_and_its_commands(tmp_path: Path) -> None:
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(PROJECT))
    (wheel,) = tmp_path.glob("*.whl")
    places = {"PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    # Nobody runs most of what comes with it here.
    variables = clean() | places | {"PIP_NO_COMPILE": "1"}

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(str(ENVIRONMENT / "bin" / "pipx"), "install", str(wheel))
    assert sorted(os.listdir(tmp_path / "bin")) == ["dory", "nsqd", "nsqlookupd", "penstock", "to_dory"]
    assert "penstock 0." in run(str(tmp_path / "bin" / "penstock"), "--version")
    assert "Run a node" in run(str(tmp_path / "bin" / "penstock"), "--help")
