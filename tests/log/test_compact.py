"""An old segment that few rows hold is rewritten with these alone: same offsets, holes between them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from penstock.columns import OPTIONAL_COLUMNS
from penstock.errors import Refusal
from penstock.log import manifest
from penstock.log.backup import backup, restore
from penstock.log.reader import Reader
from penstock.log.shard import Shard, open_shard
from penstock.log.verify import verify
from penstock.log.weight import edges
from penstock.message import Batch
from penstock.settings import HOUR_NS, MINUTE_NS, Measure, TopicSettings
from tests.fakes import FakeClock
from tests.log.disks import InlineDisk
from tests.log.samples import Row, in_files, listed, opened, read_all, rows_of
from tests.simulation.disk import Died
from tests.simulation.machine import Machine

#: Nothing stays for its age or its size.
SHORT: dict[str, Any] = {"retention_age_ns": 0, "retention_bytes": 0}


def filled(path: Path, clock: FakeClock, segments: int = 3, rows: int = 1000, **options: Any) -> Shard:
    """Return a shard with closed segments and one open row."""
    names = options.pop("names", ())
    shard = opened(path, clock=clock, **{**SHORT, **options})
    for number in range(segments):
        for start in range(0, rows, 50):
            shard.append(rows_of(50, seed=number * rows + start, names=names), clock.now())
        shard.roll()
        clock.advance(MINUTE_NS)
    shard.append(rows_of(1), clock.now())
    return shard


def wait_for(shard: Shard, *offsets: int) -> None:
    """Let these rows be waited for, and no others."""
    rows = np.array(offsets, np.int64)
    shard.waiting = lambda first, end: rows[(rows >= first) & (rows < end)]


def kept(shard: Shard) -> list[int]:
    return [row[0] for row in read_all(shard, shard.kept_from)]


def test_only_the_rows_that_are_waited_for_stay(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = filled(tmp_path, clock)
    before = {row[0]: row for row in read_all(shard)}
    wait_for(shard, 7, 8, 500, 1700)
    assert shard.retain(3000, clock.now()) == 1000
    assert kept(shard) == [7, 8, 500, 1700, 3000]
    assert read_all(shard, shard.kept_from) == [before[offset] for offset in kept(shard)]
    assert (shard.kept_from, shard.start, shard.end) == (0, 3000, 3001)
    spans = {(0, 3001): 5, (0, 8): 1, (8, 501): 2, (9, 500): 0, (501, 1000): 0, (1000, 2000): 1}
    assert {span: shard.rows_between(*span) for span in spans} == spans
    assert shard.stored_bytes() < 15_000
    shard.close()
    again = opened(tmp_path, clock=clock, **SHORT)
    assert kept(again) == [7, 8, 500, 1700, 3000]
    assert (again.kept_from, again.start, again.end, again.weight) == (0, 3000, 3001, shard.weight)
    assert again.damaged == []
    assert verify(str(tmp_path)).good


def test_segment_goes_when_its_last_row_is_done(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = filled(tmp_path, clock)
    wait_for(shard, 7, 500)
    shard.retain(3000, clock.now())
    wait_for(shard, 500)
    shard.retain(3000, clock.now())
    assert kept(shard) == [7, 500, 3000]  # half of next to nothing is not worth a rewrite
    wait_for(shard)
    assert shard.retain(3000, clock.now()) == 2
    assert (kept(shard), shard.kept_from) == ([3000], 3000)


def test_segment_that_is_needed_for_the_most_part_stays_whole(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = filled(tmp_path, clock, segments=1)
    wait_for(shard, *range(0, 1000, 5))
    shard.retain(1000, clock.now())
    assert len(kept(shard)) == 1001
    wait_for(shard, *range(300))
    shard.retain(1000, clock.now())
    assert len(kept(shard)) == 301


def test_history_that_was_promised_is_not_compacted(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = filled(tmp_path, clock, retention_age_ns=HOUR_NS, retention_bytes=1 << 30)
    wait_for(shard, 7)
    shard.retain(3000, clock.now())
    assert len(kept(shard)) == 3001
    assert shard.start == 0


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_every_column_and_place_in_the_queue_stays(tmp_path: Path, compression: str) -> None:
    clock = FakeClock()
    options: dict[str, Any] = {
        "names": OPTIONAL_COLUMNS,
        "compression": compression,
        "dedup_window_ns": 0,
    }
    shard = filled(tmp_path, clock, segments=1, **options)
    clock.advance(HOUR_NS)
    shard.append(rows_of(1), clock.now())
    shard.tick(clock.now())
    weights = {offset: weight(shard, offset) for offset in range(1000)}
    before = {row[0]: row for row in read_all(shard)}
    keep = sorted(Random(1).sample(range(1000), 5)) + list(range(100, 140))
    wait_for(shard, *sorted(set(keep)))
    shard.retain(1000, clock.now())
    found = read_all(shard, 0)
    assert [row[0] for row in found] == [*sorted(set(keep)), 1000, 1001]
    assert found == [before[row[0]] for row in found]
    assert {offset: weight(shard, offset) for offset in keep} == {offset: weights[offset] for offset in keep}


def weight(shard: Shard, offset: int) -> int:
    """Return what stands before a row."""
    batch = shard.read(offset)
    if batch is None:
        shard.fetch(offset, lambda: None)
        batch = shard.read(offset)
    assert batch is not None
    return int(edges(batch, shard.measures)[offset - batch.first])


def test_rows_from_before_an_upgrade_keep_their_place(tmp_path: Path) -> None:
    clock = FakeClock()
    plain = (0, Measure(30, None))
    shard = opened(tmp_path, clock=clock, measures=[plain], **SHORT)
    old = shard.append(rows_of(30, names=["headers"]), clock.now())
    shard.weigh_by([plain, (shard.end, Measure(31, 2))])
    at_upgrade = shard.weight
    batch = shard.append(rows_of(30, names=["headers"]), clock.now())
    assert edges(old, shard.measures)[-1] == at_upgrade == batch.weight == 30 * 30 + len(old.body)
    assert edges(batch, shard.measures)[-1] == shard.weight
    assert edges(batch, [plain])[-1] < shard.weight


def test_a_merged_batch_that_spans_an_upgrade_weighs_what_its_rows_did() -> None:
    rows = rows_of(40, names=["headers"])
    merged = Batch(100, 40, 1, rows.cuts, rows.body, "test", rows.columns, 5000)
    found = edges(merged, [(0, Measure(30, None)), (110, Measure(31, 2)), (500, Measure(1, 1))])
    headers = [cells(merged, row) for row in range(40)]
    assert found[0] == 5000
    for row, header in enumerate(headers):
        body = len(merged.row_body(row))
        extra = 0 if row < 10 else 1 + (0 if header is None else 2 + len(header))
        assert found[row + 1] - found[row] == 30 + body + extra


def cells(batch: Batch, row: int) -> bytes | None:
    value = batch.row_value("headers", row)
    assert value is None or isinstance(value, bytes)
    return value


def test_readers_beside_the_node_see_what_is_kept_for_them_and_are_told_of_the_rest(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = filled(tmp_path, clock)
    reader = Reader(str(tmp_path))
    wait_for(shard, 7, 1500)
    shard.retain(2000, clock.now())
    shard.close()
    rows = pa.Table.from_batches(reader.batches(0))["offset"].to_pylist()
    assert rows == list(range(2000, 3001))
    assert reader.lost == [(0, 2000)]
    assert reader.ends() == (2000, 3001)
    with pytest.raises(Refusal, match="offsets 5 to 1999 are not kept any more; the earliest is 2000"):
        list(Reader(str(tmp_path)).batches(5, strict=True))
    assert [stretch.first for stretch in reader.view()[1]] == [2000, 3000]


def test_others_read_a_sparse_segment_as_it_is(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = filled(tmp_path, clock, segments=1)
    wait_for(shard, 7, 8, 500)
    shard.retain(1000, clock.now())
    (path,) = [in_files(shard)._segments.closed[0].path()]
    assert pa.ipc.open_stream(pa.memory_map(path)).read_all()["offset"].to_pylist() == [7, 8, 500]
    assert pl.read_ipc_stream(path)["offset"].to_list() == [7, 8, 500]


@pytest.mark.parametrize("lost", ["manifest", "index", "both"])
def test_sparse_segment_is_known_without_manifest_or_index(tmp_path: Path, lost: str) -> None:
    clock = FakeClock()
    shard = filled(tmp_path, clock)
    wait_for(shard, 7, 8, 500)
    shard.retain(1000, clock.now())
    before = read_all(shard, shard.kept_from)
    shard.close()
    clock.advance(10 * MINUTE_NS)
    opened(tmp_path, clock=clock, **SHORT).close()
    if lost in ("manifest", "both"):
        (tmp_path / manifest.FILE).unlink()
    if lost in ("index", "both"):
        for path in tmp_path.glob("*.index"):
            path.unlink()
    again = opened(tmp_path, clock=clock, **SHORT)
    assert again.damaged == []
    assert again.start == 1000
    assert read_all(again, again.kept_from) == before
    assert again.rows_between(0, 1000) == 3


def test_flipped_bit_in_a_sparse_segment_costs_its_batch_alone(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = filled(tmp_path, clock, segments=1)
    wait_for(shard, 7, 500, 900)
    shard.retain(1000, clock.now())
    segment = in_files(shard)._segments.closed[0]
    position = segment.entries().positions[1] + segment.entries().lengths[1] - 9
    data = bytearray(Path(segment.path()).read_bytes())
    data[position] ^= 1
    Path(segment.path()).write_bytes(data)
    assert kept(shard) == [7, 900, 1000]
    assert [(damage.first, damage.end) for damage in shard.damaged] == [(500, 501)]
    assert shard.rows_between(0, 1000) == 2
    assert not verify(str(tmp_path)).good


def test_damaged_segment_is_left_alone(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = filled(tmp_path, clock, segments=1)
    path = Path(in_files(shard)._segments.closed[0].path())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    wait_for(shard, 7)
    shard.retain(1000, clock.now())
    clock.advance(HOUR_NS)
    shard.retain(1000, clock.now())
    assert not in_files(shard)._segments.closed[0].sparse
    assert len(shard.damaged) == 1


def test_row_that_is_needed_again_while_its_segment_is_rewritten_stays(tmp_path: Path) -> None:
    clock = FakeClock()
    for needed in (np.array([7, 9]), None):
        shard = filled(tmp_path / str(needed), clock, segments=1)
        answers = [np.array([7]), needed]
        shard.waiting = lambda first, end, answers=answers: answers.pop(0)  # type: ignore[misc]
        shard.retain(1000, clock.now())
        assert answers == []
        assert len(kept(shard)) == 1001
        assert len(list((tmp_path / str(needed)).glob("*.arrows"))) <= 3  # what came too late is gone


def test_keys_of_producers_stay_known_for_their_time(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = filled(tmp_path, clock, segments=1, names=["dedup"])
    wait_for(shard, 7)
    shard.retain(1000, clock.now())
    assert len(kept(shard)) == 1001
    clock.advance(10 * MINUTE_NS)
    shard.append(rows_of(1), clock.now())
    shard.retain(1000, clock.now())
    assert len(kept(shard)) == 3


def test_backup_holds_what_the_log_holds(tmp_path: Path) -> None:
    clock = FakeClock()
    place = tmp_path / "data/topics/1/0"
    place.mkdir(parents=True)
    shard = filled(place, clock)
    wait_for(shard, 7, 500)
    shard.retain(1000, clock.now())
    before = read_all(shard, shard.kept_from)
    shard.close()
    backup(str(tmp_path / "data"), str(tmp_path / "backup"))
    restore(str(tmp_path / "backup"), str(tmp_path / "again"))
    again = opened(tmp_path / "again/topics/1/0", clock=clock, disk=InlineDisk("boot-1"), **SHORT)
    assert read_all(again, again.kept_from) == before


def simulated(machine: Machine) -> Shard:
    settings = TopicSettings(retention_age_ns=0, retention_bytes=0, segment_bytes=1 << 16)
    shard = open_shard(machine.disk, machine.clock, "data", 0, settings)
    return shard


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
def test_death_inside_any_operation_of_a_rewrite_loses_nothing_that_is_needed(power: bool) -> None:
    operation = 1
    while True:
        machine = Machine(operation)
        shard = simulated(machine)
        for number in range(40):
            shard.append(rows_of(100, seed=100 * number), machine.clock.now())
        shard.roll()
        for _ in range(5):
            machine.run(1)
            shard.tick(machine.clock.now())
        keep = np.array([5, 6, 1777, 3999])
        wait_for(shard, *keep.tolist())
        before = {row[0]: row for batch in in_files(shard)._cache.tail for row in listed(batch)}
        machine.platter.fuse = operation
        with suppress(Died):
            shard.retain(4000, machine.clock.now())
            machine.run(5)
        done = machine.platter.fuse is not None
        if power:
            machine.lose_power()
        else:
            machine.start()
        again = simulated(machine)
        assert again.damaged == []
        found = rows_on(machine, again)
        assert {offset: before[offset] for offset in keep.tolist()}.items() <= found.items()
        assert all(before[offset] == row for offset, row in found.items())
        wait_for(again, *keep.tolist())
        for _ in range(30):  # long enough that every file goes that is to go
            again.retain(4000, machine.clock.now())
            machine.run(60)
            again.tick(machine.clock.now())
        assert rows_on(machine, again) == {offset: before[offset] for offset in keep.tolist()}
        names = [name for name in machine.platter.files if name.endswith(".arrows")]
        assert len(names) == len(in_files(again)._segments.closed) + (in_files(again)._segments.open is not None)
        if done:
            break
        operation += 1
    assert operation > 10


def rows_on(machine: Machine, shard: Shard) -> dict[int, Row]:
    found: dict[int, Row] = {}
    offset = shard.kept_from
    while offset < shard.readable_end:
        batch = shard.read(offset)
        if batch is None:
            shard.fetch(offset, lambda: None)
            machine.run(1)
            batch = shard.read(offset)
        if batch is None:
            break
        found |= {row[0]: row for row in listed(batch)}
        offset = batch.end
    return found


def test_file_left_by_a_death_before_its_manifest_is_not_removed_once_it_is_in_use() -> None:
    """The sealing of a segment, too, writes a name again that an earlier process used."""
    operation = 1
    while operation < 60:
        machine = Machine(operation)
        shard = simulated(machine)
        for number in range(100):
            shard.append(rows_of(10, seed=10 * number), machine.clock.now())
        shard.roll()
        machine.platter.fuse = operation
        with suppress(Died):
            for _ in range(3):
                machine.run(1)
                shard.tick(machine.clock.now())
        machine.start()
        again = simulated(machine)
        for _ in range(15):
            machine.run(60)
            again.tick(machine.clock.now())
        assert sorted(rows_on(machine, again)) == list(range(1000))
        machine.start()
        last = simulated(machine)
        assert sorted(rows_on(machine, last)) == list(range(1000))
        operation += 1
