"""Retention keeps what is needed and some history, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.log.shard import Shard
from penstock.settings import HOUR_NS, MINUTE_NS
from tests.fakes import FakeClock
from tests.log.samples import in_files, opened, read_all, rows_of


def hourly(path: Path, clock: FakeClock, segments: int = 5, **options: Any) -> Shard:
    """Return a shard with segments of 1,000 rows, an hour apart, and one open row."""
    shard = opened(path, clock=clock, **options)
    for number in range(segments):
        shard.append(rows_of(1000, seed=number), clock.now())
        shard.roll()
        clock.advance(HOUR_NS)
    shard.append(rows_of(1), clock.now())
    return shard


def test_rows_beyond_the_age_go_once_nobody_needs_them(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = hourly(tmp_path, clock, retention_age_ns=2 * HOUR_NS + 1)
    assert shard.retain(0, clock.now()) == 0
    assert shard.retain(2500, clock.now()) == 2000
    assert shard.start == 2000
    assert shard.retain(shard.end, clock.now()) == 1000
    assert (shard.start, shard.rows_between(0, shard.end)) == (3000, 2001)
    assert [row[0] for row in read_all(shard, 0)] == list(range(3000, 5001))


def test_history_beyond_the_bytes_goes(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = hourly(tmp_path, clock)
    size = in_files(shard)._segments.closed[0].bytes
    shard.close()
    shard = opened(tmp_path, clock=clock, retention_bytes=2 * size + 500)
    assert shard.retain(4500, clock.now()) == 2000
    assert shard.start == 2000
    assert shard.stored_bytes() < 4 * size


def test_topic_without_subscriptions_keeps_everything(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = hourly(tmp_path, clock, retention_age_ns=1, retention_bytes=1)
    assert shard.retain(None, clock.now()) == 0
    assert shard.start == 0


def test_hard_bound_holds_without_subscriptions(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = hourly(tmp_path, clock, retention_age_ns=1, retention_bytes=1, retention_hard=True)
    assert shard.retain(None, clock.now()) == 5000
    assert (shard.start, shard.rows_between(0, shard.end)) == (5000, 1)


def test_open_segment_is_never_dropped(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = opened(tmp_path, clock=clock, retention_bytes=0, retention_age_ns=0)
    shard.append(rows_of(10), clock.now())
    clock.advance(MINUTE_NS)
    assert shard.retain(10, clock.now()) == 0


def test_dropped_files_stay_ten_minutes_for_readers(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = hourly(tmp_path, clock, retention_bytes=0)
    assert shard.retain(3000, clock.now()) == 3000
    assert len(list(tmp_path.glob("*.arrows"))) == 6
    clock.advance(10 * MINUTE_NS)
    shard.tick(clock.now())
    assert len(list(tmp_path.glob("*.0.arrows"))) == 3


def test_start_survives_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = hourly(tmp_path, clock, retention_bytes=0)
    shard.retain(3000, clock.now())
    again = opened(tmp_path, clock=clock)
    assert (again.start, again.end) == (3000, 5001)
    clock.advance(10 * MINUTE_NS)
    again.tick(clock.now())
    assert again.rows_between(0, again.end) == 2001


def test_shard_that_dropped_everything_goes_on_at_its_end(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = opened(tmp_path, clock=clock, retention_bytes=0)
    shard.append(rows_of(1500), clock.now())
    weight = shard.weight
    shard.roll()
    assert shard.retain(1500, clock.now()) == 1500
    assert (shard.start, shard.end) == (1500, 1500)
    shard.close()
    again = opened(tmp_path, clock=clock)
    assert (again.start, again.end, again.readable_end, again.weight) == (1500, 1500, 1500, weight)
    assert again.append(rows_of(1), clock.now()).first == 1500
