"""Work is shared out evenly, every row once, and holes in the offsets count for nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.wire import Read, ShardRange
from penstock.pipeline.store import Piece
from penstock.pipeline.tasks import TASK_ROWS_MIN, Extent, limited, shared


def shard_of(*stretches: tuple[int, int], number: int = 0, row_bytes: int = 100) -> ShardRange:
    pieces = [[first, end, end - first, (end - first) * row_bytes] for first, end in stretches]
    rows = sum(each[2] for each in pieces)
    return ShardRange(
        shard=number, start=pieces[0][0], end=pieces[-1][1], rows=rows, bytes=rows * row_bytes, stretches=pieces
    )


def piece(shard: ShardRange, start: int | None = None, end: int | None = None) -> tuple[Piece, Extent]:
    start, end = shard.start if start is None else start, shard.end if end is None else end
    return Piece(Read(topic="t", shard=shard.shard, start=start, end=end)), Extent(shard)


def test_one_task_for_little_and_one_per_core_for_much() -> None:
    little, much = shard_of((0, 1000)), shard_of((0, 50 * TASK_ROWS_MIN))
    assert len(shared([piece(little)], 8)) == 1
    assert len(shared([piece(much)], 8)) == 8
    assert len(shared([piece(little)], 8, asked=4)) == 4
    assert len(shared([piece(little, 0, 2)], 8, asked=4)) == 2


def test_large_messages_are_shared_out_even_if_they_are_few() -> None:
    assert len(shared([piece(shard_of((0, 1000), row_bytes=1 << 20))], 2)) == 2


def test_a_hole_is_no_work() -> None:
    shard = shard_of((0, 100), (1 << 24, (1 << 24) + 100))
    extent = Extent(shard)
    assert extent.rows(0, shard.end) == 200
    assert extent.after_rows(0, shard.end, 150) == (1 << 24) + 50
    assert extent.after_rows(50, shard.end, 50) == 100
    assert [[(p.read.start, p.read.end) for p in task] for task in shared([piece(shard)], 2, asked=2)] == [
        [(0, 100)],
        [(100, (1 << 24) + 100)],
    ]


_stretches = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), min_size=1, max_size=4).map(
    lambda steps: [
        (sum(a + b for a, b in steps[:n]) + gap, sum(a + b for a, b in steps[:n]) + gap + length)
        for n, (gap, length) in enumerate(steps)
    ]
)


@given(st.lists(_stretches, min_size=1, max_size=4), st.integers(1, 9))
def test_every_row_is_in_one_task(shards: list[list[tuple[int, int]]], count: int) -> None:
    ranges = [shard_of(*stretches, number=number) for number, stretches in enumerate(shards)]
    tasks = shared([piece(each) for each in ranges], count, asked=count)
    covered = [
        (p.read.shard, offset) for task in tasks for p in task for offset in range(p.read.start or 0, p.read.end or 0)
    ]
    wanted = {
        (r.shard, o) for r, stretches in zip(ranges, shards, strict=True) for a, b in stretches for o in range(a, b)
    }
    assert len(covered) == len(set(covered))
    assert wanted <= set(covered)
    assert len(tasks) <= count


@given(st.lists(_stretches, min_size=1, max_size=4), st.integers(1, 200))
def test_a_limit_is_kept_and_something_always_comes(shards: list[list[tuple[int, int]]], limit: int) -> None:
    ranges = [Extent(shard_of(*stretches)) for stretches in shards]
    places = [(extent, extent.shard.start, extent.shard.end) for extent in ranges]
    ends = limited(places, limit, None)
    rows = sum(extent.rows(start, end) for (extent, start, _), end in zip(places, ends, strict=True))
    assert 0 < rows <= max(limit, 1)
    assert all(start <= end <= last for (_, start, last), end in zip(places, ends, strict=True))


def test_bytes_are_limited_too() -> None:
    extent = Extent(shard_of((0, 1000), row_bytes=100))
    assert limited([(extent, 0, 1000)], None, 5000) == [50]
    assert limited([(extent, 0, 1000)], 20, 5000) == [20]
    assert limited([(extent, 0, 1000)], None, 1) == [1]
    assert limited([(extent, 1000, 1000)], 5, 5) == [1000]
