"""A memory topic holds its newest rows, up to its bound, and never numbers two rows alike."""

from __future__ import annotations

from pathlib import Path

from penstock.log.state import RESERVED_BLOCK
from penstock.message import Rows
from tests.fakes import START_NS, FakeClock
from tests.log.samples import listed, opened, read_all, rows_of


def test_memory_topic_writes_no_segments(tmp_path: Path) -> None:
    shard = opened(tmp_path, durability="memory")
    wanted = listed(shard.append(rows_of(3), START_NS)) + listed(shard.append(rows_of(30), START_NS))
    shard.tick(START_NS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]
    assert read_all(shard) == wanted
    told: list[BaseException | None] = []
    shard.when_durable(told.append)
    assert told == [None]


def test_oldest_rows_go_first_and_are_counted(tmp_path: Path) -> None:
    shard = opened(tmp_path, durability="memory", memory_rows=100)
    for number in range(50):
        shard.append(rows_of(7, seed=number), START_NS + number)
    assert shard.rows_between(0, shard.end) <= 100
    assert shard.dropped_rows == 350 - shard.rows_between(0, shard.end)
    assert shard.start == shard.dropped_rows
    batch = shard.read(0)
    assert batch is not None
    assert batch.first == shard.start
    assert shard.offset_at(START_NS + 49) == 343
    clock = shard._clock
    assert isinstance(clock, FakeClock)
    called: list[int] = []
    shard.fetch(0, lambda: called.append(1))
    clock.run()
    assert called == [1]


def test_every_start_begins_beyond_all_earlier_offsets(tmp_path: Path) -> None:
    for start in range(3):
        shard = opened(tmp_path, durability="memory")
        assert (shard.start, shard.end, shard.readable_end) == (start * RESERVED_BLOCK,) * 3
        shard.append(rows_of(2), START_NS)
        shard.close()


def test_due_and_recent_rows_are_found_in_memory(tmp_path: Path) -> None:
    shard = opened(tmp_path, durability="memory")
    shard.append(Rows.of([b"a", b"b"], "nsq", {"due": [None, 50]}), START_NS)
    shard.append(Rows.of([b"c"] * 20, "nsq", {"due": [7] * 20}), START_NS + 5)
    offsets, due = shard.due_rows(0, 10)
    assert (offsets.tolist(), due.tolist()) == ([1], [50])
    assert [batch.first for batch in shard.recent(START_NS + 1)] == [2]
    assert shard.stored_bytes() > 0
    assert shard.retain(None, START_NS) == 0
    shard.roll()
    shard.delete()
    assert not tmp_path.exists()
