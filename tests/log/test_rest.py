"""A shard that ended cleanly rests after a start: nothing of it is written before something of it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import Refusal
from penstock.log.state import StateFile
from tests.fakes import START_NS as EPOCH_NS
from tests.log.disks import FullDisk, InlineDisk
from tests.log.samples import listed, opened, read_all, rows_of

ENTRY = (1, 0, 0, 1, 0)


def files(path: Path) -> dict[str, tuple[int, bytes]]:
    """Return what there is by its name, which file it is and what it holds; an index is made from what it is of."""
    there = [each for each in path.iterdir() if each.suffix != ".index"]
    return {each.name: (each.stat().st_ino, each.read_bytes()) for each in there}


def clean(path: Path) -> bool:
    """Tell whether the shard's state says that nothing is under way."""
    return StateFile(InlineDisk(), str(path)).state.clean


@pytest.mark.parametrize("rows", [0, 3])
def test_nothing_is_written_in_a_life_without_a_change(tmp_path: Path, rows: int) -> None:
    shard = opened(tmp_path)
    wanted = listed(shard.append(rows_of(rows), EPOCH_NS)) if rows else []
    shard.close()
    before = files(tmp_path)
    for _ in range(2):
        shard = opened(tmp_path)
        assert read_all(shard) == wanted
        shard.tick(EPOCH_NS)
        shard.close()
        assert files(tmp_path) == before
    shard = opened(tmp_path)  # killed
    assert files(tmp_path) == before
    assert read_all(opened(tmp_path, InlineDisk("boot-2"))) == wanted


@pytest.mark.parametrize("rows", [0, 3])
def test_first_row_of_a_life_is_written_down_before_it_is_stored(tmp_path: Path, rows: int) -> None:
    shard = opened(tmp_path)
    wanted = listed(shard.append(rows_of(rows), EPOCH_NS)) if rows else []
    shard.close()
    shard = opened(tmp_path)
    assert clean(tmp_path)
    wanted += listed(shard.append(rows_of(2), EPOCH_NS))
    assert not clean(tmp_path)
    again = opened(tmp_path)  # the first was killed
    assert read_all(again) == wanted
    again.close()
    lost = opened(tmp_path, InlineDisk("boot-2"))
    assert lost.append(rows_of(1), EPOCH_NS).first == len(wanted)
    assert opened(tmp_path, InlineDisk("boot-3")).end > 1 << 20  # what else it gave out, nobody knows


def test_versions_of_leases_are_another_lifes_own_only_where_some_were_given(tmp_path: Path) -> None:
    opened(tmp_path).close()
    shard = opened(tmp_path)
    first = shard.last_version
    shard.journal("s1")
    shard.close()
    shard = opened(tmp_path)
    assert shard.last_version == first
    journal, _ = shard.journal("s1")
    journal.append([ENTRY])
    assert not clean(tmp_path)
    assert opened(tmp_path).last_version != first  # it was killed, and receipts are with clients still


def test_lease_is_refused_where_it_cannot_be_written_down_that_the_shard_is_in_use(tmp_path: Path) -> None:
    opened(tmp_path).close()
    disk = FullDisk(room_bytes=0)
    shard = opened(tmp_path, disk)
    journal, _ = shard.journal("s1")
    for change in (lambda: journal.append([ENTRY]), lambda: shard.append(rows_of(1), EPOCH_NS)):
        with pytest.raises(Refusal) as refusal:
            change()
        assert refusal.value.code == "disk_full"
    assert clean(tmp_path)
    disk.room_bytes = None
    journal.append([ENTRY])
    assert len(shard.journal("s1")[1]) == 1
    assert not clean(tmp_path)


def test_shard_that_recovery_changed_does_not_rest(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    shard.append(rows_of(3), EPOCH_NS)
    shard.close()
    (tmp_path / "manifest").unlink()
    shard = opened(tmp_path)
    assert (tmp_path / "manifest").exists()
    assert not clean(tmp_path)
