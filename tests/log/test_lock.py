"""One process per data directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.log.lock import Lock


def test_second_process_is_told_who_has_the_directory(tmp_path: Path) -> None:
    lock = Lock(str(tmp_path))
    code = (
        "import sys\n"
        "from penstock.errors import ConfigError\n"
        "from penstock.log.lock import Lock\n"
        "try:\n"
        "    Lock(sys.argv[1])\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, env=environment, check=True
    )
    assert str(tmp_path) in ran.stdout
    assert f"pid {os.getpid()}" in ran.stdout
    assert "Stop it" in ran.stdout
    lock.release()


def test_released_directory_can_be_locked_again(tmp_path: Path) -> None:
    lock = Lock(str(tmp_path / "data"))
    with pytest.raises(ConfigError):
        Lock(str(tmp_path / "data"))
    lock.release()
    lock.release()
    Lock(str(tmp_path / "data")).release()
