"""One process per data directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.disk import LocalDisk
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


@pytest.mark.parametrize("made", [False, True])
def test_name_of_the_directory_is_synced_in_its_parent_whoever_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(LocalDisk, "sync_directory", lambda self, path: synced.append(path))
    data = tmp_path / "data"
    if made:
        data.mkdir()
    Lock(str(data)).release()
    assert str(tmp_path) in synced


def test_directory_in_a_place_that_cannot_be_looked_into_is_taken_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: LocalDisk, path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(LocalDisk, "sync_directory", refuse)
    Lock(str(tmp_path)).release()
