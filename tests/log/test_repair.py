"""After a failed sync nothing is believed of the pages behind it: rows are written again elsewhere, or refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.clock import SECOND
from penstock.errors import Refusal
from penstock.log.quota import Quota
from penstock.log.reader import Reader
from penstock.log.shard import Shard, open_shard
from penstock.log.verify import verify
from penstock.message import Rows
from penstock.settings import Durability, TopicSettings
from tests.fakes import START_NS, FakeClock
from tests.log.disks import BrokenDisk, ManualDisk, torn_appends
from tests.log.samples import in_files, listed, opened, read_all, rows_of
from tests.simulation.disk import Died
from tests.simulation.machine import Machine

PATH = "data/0"
SEEDS = range(12)


def begin(
    machine: Machine, durability: Durability = "os", *, segment_bytes: int = 1 << 20, cache_bytes: int = 1 << 20
) -> Shard:
    settings = TopicSettings(durability=durability, segment_bytes=segment_bytes)
    return open_shard(machine.disk, machine.clock, PATH, 0, settings, cache_bytes=cache_bytes)


def put(shard: Shard, *bodies: str) -> None:
    for body in bodies:
        shard.append(Rows.of([body.encode() + bytes(600)], "test"), START_NS)


def bodies_of(machine: Machine, shard: Shard) -> list[str]:
    found, offset = [], shard.start
    while offset < shard.readable_end:
        batch = shard.read(offset)
        if batch is None:
            shard.fetch(offset, lambda: None)
            machine.run(1)
            batch = shard.read(offset)
        if batch is None:
            break
        found += [batch.row_body(row).rstrip(b"\0").decode() for row in range(batch.count)]
        offset = batch.end
    return found


def sync(machine: Machine, shard: Shard, seconds: float = 0.5) -> list[BaseException | None]:
    """Ask for a sync, and return what was told."""
    told: list[BaseException | None] = []
    shard.sync(told.append)
    machine.run(seconds)
    return told


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_behind_a_failed_sync_survive_a_power_loss_once_they_are_said_to(
    seed: int, durability: Durability
) -> None:
    machine = Machine(seed)
    shard = begin(machine, durability)
    put(shard, "one", "two")
    assert sync(machine, shard) == [None]
    put(shard, "three", "four")
    machine.fail_syncs(1, ".arrows")
    assert sync(machine, shard) == [None]
    assert shard.sync_errors == 1
    assert shard.read_only == ""
    put(shard, "five")
    assert sync(machine, shard) == [None]
    assert bodies_of(machine, shard) == ["one", "two", "three", "four", "five"]
    machine.lose_power()
    again = begin(machine)
    assert bodies_of(machine, again) == ["one", "two", "three", "four", "five"]
    assert again.damaged == []


@pytest.mark.parametrize("seed", SEEDS)
def test_offsets_and_weights_stay_what_they_were(seed: int) -> None:
    machine = Machine(seed)
    shard = begin(machine)
    before = [shard.append(rows_of(3, seed=number, names=("key", "due")), START_NS + number) for number in range(4)]
    end, weight = shard.end, shard.weight
    machine.fail_syncs(1, ".arrows")
    assert sync(machine, shard) == [None]
    machine.lose_power()
    again = begin(machine)
    for batch in before:
        again.fetch(batch.first, lambda: None)
        machine.run(1)
        found = again.read(batch.first)
        assert found is not None
        row = batch.first - found.first
        assert found.row_time(row) == batch.row_time(0)
        assert [found.row_value("key", row + n) for n in range(3)] == [batch.row_value("key", n) for n in range(3)]
    assert again.weight == weight
    assert again.end >= end


@pytest.mark.parametrize("seed", SEEDS)
def test_several_segments_behind_one_failed_sync_are_all_written_again(seed: int) -> None:
    machine = Machine(seed)
    shard = begin(machine, segment_bytes=2500)
    put(shard, "0")
    assert sync(machine, shard) == [None]
    wanted = [str(number) for number in range(20)]
    machine.fail_syncs(1, ".arrows")
    put(shard, *wanted[1:])
    assert sync(machine, shard) == [None]
    assert shard.sync_errors == 1
    machine.lose_power()
    assert bodies_of(machine, begin(machine)) == wanted


def test_a_disk_that_fails_twice_makes_the_shard_read_only_until_it_takes_the_rows() -> None:
    machine = Machine()
    shard = begin(machine)
    put(shard, "one")
    machine.fail_syncs()
    (error,) = sync(machine, shard)
    assert isinstance(error, OSError)
    with pytest.raises(Refusal, match=r"read-only.*Input/output error") as refusal:
        put(shard, "two")
    assert refusal.value.code == "disk_failed"
    assert "read-only" in shard.read_only
    assert bodies_of(machine, shard) == ["one"]
    assert isinstance(sync(machine, shard)[0], OSError)
    machine.mend()
    machine.run(5)
    assert shard.read_only == ""
    assert sync(machine, shard) == [None]
    put(shard, "two")
    assert sync(machine, shard) == [None]
    machine.lose_power()
    assert bodies_of(machine, begin(machine)) == ["one", "two"]


def test_rows_of_an_fsync_topic_are_taken_back_when_the_disk_fails_twice() -> None:
    machine = Machine()
    shard = begin(machine, "fsync")
    put(shard, "kept")
    assert sync(machine, shard) == [None]
    taken_back: list[int] = []
    shard.on_taken_back = taken_back.append
    weight = shard.weight
    put(shard, "lost")
    machine.fail_syncs()
    (error,) = sync(machine, shard)
    assert isinstance(error, OSError)
    assert (taken_back, shard.weight) == ([1], weight)
    assert bodies_of(machine, shard) == ["kept"]
    machine.mend()
    machine.run(5)
    put(shard, "next")
    assert sync(machine, shard) == [None]
    assert bodies_of(machine, shard) == ["kept", "next"]
    assert shard.rows_between(0, shard.end) == 2
    machine.lose_power()
    assert bodies_of(machine, begin(machine)) == ["kept", "next"]


def test_rows_wait_for_the_manifest_that_names_their_new_file() -> None:
    machine = Machine()
    shard = begin(machine)
    put(shard, "one")
    machine.run(1)
    failed: list[str] = []

    def fails(path: str) -> bool:
        failed.append(path)
        return (path.endswith(".arrows") and len(failed) == 1) or "manifest" in path

    machine.platter.fails = fails
    assert isinstance(sync(machine, shard)[0], OSError)
    machine.mend()
    machine.run(5)
    assert sync(machine, shard) == [None]
    machine.lose_power()
    assert bodies_of(machine, begin(machine)) == ["one"]


def test_a_full_disk_delays_the_repair_and_no_more() -> None:
    machine = Machine()
    shard = begin(machine)
    put(shard, "one")
    machine.fail_syncs(1, ".arrows")
    machine.fill()
    assert isinstance(sync(machine, shard)[0], OSError)
    assert shard.read_only
    machine.make_room()
    machine.run(5)
    put(shard, "two")
    assert sync(machine, shard) == [None]
    machine.lose_power()
    assert bodies_of(machine, begin(machine)) == ["one", "two"]


# The first step is the sync that fails, the second the note of that: who dies in it has told nobody.
@pytest.mark.parametrize("fuse", [1, *range(3, 40)])
def test_a_process_that_dies_within_a_repair_loses_nothing_that_can_still_be_read(fuse: int) -> None:
    machine = Machine()
    shard = begin(machine)
    put(shard, "one", "two")
    assert sync(machine, shard) == [None]
    put(shard, "three")
    machine.fail_syncs(1, ".arrows", shown=True)
    shard.sync(lambda _: None)
    machine.platter.fuse = fuse
    try:
        machine.run(1)
    except Died:
        pass
    machine.start()
    machine.mend()
    again = begin(machine)
    assert bodies_of(machine, again) == ["one", "two", "three"]
    assert again.damaged == []
    put(again, "four")
    assert sync(machine, again) == [None]
    machine.lose_power()
    assert bodies_of(machine, begin(machine)) == ["one", "two", "three", "four"]


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_that_memory_lost_are_read_back_or_reported(seed: int) -> None:
    machine = Machine(seed)
    shard = begin(machine, cache_bytes=2500)
    wanted = [str(number) for number in range(10)]
    put(shard, *wanted)
    machine.fail_syncs(1, ".arrows")
    (error,) = sync(machine, shard)
    if error is None:
        machine.lose_power()
        assert bodies_of(machine, begin(machine)) == wanted
    else:
        assert re.search(r"rows \d+ to \d+ were not synced and are lost", shard.read_only)
        with pytest.raises(Refusal, match="are lost"):
            put(shard, "more")


def test_both_outcomes_of_rows_that_memory_lost_are_met() -> None:
    found = set()
    for seed in SEEDS:
        machine = Machine(seed)
        shard = begin(machine, cache_bytes=2500)
        put(shard, *map(str, range(10)))
        machine.fail_syncs(1, ".arrows")
        found.add(sync(machine, shard)[0] is None)
    assert found == {True, False}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sync_that_fails_at_the_very_end_is_repaired_as_well(seed: int) -> None:
    machine = Machine(seed)
    shard = begin(machine)
    put(shard, "one")
    machine.fail_syncs(1, ".arrows")
    shard.close()
    machine.lose_power()
    again = begin(machine)
    assert bodies_of(machine, again) == ["one"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_shard_that_is_closed_while_a_thread_hears_of_the_failure_is_not_told_that_all_is_well(seed: int) -> None:
    machine = Machine(seed)
    shard = begin(machine)
    put(shard, "one")
    machine.fail_syncs(1, ".arrows")
    shard.sync(lambda _: None)
    while not in_files(shard)._safety.group_sync._unheard and not shard.sync_errors:
        machine.run(0.00001)
    shard.close()
    machine.lose_power()
    assert bodies_of(machine, begin(machine)) == ["one"]


def test_whoever_waits_for_a_sync_of_a_shard_that_is_dropped_is_told_that_it_was_closed(tmp_path: Path) -> None:
    disk = ManualDisk()
    shard = opened(tmp_path, disk, durability="fsync")
    put(shard, "one")
    told: list[BaseException | None] = []
    shard.when_durable(told.append)
    assert disk.pending("sync")
    shard.drop()  # its slot went to another node, or somebody deleted its topic
    disk.run_all()
    assert [str(error) for error in told] == [f"{tmp_path} was closed before its rows were safe"]


def test_a_start_that_cannot_sync_copies_what_it_found() -> None:
    machine = Machine()
    shard = begin(machine)
    put(shard, "one")
    machine.start()
    machine.fail_syncs(1, ".arrows", shown=True)
    again = begin(machine)
    machine.lose_power()
    assert bodies_of(machine, begin(machine)) == ["one"]
    assert again.damaged == []


def test_readers_beside_the_node_and_verify_find_every_row_once(tmp_path: Path) -> None:
    disk = BrokenDisk()
    shard = opened(tmp_path, disk, FakeClock())
    shard.append(rows_of(3), START_NS)
    shard.sync(lambda _: None)
    shard.append(rows_of(4), START_NS)
    shard.tick(START_NS)
    disk.failing = 1
    told: list[BaseException | None] = []
    shard.sync(told.append)
    assert (told, shard.sync_errors) == ([None], 1)
    shard.append(rows_of(5), START_NS)
    shard.tick(START_NS)
    found = [offset for batch in Reader(str(tmp_path)).batches() for offset in batch.column(0).to_pylist()]
    assert found == list(range(12))
    report = verify(str(tmp_path))
    assert (report.good, report.rows) == (True, 12)
    shard.close()
    assert verify(str(tmp_path)).rows == 12


@pytest.mark.parametrize("synced", [False, True])
def test_an_append_that_could_not_be_taken_back_ends_the_file_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: bool
) -> None:
    clock = FakeClock()
    shard = opened(tmp_path, BrokenDisk(), clock)
    wanted = listed(shard.append(rows_of(3), START_NS))
    if synced:
        shard.sync(lambda _: None)
    with torn_appends(monkeypatch), pytest.raises(Refusal, match="no space left"):
        shard.append(rows_of(4), START_NS)
    clock.advance(SECOND)
    wanted += listed(shard.append(rows_of(5), START_NS))
    assert read_all(shard) == wanted
    # Killed now, and started again.
    again = opened(tmp_path, BrokenDisk(), FakeClock())
    assert read_all(again) == wanted
    assert (again.damaged, again.cut_bytes) == ([], 0)


def test_an_append_that_could_not_be_taken_back_waits_for_the_sync_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ManualDisk()
    shard = opened(tmp_path, disk, FakeClock())
    disk.run_all()
    wanted = listed(shard.append(rows_of(3), START_NS))
    told: list[BaseException | None] = []
    shard.sync(told.append)
    with torn_appends(monkeypatch), pytest.raises(Refusal, match="no space left"):
        shard.append(rows_of(4), START_NS)
    with pytest.raises(Refusal, match="read-only"):
        shard.append(rows_of(5), START_NS)
    disk.run_all()
    assert told == [None]
    wanted += listed(shard.append(rows_of(5), START_NS))
    disk.run_all()
    assert read_all(shard) == wanted
    again = opened(tmp_path, BrokenDisk(), FakeClock())
    assert read_all(again) == wanted
    assert (again.damaged, again.cut_bytes) == ([], 0)


def test_offset_of_a_row_that_a_failed_sync_took_back_is_not_given_again_after_a_kill() -> None:
    machine = Machine()
    quota = Quota(1 << 20)
    settings = TopicSettings(durability="fsync")
    shard = open_shard(machine.disk, machine.clock, PATH, 0, settings, quota=quota)
    put(shard, "one")
    assert sync(machine, shard) == [None]
    shard.roll()
    machine.run(3)
    put(shard, "two")
    machine.fail_syncs(of=".arrows")
    assert isinstance(sync(machine, shard)[0], OSError)
    assert (shard.readable_end, shard.end) == (1, 2)
    quota.bytes_max = 1
    shard.tick(START_NS)  # there is no room for files that are to go
    machine.start()
    machine.mend()
    again = begin(machine, "fsync")
    assert bodies_of(machine, again) == ["one"]
    assert again.end >= 2
