"""Rows after a damaged place are found again, with and without an index, and their numbers are never used twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.log.index import Index
from penstock.log.recovery import may_hold_rows
from penstock.log.shard import Shard, open_shard
from penstock.log.state import RESERVED_BLOCK
from penstock.settings import TopicSettings
from tests.fakes import START_NS
from tests.log.samples import in_files, listed, opened, read_all, rows_of
from tests.simulation.disk import Died
from tests.simulation.machine import Machine

PATH = "data/0"


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("indexed", [True, False])
def test_one_damaged_batch_of_a_closed_segment_costs_its_own_rows_only(tmp_path: Path, indexed: bool) -> None:
    shard = opened(tmp_path)
    batches = [listed(shard.append(rows_of(2000, seed=number), START_NS)) for number in range(3)]
    place = in_files(shard)._segments.open.entries().positions[1] + 500  # type: ignore[union-attr]
    shard.roll()
    shard.close()
    (path,) = tmp_path.glob("*.arrows")
    flip(path, place)
    if not indexed:
        next(iter(tmp_path.glob("*.index"))).unlink()
    shard = opened(tmp_path)
    assert read_all(shard) == batches[0] + batches[2]
    assert [(damage.first, damage.end) for damage in shard.damaged] == [(2000, 4000)]


def test_closed_segment_with_a_damaged_schema_and_no_index_is_readable(tmp_path: Path) -> None:
    shard = opened(tmp_path)
    wanted = listed(shard.append(rows_of(2000), START_NS))
    shard.roll()
    shard.close()
    (path,) = tmp_path.glob("*.arrows")
    flip(path, 1)
    next(iter(tmp_path.glob("*.index"))).unlink()
    shard = opened(tmp_path)
    assert read_all(shard) == wanted
    assert shard.damaged


def started(machine: Machine) -> Shard:
    machine.start()
    return open_shard(machine.disk, machine.clock, PATH, 0, TopicSettings())


def test_numbers_of_cut_rows_are_not_given_out_again_though_the_process_died_while_it_cut() -> None:
    for fuse in range(1, 30):
        machine = Machine()
        shard = started(machine)
        shard.append(rows_of(2), START_NS)
        shard.append(rows_of(3), START_NS)
        (path,) = [path for path in machine.platter.files if path.endswith(".arrows")]
        machine.platter.files[path].data[-20] ^= 1
        machine.start()
        machine.platter.fuse = fuse
        try:
            open_shard(machine.disk, machine.clock, PATH, 0, TopicSettings())
        except Died:
            pass
        again = started(machine)
        assert again.end >= RESERVED_BLOCK, fuse
        assert again.rows_between(0, again.end) == 2


def test_a_lone_damaged_batch_in_the_last_segment_uses_up_its_numbers() -> None:
    machine = Machine()
    shard = started(machine)
    shard.append(rows_of(3), START_NS)
    (path,) = [path for path in machine.platter.files if path.endswith(".arrows")]
    machine.platter.files[path].data[-20] ^= 1
    assert started(machine).end >= RESERVED_BLOCK


def test_a_file_shorter_than_a_schema_never_held_a_row() -> None:
    assert not may_hold_rows(100, Index())
    assert may_hold_rows(100_000, Index())
