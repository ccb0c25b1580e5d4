from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock.disk import LocalDisk


def test_directory_into_which_a_thread_still_writes_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "shard"
    directory.mkdir()
    (directory / "segment").write_bytes(b"x")
    rmdir, late = os.rmdir, ["manifest.new", "manifest"]

    def rmdir_too_late(path: str) -> None:
        if late:
            (directory / late.pop()).write_bytes(b"y")
        rmdir(path)

    monkeypatch.setattr(os, "rmdir", rmdir_too_late)
    LocalDisk().remove(str(directory))
    assert not directory.exists()
    assert not late


def test_directory_that_is_never_empty_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(path: str) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty", path)

    monkeypatch.setattr(os, "rmdir", never)
    with pytest.raises(OSError, match="not empty"):
        LocalDisk().remove(str(tmp_path))


def test_what_is_gone_already_is_removed_without_a_word(tmp_path: Path) -> None:
    LocalDisk().remove(str(tmp_path / "nothing"))
