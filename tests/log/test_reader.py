"""A reader without the lock sees what the writer has indexed, whatever the writer does meanwhile."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.columns import BASE_COLUMNS, OPTIONAL_COLUMNS
from penstock.errors import CorruptionError, Refusal
from penstock.log.index import Entry
from penstock.log.reader import Reader
from penstock.log.segment import Segment
from penstock.message import Rows
from tests.fakes import START_NS, FakeClock
from tests.log.disks import ManualDisk
from tests.log.samples import opened, read_all, rows_of


def offsets(reader: Reader, start: int = 0, end: int | None = None) -> list[int]:
    return [offset for batch in reader.batches(start, end) for offset in batch.column("offset").to_pylist()]


def test_reader_sees_indexed_rows_of_open_and_sealed_segments(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    shard.append(rows_of(30), START_NS)
    shard.append(rows_of(5), START_NS)
    shard.roll()
    shard.append(rows_of(7), START_NS)
    reader = Reader(str(tmp_path))
    assert reader.ends() == (0, 35)
    shard.tick(START_NS)
    assert reader.ends() == (0, 42)
    assert offsets(reader) == list(range(42))
    assert offsets(reader, 33, 37) == [33, 34, 35, 36]
    assert offsets(reader, 42) == []
    table = pa.Table.from_batches(reader.batches(0, 30))
    assert table["body"].to_pylist() == [bytes(body) for body in _bodies(30)]


def _bodies(count: int) -> list[bytes]:
    return [b"body-%d-" % row * (row % 5) for row in range(count)]


def test_rows_that_are_not_synced_are_not_shown_on_an_fsync_topic(tmp_path: Path) -> None:
    shard = opened(tmp_path, durability="fsync")
    shard.append(rows_of(5), START_NS)
    shard.when_durable(lambda _: None)
    shard.append(rows_of(5), START_NS)
    shard.tick(START_NS)
    assert Reader(str(tmp_path)).ends() == (0, 5)


def test_view_beside_a_sync_has_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = opened(tmp_path, disk := ManualDisk(), durability="fsync")
    shard.append(rows_of(5), START_NS)
    shard.when_durable(lambda _: None)
    disk.run_all()
    shard.append(rows_of(5), START_NS)
    shard.roll()
    shard.append(rows_of(5), START_NS)
    _, write_manifest, done = disk.queued.pop()
    done(write_manifest(), None)  # it names both segments now, and what is new in them is not safe yet
    looked: list[int] = []
    reader, last = Reader(str(tmp_path)), Reader._last

    def between(reader: Reader, segment: Segment) -> Entry | None:
        found = last(reader, segment)
        if not looked:  # the sync returns after the first of the two was looked at
            shard.when_durable(lambda _: None)
            disk.run_all()
            shard.tick(START_NS)
        looked.append(segment.first)
        return found

    monkeypatch.setattr(Reader, "_last", between)
    stretches = reader.view()[1]
    assert len(looked) == 2
    assert [stretch.first for stretch in stretches[1:]] == [stretch.end for stretch in stretches[:-1]]


def test_chosen_columns_have_one_schema_over_all_segments(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    shard.append(rows_of(3), START_NS)
    shard.append(rows_of(3, names=("due", "key")), START_NS)
    shard.tick(START_NS)
    columns = ("offset", "due", "bucket", "body")
    table = pa.Table.from_batches(Reader(str(tmp_path)).batches(columns=columns))
    assert tuple(table.column_names) == columns
    assert table["due"].to_pylist()[:3] == [None] * 3
    assert table["bucket"].null_count == 6
    with pytest.raises(CorruptionError, match="colour"):
        list(Reader(str(tmp_path)).batches(columns=["colour"]))


def test_compressed_segments_are_read(tmp_path: Path) -> None:
    shard = opened(tmp_path, compression="zstd")
    for number in range(50):
        shard.append(rows_of(3, seed=number), START_NS)
    shard.roll()
    shard.tick(START_NS)
    assert offsets(Reader(str(tmp_path))) == list(range(150))


def test_damaged_batch_is_left_out_and_named(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    for number in range(3):
        shard.append(rows_of(1000, seed=number), START_NS)
    shard.roll()
    (path,) = tmp_path.glob("*.arrows")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    reader = Reader(str(tmp_path))
    assert offsets(reader) == [*range(1000), *range(2000, 3000)]
    assert [(damage.first, damage.end) for damage in reader.damaged] == [(1000, 2000)]
    assert reader.damaged_files == [str(path)]


def test_directory_that_is_no_shard_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no shard"):
        Reader(str(tmp_path)).ends()


def test_reader_goes_on_when_the_generation_it_listed_is_gone(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    for number in range(20):
        shard.append(rows_of(200, seed=number), START_NS)
        if number % 5 == 4:
            shard.roll()
    reader = Reader(str(tmp_path))
    batches = reader.batches(0, 4000)
    found = next(batches).column("offset").to_pylist()
    for _ in range(5):
        shard.tick(START_NS)
    for path in tmp_path.glob("*.0.*"):
        path.unlink()
    for batch in batches:
        found += batch.column("offset").to_pylist()
    assert found == list(range(4000))


def test_missing_file_is_told_and_not_looked_for_for_ever(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    shard.append(rows_of(2000), START_NS)
    shard.roll()
    for path in tmp_path.glob("*.arrows"):
        path.unlink()
    with pytest.raises(FileNotFoundError):
        offsets(Reader(str(tmp_path)), 0, 2000)


def test_reader_needs_no_right_to_write(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    shard.append(rows_of(20), START_NS)
    shard.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    real_open = os.open
    flags: list[int] = []

    def watched(path: str, flag: int, *rest: int) -> int:
        flags.append(flag)
        return real_open(path, flag, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", watched)
        assert offsets(Reader(str(tmp_path))) == list(range(20))
    assert flags
    assert all(flag & os.O_ACCMODE == os.O_RDONLY for flag in flags)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_reader_keeps_up_with_a_writer_that_appends_rolls_seals_and_retains(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = opened(tmp_path, clock=clock, segment_bytes=20_000, retention_bytes=100_000)
    total = 12_000
    passed = [0]
    failure: list[BaseException] = []

    def write() -> None:
        try:
            number = 0
            while shard.end < total:
                count = 1 + number % 40
                shard.append(Rows.of([b"%d" % (shard.end + row) for row in range(count)], "nsq"), clock.now())
                number += 1
                if number % 3 == 0:
                    shard.tick(clock.now())
                if number % 20 == 0:
                    shard.retain(passed[0], clock.now())
                    clock.advance(20_000_000_000)  # old files go while the reader is at work
            shard.roll()
            shard.tick(clock.now())
        except BaseException as error:
            failure.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    reader = Reader(str(tmp_path))
    seen: list[int] = []
    while (not seen or seen[-1] < total - 1) and not failure:
        end = reader.ends()[1]
        for batch in reader.batches(passed[0], end, BASE_COLUMNS):
            rows = batch.column("offset").to_pylist()
            assert [b"%d" % row for row in rows] == batch.column("body").to_pylist()
            seen += rows
            passed[0] = rows[-1] + 1
    writer.join()
    assert not failure
    assert seen == list(range(shard.end))
    assert reader.damaged == []


def test_small_batches_come_joined_and_large_ones_as_they_are(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    names = ("key", "tag", "due")
    for number in range(700):
        shard.append(rows_of(1 + number % 30, seed=number, names=names if number % 2 else ()), START_NS + number)
    shard.append(rows_of(20_000), START_NS + 700)
    for number in range(5):
        shard.append(rows_of(2, seed=number), START_NS + 701)
    shard.tick(START_NS)
    names_read = ["offset", "timestamp", "body", *names]
    batches = list(Reader(str(tmp_path)).batches(columns=names_read))
    assert len(batches) <= 4
    table = pa.Table.from_batches(batches)
    assert [row[0] for row in read_all(shard)] == table["offset"].to_pylist()
    wanted = [dict(zip(("offset", "timestamp", "body"), row[:3], strict=True)) for row in read_all(shard)]
    assert table.select(["offset", "timestamp", "body"]).to_pylist() == wanted
    for name in names:
        place = 4 + OPTIONAL_COLUMNS.index(name)
        assert table[name].to_pylist() == [row[place] for row in read_all(shard)]


def test_offset_at_a_time_in_open_and_sealed_segments(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    for number in range(40):
        shard.append(rows_of(10, seed=number), START_NS + number)
        if number % 15 == 14:
            shard.roll()
    shard.tick(START_NS)
    reader = Reader(str(tmp_path))
    for number in range(40):
        assert reader.offset_at(START_NS + number) == 10 * number == shard.offset_at(START_NS + number)
    assert reader.offset_at(0) == 0
    assert reader.offset_at(START_NS + 40) == 400


def test_view_of_the_writer_is_newer_than_the_files(tmp_path: Path) -> None:
    shard = opened(tmp_path, ManualDisk())
    shard.append(rows_of(5), START_NS)
    shard.append(rows_of(5, names=("tag",)), START_NS)  # a wider segment, which no manifest names yet
    assert Reader(str(tmp_path)).ends()[1] < 10
    reader = Reader(str(tmp_path), shard.view())
    assert reader.ends() == (0, 10)
    assert offsets(reader) == list(range(10))
    assert reader.offset_at(START_NS) == 0


def test_view_of_the_writer_on_a_full_disk_brings_the_index_along(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    with pytest.MonkeyPatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(Segment, "write_index", full)
        shard.append(rows_of(5), START_NS)
        shard.append(rows_of(50), START_NS)
        view = shard.view()
    assert offsets(Reader(str(tmp_path), view)) == list(range(55))


def test_batches_without_a_row_of_the_asked_times_are_left_out(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    for number in range(6):
        shard.append(rows_of(10), START_NS + number)
    shard.tick(START_NS)
    reader = Reader(str(tmp_path))
    batches = reader.batches(from_ns=START_NS + 2, until_ns=START_NS + 4)
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == list(range(20, 40))
    assert [reader.offset_at(START_NS + number) for number in (-1, 3, 5, 6)] == [0, 30, 50, 60]
    shard.roll()
    assert list(reader.batches(from_ns=START_NS + 6)) == []
    assert list(reader.batches(until_ns=START_NS)) == []


def test_view_tells_what_of_each_segment_can_be_read(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    shard.append(rows_of(30), START_NS)
    shard.roll()
    for _ in range(100):
        shard.append(rows_of(2), START_NS)
    shard.tick(START_NS)
    start, (sealed, growing) = Reader(str(tmp_path)).view()
    assert start == 0
    assert (sealed.first, sealed.end, sealed.rows) == (0, 30, 30)
    assert (growing.first, growing.end, growing.rows) == (30, 230, 200)
    assert growing.bytes == shard.stored_bytes() - sealed.bytes
    for first in (30, 31, 128, 229):
        assert offsets(Reader(str(tmp_path)), first) == list(range(first, 230))


def test_rows_that_are_not_kept_are_noted_or_refused(tmp_path: Path) -> None:
    shard = opened(tmp_path, retention_bytes=1, retention_hard=True)
    for number in range(3):
        shard.append(rows_of(10, seed=number), START_NS)
        shard.roll()
    shard.retain(None, START_NS)
    shard.tick(START_NS)
    assert shard.start > 0
    reader = Reader(str(tmp_path))
    assert offsets(reader, 5, 30) == list(range(shard.start, 30))
    assert reader.lost == [(5, shard.start)]
    with pytest.raises(Refusal, match=f"offsets 5 to {shard.start - 1} are not kept any more; the earliest is"):
        list(Reader(str(tmp_path)).batches(5, 30, strict=True))


def test_chosen_columns_of_compressed_segments(tmp_path: Path) -> None:
    shard = opened(tmp_path, compression="zstd")
    for number in range(50):
        shard.append(rows_of(3, seed=number, names=("key",)), START_NS)
    shard.roll()
    shard.tick(START_NS)
    whole = pa.Table.from_batches(Reader(str(tmp_path)).batches())
    table = pa.Table.from_batches(Reader(str(tmp_path)).batches(columns=("key", "offset", "tag")))
    assert table["key"].to_pylist() == whole["key"].to_pylist()
    assert table["offset"].to_pylist() == list(range(150))
    assert table["tag"].null_count == 150


def test_many_small_batches_come_as_few_large_ones(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    for number in range(500):
        shard.append(rows_of(2, seed=number, names=("due",)), START_NS)
    shard.tick(START_NS)
    batches = list(Reader(str(tmp_path)).batches(3, 990))
    assert len(batches) == 1
    whole = pa.Table.from_batches(batches)
    assert whole["offset"].to_pylist() == list(range(3, 990))
    assert whole.column_names == [*BASE_COLUMNS, "due"]
    assert whole["due"].to_pylist()[:3] == [rows_of(2, seed=number, names=("due",)).columns["due"][at] for number, at in ((1, 1), (2, 0), (2, 1))]  # fmt: skip  # noqa: E501
