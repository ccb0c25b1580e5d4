"""The end of the log in memory: whoever is behind reads small batches together, and gets the rows that were stored."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.columns import SMALL
from penstock.log import tail
from penstock.log.shard import Shard
from penstock.message import Rows
from tests.fakes import START_NS as EPOCH_NS
from tests.log.disks import ManualDisk
from tests.log.samples import Row, in_files, listed, opened, read_all, rows_of


def lone(shard: Shard, count: int) -> list[Row]:
    """Store rows one by one."""
    at = shard.end
    return [listed(shard.append(rows_of(1, seed=at + row), EPOCH_NS + at + row))[0] for row in range(count)]


def counts(shard: Shard, below: int = 64) -> list[int]:
    """Return how many rows each read brings on the way through a shard."""
    found, offset = [], shard.start
    while offset < shard.readable_end:
        batch = shard.read(offset, below)
        assert batch is not None
        found.append(batch.end - offset)
        offset = batch.end
    return found


def test_rows_that_were_stored_one_by_one_are_read_together(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    wanted = lone(shard, 500)
    assert counts(shard) == [500]
    assert read_all(shard) == wanted
    batch = shard.read(7, 64)
    assert batch is not None
    assert (batch.first, batch.count, batch.row_time(499)) == (0, 500, EPOCH_NS + 499)
    assert shard.read(450, 64) is batch
    assert shard.read(450, 0) is not batch
    wanted += lone(shard, 30)  # what is joined stays as it is: rows are copied once
    assert counts(shard) == [500, 30]
    assert read_all(shard) == wanted


def test_whoever_keeps_up_reads_what_was_stored(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    for row in range(3 * SMALL):
        stored = shard.append(rows_of(1, seed=row), EPOCH_NS + row)
        assert shard.read(row, 64) is stored
    assert shard.cached_bytes == in_files(shard)._cache.tail.bytes


@pytest.mark.parametrize("sizes", [[1] * (SMALL - 1), [10, 2, 2], [64, 1, 65]])
def test_what_does_not_pay_is_not_joined(tmp_path: Path, sizes: list[int]) -> None:
    shard = opened(tmp_path)
    for size in sizes:
        shard.append(rows_of(size), EPOCH_NS)
    assert counts(shard) == sizes


def test_what_differs_is_read_apart(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    wanted = lone(shard, 20)
    wanted += listed(shard.append(Rows(1, [0, 1], b"x", "flight", {}, b"query/7/0"), EPOCH_NS))
    wanted += listed(shard.append(rows_of(20, names=("tag",)), EPOCH_NS + 1))
    wanted += listed(shard.append(rows_of(25, names=("tag",)), EPOCH_NS + 2))
    wanted += listed(shard.append(Rows.of([b"from elsewhere"], "sqs"), EPOCH_NS + 3))
    wanted += lone(shard, 20)
    assert counts(shard) == [20, 1, 45, 1, 20]
    assert read_all(shard) == wanted


def test_a_joined_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "RUN_BATCHES_MAX", 30)
    monkeypatch.setattr(tail, "RUN_ROWS_MAX", 50)
    monkeypatch.setattr(tail, "RUN_BYTES_MAX", 5000)
    shard = opened(tmp_path)
    wanted = lone(shard, 60)
    for row in range(20):
        wanted += listed(shard.append(rows_of(10, seed=row), EPOCH_NS + row))
    for row in range(40):
        wanted += listed(shard.append(Rows.of([bytes(200)], "nsq"), EPOCH_NS + row))
    assert counts(shard)[:6] == [30, 30, 50, 50, 50, 50]
    assert max(counts(shard)[6:]) == 25
    assert read_all(shard) == wanted


def test_nothing_is_read_before_it_is_durable(tmp_path: Path) -> None:
    disk = ManualDisk()
    shard = opened(tmp_path, disk, durability="fsync")
    lone(shard, 40)
    shard.when_durable(lambda error: None)
    disk.run_all()
    assert shard.readable_end == 40
    lone(shard, 40)
    assert counts(shard) == [40]


@given(st.lists(st.tuples(st.integers(1, 60), st.sampled_from([(), ("tag",), ("key", "due")])), max_size=40))
@settings(max_examples=40, deadline=None)
def test_every_row_comes_back_as_it_was_stored(sizes: list[tuple[int, tuple[str, ...]]]) -> None:
    with tempfile.TemporaryDirectory() as path:
        shard = opened(path)
        wanted: list[Row] = []
        for number, (size, names) in enumerate(sizes):
            wanted += listed(shard.append(rows_of(size, seed=number, names=names), EPOCH_NS + number))
            if number % 7 == 3:
                assert read_all(shard) == wanted
        assert read_all(shard) == wanted
        for offset in range(0, len(wanted), 13):
            batch = shard.read(offset, 64)
            assert batch is not None
            assert listed(batch)[offset - batch.first] == wanted[offset]
        shard.close()
