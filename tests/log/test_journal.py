"""The journal keeps every whole update since its newest whole snapshot, through any crash."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import MILLISECOND, SECOND
from penstock.errors import Refusal
from penstock.log.frame import Template
from penstock.log.journal import SMALL_BYTES, Entries, Entry, Journal
from tests.fakes import FakeClock
from tests.log.disks import FullDisk, InlineDisk, ManualDisk, torn_appends
from tests.log.samples import opened
from tests.simulation.machine import Machine


def reopened(path: Path, disk: InlineDisk | None = None, name: str = "channel") -> tuple[Journal, list[Entry]]:
    journal, entries = Journal.open(disk or InlineDisk(), FakeClock(), str(path), name)
    return journal, [tuple(entry) for entry in entries.tolist()]


def nothing() -> Entries:
    raise AssertionError("nobody should need a snapshot")


def entries_of(count: int, seed: int = 0) -> list[Entry]:
    return [(seed + row, row, row * 2, 3, -row) for row in range(count)]


def numbered(start: int, end: int) -> list[Entry]:
    return [(number,) * 5 for number in range(start, end)]


def files(path: Path) -> list[str]:
    return sorted(found.name for found in path.glob("*.journal"))


def test_entries_come_back_in_order(tmp_path: Path) -> None:
    journal, found = reopened(tmp_path)
    assert found == []
    wanted: list[Entry] = []
    for count in (1, 2, 16, 17, 500):
        some = entries_of(count, seed=count)
        journal.append(some if count != 500 else np.array(some))
        wanted += some
    assert reopened(tmp_path)[1] == wanted
    journal.close(nothing)
    assert reopened(tmp_path)[1] == wanted


def test_journal_is_an_arrow_stream(tmp_path: Path) -> None:
    journal, _ = reopened(tmp_path)
    journal.append(entries_of(3))
    journal.append(np.array(entries_of(40)))
    (path,) = tmp_path.glob("*.journal")
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    table.validate(full=True)
    assert table.column_names == ["op", "first", "last", "attempts", "due"]
    assert len(table) == len(pl.read_ipc_stream(path)) == 43


def test_snapshot_replaces_what_came_before(tmp_path: Path) -> None:
    journal, _ = reopened(tmp_path)
    journal.append(entries_of(100))
    journal.compact(np.array(entries_of(2, seed=7)))
    journal.append(entries_of(1, seed=9))
    assert files(tmp_path) == ["channel.1.journal"]
    assert reopened(tmp_path)[1] == entries_of(2, seed=7) + entries_of(1, seed=9)


def test_empty_snapshot_is_a_snapshot(tmp_path: Path) -> None:
    journal, _ = reopened(tmp_path)
    journal.append(entries_of(100))
    journal.compact(np.zeros((0, 5), np.int64))
    assert reopened(tmp_path)[1] == []


def test_torn_tail_is_cut_at_every_byte(tmp_path: Path) -> None:
    journal, _ = reopened(tmp_path / ".")
    journal.append(entries_of(2))
    before = journal.bytes
    journal.append(entries_of(3, seed=5))
    (path,) = tmp_path.glob("*.journal")
    content = path.read_bytes()
    for length in range(before, len(content)):
        place = tmp_path / "torn"
        place.mkdir()
        (place / path.name).write_bytes(content[:length])
        torn, found = reopened(place)
        assert found == entries_of(2)
        assert torn.cut_bytes == length - before
        torn.append(entries_of(1, seed=8))
        assert reopened(place)[1] == entries_of(2) + entries_of(1, seed=8)
        shutil.rmtree(place)


@given(st.integers(0, 1 << 20), st.integers(0, 7))
def test_flipped_bit_never_brings_a_wrong_entry(place: int, bit: int) -> None:
    from penstock.log import journal as module

    wanted = [entries_of(1), entries_of(2, seed=3), entries_of(30, seed=9)]
    content = bytearray(module._SCHEMA_MESSAGE)
    content += b"".join(module._encoded(0, np.zeros((0, 5), np.int64)))
    for some in wanted:
        content += b"".join(module._encoded(0, some))
    content[place % len(content)] ^= 1 << bit
    found, _, _ = module.recovered(bytes(content))
    rows = [] if found is None else [tuple(entry) for entry in found.tolist()]
    assert rows in ([], wanted[0], wanted[0] + wanted[1], [*wanted[0], *wanted[1], *wanted[2]])


def test_flipped_bit_in_the_schema_costs_nothing(tmp_path: Path) -> None:
    journal, _ = reopened(tmp_path)
    journal.append(entries_of(3))
    (path,) = tmp_path.glob("*.journal")
    content = path.read_bytes()
    for place in range(0, 300, 3):
        flipped = bytearray(content)
        flipped[place] ^= 16
        path.write_bytes(flipped)
        assert reopened(tmp_path)[1] == entries_of(3)


def test_crash_at_each_step_of_a_compaction_keeps_the_state(tmp_path: Path) -> None:
    disk = ManualDisk()
    journal, _ = reopened(tmp_path, disk)
    journal.append(entries_of(50))
    old = (tmp_path / "channel.0.journal").read_bytes()
    snapshot = entries_of(4, seed=100)
    journal.compact(np.array(snapshot))
    assert files(tmp_path) == ["channel.0.journal", "channel.1.journal"]  # written, not synced
    new = (tmp_path / "channel.1.journal").read_bytes()
    for length in range(0, len(new) + 1, 7):
        place = tmp_path / "crash"
        place.mkdir()
        (place / "channel.0.journal").write_bytes(old)
        (place / "channel.1.journal").write_bytes(new[:length])
        _, found = reopened(place)
        assert found == entries_of(50)
        assert files(place) == ["channel.0.journal"]
        shutil.rmtree(place)
    place = tmp_path / "after"
    shutil.copytree(tmp_path, place)  # both whole: the newer one counts, and the older goes
    assert reopened(place)[1] == snapshot
    assert files(place) == ["channel.1.journal"]
    journal.append(entries_of(1))
    disk.run_all()
    assert files(tmp_path) == ["channel.1.journal"]
    assert reopened(tmp_path)[1] == snapshot + entries_of(1)


def test_failed_sync_of_a_compaction_keeps_the_old_generation(tmp_path: Path) -> None:
    disk = ManualDisk()
    journal, _ = reopened(tmp_path, disk)
    journal.append(entries_of(50))
    journal.compact(np.array(entries_of(1)))
    disk.run(error=OSError(5, "Input/output error"))
    assert files(tmp_path) == ["channel.0.journal", "channel.1.journal"]


def test_size_stays_near_the_live_state_over_many_releases(tmp_path: Path) -> None:
    journal, _ = reopened(tmp_path)
    live = np.array(entries_of(3000))
    live_bytes = 0
    for cycle in range(20_000):
        journal.append([(2, cycle % 3000, cycle % 3000, cycle % 9, 0)])
        if journal.bloated:
            journal.compact(live)
            live_bytes = journal.bytes
            assert not journal.bloated
        assert journal.bytes <= max(SMALL_BYTES, 2 * live_bytes) + 1000
    assert len(files(tmp_path)) == 1
    assert live_bytes > 0


def test_syncs_are_shared(tmp_path: Path) -> None:
    disk = ManualDisk()
    journal, _ = reopened(tmp_path, disk)
    journal.append(entries_of(1))
    told: list[str] = []
    for name in ("a", "b", "c"):
        journal.sync(lambda error, name=name: told.append(f"{name} {error}"))  # type: ignore[misc]
    assert disk.pending("sync") == 1
    disk.run("sync")
    assert told == ["a None"]
    disk.run("sync")
    assert told == ["a None", "b None", "c None"]
    assert disk.pending("sync") == 0


def test_sync_that_meets_a_compaction_is_made_up_for(tmp_path: Path) -> None:
    disk = ManualDisk()
    journal, _ = reopened(tmp_path, disk)
    journal.append(entries_of(5))
    told: list[BaseException | None] = []
    journal.sync(told.append)
    journal.compact(np.array(entries_of(1)))
    disk.run("seal")  # the old file is closed before the sync of it runs
    disk.run("sync", error=OSError(9, "Bad file descriptor"))
    assert told == []
    disk.run("sync")
    assert told == [None]


def test_full_disk_holds_entries_back_until_there_is_room(tmp_path: Path) -> None:
    disk = FullDisk()
    journal, _ = reopened(tmp_path, disk)
    journal.append(entries_of(1))
    disk.room_bytes = 10
    journal.append(entries_of(2, seed=2))
    journal.append(np.array(entries_of(3, seed=3)))
    told: list[BaseException | None] = []
    journal.sync(told.append)
    assert isinstance(told[0], OSError)
    journal.compact(np.array(entries_of(9)))
    disk.room_bytes = None
    journal.append(entries_of(1, seed=9))
    wanted = entries_of(1) + entries_of(2, seed=2) + entries_of(3, seed=3) + entries_of(1, seed=9)
    assert reopened(tmp_path)[1] == wanted


@pytest.mark.parametrize("name", ["a/b", "..", "channel#ephemeral", "é" * 300, "x" * 1000, "a", "a.1"])
def test_any_name_is_a_file_of_its_own(tmp_path: Path, name: str) -> None:
    journal, _ = reopened(tmp_path, name=name)
    journal.append(entries_of(1))
    other, found = reopened(tmp_path, name=name + "x")
    assert found == []
    other.append(entries_of(2))
    assert reopened(tmp_path, name=name)[1] == entries_of(1)
    other.remove()
    assert reopened(tmp_path, name=name)[1] == entries_of(1)


def test_names_that_extend_each_other_do_not_mix(tmp_path: Path) -> None:
    one, _ = reopened(tmp_path, name="a")
    one.append(entries_of(1))
    two, _ = reopened(tmp_path, name="a.1")
    two.append(entries_of(2))
    one.remove()
    assert reopened(tmp_path, name="a.1")[1] == entries_of(2)
    assert reopened(tmp_path, name="a")[1] == []


def test_journal_of_a_memory_topic_keeps_nothing(tmp_path: Path) -> None:
    shard = opened(tmp_path, durability="memory")
    journal, found = shard.journal("channel")
    assert len(found) == 0
    journal.append(entries_of(5))
    told: list[BaseException | None] = []
    journal.sync(told.append)
    journal.compact(np.zeros((0, 5), np.int64))
    assert told == [None]
    assert not journal.bloated
    assert files(tmp_path) == []
    journal.close(nothing)
    journal.remove()


def test_shard_opens_its_journals_beside_the_log(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    journal, _ = shard.journal("channel")
    journal.append(entries_of(3))
    assert [tuple(entry) for entry in opened(tmp_path).journal("channel")[1].tolist()] == entries_of(3)


def test_entry_that_comes_after_the_end_brings_no_file_back(tmp_path: Path) -> None:
    journal, _ = reopened(tmp_path)
    journal.append(entries_of(3))
    journal.remove()
    journal.append(entries_of(1))
    journal.compact(np.array(entries_of(1)))
    assert files(tmp_path) == []


def test_sync_after_the_end_is_no_good_news(tmp_path: Path) -> None:
    journal, _ = reopened(tmp_path)
    journal.append(entries_of(3))
    journal.close(nothing)
    journal.append(entries_of(1))
    told: list[BaseException | None] = []
    journal.keep(told.append)
    assert isinstance(told[0], OSError)


@pytest.mark.parametrize("is_removed", [True, False])
def test_whoever_waits_for_the_sync_after_the_one_under_way_hears_what_became_of_it(
    tmp_path: Path, is_removed: bool
) -> None:
    disk = ManualDisk()
    journal, _ = reopened(tmp_path, disk)
    told: list[str] = []
    journal.append([(1, 1, 1, 1, 1)])
    journal.keep(lambda error: told.append(f"first {error or 'kept'}"))
    journal.append([(2, 2, 2, 2, 2)])
    journal.keep(lambda error: told.append(f"second {'lost' if error else 'kept'}"))
    if is_removed:
        journal.remove()  # its topic went to another node, which has what was synced
    else:
        journal.close(nothing)
    disk.run("sync")
    assert told == ["first kept", f"second {'lost' if is_removed else 'kept'}"]


def test_sync_of_what_is_synced_is_told_at_once(tmp_path: Path) -> None:
    disk = ManualDisk()
    journal, _ = reopened(tmp_path, disk)
    journal.append(entries_of(1))
    told: list[BaseException | None] = []
    journal.keep(told.append)
    disk.run("sync")
    assert told == [None]
    journal.keep(told.append)
    assert told == [None, None]
    assert disk.pending("sync") == 0


@pytest.mark.parametrize(("log", "wait_ns"), [("local", 2 * SECOND), ("kafka", 50 * MILLISECOND)])
def test_journals_are_synced_by_themselves_and_soon_where_others_may_go_on(
    tmp_path: Path, log: str, wait_ns: int
) -> None:
    disk, clock = ManualDisk(), FakeClock()
    shard = opened(tmp_path, disk, clock, log=log)
    journal, _ = shard.journal("channel")
    disk.run_all()
    journal.append(entries_of(1))
    assert shard.journals_wait == (log == "kafka")
    clock.advance(wait_ns - MILLISECOND)
    shard.tick(clock.now())
    assert disk.pending("sync") == 0
    clock.advance(MILLISECOND)
    shard.tick(clock.now())
    assert disk.pending("sync") == 1
    assert not shard.journals_wait
    disk.run_all()


def test_entries_beyond_what_can_be_held_back_stay_with_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.log.journal.HELD_MAX", 5)
    disk = FullDisk()
    journal, _ = reopened(tmp_path, disk)
    journal.append(entries_of(1))
    disk.room_bytes = 0
    journal.append(entries_of(4, seed=10))
    for _ in range(2):
        with pytest.raises(Refusal, match="no space"):
            journal.append(entries_of(2, seed=20))
    disk.room_bytes = None
    journal.append(entries_of(2, seed=20))
    assert reopened(tmp_path)[1] == [*entries_of(1), *entries_of(4, seed=10), *entries_of(2, seed=20)]


def steady(machine: Machine) -> tuple[Journal, list[Entry]]:
    """Open a journal on a simulated machine."""
    machine.disk.make("data")
    journal, found = Journal.open(machine.disk, machine.clock, "data", "channel")
    return journal, [tuple(entry) for entry in found.tolist()]


@pytest.mark.parametrize("seed", range(10))
def test_failed_sync_is_not_believed_before_a_snapshot_is_safe(seed: int) -> None:
    machine = Machine(seed)
    journal, _ = steady(machine)
    journal.append(numbered(0, 3))
    told: list[BaseException | None] = []
    journal.sync(told.append)
    machine.run()
    journal.append(numbered(3, 7))
    machine.fail_syncs(1)
    journal.sync(told.append)
    machine.run()
    journal.sync(told.append)
    machine.run()
    assert told[0] is None
    assert [type(error) for error in told[1:]] == [OSError, OSError]
    machine.run(2)
    assert journal.needs_snapshot
    journal.append(numbered(7, 9))
    journal.compact(np.array(numbered(0, 9)))
    journal.append(numbered(9, 10))
    journal.sync(told.append)
    machine.run()
    assert told[3:] == [None]
    assert not journal.suspect
    machine.lose_power()
    assert steady(machine)[1] == numbered(0, 10)


@pytest.mark.parametrize("seed", range(10))
def test_snapshot_that_could_not_be_synced_is_followed_by_another(seed: int) -> None:
    machine = Machine(seed)
    journal, _ = steady(machine)
    journal.append(numbered(0, 3))
    journal.sync(lambda _: None)
    machine.run()
    machine.fail_syncs(1)
    journal.compact(np.array(numbered(0, 3)))
    journal.append(numbered(3, 4))
    machine.run(2)
    assert journal.needs_snapshot
    journal.compact(np.array(numbered(0, 4)))
    machine.run()
    assert not journal.suspect
    assert len(machine.disk.list("data")) == 1
    machine.lose_power()
    assert steady(machine)[1] == numbered(0, 4)


@pytest.mark.parametrize("fails", ["before", "at the end"])
@pytest.mark.parametrize("seed", range(10))
def test_journal_that_cannot_be_synced_at_the_end_is_written_anew(seed: int, fails: str) -> None:
    machine = Machine(seed)
    journal, _ = steady(machine)
    journal.append(numbered(0, 3))
    machine.fail_syncs(1)
    if fails == "before":
        journal.sync(lambda _: None)
        machine.run()
    journal.close(lambda: np.array(numbered(0, 3)))
    machine.lose_power()
    assert steady(machine)[1] == numbered(0, 3)


def test_journal_whose_last_append_could_not_be_taken_back_goes_on_in_a_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = reopened(tmp_path)
    journal.append(numbered(0, 2))
    with torn_appends(monkeypatch):
        journal.append(numbered(2, 4))
    journal.append(numbered(4, 5))
    journal.catch_up()
    assert journal.needs_snapshot
    assert reopened(tmp_path)[1] == numbered(0, 2)
    journal.compact(np.array(numbered(0, 5)))
    journal.append(numbered(5, 6))
    assert reopened(tmp_path)[1] == numbered(0, 6)


@given(first=st.integers(0, 1 << 40), row=st.tuples(*[st.integers(-(1 << 63), (1 << 63) - 1)] * 5))
def test_one_entry_is_written_as_columns_of_it_are(first: int, row: tuple[int, int, int, int, int]) -> None:
    from penstock.log import journal as module

    template = Template(module.SCHEMA, 0)
    assert module._encoded(first, [row]) == template.encode_integers(first, [[value] for value in row])
