"""A broker that is not well holds commands and pushes back, and says so by kind; what it counts is in its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.client.timeline.wire import Kind
from penstock.cluster.denial import Denial
from penstock.cluster.figures import Query
from penstock.registry.registry import Figure
from tests.timeline.desk import Consuming, Desk


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


def test_every_figure_of_storage_and_network_moves_by_what_it_is_of(desk: Desk) -> None:
    figures = desk.service.membership.figures
    producer, consumer = desk.producer(), desk.consumer()
    desk.topic("early", prefetch_max_ms=1200)
    early = desk.consumer(topic="early")
    desk.made(producer, ("a", 0), ("b", 0, b"x" * 1000))
    desk.made(desk.producer("early"), ("soon", 1000))
    assert (sorted(consumer.ids()), early.ids()) == (["a", "b"], ["soon"])
    desk.kinds("release", consumer.session, ("a", 2), new_ms=60_000)
    desk.kinds("delete", consumer.session, ("b", 2))
    for status in ("all", "available", "waiting", "processing"):
        desk.count(status)
        desk.count(status, from_ms=0)
    asked = {(query[:3], query.topic): sum(each.counts) for query, each in figures.queries.items()}
    assert asked == {
        (("create", "range", "all"), "t"): 1,
        (("create", "range", "all"), "early"): 1,
        (("update", "range", "available"), "t"): asked[("update", "range", "available"), "t"],
        (("update", "range", "waiting"), "early"): 1,
        (("update", "lookup", "processing"), "t"): 1,
        (("delete", "lookup", "processing"), "t"): 1,
        (("read", "range", "all"), "t"): 2,
        (("read", "range", "available"), "t"): 2,
        (("read", "range", "waiting"), "t"): 2,
        (("read", "range", "processing"), "t"): 3,  # what the consumer had before, too
        (("read", "range", "processing"), "early"): 1,
    }
    assert figures.network_bytes["out", "storage", "t"] >= figures.network_bytes["in", "storage", "t"] == 1004
    assert figures.commands["consume", "t"] == 1
    desk.act("ping", session_id=producer, local_ts_ms=desk.now_ms)
    desk.act("ping", session_id=producer, local_ts_ms=desk.now_ms, rtt_ms=30.0)
    desk.act("ping", session_id=producer, local_ts_ms=desk.now_ms, rtt_ms=1e300)
    assert figures.latencies["producer", "t"].sum_s == 0.03


def test_bytes_to_and_from_the_registry_are_those_of_the_store(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = desk.service.membership.figures
    for size in (100, 250):
        told = [
            Figure("sent_bytes_total", "counter", "", size),
            Figure("received_bytes_total", "counter", "", 2 * size),
        ]
        monkeypatch.setattr(desk.node.registry, "figures", lambda told=told: told)
        desk.advance(1)
    assert (figures.network_bytes["out", "sync", ""], figures.network_bytes["in", "sync", ""]) == (250, 500)


def test_leases_that_cannot_be_had_are_errors(desk: Desk) -> None:
    figures = desk.service.membership.figures
    asked = {"session_id": desk.greet(), "limit": 1}
    assert desk.ask("POST", "/v1/lease", asked)[0] == 200
    assert (figures.commands["consume", "t"], figures.lease_errors["create", "t"]) == (1, 0)
    for _ in range(3):
        desk.node.health.time_drift.observe(600, desk.clock.monotonic())
    assert desk.ask("POST", "/v1/lease", asked)[0] == 503
    assert (figures.commands["consume", "t"], figures.command_errors["consume", "t"]) == (2, 1)
    assert figures.lease_errors["create", "t"] == 1
    Consuming(desk, "nobody").status(1)
    assert figures.command_errors["consume", ""] == 1


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
