"""A broker that is not well holds commands and pushes back, and says so by kind; what it counts is in its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.client.timeline.wire import Kind
from penstock.cluster.denial import Denial
from penstock.cluster.figures import Query
from tests.timeline.desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.topic()
    return desk


def refused(desk: Desk, session: str) -> Denial:
    with pytest.raises(Denial) as told:
        desk.create(session, ("x", 0))
    return told.value


def test_timeline_case_36_a_clock_that_is_wrong_creates_and_pushes_nothing(desk: Desk) -> None:
    producer, consumer = desk.producer(), desk.consumer()
    desk.made(producer, ("a", 1000))
    for _ in range(3):
        desk.node.health.time_drift.observe(600, desk.clock.monotonic())
    assert refused(desk, producer).kind == Kind.BROKER_DEGRADED
    consumer.status(100)
    desk.advance(2)
    assert consumer.take() == []
    for _ in range(12):
        desk.node.health.time_drift.observe(100, desk.clock.monotonic())
        desk.advance(1)
    assert consumer.ids() == ["a"]
    desk.made(producer, ("b", 0))


def test_timeline_case_38_a_producer_whose_requests_fail_is_made_to_wait(desk: Desk) -> None:
    producer = desk.producer()
    desk.made(producer, ("a", 0))
    for _ in range(10):
        assert [row["kind"] for row in desk.create(producer, ("a", 0))] == [Kind.DUPLICATE_ID], "a retry is no fault"
    for _ in range(10):
        assert [row["kind"] for row in desk.create(producer, ("b", 1 << 60))] == [Kind.TIME_OUT_OF_RANGE]
    throttled = refused(desk, producer)
    assert (throttled.kind, throttled.throttled_ms) == (Kind.THROTTLED, 100)
    assert desk.made(desk.producer(name="q"), ("b", 0)) == ["b"], "others do not wait"


def test_timeline_case_39_most_consumers_without_room_stop_a_topic(desk: Desk) -> None:
    consumers = [desk.consumer(f"c{number}") for number in range(4)]
    for consumer in consumers[:3]:
        consumer.status(0)
    desk.made(desk.producer(), *((f"m{number}", 0) for number in range(64)))
    desk.advance(1)
    assert [consumer.take() for consumer in consumers] == [[], [], [], []]
    for consumer in consumers[:2]:
        consumer.status(5)
    assert [len(consumer.take()) > 0 for consumer in consumers] == [True, True, False, True]


def test_timeline_case_40_without_the_registry_nothing_is_leased_but_leases_can_be_deleted(
    desk: Desk,
) -> None:
    producer, consumer = desk.producer(), desk.consumer()
    desk.made(producer, ("a", 0), ("b", 2000))
    assert consumer.ids() == ["a"]
    partition = desk.node.health.partition
    partition.observe(False, [], desk.clock.monotonic())
    partition.observe(False, [], desk.clock.monotonic() + 6_000_000_000)
    assert partition.active
    assert refused(desk, producer).kind == Kind.BROKER_MINORITY
    assert desk.kind("create", id="u") == Kind.BROKER_MINORITY
    consumer.status(100)
    assert desk.kinds("delete", consumer.session, ("a", 2)) == [0]
    assert desk.kinds("extend-lease", consumer.session, ("a", 2), new_ms=1000) == [Kind.MESSAGE_NOT_FOUND]


def test_what_happens_is_counted_once_for_a_batch(desk: Desk) -> None:
    producer, consumer = desk.producer(), desk.consumer()
    desk.made(producer, ("a", 0), ("b", 0), ("c", 99_000))
    consumer.take()
    desk.kinds("delete", consumer.session, ("a", 2), ("none", 2))
    figures = desk.service.membership.figures
    assert (figures.messages["create", "t"], figures.messages["delete", "t"]) == (3, 2)
    assert figures.message_errors["delete", "t"] == 1
    assert (figures.leases["create", "t"], figures.lease_bytes["t"]) == (2, 8)
    assert (figures.commands["create-messages", "t"], figures.commands["delete-messages", "t"]) == (1, 1)
    assert figures.queries[Query("create", "range", "all", "t")].counts[0] == 1
    (level,) = figures.levels()
    assert (level.available, level.processing, level.consumers, level.producers) == (0, 1, 1, 1)
    desk.advance(61)
    list(figures.levels())
    assert figures.leases["expire", "t"] == 1
