from __future__ import annotations

from pathlib import Path

from penstock.log.label import CACHED
from tests.cli.program import Node, inside


def test_a_backup_of_a_running_node_is_restored_with_messages_and_acks(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.ok("pub", "orders", *map(str, range(100)))
        node.ok("sub", "orders", "audit", "--max", "40")
        # The delivery state and the index are written while the node runs; a backup holds what is written.
        node.ok("sub", "orders", "audit", "--max", "1")
        made = node.ok("backup", "copy", "--data", "data", "--json").json
        assert made["rows"] == 100
        node.ok("pub", "orders", "after the backup")
    done = inside("restore", "copy", "--data", "again", cwd=tmp_path)
    assert done.code == 0, done
    assert "100 rows" in done.out
    assert inside("log", "verify", "--data", "again", cwd=tmp_path).code == 0
    with Node(tmp_path, data="again") as node:
        assert node.ok("sub", "orders", "audit").out.split() == [str(number) for number in range(41, 100)]
        node.ok("pub", "orders", "goes on")
        assert node.ok("sub", "orders", "audit").out == "goes on\n"


def test_a_backup_of_a_stopped_node_is_whole(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.ok("pub", "orders", "one")
        assert node.end() == 0
    done = inside("backup", "copy", "--data", "data", cwd=tmp_path)
    assert (done.code, done.out.startswith("1 row, ")) == (0, True)
    inside("restore", "copy", "--data", "again", cwd=tmp_path)
    with Node(tmp_path, data="again") as node:
        assert node.ok("sub", "orders", "audit").out == "one\n"


def test_a_backup_says_which_topics_are_not_in_it(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.ok("pub", "orders", "one")
        assert node.end() == 0
    for number in (1, 2):
        cached = tmp_path / "data" / "shared" / f"{number}.1"
        (cached / "0").mkdir(parents=True)
        (cached / CACHED).touch()
    made = inside("backup", "copy", "--data", "data", cwd=tmp_path)
    assert made.out.startswith("1 row, ")
    assert "2 topics of this node are on Kafka, and not in it" in made.out
    assert inside("backup", "again", "--data", "data", "--json", cwd=tmp_path).json["left_out"] == 2
    inside("restore", "copy", "--data", "back", cwd=tmp_path)
    assert not (tmp_path / "back" / "shared").exists()


def test_what_cannot_be_copied_says_why(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    (tmp_path / "data").mkdir()
    for arguments, text in (
        (["backup", "copy"], "there is no data directory ./penstock-data"),
        (["backup", "full", "--data", "data"], "full is not empty"),
        (["restore", "full", "--data", "again"], "full is no finished Penstock backup"),
        (["restore", "nowhere", "--data", "again"], "nowhere is no finished Penstock backup"),
    ):
        done = inside(*arguments, cwd=tmp_path)
        assert (done.code, done.error.count("\n")) == (2, 1), done
        assert text in done.error
    assert (tmp_path / "full" / "file").read_text() == "mine"
