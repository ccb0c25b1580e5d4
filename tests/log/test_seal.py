"""Sealing turns many small batches into few large ones and changes nothing else."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from penstock.clock import SECOND
from penstock.columns import OPTIONAL_COLUMNS
from penstock.message import Rows
from penstock.settings import MINUTE_NS
from tests.fakes import START_NS, FakeClock
from tests.log.disks import FullDisk, InlineDisk, ManualDisk
from tests.log.samples import Row, in_files, listed, opened, read_all, rows_of


def filled(shard: object, counts: list[int], names: tuple[str, ...] = ()) -> list[Row]:
    wanted: list[Row] = []
    for number, count in enumerate(counts):
        chosen = names if number % 3 else ()
        wanted += listed(shard.append(rows_of(count, seed=number, names=chosen), START_NS + number))  # type: ignore[attr-defined]
    return wanted


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_sealed_segment_holds_the_same_rows_in_few_batches(tmp_path: Path, compression: str) -> None:
    shard = opened(tmp_path, compression=compression)
    shard.append(rows_of(1, names=OPTIONAL_COLUMNS), START_NS)
    wanted = read_all(shard) + filled_after(shard, [1] * 200 + [5, 16, 17, 300] * 10)
    weight = shard.weight
    shard.roll()
    shard.tick(START_NS)
    path = tmp_path / f"{0:020d}.1.arrows"
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    table.validate(full=True)
    assert table["offset"].to_pylist() == [row[0] for row in wanted]
    assert len(pl.read_ipc_stream(path)) == len(wanted)
    assert table["body"].num_chunks == 1
    again = opened(tmp_path, compression=compression)
    assert read_all(again) == wanted
    assert (again.end, again.weight) == (len(wanted), weight)
    for start in (1, 100, 250, 999):
        assert read_all(again, start) == wanted[start:]
    assert again.rows_between(0, again.end) == len(wanted)
    offsets, due = again.due_rows(0, 0)
    assert list(zip(offsets.tolist(), due.tolist(), strict=True)) == [
        (row[0], row[4]) for row in wanted if row[4] is not None and row[4] > 0
    ]


def filled_after(shard: object, counts: list[int]) -> list[Row]:
    return filled(shard, counts, OPTIONAL_COLUMNS)


def test_compressed_segment_is_smaller(tmp_path: Path) -> None:
    sizes = {}
    for compression in ("none", "zstd"):
        shard = opened(tmp_path / compression, compression=compression)
        for _ in range(200):
            shard.append(Rows.of([b"the same text again and again" * 4] * 20, "nsq"), START_NS)
        shard.roll()
        shard.tick(START_NS)
        sizes[compression] = shard.stored_bytes()
    assert sizes["zstd"] < sizes["none"] / 4


def test_rewritten_batches_reach_sixteen_thousand_rows(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    for _ in range(400):
        shard.append(rows_of(100), START_NS)
    shard.roll()
    shard.tick(START_NS)
    (segment,) = in_files(shard)._segments.closed
    index = segment.entries()
    assert [index.counts[number] for number in range(len(index))] == [16_400, 16_400, 7_200]


def test_batches_with_a_sequence_are_kept_apart(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    for number in range(6):
        rows = rows_of(3)
        rows.sequence = b"query/%d" % number if number % 2 else b""
        shard.append(rows, START_NS + number)
    shard.roll()
    shard.tick(START_NS)
    assert in_files(shard)._segments.closed[0].generation == 1
    found = [(batch.first, batch.sequence) for batch in shard.recent(START_NS)]
    assert [sequence for _, sequence in found if sequence] == [b"query/1", b"query/3", b"query/5"]
    assert len(read_all(shard)) == 18


def test_large_batches_are_left_alone(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    for _ in range(3):
        shard.append(rows_of(1000), START_NS)
    shard.roll()
    shard.tick(START_NS)
    assert in_files(shard)._segments.closed[0].generation == 0


def test_old_generation_is_kept_ten_minutes(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = opened(tmp_path, clock=clock)
    filled(shard, [1] * 50)
    shard.roll()
    shard.tick(clock.now())
    old = tmp_path / f"{0:020d}.0.arrows"
    clock.advance(10 * MINUTE_NS - 1)
    shard.tick(clock.now())
    assert old.exists()
    clock.advance(1)
    shard.tick(clock.now())
    assert not old.exists()
    assert not old.with_suffix(".index").exists()
    assert len(read_all(shard)) == 50


def test_old_generation_that_outlived_a_restart_goes_later(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = opened(tmp_path, clock=clock)
    wanted = filled(shard, [1] * 50)
    shard.roll()
    shard.tick(clock.now())
    shard.close()
    shard = opened(tmp_path, clock=clock)
    assert read_all(shard) == wanted
    clock.advance(10 * MINUTE_NS)
    shard.tick(clock.now())
    assert len(list(tmp_path.glob("*.arrows"))) == 1
    assert read_all(shard) == wanted


def test_crash_before_the_manifest_names_the_new_generation(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    wanted = filled(shard, [1] * 50)
    shard.roll()
    manifest = (tmp_path / "manifest").read_bytes()
    shard.tick(START_NS)
    (tmp_path / "manifest").write_bytes(manifest)
    (tmp_path / f"{50:020d}.1.arrows.new").write_bytes(b"half")
    again = opened(tmp_path)
    assert read_all(again) == wanted
    again.tick(START_NS)
    assert in_files(again)._segments.closed[0].generation == 1
    assert read_all(again) == wanted
    assert not list(tmp_path.glob("*.new"))


def test_a_new_generation_is_not_taken_for_the_one_that_a_crash_left_in_its_place(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = opened(tmp_path, clock=clock)
    wanted = filled(shard, [1] * 50)
    shard.roll()
    manifest = (tmp_path / "manifest").read_bytes()
    shard.tick(clock.now())
    (tmp_path / "manifest").write_bytes(manifest)
    disk = ManualDisk()
    again = opened(tmp_path, disk, clock=clock)
    again.tick(clock.now())
    written = next(item for item in disk.queued if item[0] == "seal")
    disk.queued.remove(written)
    merged = written[1]()  # the thread is done, and the loop has not heard of it
    clock.advance(11 * MINUTE_NS)
    again.tick(clock.now())
    written[2](merged, None)
    assert in_files(again)._segments.closed[0].generation == 1
    assert read_all(again) == wanted


def test_reads_and_appends_go_on_while_a_segment_is_rewritten(tmp_path: Path) -> None:
    disk = ManualDisk()
    shard = opened(tmp_path, disk, cache_bytes=1000)
    wanted = filled(shard, [1] * 50)
    shard.roll()
    disk.run_all()
    shard.tick(START_NS)
    assert disk.pending("seal") == 1
    wanted += listed(shard.append(rows_of(2), START_NS))
    work = disk.queued
    disk.queued = []
    assert read_all(shard) == wanted
    disk.queued = work
    disk.run_all()
    assert in_files(shard)._segments.closed[0].generation == 1
    assert read_all(shard) == wanted


def test_failed_rewrite_is_tried_again_later(tmp_path: Path) -> None:
    clock, disk = FakeClock(), FullDisk()
    shard = opened(tmp_path, disk, clock)
    wanted = filled(shard, [1] * 50)
    shard.roll()
    disk.room_bytes = 1000
    shard.tick(clock.now())
    assert in_files(shard)._segments.closed[0].generation == 0
    assert not list(tmp_path.glob("*.new"))
    disk.room_bytes = None
    clock.advance(30 * SECOND)
    shard.tick(clock.now())
    assert in_files(shard)._segments.closed[0].generation == 0
    clock.advance(30 * SECOND)
    shard.tick(clock.now())
    assert in_files(shard)._segments.closed[0].generation == 1
    assert read_all(shard) == wanted


def test_dropped_while_it_was_rewritten_leaves_no_files(tmp_path: Path) -> None:
    disk = ManualDisk()
    shard = opened(tmp_path, disk, retention_bytes=0)
    filled(shard, [1] * 50)
    shard.roll()
    disk.run_all()
    shard.tick(START_NS)
    assert shard.retain(50, START_NS) == 0  # not while its rewrite runs
    disk.run_all()
    assert shard.retain(50, START_NS) == 50


def test_closed_segments_of_an_earlier_run_are_rewritten_too(tmp_path: Path) -> None:
    shard = opened(tmp_path, InlineDisk())
    wanted = filled(shard, [1] * 50)
    shard.roll()
    shard.close()
    shard = opened(tmp_path)
    shard.tick(START_NS)
    assert in_files(shard)._segments.closed[0].generation == 1
    assert read_all(shard) == wanted
