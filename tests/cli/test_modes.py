"""What a node writes is for its user alone, whatever the umask; for its group where that is said."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli import doctor
from penstock.cli.banner import AS_ROOT
from penstock.cli.runner import append
from penstock.pipeline.jobs.replay.plan import Book, Done
from penstock.pipeline.run.home import Home
from tests.cli.program import Node, inside


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    """Take nothing away from the modes that programs ask for."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(place: Path) -> dict[str, str]:
    """Return the modes of everything below, and of the place itself."""
    found = {".": f"{place.stat().st_mode & 0o777:o}"}
    return found | {str(path.relative_to(place)): f"{path.stat().st_mode & 0o777:o}" for path in place.rglob("*")}


def used(path: Path, *options: str) -> dict[str, str]:
    """Return the modes in the data directory of a node that was used; it still runs."""
    with Node(path, *options) as node:
        node.ok("topic", "create", "kept", "--durability", "fsync")
        node.ok("pub", "kept", "one", "two")
        node.ok("sub", "kept", "first", "--max", "1")
        found = modes(path / "data")
        node.ok("backup", path / "saved", "--data", path / "data")
    return found


def test_files_are_for_the_user_alone_and_so_are_backups(tmp_path: Path) -> None:
    found = used(tmp_path)
    assert {"lock", "node.json", "topics", "staging"} < set(found)
    assert {name: mode for name, mode in found.items() if mode not in ("600", "700")} == {}
    assert {name: mode for name, mode in modes(tmp_path / "saved").items() if mode not in ("600", "700")} == {}
    assert inside("restore", tmp_path / "saved", "--data", tmp_path / "again", cwd=tmp_path).code == 0
    assert {name: mode for name, mode in modes(tmp_path / "again").items() if mode not in ("600", "700")} == {}


def test_files_are_for_the_group_where_that_is_said(tmp_path: Path) -> None:
    found = used(tmp_path, "--set=data_mode=group")
    assert found.pop("lock") == "600"
    assert {name: mode for name, mode in found.items() if mode not in ("640", "750")} == {}


def test_homes_and_logs_of_pipelines_are_for_the_user_alone(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "pipelines" / "default"), "default")
    with home.owned():
        home.identity("query", [])
    append(str(tmp_path / "pipelines" / "default.log"), b"line")
    with Book(str(tmp_path / "pipelines"), "r").held():
        Book(str(tmp_path / "pipelines"), "r").note(Done())
    found = modes(tmp_path / "pipelines")
    assert len(found) == 8
    assert {name: mode for name, mode in found.items() if mode not in ("600", "700")} == {}


@pytest.mark.parametrize(
    ("mode", "group", "verdict", "todo"),
    [
        (0o700, False, "OK", ""),
        (0o750, False, "WARN", "chmod -R go-rwx"),
        (0o755, False, "WARN", "chmod -R go-rwx"),
        (0o750, True, "OK", ""),
        (0o755, True, "WARN", "chmod -R o-rwx"),
    ],
)
def test_doctor_tells_of_a_directory_that_others_get_into(
    tmp_path: Path, mode: int, group: bool, verdict: str, todo: str
) -> None:
    tmp_path.chmod(mode)
    finding = doctor.readers(str(tmp_path), group)
    assert finding.verdict == verdict
    assert finding.todo.startswith(todo)
    assert f"{mode:04o}" in finding.found


@pytest.mark.parametrize("number", [0, 1000])
def test_doctor_warns_of_root(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: number)
    assert doctor.user().verdict == ("WARN" if number == 0 else "OK")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a node as root")
def test_node_that_runs_as_root_says_so(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        assert AS_ROOT in node.errors()
