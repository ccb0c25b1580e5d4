"""A reader without the lock sees what the writer has indexed, whatever the writer does meanwhile."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import CorruptionError
from penstock.log.reader import Reader
from penstock.message import BASE_COLUMNS, Rows
from tests.fakes import START_NS, FakeClock
from tests.log.samples import opened, rows_of


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
