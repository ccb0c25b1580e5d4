"""A shard takes rows, hands them back, and says when they are safe."""

from __future__ import annotations

import resource
import subprocess
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.clock import SECOND
from penstock.columns import OPTIONAL_COLUMNS
from penstock.errors import Refusal
from penstock.log.segment import Segment
from penstock.log.state import StateFile
from penstock.message import Rows
from penstock.settings import HOUR_NS, Measure, TopicSettings
from tests.fakes import START_NS as EPOCH_NS
from tests.fakes import FakeClock
from tests.log.disks import BrokenDisk, FullDisk, InlineDisk, ManualDisk, torn_appends
from tests.log.samples import Row, in_files, listed, opened, read_all, rows_of


def test_appended_rows_are_read_back_in_order(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    wanted = []
    for number, count in enumerate([1, 3, 16, 17, 200, 1]):
        batch = shard.append(rows_of(count, seed=number), EPOCH_NS + number)
        wanted += listed(batch)
    assert [row[0] for row in wanted] == list(range(238))
    assert read_all(shard) == wanted
    assert (shard.start, shard.end, shard.readable_end) == (0, 238, 238)


def test_rows_come_back_from_disk_when_memory_is_short(tmp_path: Path) -> None:
    shard = opened(tmp_path, cache_bytes=2000)
    wanted = []
    for number in range(400):
        wanted += listed(shard.append(rows_of(1 + number % 20, seed=number), EPOCH_NS + number))
    assert shard.read(0) is None
    assert read_all(shard) == wanted
    for start in (1, 57, 999, 3000):
        assert read_all(shard, start) == wanted[start:]


def test_every_optional_column_survives_a_restart(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    wanted = listed(shard.append(rows_of(40, names=OPTIONAL_COLUMNS), EPOCH_NS))
    wanted += listed(shard.append(rows_of(5, names=OPTIONAL_COLUMNS), EPOCH_NS + 1))
    shard.close()
    assert read_all(opened(tmp_path)) == wanted


def test_new_column_starts_a_segment_with_the_wider_schema(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    shard.append(rows_of(2), EPOCH_NS)
    shard.append(rows_of(2, names=("due",)), EPOCH_NS)
    shard.append(rows_of(2), EPOCH_NS)
    shard.append(rows_of(2, names=("key",)), EPOCH_NS)
    shard.close()
    columns = []
    for path in sorted(tmp_path.glob("*.arrows")):
        columns.append(pa.ipc.open_stream(path.read_bytes()).read_all().column_names[4:])
    assert columns == [[], ["due"], ["due", "key"]]


def test_unknown_column_is_refused(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    with pytest.raises(Refusal) as refusal:
        shard.append(Rows(1, [0, 1], b"x", "nsq", {"colour": ["red"]}), EPOCH_NS)
    assert refusal.value.code == "bad_column"


def test_weight_counts_rows_by_the_measure_of_their_topic(tmp_path: Path) -> None:
    plain = opened(tmp_path / "plain", measures=[(0, Measure(30, None))])
    plain.append(Rows.of([b"12345", b"1"], "nsq", {"headers": [b"{}", None]}), EPOCH_NS)
    assert plain.weight == 2 * 30 + 6
    extend = opened(tmp_path / "extend", measures=[(0, Measure(31, 2))])
    extend.append(Rows.of([b"12345", b"1"], "nsq", {"headers": [b"{}", None]}), EPOCH_NS)
    assert extend.weight == (31 + 5 + 2 + 2) + (31 + 1)
    batch = extend.append(Rows.of([b"x"] * 20, "nsq", {"headers": [b"{}"] * 19 + [None]}), EPOCH_NS)
    assert batch.weight == 72
    assert extend.weight == 72 + 20 * 32 + 19 * 4
    extend.close()
    assert opened(tmp_path / "extend", measures=[(0, Measure(31, 2))]).weight == extend.weight


def test_segment_closes_when_it_is_large_or_old(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = opened(tmp_path, clock=clock, segment_bytes=5000)
    for number in range(20):
        shard.append(rows_of(10, seed=number), clock.now())
    assert len(list(tmp_path.glob("*.0.arrows"))) > 3
    before = in_files(shard)._segments.open
    clock.advance(HOUR_NS)
    shard.tick(clock.now())
    assert in_files(shard)._segments.open is None
    shard.append(rows_of(1), clock.now())
    assert in_files(shard)._segments.open is not before
    assert len(read_all(shard)) == 201


def test_sealed_segment_is_a_whole_arrow_stream(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    shard.append(rows_of(3000), EPOCH_NS)
    shard.roll()
    shard.tick(EPOCH_NS)
    (path,) = tmp_path.glob("*.arrows")
    content = path.read_bytes()
    assert content.endswith(b"\xff\xff\xff\xff\x00\x00\x00\x00")
    assert len(pa.ipc.open_stream(content).read_all()) == 3000


def test_offset_at_finds_the_first_row_of_a_time(tmp_path: Path) -> None:
    shard = opened(tmp_path, segment_bytes=3000)
    for number in range(30):
        shard.append(rows_of(3, seed=number), EPOCH_NS + number * SECOND)
    assert shard.offset_at(0) == 0
    assert shard.offset_at(EPOCH_NS + 7 * SECOND) == 21
    assert shard.offset_at(EPOCH_NS + 7 * SECOND - 1) == 21
    assert shard.offset_at(EPOCH_NS + 7 * SECOND + 1) == 24
    assert shard.offset_at(EPOCH_NS + 30 * SECOND) == 90
    shard.roll()
    for _ in range(20):
        shard.tick(EPOCH_NS)
    assert shard.offset_at(EPOCH_NS + 7 * SECOND + 1) == 24


def test_offset_at_is_right_when_the_wall_clock_stepped_back(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    for time in (100, 50, 70, 200):
        shard.append(rows_of(2), EPOCH_NS + time)
    assert shard.offset_at(EPOCH_NS + 60) == 0
    assert shard.offset_at(EPOCH_NS + 150) == 6


def test_due_rows_are_found_in_small_large_and_rewritten_batches(tmp_path: Path) -> None:
    shard = opened(tmp_path, segment_bytes=60_000)
    wanted = []
    for number, count in enumerate([1, 5, 1500, 17, 1, 2000]):
        if number == 3:
            shard.append(rows_of(count), EPOCH_NS)
            continue
        batch = shard.append(rows_of(count, seed=number, names=("due", "tag")), EPOCH_NS)
        wanted += [(row[0], row[4]) for row in listed(batch) if row[4] is not None]
    for _ in range(2):
        for start, after in ((0, 0), (0, 100_000), (700, 1_000_000), (4000, 0), (0, 10**18)):
            offsets, due = shard.due_rows(start, after)
            expected = [(o, d) for o, d in wanted if o >= start and d > after]
            assert list(zip(offsets.tolist(), due.tolist(), strict=True)) == expected
        shard.roll()
        for _ in range(10):
            shard.tick(EPOCH_NS)


def test_recent_yields_dedup_keys_and_sequences_of_the_window(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    shard.append(rows_of(3), EPOCH_NS)
    shard.roll()
    shard.append(rows_of(2, names=("dedup",)), EPOCH_NS + 1)
    shard.append(Rows(1, [0, 1], b"x", "flight", {}, b"query/7/0"), EPOCH_NS + 2)
    shard.append(rows_of(20, names=("dedup",)), EPOCH_NS + 3)
    for _ in range(2):
        found = list(shard.recent(EPOCH_NS + 2))
        assert [(batch.first, batch.sequence) for batch in found] == [(5, b"query/7/0"), (6, b"")]
        assert [batch.first for batch in shard.recent(EPOCH_NS)] == [3, 5, 6]
        shard.close()
        shard = opened(tmp_path)


def test_rows_between_counts_rows_and_not_offsets(tmp_path: Path) -> None:
    disk = InlineDisk()
    shard = opened(tmp_path, disk)
    shard.append(rows_of(100), EPOCH_NS)
    disk.boot = "boot-2"
    again = opened(tmp_path, disk)
    again.append(rows_of(50), EPOCH_NS)
    assert again.end == (1 << 24) + 50
    assert again.rows_between(0, again.end) == 150
    assert again.rows_between(90, again.end - 10) == 50
    assert again.rows_between(100, 1 << 24) == 0
    assert again.rows_between(again.end, again.end + 5) == 0


def test_os_rows_are_durable_at_once(tmp_path: Path) -> None:
    shard = opened(tmp_path, ManualDisk())
    shard.append(rows_of(1), EPOCH_NS)
    told: list[BaseException | None] = []
    shard.when_durable(told.append)
    assert told == [None]


def test_one_sync_serves_all_who_wait_and_later_ones_form_the_next_group(tmp_path: Path) -> None:
    disk = ManualDisk()
    shard = opened(tmp_path, disk, durability="fsync")
    disk.run_all()
    told: list[str] = []
    moved: list[int] = []
    shard.on_readable = lambda: moved.append(shard.readable_end)
    shard.append(rows_of(2), EPOCH_NS)
    shard.when_durable(lambda error: told.append(f"first {error} {shard.readable_end}"))
    disk.run("seal")
    assert (disk.pending("sync"), told, shard.readable_end) == (2, [], 0)  # its data, and the manifest
    for name in ("second", "third"):
        shard.append(rows_of(3), EPOCH_NS)
        shard.when_durable(lambda error, name=name: told.append(f"{name} {error} {shard.readable_end}"))  # type: ignore[misc]
    assert disk.pending("sync") == 2
    assert shard.read(0) is None
    disk.run("sync")
    assert told == ["first None 2"]
    assert disk.pending("sync") == 1
    assert shard.read(2) is None
    disk.run("sync")
    assert told[1:] == ["second None 8", "third None 8"]
    assert moved == [2, 8]
    assert disk.pending("sync") == 0
    shard.when_durable(lambda error: told.append("at once"))
    assert told[-1] == "at once"


def test_waiter_that_appended_nothing_is_told_with_the_sync_under_way(tmp_path: Path) -> None:
    disk = ManualDisk()
    shard = opened(tmp_path, disk, durability="fsync")
    shard.append(rows_of(1), EPOCH_NS)
    told: list[int] = []
    shard.when_durable(lambda _: told.append(1))
    shard.when_durable(lambda _: told.append(2))
    disk.run_all()
    assert told == [1, 2]


def test_sync_that_fails_twice_takes_its_rows_back(tmp_path: Path) -> None:
    disk, clock = ManualDisk(), FakeClock()
    shard = opened(tmp_path, disk, clock, durability="fsync")
    shard.append(rows_of(2), EPOCH_NS)
    shard.when_durable(lambda _: None)
    disk.run_all()
    told: list[BaseException | None] = []
    shard.append(rows_of(3), EPOCH_NS)
    shard.when_durable(told.append)
    shard.append(rows_of(3), EPOCH_NS)
    shard.when_durable(told.append)
    failure = OSError(5, "Input/output error")
    disk.run("sync", error=failure)
    assert told == []
    disk.run("sync", error=failure)
    assert told == [failure, failure]
    assert shard.readable_end == 2
    clock.advance(SECOND)
    disk.run_all()
    batch = shard.append(rows_of(4), EPOCH_NS)
    assert batch.first == 8
    shard.when_durable(told.append)
    disk.run_all()
    assert told[2:] == [None]
    assert [row[0] for row in read_all(shard)] == [0, 1, 8, 9, 10, 11]
    assert shard.rows_between(0, shard.end) == 6
    disk.run_all()
    shard.close()
    assert [row[0] for row in read_all(opened(tmp_path))] == [0, 1, 8, 9, 10, 11]


def test_fetches_of_one_chunk_share_one_read(tmp_path: Path) -> None:
    disk, clock = ManualDisk(), FakeClock()
    shard = opened(tmp_path, disk, clock, cache_bytes=100_000)
    for number in range(50):
        shard.append(rows_of(20, seed=number), EPOCH_NS)
    shard.close()
    shard = opened(tmp_path, disk, clock)
    disk.run_all()
    called: list[int] = []
    for offset in (0, 10, 500, 999):
        shard.fetch(offset, lambda offset=offset: called.append(offset))  # type: ignore[misc]
    assert disk.pending("read") == 1
    disk.run("read")
    clock.run()
    assert sorted(called) == [0, 10, 500, 999]
    assert shard.read(999) is not None


def test_fetch_where_nothing_is_stored_calls_back_too(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = opened(tmp_path, clock=clock)
    called: list[int] = []
    shard.fetch(0, lambda: called.append(1))
    clock.run()
    assert called == [1]


def test_next_chunk_is_read_ahead(tmp_path: Path) -> None:
    disk, clock = ManualDisk(), FakeClock()
    shard = opened(tmp_path, disk, clock)
    for _ in range(30):
        shard.append(Rows.of([bytes(100_000)], "nsq"), EPOCH_NS)
    shard.close()
    shard = opened(tmp_path, disk, clock)
    disk.run_all()
    called: list[int] = []
    shard.fetch(0, lambda: called.append(1))
    disk.run("read")
    assert called == [1]
    assert shard.read(11) is None
    assert disk.pending("read") == 1
    disk.run("read")
    assert shard.read(11) is not None
    assert disk.pending("read") == 0


def test_read_error_is_tried_again_later(tmp_path: Path) -> None:
    disk, clock = ManualDisk(), FakeClock()
    shard = opened(tmp_path, disk, clock)
    shard.append(rows_of(100), EPOCH_NS)
    shard.close()
    shard = opened(tmp_path, disk, clock)
    disk.run_all()
    called: list[int] = []
    shard.fetch(0, lambda: called.append(1))
    disk.run("read", error=OSError(24, "Too many open files"))
    assert called == []
    clock.advance(SECOND)
    disk.run("read")
    assert called == [1]
    assert shard.read(0) is not None


def test_full_disk_refuses_with_nothing_written_and_recovers(tmp_path: Path) -> None:
    disk = FullDisk()
    shard = opened(tmp_path, disk)
    wanted = listed(shard.append(rows_of(3), EPOCH_NS))
    size = shard.stored_bytes()
    disk.room_bytes = 100
    for count in (1, 50):
        with pytest.raises(Refusal) as refusal:
            shard.append(rows_of(count), EPOCH_NS)
        assert refusal.value.code == "disk_full"
        assert str(tmp_path) in str(refusal.value)
    with pytest.raises(Refusal):
        shard.append(rows_of(1, names=("due",)), EPOCH_NS)
    shard.tick(EPOCH_NS)
    assert (shard.end, shard.stored_bytes()) == (3, size)
    assert read_all(shard) == wanted
    disk.room_bytes = None
    wanted += listed(shard.append(rows_of(2, names=("due",)), EPOCH_NS))
    assert read_all(shard) == wanted
    shard.close()
    assert read_all(opened(tmp_path)) == wanted


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB if one can be mounted, else a limit on file size, which fails the same way."""
    place = tmp_path / "tiny"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], capture_output=True, check=False
    )
    if mounted.returncode == 0:
        yield place
        subprocess.run(["umount", "--lazy", str(place)], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    yield place
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_really_full_disk_refuses_and_keeps_what_was_stored(tiny_disk: Path) -> None:
    shard = opened(tiny_disk / "shard")
    wanted: list[Row] = []
    rows = Rows.of([bytes(20_000)] * 5, "nsq")

    def fill() -> None:
        for _ in range(100):
            wanted.extend(listed(shard.append(rows, EPOCH_NS)))

    with pytest.raises(Refusal) as refusal:
        fill()
    assert refusal.value.code == "disk_full"
    assert 5 <= len(wanted) < 60
    shard.tick(EPOCH_NS)
    again = opened(tiny_disk / "shard")
    assert again.cut_bytes == 0
    assert read_all(again) == wanted


def test_write_back_starts_after_a_few_megabytes(tmp_path: Path) -> None:
    disk = ManualDisk()
    shard = opened(tmp_path, disk)
    disk.run_all()
    for _ in range(5):
        shard.append(Rows.of([bytes(1 << 20)], "nsq"), EPOCH_NS)
    shard.tick(EPOCH_NS)
    disk.run("seal")
    assert disk.pending("sync") >= 1
    disk.run_all()
    shard.tick(EPOCH_NS)
    assert disk.pending("sync") == 0


def test_dirty_shard_is_synced_every_two_seconds(tmp_path: Path) -> None:
    disk, clock = InlineDisk(), FakeClock()
    shard = opened(tmp_path, disk, clock)
    shard.append(rows_of(1), clock.now())
    assert in_files(shard)._safety.group_sync.synced_end == 0
    clock.advance(2 * SECOND)
    shard.tick(clock.now())
    assert in_files(shard)._safety.group_sync.synced_end == 1
    assert in_files(shard)._life.state.synced_position == shard.stored_bytes()


def test_backlog_costs_no_memory_beyond_the_caches(tmp_path: Path) -> None:
    shard = opened(tmp_path, cache_bytes=1 << 20, segment_bytes=1 << 20)
    rows = Rows.of([b"x" * 100], "nsq")
    for _ in range(2000):
        shard.append(rows, EPOCH_NS)
    tracemalloc.start()
    for number in range(12_000):
        shard.append(rows, EPOCH_NS)
        if number % 1000 == 0:
            shard.tick(EPOCH_NS)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 3 << 20
    assert shard.rows_between(0, shard.end) == 14_000


def test_deleted_shard_leaves_nothing(tmp_path: Path) -> None:
    shard = opened(tmp_path / "shard")
    shard.append(rows_of(1), EPOCH_NS)
    shard.journal("channel")[0].append([(1, 2, 3, 4, 5)])
    shard.delete()
    assert not (tmp_path / "shard").exists()


def test_offsets_are_reserved_ahead_and_synced_before_use(tmp_path: Path) -> None:
    disk = ManualDisk()
    shard = opened(tmp_path, disk)
    shard.end = in_files(shard)._life.reserve.usable_end - 5
    shard.append(rows_of(3), EPOCH_NS)
    shard.append(rows_of(3), EPOCH_NS)  # crosses the block: reserved before it is used, without the thread
    assert shard.end <= in_files(shard)._life.reserve.usable_end
    assert in_files(shard)._life.reserve.usable_end > 1 << 24


def test_sliced_batches_keep_their_shape_rule(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    cuts = np.array([0, 1, 2], np.int32)
    batch = shard.append(Rows(2, cuts, b"ab", "nsq", {"due": pa.array([1, None])}), EPOCH_NS)
    assert isinstance(batch.cuts, list)
    assert isinstance(batch.columns["due"], list)
    batch = shard.append(Rows(20, list(range(21)), bytes(20), "nsq", {"due": [5] * 20}), EPOCH_NS)
    assert isinstance(batch.cuts, np.ndarray)
    assert isinstance(batch.columns["due"], pa.Array)


def test_body_with_bytes_that_are_in_no_row_is_trimmed(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    shard.append(Rows(1, [2, 5], b"..one...", "nsq"), EPOCH_NS)
    shard.append(Rows(20, np.arange(1, 22, dtype=np.int32), b"-" + bytes(range(20)) + b"--", "nsq"), EPOCH_NS)
    assert shard.weight == 31 + 3 + 20 * 32
    shard.close()
    found = read_all(opened(tmp_path))
    assert [row[2] for row in found] == [b"one", *(bytes([row]) for row in range(20))]


def test_group_commits_do_not_each_write_the_state(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = opened(tmp_path, clock=clock, durability="fsync")
    for _ in range(100):
        shard.append(rows_of(1), clock.now())
        shard.when_durable(lambda _: None)
    assert len((tmp_path / "state").read_bytes().splitlines()) == 1
    clock.advance(2 * SECOND)
    shard.tick(clock.now())
    assert len((tmp_path / "state").read_bytes().splitlines()) == 2
    again = StateFile(InlineDisk(), str(tmp_path)).state
    assert (again.synced_segment, again.synced_position) == (0, shard.stored_bytes())


def test_a_line_of_the_state_that_was_torn_and_not_cut_spoils_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = opened(tmp_path)
    shard.close()
    file = StateFile(InlineDisk(), str(tmp_path))
    with torn_appends(monkeypatch), pytest.raises(OSError, match="nor cut again"):
        file.note()
    file.state.reserved_end += 1000
    file.note()
    file.sync()
    assert StateFile(InlineDisk(), str(tmp_path)).state == file.state


def test_durability_may_change_between_os_and_fsync(tmp_path: Path) -> None:
    disk = ManualDisk()
    shard = opened(tmp_path, disk)
    shard.append(rows_of(2), EPOCH_NS)
    shard.settings = TopicSettings(durability="fsync")
    assert shard.readable_end == 2
    told: list[BaseException | None] = []
    shard.append(rows_of(2), EPOCH_NS)
    shard.when_durable(told.append)
    assert (shard.readable_end, told) == (2, [])
    disk.run_all()
    assert (shard.readable_end, told) == (4, [None])
    shard.append(rows_of(2), EPOCH_NS)
    moved: list[int] = []
    shard.on_readable = lambda: moved.append(shard.readable_end)
    shard.settings = TopicSettings(durability="os")
    assert moved == [6]


def test_deleting_a_shard_lets_nobody_wait(tmp_path: Path) -> None:
    disk, clock = ManualDisk(), FakeClock()
    shard = opened(tmp_path / "shard", disk, clock)
    shard.append(rows_of(100), EPOCH_NS)
    shard.close()
    shard = opened(tmp_path / "shard", disk, clock, durability="fsync")
    disk.run_all()
    called: list[str] = []
    shard.fetch(0, lambda: called.append("fetched"))
    shard.append(rows_of(1), EPOCH_NS)
    shard.when_durable(lambda _: called.append("synced"))
    shard.delete()
    assert called == ["fetched"]
    disk.run_all()
    assert called == ["fetched", "synced"]
    shard.fetch(0, lambda: called.append("nothing"))
    clock.run()
    assert called[-1] == "nothing"


def test_close_on_a_broken_disk_leaves_the_shard_unclean(tmp_path: Path) -> None:
    disk = BrokenDisk()
    shard = opened(tmp_path, disk)
    wanted = listed(shard.append(rows_of(5), EPOCH_NS))
    disk.failing = 2
    shard.close()
    assert shard.sync_errors == 2
    again = opened(tmp_path, InlineDisk("boot-2"))
    assert again.end > 1000
    assert read_all(again) == wanted


def test_recent_reads_many_lone_messages_together(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    for number in range(300):
        shard.append(Rows.of([b"x"], "nsq", {"dedup": [b"key-%d" % number]}), EPOCH_NS + number)
    keys = [batch.row_value("dedup", row) for batch in shard.recent(EPOCH_NS + 100) for row in range(batch.count)]
    assert keys == [b"key-%d" % number for number in range(100, 300)]


def test_due_column_of_large_messages_is_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = opened(tmp_path)
    for number in range(4):
        shard.append(Rows.of([bytes(300_000)] * 2, "nsq", {"due": [None, number + 1]}), EPOCH_NS)
    read: list[int] = []
    real = Segment.read

    def counted(self: Segment, position: int, length: int) -> bytes:
        read.append(length)
        return real(self, position, length)

    monkeypatch.setattr(Segment, "read", counted)
    offsets, due = shard.due_rows(0, 1)
    assert (offsets.tolist(), due.tolist()) == ([3, 5, 7], [2, 3, 4])
    assert sum(read) < 50_000
