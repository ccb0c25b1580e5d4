"""A node whose clock is set while messages wait, are available, or are on lease."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.message import Rows
from tests.timeline.desk import SECOND, Desk

HOUR_S = 3600


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def set_clock(desk: Desk, seconds: float) -> None:
    desk.clock._wall_ns += round(seconds * SECOND)


@pytest.mark.parametrize("prefetch_ms", [0, 500])
def test_message_that_was_available_by_a_clock_that_was_ahead_waits_for_its_time(desk: Desk, prefetch_ms: int) -> None:
    desk.topic(prefetch_max_ms=prefetch_ms)
    desk.made(desk.producer(), ("soon", HOUR_S * 500), ("later", HOUR_S * 750))
    set_clock(desk, HOUR_S)
    desk.advance(1)
    assert desk.count("available") == 2
    set_clock(desk, -HOUR_S)
    consumer = desk.consumer()
    assert consumer.take() == []
    assert desk.count("waiting") == 2
    due_ms = desk.now_ms
    desk.advance(HOUR_S / 2 + 10)
    consumer.status(100)
    desk.advance(1)
    (first,) = consumer.take()
    assert first["message_id"] == b"soon"
    assert first["timestamp_ms"] > due_ms
    desk.advance(HOUR_S / 4)
    assert "later" in consumer.ids()


def test_message_without_a_time_goes_out_although_the_clock_was_set_back_behind_it(desk: Desk) -> None:
    desk.topic()
    desk.node.topics["t"].publish(Rows.of([b"now"], "test"), desk, lambda _, __: None)
    desk.settle()
    set_clock(desk, -HOUR_S)
    consumer = desk.consumer()
    assert [row["body"] for row in consumer.take()] == [b"now"]


@pytest.mark.parametrize("prefetch_ms", [0, 500])
def test_lease_that_ended_before_the_clock_was_set_back_is_followed_by_one_as_long(
    desk: Desk, prefetch_ms: int
) -> None:
    desk.topic(prefetch_max_ms=prefetch_ms)
    desk.made(desk.producer(), ("a", 0))
    first = desk.consumer("first", lease_ms=1000)
    assert first.ids() == ["a"]
    first.close()
    desk.advance(2)
    set_clock(desk, -HOUR_S)
    (row,) = desk.consumer("second", lease_ms=1000).take()
    assert row["expiration_ts_ms"] <= desk.now_ms + 1000 + prefetch_ms + 1


def test_message_that_came_back_by_a_clock_that_was_ahead_is_available_once_that_is_right(desk: Desk) -> None:
    desk.topic(prefetch_max_ms=500, prefetch_max_count=1)
    desk.made(desk.producer(), ("a", 0))
    set_clock(desk, HOUR_S)
    first = desk.consumer("first", lease_ms=1000)
    assert first.ids() == ["a"]
    first.close()
    desk.advance(2)
    set_clock(desk, -HOUR_S)
    desk.made(desk.producer(), ("early", 800))  # as much as may go out ahead of its time
    assert sorted(desk.consumer("second").ids()) == ["a", "early"]
