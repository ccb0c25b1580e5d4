"""A backup is taken beside the running node and comes back whole, without giving out an offset twice."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.log import backup as backup_module
from penstock.log.backup import backup, restore
from penstock.log.reader import ReadOnlyDisk
from penstock.log.rewrite import KEPT_NS
from penstock.log.segment import Segment
from penstock.log.state import RESERVED_BLOCK
from penstock.log.verify import verify
from tests.fakes import START_NS, FakeClock
from tests.log.disks import InlineDisk
from tests.log.samples import Row, listed, opened, read_all, rows_of


def running(data: Path) -> list[Row]:
    """Leave a data directory as a running node has it: one shard with sealed, closed and open segments."""
    (data / "registry").mkdir(parents=True)
    (data / "registry" / "log").write_bytes(b"names")
    (data / "lock").write_text("1")
    shard = opened(data / "topics/7/0")
    wanted = [row for seed in range(30) for row in listed(shard.append(rows_of(9, seed=seed), START_NS + seed))]
    shard.roll()
    shard.tick(START_NS)
    wanted += listed(shard.append(rows_of(2000), START_NS))
    shard.roll()
    wanted += listed(shard.append(rows_of(6, names=("due",)), START_NS))
    shard.journal("channel")[0].append([(1, 2, 3, 4, 5)])
    shard.tick(START_NS)
    shard.append(rows_of(3, names=("due",)), START_NS)  # not indexed yet: the next backup has it
    return wanted


def test_restored_directory_has_the_rows_the_journals_and_the_names(tmp_path: Path) -> None:
    data, target, again = tmp_path / "data", tmp_path / "backup", tmp_path / "again"
    wanted = running(data)
    made = backup(str(data), str(target))
    assert (made.shards, made.rows) == (1, len(wanted))
    assert verify(str(target)).good
    assert restore(str(target), str(again)) == made
    report = verify(str(again))
    assert report.good
    assert report.rows == len(wanted)
    assert (again / "registry" / "log").read_bytes() == b"names"
    assert not (again / "lock").exists()
    shard = opened(again / "topics/7/0")
    assert (shard.damaged, shard.cut_bytes) == ([], 0)
    assert read_all(shard) == wanted
    assert shard.journal("channel")[1].tolist() == [[1, 2, 3, 4, 5]]


def test_restored_shard_gives_out_no_offset_again(tmp_path: Path) -> None:
    data, target, again = tmp_path / "data", tmp_path / "backup", tmp_path / "again"
    running(data)
    backup(str(data), str(target))
    restore(str(target), str(again))
    shard = opened(again / "topics/7/0", InlineDisk())  # the same boot of the same machine
    assert shard.append(rows_of(1), START_NS).first == RESERVED_BLOCK


def test_torn_journal_and_half_written_batch_stay_behind(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "backup"
    wanted = running(data)
    (journal,) = (data / "topics/7/0").glob("*.journal")
    journal.write_bytes(journal.read_bytes() + b"torn")
    segment = sorted((data / "topics/7/0").glob("*.arrows"))[-1]
    segment.write_bytes(segment.read_bytes() + b"\xff\xff")
    backup(str(data), str(target))
    report = verify(str(target))
    assert report.good
    assert report.rows == len(wanted)
    assert [found.tail_bytes for found in report.shards[0].journals] == [0]
    assert [found.tail_bytes for found in report.shards[0].segments] == [0, 0, 0]


def test_backup_of_a_clean_and_of_an_empty_shard(tmp_path: Path) -> None:
    shard = opened(tmp_path / "data/topics/1/0")
    wanted = listed(shard.append(rows_of(5), START_NS))
    shard.close()
    opened(tmp_path / "data/topics/2/0").close()
    opened(tmp_path / "data/topics/3/0", durability="memory").close()
    backup(str(tmp_path / "data"), str(tmp_path / "backup"))
    restore(str(tmp_path / "backup"), str(tmp_path / "again"))
    assert verify(str(tmp_path / "again")).good
    assert read_all(opened(tmp_path / "again/topics/1/0")) == wanted
    assert opened(tmp_path / "again/topics/2/0").end == RESERVED_BLOCK
    assert opened(tmp_path / "again/topics/3/0", durability="memory").end == RESERVED_BLOCK


def test_backup_beside_a_busy_writer_is_whole_every_time(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = opened(tmp_path / "data/topics/1/0", clock=clock, segment_bytes=20_000, retention_bytes=50_000)
    journal, _ = shard.journal("channel")
    stop = threading.Event()
    failure: list[BaseException] = []

    def write() -> None:
        try:
            number = 0
            while not stop.is_set():
                shard.append(rows_of(1 + number % 30, seed=number), clock.now())
                journal.append([(1, number, number, 0, 0)])
                if number % 3 == 0:
                    shard.tick(clock.now())
                if number % 50 == 0:
                    shard.retain(max(0, shard.end - 1000), clock.now())
                    journal.compact(np.array([(2, number, number, 0, 0)]))
                    clock.advance(30_000_000_000)
                number += 1
        except BaseException as error:
            failure.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            target = tmp_path / f"backup-{number}"
            made = backup(str(tmp_path / "data"), str(target))
            report = verify(str(target))
            assert report.good, report
            assert report.rows == made.rows
            restored = opened(target / "topics/1/0")
            rows = [row[0] for row in read_all(restored)]
            assert len(rows) == made.rows
            assert rows == list(range(rows[0], rows[0] + len(rows))) if rows else True
    finally:
        stop.set()
        writer.join()
    assert not failure


def offsets_in(data: Path, target: Path) -> list[int]:
    """Return the offsets that a backup has, taken now."""
    made = backup(str(data), str(target))
    rows = [row[0] for row in read_all(opened(target / "topics/1/0"))]
    assert len(rows) == made.rows
    return rows


def test_backup_that_meets_a_segment_being_begun_has_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = opened(tmp_path / "data/topics/1/0", segment_bytes=2_000)
    shard.append(rows_of(3), START_NS)
    shard.tick(START_NS)
    shard.append(rows_of(60), START_NS)  # not indexed yet, and more than a segment holds

    class BeforeTheRollError(Exception):
        pass

    def interrupted(*chosen: Any, **named: Any) -> Segment:
        create(*chosen, **named)
        raise BeforeTheRollError

    create = Segment.create
    with monkeypatch.context() as patch:
        patch.setattr(Segment, "create", interrupted)
        with pytest.raises(BeforeTheRollError):
            shard.append(rows_of(5), START_NS)
    assert len(list((tmp_path / "data/topics/1/0").glob("*.arrows"))) == 2
    copied: list[int] = []
    growing = backup_module._growing

    def between(segment: Segment, target: str) -> tuple[int, int]:
        found = growing(segment, target)
        if not copied:  # the writer goes on after the first of the two was copied
            shard.append(rows_of(5), START_NS)
            shard.tick(START_NS)
        copied.append(segment.first)
        return found

    monkeypatch.setattr(backup_module, "_growing", between)
    rows = offsets_in(tmp_path / "data", tmp_path / "backup")
    assert rows == list(range(len(rows)))
    assert len(copied) == 2
    monkeypatch.undo()
    assert offsets_in(tmp_path / "data", tmp_path / "another") == list(range(68))


@pytest.mark.parametrize("listed_first", [False, True], ids=["before the listing", "after the listing"])
def test_backup_that_the_retention_overtakes_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed_first: bool
) -> None:
    clock = FakeClock()
    shard = opened(tmp_path / "data/topics/1/0", clock=clock, segment_bytes=2_000, retention_bytes=4_000)

    def fill(segments: int) -> None:
        for _ in range(segments):
            shard.append(rows_of(60), clock.now())
            shard.roll()
            shard.tick(clock.now())

    fill(2)
    shard.append(rows_of(7), clock.now())
    shard.tick(clock.now())
    calls: list[int] = []
    newer = backup_module._newer

    def overtaken(disk: ReadOnlyDisk, place: str, end: int) -> dict[int, int]:
        found = newer(disk, place, end)
        if not calls:  # what the manifest of before did not name comes and goes, and its files with it
            shard.roll()
            fill(6)
            shard.retain(shard.end, clock.now())
            clock.advance(KEPT_NS)
            shard.tick(clock.now())
        calls.append(end)
        return found if listed_first else newer(disk, place, end)

    monkeypatch.setattr(backup_module, "_newer", overtaken)
    rows = offsets_in(tmp_path / "data", tmp_path / "backup")
    assert rows == list(range(rows[0], shard.end))
    assert rows[0] > 127
    assert len(calls) == 2


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    running(tmp_path / "data")
    backup(str(tmp_path / "data"), str(tmp_path / "backup"))
    with pytest.raises(ConfigError, match="not empty"):
        backup(str(tmp_path / "data"), str(tmp_path / "backup"))
    with pytest.raises(ConfigError, match="not empty"):
        restore(str(tmp_path / "backup"), str(tmp_path / "data"))
    with pytest.raises(ConfigError, match="no finished Penstock backup"):
        restore(str(tmp_path / "data"), str(tmp_path / "again"))
    with pytest.raises(ConfigError, match="no data directory"):
        backup(str(tmp_path / "nowhere"), str(tmp_path / "other"))
