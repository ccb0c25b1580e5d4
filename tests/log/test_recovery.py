"""A shard comes back from a clean end, a kill, a power loss and rotten bytes with all it can vouch for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clock import SECOND
from penstock.errors import CorruptionError
from penstock.log.index import ENTRY_BYTES, Index
from penstock.log.shard import Shard
from penstock.log.state import RESERVED_BLOCK
from penstock.message import Rows
from tests.fakes import START_NS, FakeClock
from tests.log.disks import InlineDisk
from tests.log.samples import Row, in_files, listed, opened, read_all, rows_of


def data_file(path: Path) -> Path:
    (found,) = path.glob("*.arrows")
    return found


def index_file(path: Path) -> Path:
    (found,) = path.glob("*.index")
    return found


def killed(path: Path, counts: list[int], *, synced: int = 0, indexed: bool = True) -> list[list[Row]]:
    """Leave a shard as a killed process does, with the first batches synced."""
    clock = FakeClock()
    shard = opened(path, clock=clock)
    batches = []
    for number, count in enumerate(counts):
        batches.append(listed(shard.append(rows_of(count, seed=number), START_NS + number)))
        if number + 1 == synced:
            clock.advance(2 * SECOND)
            shard.tick(clock.now())
    if indexed:
        shard.tick(clock.now())
    return batches


def flat(batches: list[list[Row]]) -> list[Row]:
    return [row for batch in batches for row in batch]


def ends(path: Path) -> list[int]:
    """Return the position after each batch of the open segment."""
    index, _ = Index.decoded(index_file(path).read_bytes())
    return [index.positions[number] + index.lengths[number] for number in range(len(index))]


def test_clean_end_and_start_keep_everything(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    wanted = listed(shard.append(rows_of(5), START_NS)) + listed(shard.append(rows_of(50), START_NS))
    shard.close()
    disk = InlineDisk("boot-2")
    again = opened(tmp_path, disk)
    assert (again.end, again.cut_bytes, again.damaged) == (55, 0, [])
    wanted += listed(again.append(rows_of(1), START_NS))
    assert read_all(again) == wanted


def test_kill_keeps_every_row_and_goes_on_after_the_last(tmp_path: Path) -> None:
    batches = killed(tmp_path, [1, 20, 3], indexed=False)
    again = opened(tmp_path)
    assert (again.end, again.cut_bytes) == (24, 0)
    batches.append(listed(again.append(rows_of(2), START_NS)))
    assert read_all(again) == flat(batches)
    assert read_all(opened(tmp_path)) == flat(batches)


def test_torn_tail_is_cut_at_every_byte_position_of_the_last_batch(tmp_path: Path) -> None:
    batches = killed(tmp_path / "whole", [3, 1, 4])
    content = data_file(tmp_path / "whole").read_bytes()
    last = ends(tmp_path / "whole")[1]
    for length in range(last, len(content)):
        place = tmp_path / "torn"
        shutil.copytree(tmp_path / "whole", place)
        data_file(place).write_bytes(content[:length])
        index = index_file(place)
        index.write_bytes(index.read_bytes()[: 2 * ENTRY_BYTES])
        shard = opened(place)
        # What was cut may have been a whole batch whose length a bit flipped in: its offsets are not given again.
        end = RESERVED_BLOCK if length > last else 4
        assert (shard.end, shard.cut_bytes, shard.damaged) == (end, length - last, []), length
        added = listed(shard.append(rows_of(2), START_NS))
        assert read_all(shard) == flat(batches[:2]) + added
        shutil.rmtree(place)


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_bad_rows_that_may_have_been_seen_are_not_numbered_again(tmp_path: Path, boot: str) -> None:
    killed(tmp_path, [3, 1, 4])
    path = data_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    shard = opened(tmp_path, InlineDisk(boot))
    # Without a restart of the machine what was written whole is there whole: this is damage.
    cut, damaged, end = (False, [(4, 8)], 8) if boot == "boot-1" else (True, [], RESERVED_BLOCK)
    assert (shard.cut_bytes > 0, [tuple(hole[:2]) for hole in shard.damaged], shard.end) == (cut, damaged, end)
    shard.append(rows_of(1), START_NS)
    assert [row[0] for row in read_all(shard)] == [0, 1, 2, 3, end]


def test_bad_batch_of_a_killed_process_costs_only_its_own_rows(tmp_path: Path) -> None:
    batches = killed(tmp_path / "whole", [3, 1, 4, 2])
    content = data_file(tmp_path / "whole").read_bytes()
    first, second = ends(tmp_path / "whole")[:2]
    for at in range(first, second, 3):
        place = tmp_path / "bad"
        shutil.copytree(tmp_path / "whole", place)
        flipped = bytearray(content)
        flipped[at] ^= 16
        data_file(place).write_bytes(flipped)
        shard = opened(place)
        assert read_all(shard) == flat([batches[0], *batches[2:]]), at
        assert [tuple(hole[:2]) for hole in shard.damaged] == [(3, 4)], at
        shutil.rmtree(place)


@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize("left", [None, 0, 1, 400, 700])
def test_open_segment_that_is_gone_or_cut_short_is_told_and_its_offsets_are_not_given_again(
    tmp_path: Path, left: int | None, stopped: bool
) -> None:
    batches = killed(tmp_path, [3, 1, 4, 2])
    if stopped:
        opened(tmp_path).close()
    path = data_file(tmp_path)
    there = sum(end <= (left or 0) for end in ends(tmp_path))
    if left is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:left])
    for _ in range(2):
        shard = opened(tmp_path)
        first = sum(map(len, batches[:there]))
        assert read_all(shard) == flat(batches[:there])
        assert [tuple(hole[:2]) for hole in shard.damaged] == [(first, 10)]
        assert shard.end >= 10
    batch = shard.append(rows_of(1), START_NS)
    assert batch.first >= 10
    assert read_all(opened(tmp_path)) == flat(batches[:there]) + listed(batch)


def test_manifest_with_a_wrong_bit_anywhere_loses_no_row(tmp_path: Path) -> None:
    shard = opened(tmp_path / "whole")
    wanted = listed(shard.append(rows_of(5), START_NS))
    shard.roll()
    wanted += listed(shard.append(rows_of(3), START_NS))
    shard.close()
    content = (tmp_path / "whole" / "manifest").read_bytes()
    for at in range(0, len(content), 3):
        place = tmp_path / "bad"
        shutil.copytree(tmp_path / "whole", place)
        flipped = bytearray(content)
        flipped[at] ^= 1 << at % 8
        (place / "manifest").write_bytes(flipped)
        again = opened(place)
        assert read_all(again) == wanted, at
        assert again.damaged == [], at
        shutil.rmtree(place)


def test_manifest_of_a_version_that_wrote_no_check_is_taken(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    wanted = listed(shard.append(rows_of(5), START_NS))
    shard.close()
    path = tmp_path / "manifest"
    document = json.loads(path.read_bytes())
    assert len(document.pop("check")) == 8
    path.write_text(json.dumps(document, indent=1))
    assert (read_all(opened(tmp_path)), opened(tmp_path).end) == (wanted, 5)


def test_power_loss_goes_on_at_the_end_of_the_reserved_block(tmp_path: Path) -> None:
    disk = InlineDisk("boot-1")
    shard = opened(tmp_path, disk)
    shard.append(rows_of(10), START_NS)
    disk.boot = "boot-2"
    shard = opened(tmp_path, disk)
    assert (shard.end, shard.readable_end) == (RESERVED_BLOCK, 10)
    batch = shard.append(rows_of(3), START_NS)
    assert batch.first == RESERVED_BLOCK
    assert [row[0] for row in read_all(shard)] == [*range(10), *range(RESERVED_BLOCK, RESERVED_BLOCK + 3)]
    disk.boot = "boot-3"
    shard = opened(tmp_path, disk)
    assert shard.end == 2 * RESERVED_BLOCK
    shard.close()
    disk.boot = "boot-4"
    assert opened(tmp_path, disk).end == 2 * RESERVED_BLOCK
    assert opened(tmp_path, disk).end == 2 * RESERVED_BLOCK


def test_power_loss_that_takes_a_whole_unsynced_segment_loses_only_its_rows(tmp_path: Path) -> None:
    disk, clock = InlineDisk(), FakeClock()
    shard = opened(tmp_path, disk, clock)
    wanted = listed(shard.append(rows_of(10), START_NS))
    shard.roll()
    shard.append(rows_of(5), START_NS)
    sorted(tmp_path.glob("*.0.arrows"))[-1].write_bytes(b"")
    disk.boot = "boot-2"
    shard = opened(tmp_path, disk, clock)
    assert read_all(shard) == wanted
    assert shard.append(rows_of(1), START_NS).first == RESERVED_BLOCK


def test_everything_after_an_unsynced_bad_batch_is_cut_even_in_later_segments(tmp_path: Path) -> None:
    shard = opened(tmp_path, InlineDisk())
    shard.append(rows_of(5), START_NS)
    shard.append(rows_of(5), START_NS)
    state = (tmp_path / "state").read_bytes()
    manifest = (tmp_path / "manifest").read_bytes()
    shard.roll()
    shard.append(rows_of(7), START_NS)
    (tmp_path / "state").write_bytes(state)  # what a power loss leaves of it
    (tmp_path / "manifest").write_bytes(manifest)
    path = sorted(tmp_path.glob("*.0.arrows"))[0]
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)
    shard = opened(tmp_path, InlineDisk("boot-2"))
    assert [row[0] for row in read_all(shard)] == list(range(5))
    assert shard.cut_bytes > 0
    assert shard.end == RESERVED_BLOCK


def test_bad_batch_before_the_synced_position_is_damage_and_the_rest_is_served(tmp_path: Path) -> None:
    batches = killed(tmp_path, [3, 4, 5, 6], synced=4)
    path = data_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[ends(tmp_path)[0] + 40] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptionError, match=r'rows 3 to 6 .* recovery = "cut"'):
        opened(tmp_path, strict=True)
    shard = opened(tmp_path)
    assert [(damage.first, damage.end) for damage in shard.damaged] == [(3, 7)]
    assert (shard.end, shard.cut_bytes) == (18, 0)
    added = listed(shard.append(rows_of(2), START_NS))
    wanted = batches[0] + batches[2] + batches[3] + added
    assert read_all(shard) == wanted
    assert shard.rows_between(0, shard.end) == len(wanted)
    assert len(list(tmp_path.glob("*.0.arrows"))) == 2
    for _ in range(3):
        shard.tick(START_NS)
    assert read_all(shard) == wanted
    again = opened(tmp_path)
    assert read_all(again) == wanted
    assert [(damage.first, damage.end) for damage in again.damaged] == [(3, 7)]


def test_damage_without_an_index_reaches_to_the_synced_position(tmp_path: Path) -> None:
    batches = killed(tmp_path, [3, 4, 5, 6], synced=2)
    path = data_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[ends(tmp_path)[0] + 40] ^= 1
    path.write_bytes(content)
    index_file(tmp_path).unlink()
    shard = opened(tmp_path)
    assert [(damage.first, damage.end) for damage in shard.damaged] == [(3, 7)]
    assert read_all(shard) == batches[0] + batches[2] + batches[3]


def test_damage_of_unknown_length_at_the_end_is_reported_and_jumped(tmp_path: Path) -> None:
    batches = killed(tmp_path, [3, 4], synced=2)
    path = data_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[-30] ^= 1
    path.write_bytes(content)
    index_file(tmp_path).unlink()
    shard = opened(tmp_path)
    assert len(shard.damaged) == 1
    assert shard.end == RESERVED_BLOCK
    assert read_all(shard) == batches[0]


def test_damage_in_a_sealed_segment_shows_when_it_is_read(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = opened(tmp_path, clock=clock)
    batches = [listed(shard.append(rows_of(2000, seed=number), START_NS)) for number in range(3)]
    index = in_files(shard)._segments.open.entries()  # type: ignore[union-attr]
    place = index.positions[1] + 500
    shard.roll()
    shard.close()
    path = data_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)
    shard = opened(tmp_path, clock=clock)
    assert shard.damaged == []
    assert read_all(shard) == batches[0] + batches[2]
    assert [(damage.first, damage.end) for damage in shard.damaged] == [(2000, 4000)]
    assert shard.rows_between(0, shard.end) == 4000
    again = opened(tmp_path, clock=clock)
    assert len(again.damaged) == 1
    assert again.rows_between(1000, 5000) == 2000


def test_damage_in_a_sealed_segment_without_an_index_shows_too(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    batches = [listed(shard.append(rows_of(2000, seed=number), START_NS)) for number in range(3)]
    shard.roll()
    shard.close()
    path = data_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[-100] ^= 4
    path.write_bytes(content)
    index_file(tmp_path).unlink()
    shard = opened(tmp_path)
    assert read_all(shard) == batches[0] + batches[1]
    assert shard.damaged
    assert read_all(shard, 5000) == []


def test_missing_sealed_file_is_damage(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    shard.append(rows_of(2000), START_NS)
    shard.roll()
    wanted = listed(shard.append(rows_of(5), START_NS))
    shard.close()
    sorted(tmp_path.glob("*.arrows"))[0].unlink()
    shard = opened(tmp_path)
    assert [(damage.first, damage.end) for damage in shard.damaged] == [(0, 2000)]
    assert read_all(shard, 0) == wanted
    assert shard.rows_between(0, shard.end) == 5


def test_lost_manifest_and_indexes_are_rebuilt(tmp_path: Path) -> None:
    shard = opened(tmp_path, segment_bytes=4000)
    wanted = []
    for number in range(30):
        wanted += listed(shard.append(rows_of(7, seed=number), START_NS + number))
    for _ in range(20):
        shard.tick(START_NS)
    shard.close()
    (tmp_path / "manifest").unlink()
    for path in tmp_path.glob("*.index"):
        path.unlink()
    shard = opened(tmp_path, segment_bytes=4000)
    assert shard.damaged == []
    assert read_all(shard) == wanted


def test_garbage_in_the_manifest_is_no_reason_to_stay_down(tmp_path: Path) -> None:
    batches = killed(tmp_path, [3, 4])
    (tmp_path / "manifest").write_bytes(b"{ not json")
    assert read_all(opened(tmp_path)) == flat(batches)


def test_restart_between_roll_and_manifest_keeps_both_segments(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    wanted = listed(shard.append(rows_of(20), START_NS))
    manifest = (tmp_path / "manifest").read_bytes()
    shard.roll()
    wanted += listed(shard.append(rows_of(20), START_NS))
    (tmp_path / "manifest").write_bytes(manifest)
    shard = opened(tmp_path)
    assert read_all(shard) == wanted
    wanted += listed(shard.append(rows_of(1), START_NS))
    assert read_all(opened(tmp_path)) == wanted


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    path = tmp_path_factory.mktemp("whole")
    return path, flat(killed(path, [3, 1, 40, 2, 1, 1], synced=6))


def check(place: Path, wanted: list[Row]) -> Shard:
    """Open a shard with one flipped bit: what it serves is true, what it lacks it says."""
    shard = opened(place)
    found = read_all(shard, 0)
    lost = [row for row in wanted if row not in found]
    assert [row for row in wanted if row in found] == found
    told = {offset for damage in shard.damaged for offset in range(damage.first, max(damage.end, damage.first + 1))}
    assert shard.rows_between(0, shard.end) == len(found)
    if lost:
        assert told or shard.cut_bytes
        assert not told & {row[0] for row in found}
    added = listed(shard.append(rows_of(1), START_NS))
    assert added[0][0] >= len(wanted)
    assert read_all(shard, 0) == found + added
    return shard


@settings(max_examples=150)
@given(place=st.integers(0, 1 << 30), bit=st.integers(0, 7))
def test_flipped_bit_anywhere_in_the_data_is_never_served(
    place: int, bit: int, whole: tuple[Path, list[Row]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    source, wanted = whole
    copy = tmp_path_factory.mktemp("flip") / "shard"
    shutil.copytree(source, copy)
    path = data_file(copy)
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1 << bit
    path.write_bytes(content)
    shard = check(copy, wanted)
    lost = len(wanted) + 1 - shard.rows_between(0, shard.end)
    assert lost <= 40  # one bit costs one batch
    shutil.rmtree(copy.parent)


@settings(max_examples=100)
@given(place=st.integers(0, 1 << 30), bit=st.integers(0, 7))
def test_flipped_bit_anywhere_in_the_index_costs_nothing(
    place: int, bit: int, whole: tuple[Path, list[Row]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    source, wanted = whole
    copy = tmp_path_factory.mktemp("flip") / "shard"
    shutil.copytree(source, copy)
    path = index_file(copy)
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1 << bit
    path.write_bytes(content)
    shard = check(copy, wanted)
    assert shard.rows_between(0, shard.end) == len(wanted) + 1
    assert (shard.damaged, shard.cut_bytes) == ([], 0)
    shutil.rmtree(copy.parent)


@settings(max_examples=50)
@given(place=st.integers(0, 1 << 30), bit=st.integers(0, 7))
def test_flipped_bit_in_a_sealed_index_costs_nothing(
    place: int, bit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = tmp_path_factory.mktemp("flip")
    shard = opened(copy)
    wanted = [row for seed in range(3) for row in listed(shard.append(rows_of(1500, seed=seed), START_NS + seed))]
    shard.roll()
    shard.close()
    path = index_file(copy)
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1 << bit
    path.write_bytes(content)
    shard = opened(copy)
    assert read_all(shard) == wanted
    assert shard.damaged == []
    assert shard.offset_at(START_NS + 2) == 3000
    shutil.rmtree(copy)


def test_many_lone_messages_recover(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    rows = Rows.of([b"x" * 100], "nsq")
    for _ in range(30_000):
        shard.append(rows, START_NS)
    again = opened(tmp_path)
    assert again.end == 30_000


def test_lost_state_counts_as_another_boot(tmp_path: Path) -> None:
    batches = killed(tmp_path, [3, 4])
    (tmp_path / "state").unlink()
    shard = opened(tmp_path)
    assert shard.end >= RESERVED_BLOCK
    assert read_all(shard) == flat(batches)


def test_memory_topic_that_becomes_durable_does_not_begin_at_zero(tmp_path: Path) -> None:
    shard = opened(tmp_path, durability="memory")
    shard.append(rows_of(5), START_NS)
    shard.close()
    shard = opened(tmp_path)
    assert (shard.start, shard.end, shard.readable_end) == (RESERVED_BLOCK,) * 3
    wanted = listed(shard.append(rows_of(5), START_NS))
    assert read_all(shard) == wanted
    shard.close()
    assert opened(tmp_path, durability="memory").start == 2 * RESERVED_BLOCK


def test_fresh_shard_that_was_killed_begins_at_zero(tmp_path: Path) -> None:
    opened(tmp_path)
    assert opened(tmp_path).end == 0


def test_state_survives_half_a_line(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    shard.append(rows_of(5), START_NS)
    path = tmp_path / "state"
    path.write_bytes(path.read_bytes() + b'0badcafe {"reserved')
    assert opened(tmp_path).end == 5
