"""A topic's directory says whose it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.disk import LocalDisk
from penstock.errors import CorruptionError
from penstock.log.label import Label, labels, write


def label(name: str, number: int) -> Label:
    return Label(name=name, incarnation=7, number=number, shards=2, durability="os")


def test_labels_are_found_by_those_who_have_only_the_files(tmp_path: Path) -> None:
    for name, number in (("b", 1), ("a", 2)):
        (tmp_path / "topics" / str(number)).mkdir(parents=True)
        write(LocalDisk(), str(tmp_path / "topics" / str(number)), label(name, number))
    (tmp_path / "topics" / "3").mkdir()  # being made
    assert [(Path(where).name, found) for where, found in labels(str(tmp_path))] == [
        ("2", label("a", 2)),
        ("1", label("b", 1)),
    ]


def test_label_that_is_right_is_not_written_again(tmp_path: Path) -> None:
    write(LocalDisk(), str(tmp_path), label("a", 1))
    before = (tmp_path / "topic.json").stat().st_ino
    write(LocalDisk(), str(tmp_path), label("a", 1))
    assert (tmp_path / "topic.json").stat().st_ino == before
    write(LocalDisk(), str(tmp_path), label("c", 1))
    assert (tmp_path / "topic.json").stat().st_ino != before


def test_directory_without_topics_is_no_data_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is no data directory"):
        labels(str(tmp_path))


def test_damaged_label_is_named(tmp_path: Path) -> None:
    (tmp_path / "topics" / "1").mkdir(parents=True)
    (tmp_path / "topics" / "1" / "topic.json").write_bytes(b"{")
    with pytest.raises(CorruptionError, match="is not a label"):
        labels(str(tmp_path))
