"""The acceptance cases of timelines that concern messages, leases and sessions, each under its number.

14's other half is the SDK's (tests/client); 24 is here as far as one node goes, which has one loop for all consumers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.client.timeline.wire import Kind
from penstock.columns import Offsets
from penstock.delivery import oldest
from penstock.delivery.due_lane import due_of
from penstock.dialects.timeline import timeline
from penstock.dialects.timeline.errors import Fault
from penstock.errors import Refusal
from penstock.intake.receipt import Published
from penstock.message import Batch
from penstock.node.admission import publish
from tests.timeline.desk import Consuming, Desk, due_ids


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_timeline_case_13_a_message_is_pushed_when_it_is_due_and_never_before(desk: Desk) -> None:
    desk.topic()
    consumer = desk.consumer()
    desk.made(desk.producer(), ("a", 500))
    desk.advance(0.499_999_999)
    assert consumer.take() == []
    desk.advance(0.000_000_001)
    assert consumer.ids() == ["a"]


def test_timeline_case_14_a_message_is_pushed_ahead_of_its_time_and_its_lease_begins_when_it_is_due(desk: Desk) -> None:
    desk.topic(prefetch_max_ms=1200)
    consumer = desk.consumer(room=2)
    desk.made(desk.producer(), ("a", 5003), ("b", 5003))
    due_ms = desk.now_ms + 5003
    desk.advance(3.802)
    assert consumer.take() == []
    desk.advance(0.001)
    first, second = consumer.take()
    assert (first["timestamp_ms"], first["expiration_ts_ms"]) == (due_ms, due_ms + 60_000)
    assert desk.count("processing") == 2
    assert desk.kinds("delete", desk.producer(), ("b", None)) == [Kind.NOT_THE_HOLDER]
    assert desk.kinds("delete", consumer.session, ("a", 2)) == [0]
    desk.advance(61.199)
    assert desk.count("processing") == 1
    desk.advance(0.001)
    assert desk.count("processing") == 0
    assert second["expiration_ts_ms"] == desk.now_ms


def test_timeline_case_15_versions_grow_with_every_change_of_a_lease(desk: Desk) -> None:
    desk.topic()
    (told,) = desk.create(desk.producer(), ("a", 0))
    assert told["version"] == 1
    consumer = desk.consumer()
    (pushed,) = consumer.take()
    assert pushed["version"] == 2
    (extended,) = desk.change("extend-lease", consumer.session, ("a", 2), new_ms=90_000)
    assert (extended["kind"], extended["version"], extended["expiration_ts_ms"]) == (0, 3, desk.now_ms + 90_000)
    assert desk.kinds("delete", consumer.session, ("a", 2)) == [Kind.VERSION_MISMATCH]
    assert desk.kinds("delete", consumer.session, ("a", 3)) == [0]
    assert desk.count() == 0


def test_timeline_case_16_a_lease_is_over_at_the_time_it_ends(desk: Desk) -> None:
    desk.topic()
    desk.made(desk.producer(), ("a", 0), ("b", 0))
    consumer = desk.consumer(room=2)
    assert consumer.ids() == ["a", "b"]
    desk.advance(59.999)
    assert desk.count("processing") == 2
    assert desk.kinds("delete", consumer.session, ("b", 2)) == [0]
    desk.advance(0.001)
    assert (desk.count("processing"), desk.count("available")) == (0, 1)
    assert desk.kinds("delete", consumer.session, ("a", 2)) == [Kind.LEASE_EXPIRED]
    assert desk.kinds("extend-lease", consumer.session, ("a", 2), new_ms=1000) == [Kind.LEASE_EXPIRED]


def test_timeline_case_17_an_expired_lease_goes_to_another_consumer_and_is_its(desk: Desk) -> None:
    desk.topic(dealer="gladiator")
    desk.made(desk.producer(), ("a", 0))
    first = desk.consumer("first", room=1)
    (before,) = first.take()
    second = desk.consumer("second")
    desk.advance(60)
    (after,) = second.take()
    assert after["message_id"] == b"a"
    assert after["version"] != before["version"]
    assert desk.kinds("delete", first.session, ("a", 2)) == [Kind.NOT_THE_HOLDER]
    subscription = desk.node.topics["t"].subscriptions["timeline"]
    assert subscription.cursors[0].states.pages.attempts(np.zeros(1, np.int64))[0] == 2


def test_timeline_case_18_leases_have_a_longest_time(desk: Desk) -> None:
    desk.topic()
    desk.made(desk.producer(), ("a", 0))
    consumer = desk.consumer()
    assert desk.kinds("extend-lease", consumer.session, ("a", 2), new_ms=300_001) == [Kind.TIME_OUT_OF_RANGE]
    assert desk.kinds("extend-lease", consumer.session, ("a", 2), new_ms=5) == [Kind.TIME_OUT_OF_RANGE]
    assert desk.kinds("extend-lease", consumer.session, ("a", 2), new_ms=300_000) == [0]
    greeting = {"topic_id": "t", "consumer_id": "d"}
    assert desk.kind("consumer-handshake", lease_timeout_ms=301_000, **greeting) == Kind.LEASE_TOO_LONG
    assert desk.kind("consumer-handshake", lease_timeout_ms=300_000, **greeting) == 0
    assert desk.kind("consumer-handshake", lease_timeout_ms=0, **greeting) == Kind.PROTOCOL


def test_timeline_case_19_a_released_message_waits_for_its_new_time(desk: Desk) -> None:
    desk.topic()
    desk.made(desk.producer(), ("a", 0))
    consumer = desk.consumer()
    consumer.take()
    released_ms = desk.now_ms
    (told,) = desk.change("release", consumer.session, ("a", 2), new_ms=5000)
    assert (told["kind"], told["version"], told["expiration_ts_ms"]) == (0, 3, None)
    assert (desk.count("waiting"), desk.count("processing")) == (1, 0)
    assert desk.kinds("delete", consumer.session, ("a", 3)) == [Kind.NOT_THE_HOLDER]
    consumer.status(100)
    desk.advance(4.999)
    assert consumer.take() == []
    desk.advance(0.001)
    (again,) = consumer.take()
    assert again["timestamp_ms"] == released_ms + 5000
    assert again["version"] not in (2, 3)


def test_timeline_case_19_a_release_without_a_time_is_a_requeue(desk: Desk) -> None:
    desk.topic()
    desk.made(desk.producer(), ("a", 0))
    consumer = desk.consumer()
    consumer.take()
    assert desk.kinds("release", consumer.session, ("a", 2)) == [0]
    consumer.status(100)
    assert consumer.take() == []
    desk.advance(0.005)
    assert consumer.ids() == ["a"]


def test_timeline_case_20_owners_delete_what_nobody_holds(desk: Desk) -> None:
    desk.topic()
    owner, other = desk.producer(group="owner"), desk.producer(group="other", name="q")
    desk.made(owner, ("waiting", 60_000), ("available", 0), ("held", 0), ("theirs", 60_000))
    assert desk.kinds("delete", other, ("theirs", None), ("available", None)) == [Kind.NOT_THE_HOLDER] * 2
    assert desk.kinds("delete", owner, ("waiting", None), ("available", None)) == [0, 0]
    consumer = desk.consumer()
    assert consumer.ids() == ["held"]
    assert desk.kinds("delete", owner, ("held", None), ("none", None)) == [
        Kind.NOT_THE_HOLDER,
        Kind.MESSAGE_NOT_FOUND,
    ]
    desk.advance(61)
    assert "waiting" not in consumer.ids()


def test_timeline_case_21_an_id_is_there_once_whatever_the_bucket(desk: Desk) -> None:
    desk.topic()
    desk.topic("u")
    producer = desk.producer()
    desk.made(producer, ("a", 0))
    told = desk.create(producer, ("b", 0), ("a", 0), ("c", 0), ("c", 5))
    assert [row["kind"] for row in told] == [0, Kind.DUPLICATE_ID, 0, Kind.DUPLICATE_ID]
    assert desk.made(desk.producer("u"), ("a", 0)) == ["a"]
    consumer = desk.consumer()
    assert consumer.ids() == ["a", "b", "c"]
    assert desk.kinds("delete", consumer.session, ("a", 2)) == [0]
    assert desk.made(producer, ("a", 0)) == ["a"]


@pytest.mark.parametrize("is_stored", [False, True])
def test_timeline_case_21_an_id_that_is_being_written_is_judged_once_that_is_over(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    held: list[Callable[[], None]] = []

    def holding(topic: Any, caller: Any, rows: Any, publisher: Any, done: Published) -> None:
        held.append(partial(publish, topic, caller, rows, publisher, done))
        if not is_stored:
            held[-1] = partial(done, None, Refusal("disk_failed", "the disk failed"))

    desk.topic()
    producer = desk.producer()
    monkeypatch.setattr(timeline, "publish", holding)
    first = desk.creating(producer, ("a", 0))
    monkeypatch.setattr(timeline, "publish", publish)
    second = desk.creating(producer, ("a", 0), ("b", 0))
    third = desk.creating(producer, ("c", 0), ("a", 0))
    assert desk.made(producer, ("d", 0)) == ["d"], "others do not wait"
    assert not second.is_given
    held[0]()
    desk.settle()
    kinds = [each.now().column("kind").to_pylist() for each in (second, third)]
    assert kinds == ([[415, 0], [0, 415]] if is_stored else [[0, 0], [0, 415]])
    if is_stored:
        assert first.now().column("kind").to_pylist() == [0]
    assert desk.count() == 4


def test_timeline_case_22_a_message_without_an_id_gets_one(desk: Desk) -> None:
    desk.topic()
    producer = desk.producer()
    told = desk.create(producer, (None, 0), ("mine", 0), ("", 0))
    made = [row["message_id"].decode() for row in told]
    assert [row["kind"] for row in told] == [0, 0, 0]
    assert made[1] == "mine"
    for each in (made[0], made[2]):
        assert re.fullmatch("[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}", each)
    assert [row["kind"] for row in desk.create(producer, (made[0], 0))] == [Kind.DUPLICATE_ID]


def test_timeline_case_23_times_and_bodies_have_limits(desk: Desk) -> None:
    desk.topic(max_body_size_bytes=1000)
    producer = desk.producer()
    year_ms = 365 * 24 * 3600 * 1000
    told = desk.create(
        producer,
        ("far", year_ms),
        ("too far", year_ms + 1),
        ("large", 0, b"x" * 1000),
        ("too large", 0, b"x" * 1001),
        ("beyond all", (1 << 64) - 1),
    )
    assert [row["kind"] for row in told] == [0, Kind.TIME_OUT_OF_RANGE, 0, Kind.BODY_TOO_LARGE, Kind.TIME_OUT_OF_RANGE]
    desk.topic("endless", max_seconds_future_allowed=0)
    assert desk.made(desk.producer("endless"), ("far", 50 * year_ms)) == ["far"]
    assert [row["kind"] for row in desk.create(producer, ("past", 0), relative=False)] == [0]


def test_timeline_case_24_no_message_has_two_leases_whoever_asks(desk: Desk) -> None:
    desk.topic()
    consumers = [desk.consumer(f"c{number}", room=7) for number in range(20)]
    producer = desk.producer()
    for first in range(0, 10_000, 1000):
        desk.made(producer, *((f"m{number}", number % 50) for number in range(first, first + 1000)))
    seen: list[str] = []
    while len(seen) < 10_000:
        before = len(seen)
        desk.advance(0.01)
        for consumer in consumers:
            got = consumer.ids()
            assert len(got) <= 7
            seen += got
            consumer.status(7)
        assert len(seen) > before
    assert len(set(seen)) == 10_000
    assert desk.count("processing") == 10_000


def test_timeline_case_25_a_consumer_that_comes_back_resumes_what_it_holds(desk: Desk) -> None:
    desk.topic()
    producer = desk.producer()
    desk.made(producer, ("a", 0), ("b", 0))
    first = desk.consumer(room=2)
    before = first.take()
    first.close()
    desk.advance(10)
    desk.made(producer, ("c", 0))
    desk.kill()
    again = desk.consumer(room=10)
    after = again.take()
    assert after[:2] == before
    assert [row["message_id"] for row in after[2:]] == [b"c"]
    assert desk.kinds("delete", again.session, ("a", 2), ("b", 2), ("c", 2)) == [0, 0, 0]
    desk.kill()
    assert desk.consumer().take() == []


def test_timeline_case_26_no_more_is_pushed_than_there_is_room_for(desk: Desk) -> None:
    desk.topic()
    desk.made(desk.producer(), *((f"m{number}", 0) for number in range(10)))
    consumer = desk.consumer(room=3)
    first = consumer.take()
    assert len(first) == 3
    desk.advance(1)
    assert desk.kinds("delete", consumer.session, *((row["message_id"].decode(), 2) for row in first[:2])) == [0, 0]
    desk.advance(1)
    assert consumer.take() == []
    consumer.status(2)
    assert len(consumer.take()) == 2
    desk.advance(70)
    assert consumer.take() == []


def test_timeline_case_27_pushes_are_ordered_by_due_time_and_id_across_buckets(desk: Desk) -> None:
    desk.topic(bucket_count=2000)
    producer = desk.producer()
    desk.made(producer, *((f"m{number:03}", (number * 37) % 50) for number in range(200)))
    desk.advance(1)
    consumer = desk.consumer(room=200)
    pushed = consumer.take()
    assert len(pushed) == 200
    assert due_ids(pushed) == sorted(due_ids(pushed))
    assert len({row["bucket_id"] for row in pushed}) > 100


def test_timeline_case_27_what_was_due_first_goes_first_whatever_was_created_first(desk: Desk) -> None:
    desk.topic()
    producer = desk.producer()
    for number in range(20):
        desk.made(producer, (f"m{number:02}", 1000 - 10 * number))
    desk.advance(1)
    consumer = desk.consumer(room=5)
    assert consumer.ids() == ["m19", "m18", "m17", "m16", "m15"]
    consumer.status(5)
    assert consumer.ids() == ["m14", "m13", "m12", "m11", "m10"]
    desk.kill()
    again = desk.consumer(room=12)
    assert again.ids()[10:] == ["m09", "m08"]


def test_timeline_case_29_a_second_greeting_ends_the_first(desk: Desk) -> None:
    desk.topic()
    first = desk.consumer()
    second = desk.consumer()
    assert first.ended is not None
    (told,) = [each for each in first.said() if each.end is not None]
    assert told.error is not None
    assert told.error.kind == Kind.UNKNOWN_SESSION
    with pytest.raises(Fault) as stale:
        desk.kinds("delete", first.session, ("a", 1))
    assert stale.value.kind == Kind.UNKNOWN_SESSION
    assert stale.value.error("delete").should_sync
    desk.made(desk.producer(), ("a", 0))
    assert second.ids() == ["a"]


def test_timeline_case_30_a_consumer_that_says_nothing_and_one_that_is_none(desk: Desk) -> None:
    desk.topic()
    silent = Consuming(desk, desk.greet())
    desk.made(desk.producer(), ("a", 0))
    desk.advance(59.9)
    assert (silent.ended, silent.take()) == (None, [])
    desk.advance(0.2)
    assert silent.ended is not None
    producer = Consuming(desk, desk.producer())
    producer.status(1)
    (told,) = producer.said()
    assert told.error is not None
    assert told.error.kind == Kind.WRONG_ROLE
    assert producer.ended is not None


def test_timeline_case_31_greetings_for_what_is_not_here(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "strict", cluster="mine")
    desk.topic()
    consumer = {"consumer_id": "c"}
    producer = {"producer_group_id": "g", "producer_id": "p"}
    for command, who in (("consumer-handshake", consumer), ("producer-handshake", producer)):
        assert desk.kind(command, topic_id="t", cluster="other", **who) == Kind.WRONG_CLUSTER
        assert desk.kind(command, topic_id="t", cluster="mine", **who) == 0
        assert desk.kind(command, topic_id="none", **who) == Kind.TOPIC_NOT_FOUND
    open_desk = Desk(tmp_path / "open", auto_create=True)
    assert open_desk.kind("consumer-handshake", topic_id="new", **consumer) == 0
    (topic,) = open_desk.act("info", topic_id="new").topics
    assert (topic["state"], topic["settings"]["bucket_count"]) == ("live", 1024)


def test_timeline_case_42_ids_have_limits_and_are_whole(desk: Desk) -> None:
    long = "x" * 1024
    desk.topic(long)
    assert desk.kind("create", id=long + "x") == Kind.PROTOCOL
    assert desk.kind("create", id="a\tb") == Kind.PROTOCOL
    desk.topic("ab")
    greeting = {"topic_id": "ab", "consumer_id": "c" * 257}
    assert desk.kind("consumer-handshake", **greeting) == Kind.PROTOCOL
    assert desk.kind("consumer-handshake", topic_id="ab", consumer_id="c" * 256) == 0
    assert desk.kind("consumer-handshake", topic_id="a", consumer_id="c") == Kind.TOPIC_NOT_FOUND
    assert desk.kind("producer-handshake", topic_id="ab", producer_group_id="", producer_id="p") == Kind.PROTOCOL
    producer = desk.producer("ab")
    told = desk.create(producer, ("m" * 128, 0), ("m" * 129, 0), ("a\nb", 0), ("größe €", 0))
    assert [row["kind"] for row in told] == [0, Kind.PROTOCOL, Kind.PROTOCOL, 0]


def test_timeline_case_45_consumers_hear_how_their_topic_is(desk: Desk) -> None:
    desk.topic()
    consumer = desk.consumer(room=1)
    consumer.said()
    desk.advance(3)
    quiet = [each.status for each in consumer.said() if each.status is not None]
    assert len(quiet) == 3
    assert [each.available for each in quiet] == [0, 0, 0]
    producer = desk.producer()
    for first in range(0, 10_000, 1000):
        desk.made(producer, *((f"m{number}", 0) for number in range(first, first + 1000)))
    desk.advance(1)
    (busy,) = [each.status for each in consumer.said() if each.status is not None]
    assert (busy.available, busy.create_rate, busy.consumers) == (9999, 10_000.0, 1)
    assert 0 < busy.oldest_lag_ms <= 1000
    assert busy.window == desk.now_ms // 1000


@pytest.mark.parametrize("has_consumer", [False, True])
def test_the_oldest_message_is_the_one_that_was_due_first_of_those_that_are_due(desk: Desk, has_consumer: bool) -> None:
    desk.topic(prefetch_max_ms=1200)
    if has_consumer:
        desk.consumer(room=0)
    producer = desk.producer()
    desk.made(producer, ("later", 1100))
    desk.made(producer, ("now", 0))

    def shown() -> tuple[int, int]:
        _, told = desk.ask("GET", "/v1/topics/t")
        return told["approx_available"], desk.now_ms - told["oldest_ms"]

    desk.advance(0.5)
    assert shown() == (1, 500)
    desk.advance(0.7)
    assert shown() == (2, 1200)
    assert desk.kinds("delete", producer, ("now", None)) == [0]
    desk.advance(0.1)
    assert shown() == (1, 200)


def test_what_is_to_come_is_looked_at_once_however_often_somebody_asks_for_the_oldest_message(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def look(batch: Batch, offsets: Offsets) -> Offsets:
        looked.extend(offsets.tolist())
        return due_of(batch, offsets)

    desk.topic()
    desk.made(desk.producer(), ("a", 0))
    desk.advance(1)
    desk.made(desk.producer(), ("b", 0))
    desk.kill()
    monkeypatch.setattr(oldest, "due_of", look)

    def lag_ms() -> int:
        desk.advance(0.1)
        return desk.service.topics.find("t").status().oldest_lag_ms

    before = lag_ms()
    assert (before >= 1100, looked) == (True, [0, 1])
    assert (lag_ms() - before, looked) == (100, [0, 1])
    desk.made(desk.producer(), ("c", 0))
    assert (lag_ms() - before, looked) == (200, [0, 1, 2])
    assert desk.kinds("delete", desk.producer(), ("a", None)) == [0]
    assert (before - lag_ms(), looked[3:]) == (700, [1])  # what is left of its batch


def test_the_oldest_message_is_due_since_its_release(desk: Desk) -> None:
    desk.topic()
    consumer = desk.consumer(room=1)
    desk.made(desk.producer(), ("a", 0))
    assert consumer.ids() == ["a"]
    consumer.status(0)
    desk.advance(1)
    assert desk.kinds("release", consumer.session, ("a", 2), new_ms=1000) == [0]
    desk.advance(1.5)
    assert desk.service.topics.find("t").status().oldest_lag_ms == 500


def test_messages_that_were_deleted_do_not_come_back_by_a_seek(desk: Desk) -> None:
    desk.topic()
    producer = desk.producer()
    desk.made(producer, ("a", 0))
    assert desk.kinds("delete", producer, ("a", None)) == [0]
    for _ in range(2):
        with pytest.raises(Refusal, match="read the topic's log") as refused:
            desk.node.topics["t"].subscriptions["timeline"].seek(0, 0)
        assert refused.value.code == "conflict"
        assert desk.count() == 0
        desk.kill()
    topic = desk.node.topics["t"]
    other = topic.subscribe("other").now()
    other.seek(0, 0)
    assert topic.backlog(other).ready == 1
