"""Shards share one budget of memory, and what they give up is read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.cached import share
from penstock.log.read_cache import LET_GO_BATCHES, READ_BYTES
from penstock.message import Rows
from tests.fakes import START_NS, FakeClock
from tests.log.disks import InlineDisk, ManualDisk
from tests.log.samples import opened, read_all


class Sized:
    def __init__(self, size: int) -> None:
        self.cached_bytes = size

    def trim(self, bytes_max: int) -> None:
        self.cached_bytes = min(self.cached_bytes, bytes_max)


@given(st.lists(st.integers(0, 1000)), st.integers(0, 3000))
def test_all_fit_and_the_small_ones_keep_what_they_have(sizes: list[int], bytes_max: int) -> None:
    shards = [Sized(size) for size in sizes]
    share(shards, bytes_max)
    kept = [shard.cached_bytes for shard in shards]
    assert sum(kept) <= bytes_max
    if sum(sizes) <= bytes_max:
        assert kept == sizes
    else:
        assert sum(kept) > bytes_max - len(sizes)
        given_up = [after for before, after in zip(sizes, kept, strict=True) if after < before]
        assert max(given_up) == max(kept)


def test_trimmed_shard_keeps_its_newest_rows_and_reads_the_others_back(tmp_path: Path) -> None:
    shard = opened(tmp_path, InlineDisk(), FakeClock())
    for number in range(50):
        shard.append(Rows.of([b"%d" % number + bytes(10_000)], "nsq"), START_NS)
    assert shard.cached_bytes > 500_000
    shard.trim(100_000)
    assert 0 < shard.cached_bytes <= 100_000
    assert shard.read(49) is not None
    assert shard.read(0) is None
    assert [row[0] for row in read_all(shard)] == list(range(50))
    shard.trim(0)
    assert shard.cached_bytes < 30_000


def test_rows_that_are_not_synced_stay_in_memory(tmp_path: Path) -> None:
    disk = ManualDisk()
    shard = opened(tmp_path, disk, FakeClock(), durability="fsync")
    weight = shard.weight
    for _ in range(5):
        shard.append(Rows.of([bytes(1000)], "nsq"), START_NS)
    shard.when_durable(lambda error: None)
    shard.trim(0)
    for _ in range(2):  # the sync, and the repair that would have saved the rows
        disk.run("sync", error=OSError(5, "Input/output error"))
    assert shard.weight == weight


@pytest.mark.parametrize("keep", [0, 1 << 20])
def test_memory_topic_gives_up_nothing(tmp_path: Path, keep: int) -> None:
    shard = opened(tmp_path, InlineDisk(), FakeClock(), durability="memory")
    shard.append(Rows.of([b"x"] * 5, "nsq"), START_NS)
    assert shard.cached_bytes == 0
    shard.trim(keep)
    assert shard.rows_between(0, shard.end) == 5


def test_rows_that_everybody_has_read_leave_memory_once_they_are_synced_and_come_back_from_disk(tmp_path: Path) -> None:
    shard = opened(tmp_path, InlineDisk(), FakeClock())
    for number in range(500):
        shard.append(Rows.of([b"%d" % number + bytes(10_000)], "nsq"), START_NS)
    full = shard.cached_bytes
    shard.let_go(400)
    assert shard.cached_bytes == full  # nothing of it is synced
    shard.sync(lambda error: None)
    shard.let_go(100)
    assert (shard.read(99), shard.read(100) is not None) == (None, True)
    while not shard.let_go(500):
        pass
    assert READ_BYTES - 30_000 < shard.cached_bytes <= READ_BYTES
    assert [row[0] for row in read_all(shard)] == list(range(500))


def test_many_lone_messages_leave_memory_a_few_at_a_time(tmp_path: Path) -> None:
    shard = opened(tmp_path, InlineDisk(), FakeClock())
    for _ in range(5_000):
        shard.append(Rows.of([b"x"], "nsq"), START_NS)
    shard.sync(lambda error: None)
    full, went = shard.cached_bytes, 0
    while not shard.let_go(5_000):
        assert full - shard.cached_bytes <= LET_GO_BATCHES * 1_200
        full, went = shard.cached_bytes, went + 1
    assert went > 5
    assert shard.cached_bytes <= READ_BYTES
