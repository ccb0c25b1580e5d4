"""A producer sends batches, each message once, keeps the pauses it is told, and names what is wrong by row."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from penstock.client import Timeline
from penstock.client.timeline import RefusedRows, Scheduled, TimelineError
from penstock.client.timeline.producer import Producer
from penstock.client.timeline.wire import Broker, Error, Kind
from tests.client.timeline.fake import FakeTimelines
from tests.flight.parts import Flown


@pytest.fixture
def fake(flown: Flown) -> FakeTimelines:
    return FakeTimelines(flown)


@pytest.fixture
def producer(fake: FakeTimelines) -> Iterator[Producer]:
    with Timeline("t", fake.url) as timeline, timeline.producer("g") as made:
        yield made


def test_messages_go_in_batches_by_count_and_by_bytes(fake: FakeTimelines, producer: Producer) -> None:
    ids = producer.create([b"x"] * 3001, due="5s")
    assert [row[:3] for row in fake.asked] == [("create", 3000, True), ("create", 1, True)]
    assert {time for row in fake.asked for time in row[3]} == {5000}
    assert len(set(ids)) == len(ids) == 3001
    assert all(len(each) == 32 for each in ids)
    fake.asked.clear()
    producer.create([b"x" * 30_000] * 5)
    assert [row[1] for row in fake.asked] == [2, 2, 1]


def test_times_are_from_now_by_the_nodes_clock_or_since_1970(fake: FakeTimelines, producer: Producer) -> None:
    when = datetime(2027, 1, 1, tzinfo=UTC)
    producer.create([Scheduled(b"a", "+2s"), Scheduled(b"b", timedelta(seconds=3)), Scheduled(b"c", when), b"d"])
    when_ms = int(when.timestamp() * 1000)
    assert [row[2:] for row in fake.asked] == [(True, [2000, 3000]), (False, [when_ms]), (True, [0])]


def test_buffered_messages_go_when_a_batch_is_full_and_with_flush(fake: FakeTimelines) -> None:
    with Timeline("t", fake.url) as timeline, timeline.producer("g", batch_messages=3) as producer:
        ids = [producer.add(f"m{number}", due="1s") for number in range(4)]
        assert [row[1] for row in fake.asked] == [3]
        producer.flush()
        assert list(fake.stored) == ids
        producer.add(b"last")
    assert [row[1] for row in fake.asked] == [3, 1, 1]


def test_while_it_sends_the_node_is_told_what_time_it_is_here_about_every_second(
    fake: FakeTimelines, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        producer.create(b"a")
    assert len(fake.pings) == 1
    assert fake.pings[0].session_id == "s1"
    assert abs(fake.pings[0].local_ts_ms - time.time() * 1000) < 60_000
    monkeypatch.setattr("penstock.client.timeline.producer.PING_S", 0)
    producer.create(b"b")
    assert len(fake.pings) == 2
    assert fake.pings[0].rtt_ms == 0 < fake.pings[1].rtt_ms < 60_000


def test_what_was_sent_over_a_connection_that_broke_is_stored_once(fake: FakeTimelines, producer: Producer) -> None:
    fake.breaks = True
    ids = producer.create([b"a", b"b"])
    assert [row[:2] for row in fake.asked] == [("create", 2), ("create", 2)]
    assert list(fake.stored) == ids
    with pytest.raises(RefusedRows) as caught:
        producer.create([Scheduled(b"new"), Scheduled(b"c", message_id=ids[1])])
    assert [(each.row, each.message_id, each.kind) for each in caught.value.refused] == [(1, ids[1], 415)]
    assert "create: row 1 of 2" in str(caught.value)


def test_the_program_hears_that_the_nodes_clock_is_another(
    fake: FakeTimelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.timeline.producer.PING_S", 0)
    monkeypatch.setattr("penstock.client.timeline.producer.time.time", lambda: fake.now_ms / 1000)
    heard: list[float] = []
    with Timeline("t", fake.url) as timeline, timeline.producer("g", on_drift=heard.append) as producer:
        producer.create(b"a")
        assert heard == []
        fake.now_ms += 3_600_000
        monkeypatch.setattr("penstock.client.timeline.producer.time.time", lambda: fake.now_ms / 1000 - 3600)
        for _ in range(3):
            producer.create(b"b")
        assert len(heard) == 1 < heard[0] / 60_000, "half of the answers said so when it was told"


def test_what_on_drift_raises_comes_once_everything_is_sent_and_hides_no_refusal(fake: FakeTimelines) -> None:
    def producer(timeline: Timeline) -> Producer:
        return timeline.producer("g", batch_messages=1, on_drift=lambda _: 1 // 0)

    with Timeline("t", fake.url) as timeline:
        with producer(timeline) as one, pytest.raises(ZeroDivisionError):
            one.create([b"x"] * 7)
        assert len(fake.stored) == 7
        twice = [Scheduled(b"a", message_id=name) for name in ("a", "b", "a", "c")]
        with producer(timeline) as two, pytest.raises(RefusedRows) as caught:
            two.create(twice)
    assert ([each.row for each in caught.value.refused], len(fake.stored)) == ([2], 10)


def test_what_was_not_answered_in_time_may_be_stored(fake: FakeTimelines, producer: Producer) -> None:
    fake.stored[b"a"] = (0, b"body")
    fake.errors = [Error(kind=Kind.BROKER_TIMEOUT, message="there is no answer", should_retry=True)]
    assert producer.create(Scheduled(b"body", message_id="a")) == [b"a"]


def test_a_pause_that_the_node_asks_for_is_kept(fake: FakeTimelines, producer: Producer) -> None:
    fake.errors = [Error(kind=Kind.THROTTLED, message="wait", throttled_ms=300, should_retry=True)]
    began = time.monotonic()
    producer.create(b"a")
    assert time.monotonic() - began >= 0.3
    assert len(fake.stored) == 1


def test_a_session_that_is_not_known_is_made_anew_once(fake: FakeTimelines, producer: Producer) -> None:
    stale = Error(kind=Kind.UNKNOWN_SESSION, message="who?", should_sync=True)
    fake.errors = [stale]
    producer.create(b"a")
    assert len(fake.greeted) == 2
    fake.errors = [stale, stale]
    with pytest.raises(TimelineError, match=r"who\? \(kind 440\)"):
        producer.create(b"b")
    producer.create(b"c")
    assert sorted(body for _, body in fake.stored.values()) == [b"a", b"c"]


def test_what_the_node_refuses_for_good_is_raised_at_once(fake: FakeTimelines, producer: Producer) -> None:
    fake.errors = [Error(kind=Kind.WRONG_ROLE, message="no producer")]
    with pytest.raises(TimelineError) as caught:
        producer.create(b"a")
    assert caught.value.kind == Kind.WRONG_ROLE
    fake.errors = [Error(kind=Kind.TOPIC_NOT_FOUND, message="no topic t")]
    with Timeline("t", fake.url) as timeline, pytest.raises(TimelineError, match="no topic t"):
        timeline.producer("g")


def test_an_arrow_batch_goes_as_it_is(fake: FakeTimelines, producer: Producer) -> None:
    batch = pa.record_batch({"due_ms": pa.array([1, 2], pa.int64()), "body": pa.array([b"a", b"b"])})
    ids = producer.create_batch(batch)
    assert fake.stored == {ids[0]: (1, b"a"), ids[1]: (2, b"b")}


def test_an_owner_deletes_by_id(fake: FakeTimelines, producer: Producer) -> None:
    assert producer.delete(["a", b"b"]) == 2
    assert fake.asked == [("delete", 2, False, [None, None])]


def test_a_better_broker_is_gone_to_before_anything_is_sent(fake: FakeTimelines) -> None:
    fake.brokers = [Broker(id="b", address=fake.url.replace("127.0.0.1", "localhost"))]
    with Timeline("t", fake.url) as timeline, timeline.producer("g", producer_id="p") as producer:
        producer.create(b"a")
    assert [(each.producer_id, each.producer_group_id) for each in fake.greeted] == [("p", "g")] * 2


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda producer: producer.create([b"a", 5]), "the body of row 1 is an int, 5; it takes bytes or str"),
        (lambda producer: producer.create({"a": 1}), "messages is a dict"),
        (lambda producer: producer.create(b"a", due=1.5), "due is a float, 1.5; it takes a str like"),
        (lambda producer: producer.create([Scheduled(b"a", "soon")]), "due of row 0 'soon' is no time"),
        (lambda producer: producer.create(b"a", due=timedelta(seconds=-1)), "due lies 1000 ms back"),
        (lambda producer: producer.create([Scheduled(b"a", message_id="x" * 129)]), "message_id of row 0 has 129"),
        (lambda producer: producer.delete([3]), "message_id of row 0 is an int, 3"),
    ],
)
def test_what_cannot_be_sent_is_told_by_argument_and_row(producer: Producer, call: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        call(producer)
    assert text in str(caught.value)


def test_arguments_of_the_wrong_kind_are_named() -> None:
    with Timeline("t") as made:
        timeline: Any = made
        wrong: list[tuple[Callable[[], object], str]] = [
            (lambda: timeline.consumer(""), "consumer_id is empty"),
            (lambda: timeline.consumer("c", buffer=0), "buffer is 0; it is 1 or more"),
            (lambda: timeline.consumer("c", bufer=3), "did you mean 'buffer'?"),
            (lambda: timeline.producer(5), "group is 5; it takes a str"),
            (lambda: timeline.producer("g", batch_bytes="1k"), "batch_bytes is '1k'; it takes an int"),
        ]
        for call, text in wrong:
            with pytest.raises((TypeError, ValueError)) as caught:
                call()
            assert text in str(caught.value)
