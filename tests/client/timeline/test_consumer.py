"""A consumer hands out what is due, says what it has room for, and finishes what the program is done with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.client import AsyncTimeline, Timeline
from penstock.client.timeline import TimelineError, TopicStatus
from penstock.client.timeline import consumer as consuming
from penstock.client.timeline.wire import Broker, Error, Kind, Ping, Switch
from penstock.errors import PenstockError, Refusal
from tests.client.timeline.fake import FakeTimelines
from tests.flight.parts import Flown
from tests.served import PATIENCE_S


@pytest.fixture
def fake(flown: Flown) -> FakeTimelines:
    return FakeTimelines(flown)


class Clock:
    """Stands still until it is set."""

    def __init__(self, now_ms: float) -> None:
        self.now_ms = now_ms

    def __call__(self) -> float:
        return self.now_ms


def until(condition: Callable[[], object]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.002)


def test_a_prefetched_lease_is_handed_out_at_its_due_time_and_not_before(fake: FakeTimelines) -> None:
    clock = Clock(fake.now_ms)
    with Timeline("t", fake.url) as timeline, timeline.consumer("c", clock=clock) as consumer:
        fake.push("a", due_ms=fake.now_ms + 1200)
        until(lambda: len(consumer._leases) == 1 and consumer._drift.is_known)
        assert consumer.take(timeout=0) is None
        clock.now_ms += 1199
        assert consumer.take(timeout=0) is None
        clock.now_ms += 1
        message = consumer.take(timeout=0)
        assert message is not None
        assert (message.id, message.body, message.due_ms) == (b"a", b"body of a", fake.now_ms + 1200)
        assert message.expires_ms == message.due_ms + 60_000
        assert (message.version, message.bucket, message.producer_group) == (2, 7, b"g")


def test_a_lease_is_judged_by_the_clock_of_the_node_and_the_program_hears_of_the_drift(fake: FakeTimelines) -> None:
    heard: list[float] = []
    clock = Clock(fake.now_ms - 3_600_000)
    with (
        Timeline("t", fake.url) as timeline,
        timeline.consumer("c", clock=clock, on_drift=heard.append, status_tick=0.01) as consumer,
    ):
        fake.push("due", due_ms=fake.now_ms)
        fake.push("soon", due_ms=fake.now_ms + 1)
        message = consumer.take(timeout=PATIENCE_S)
        assert message is not None
        assert message.id == b"due"
        assert consumer.take(timeout=0) is None
        assert heard == [3_600_000]
        assert consumer.drift_ms == 3_600_000


def test_a_lease_that_is_over_is_never_handed_out(fake: FakeTimelines) -> None:
    clock = Clock(fake.now_ms)
    with Timeline("t", fake.url) as timeline, timeline.consumer("c", clock=clock) as consumer:
        fake.push("over", due_ms=fake.now_ms - 500, lease_ms=500)
        fake.push("good", due_ms=fake.now_ms)
        message = consumer.take(timeout=PATIENCE_S)
        assert message is not None
        assert message.id == b"good"
        until(lambda: consumer.expired == 1)


def test_what_there_is_room_for_is_said_at_once_when_half_of_it_was_taken(fake: FakeTimelines) -> None:
    with (
        Timeline("t", fake.url) as timeline,
        timeline.consumer("c", buffer=4, status_tick=3600) as consumer,
    ):
        (talk,) = fake.talks
        assert (talk.heard[0].max_buffer_size, talk.heard[0].available_buffer_size) == (4, 4)
        fake.push("a", "b", "c", "d", due_ms=0, lease_ms=1 << 50)
        said: list[list[int]] = [[4], [4, 2], [4, 2], [4, 2, 4]]
        while said:
            assert consumer.take(timeout=PATIENCE_S) is not None
            until(lambda: [each.available_buffer_size for each in talk.heard] == said[0])
            said.pop(0)


def test_deletes_go_by_hundreds_after_a_second_and_on_stop(
    fake: FakeTimelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert consuming.DELETE_S == 1.0
    monkeypatch.setattr(consuming, "DELETE_S", 3600.0)
    with (
        Timeline("t", fake.url) as timeline,
        timeline.consumer("c", buffer=300, delete_batch=100, status_tick=3600) as consumer,
    ):
        fake.push(*(f"{number:03}" for number in range(201)), due_ms=0, lease_ms=1 << 50)
        for number in range(201):
            message = consumer.take(timeout=PATIENCE_S)
            assert message is not None
            message.delete()
            if number in (99, 199):
                assert [each[:2] for each in fake.asked] == [("delete", 100)] * (number // 99)
        assert sum(each[1] for each in fake.asked) == 200
        monkeypatch.setattr(consuming, "DELETE_S", 0.0)
        until(lambda: sum(each[1] for each in fake.asked) == 201)
        monkeypatch.setattr(consuming, "DELETE_S", 3600.0)
        fake.push("last", due_ms=0, lease_ms=1 << 50)
        message = consumer.take(timeout=PATIENCE_S)
        assert message is not None
        message.delete()
    assert sum(each[1] for each in fake.asked) == 202


def test_extend_and_release_are_done_when_they_return(fake: FakeTimelines) -> None:
    with Timeline("t", fake.url) as timeline, timeline.consumer("c") as consumer:
        fake.push("a", "b", "c", due_ms=0, lease_ms=1 << 50)
        first, second = consumer.take(), consumer.take()
        assert first is not None
        assert second is not None
        first.extend("30s")
        assert (first.version, first.expires_ms) == (3, fake.now_ms + 60_000)
        second.release("+5s")
        first.release()
        assert fake.asked == [
            ("extend-lease", 1, True, [30_000]),
            ("release", 1, True, [5000]),
            ("release", 1, True, [0]),
        ]
        fake.errors = [Error(kind=Kind.LEASE_EXPIRED, message="too late")]
        with pytest.raises(TimelineError, match="too late"):
            first.extend("30s")
    # What nobody took is given back, to be due when it was.
    assert fake.asked[-1] == ("release", 1, False, [0])


def test_a_lease_is_extended_while_the_program_has_it(fake: FakeTimelines) -> None:
    clock = Clock(fake.now_ms)
    with (
        Timeline("t", fake.url) as timeline,
        timeline.consumer("c", clock=clock, auto_extend=True, lease=60) as consumer,
    ):
        fake.push("a", due_ms=fake.now_ms)
        message = consumer.take(timeout=PATIENCE_S)
        assert message is not None
        clock.now_ms += 39_000
        fake.now_ms += 39_000
        assert fake.asked == []
        clock.now_ms += 1000
        fake.now_ms += 1000
        until(lambda: fake.asked == [("extend-lease", 1, True, [60_000])])
        until(lambda: message.version == 3)


def test_it_ends_after_so_many(fake: FakeTimelines) -> None:
    with Timeline("t", fake.url) as timeline, timeline.consumer("c", stop_after=2) as consumer:
        assert fake.talks[0].heard[0].available_buffer_size == 2
        fake.push("a", "b", "c", due_ms=0, lease_ms=1 << 50)
        assert [message.id for message in consumer] == [b"a", b"b"]


@pytest.mark.parametrize("told", [False, True])
def test_a_stream_that_broke_is_opened_again_in_the_same_session(fake: FakeTimelines, told: bool) -> None:
    stopping = Error(kind=Kind.NO_CONNECTION, message="the node is stopping", should_retry=True)
    with Timeline("t", fake.url) as timeline, timeline.consumer("c") as consumer:
        fake.push("a", due_ms=0, lease_ms=1 << 50)
        first = consumer.take()
        assert first is not None
        if told:
            fake.say(error=stopping)
        else:
            fake.flown.do(lambda: fake.talks[0].stream.end("stopping: a test"))
        until(lambda: len(fake.talks) == 2 and fake.talks[1].heard)
        assert fake.talks[1].heard[0].session_id == fake.talks[0].heard[0].session_id
        fake.push("a", due_ms=0, lease_ms=1 << 50)  # as a node does with what is on lease
        fake.push("b", due_ms=0, lease_ms=1 << 50)
        second = consumer.take()
        assert second is not None
        assert second.id == b"b"
    assert len(fake.greeted) == 1


def test_a_session_that_is_not_known_is_made_anew_once(fake: FakeTimelines) -> None:
    stale = Error(kind=Kind.UNKNOWN_SESSION, message="who?", should_sync=True)
    fake.errors = []
    with Timeline("t", fake.url) as timeline, timeline.consumer("c") as consumer:
        fake.errors = [stale]
        fake.flown.do(lambda: fake.talks[0].stream.end("stopping: a test"))
        until(lambda: len(fake.talks) == 3 and fake.talks[2].heard)
        assert len(fake.greeted) == 2
        fake.push("a", due_ms=0, lease_ms=1 << 50)
        assert consumer.take() is not None


@pytest.mark.parametrize(
    ("words", "kind", "text"),
    [
        ({"error": Error(kind=Kind.UNKNOWN_SESSION, message="another greeted", should_sync=True)}, Refusal, "another"),
        ({"error": Error(kind=Kind.TOPIC_NOT_FOUND, message="no topic t")}, TimelineError, "no topic t"),
        ({"end": "forbidden: not any more"}, Refusal, "not any more"),
    ],
)
def test_what_ends_it_for_good_comes_after_what_is_there(
    fake: FakeTimelines, words: dict[str, Any], kind: type[PenstockError], text: str
) -> None:
    with Timeline("t", fake.url) as timeline, timeline.consumer("c") as consumer:
        until(lambda: consumer._drift.is_known)
        fake.push("a", due_ms=0, lease_ms=1 << 50)
        fake.say(**words)
        until(lambda: consumer._failure is not None)
        assert consumer.take() is not None
        with pytest.raises(kind, match=text):
            consumer.take()
        assert consumer.take() is None
    assert len(fake.greeted) == 1


def test_one_that_cannot_be_had_says_so_at_once(fake: FakeTimelines) -> None:
    fake.errors = [Error(kind=Kind.LEASE_TOO_LONG, message="300 s at most")]
    with Timeline("t", fake.url) as timeline, pytest.raises(TimelineError, match="300 s at most"):
        timeline.consumer("c", lease="301s")


def test_the_topics_status_is_heard_and_pings_are_answered(fake: FakeTimelines) -> None:
    heard: list[TopicStatus] = []
    with Timeline("t", fake.url) as timeline, timeline.consumer("c", on_status=heard.append):
        fake.say(status=TopicStatus(available=10_000, create_rate=5.5), ping=Ping(local_ts_ms=1))
        until(lambda: heard == [TopicStatus(available=10_000, create_rate=5.5)])


@pytest.mark.parametrize("name", ["on_status", "on_drift"])
@pytest.mark.parametrize("kind", [ZeroDivisionError, Refusal, SystemExit])
def test_what_a_callback_raises_ends_the_consumer_and_is_raised_by_take(
    fake: FakeTimelines, name: str, kind: type[BaseException]
) -> None:
    error = Refusal("unavailable", "not now") if kind is Refusal else kind("not now")

    def called(_: object) -> None:
        raise error

    heard: dict[str, Any] = {name: called}
    with (
        Timeline("t", fake.url) as timeline,
        timeline.consumer("c", clock=Clock(fake.now_ms), status_tick=0.01, **heard) as consumer,
    ):
        fake.push("a", due_ms=fake.now_ms)
        until(lambda: len(consumer._leases) == 1)
        fake.now_ms += 3_600_000
        fake.say(status=TopicStatus(available=1))
        until(lambda: fake.talks[-1].is_closed)
        with pytest.raises(kind, match="not now"):
            list(iter(partial(consumer.take, PATIENCE_S), None))
        assert consumer.take() is None
    assert len(fake.greeted) == 1


def test_one_that_a_callback_ended_still_sends_its_deletes_and_gives_back_what_nobody_took(
    fake: FakeTimelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "DELETE_S", 3600.0)
    # Another node is named: one whose callback raises has no reason to go there.
    urls = f"{fake.url},{fake.url.replace('127.0.0.1', 'localhost')}"
    with (
        Timeline("t", urls) as timeline,
        timeline.consumer("c", on_status=lambda _: 1 // 0, status_tick=3600) as consumer,
    ):
        fake.push("a", "b", due_ms=0, lease_ms=1 << 50)
        message = consumer.take(timeout=PATIENCE_S)
        assert message is not None
        message.delete()
        until(lambda: len(consumer._leases) == 1)
        fake.say(status=TopicStatus(available=1))
        until(lambda: fake.talks[-1].is_closed)
        assert fake.asked == []
    assert [row[:2] for row in fake.asked] == [("delete", 1), ("release", 1)]
    assert len(fake.greeted) == 1


def test_one_whose_connection_failed_for_good_asks_for_nothing_more(fake: FakeTimelines) -> None:
    with Timeline("t", fake.url) as timeline, timeline.consumer("c", status_tick=3600) as consumer:
        fake.push("a", due_ms=0, lease_ms=1 << 50)
        until(lambda: len(consumer._leases) == 1)
        fake.say(end="forbidden: not any more")
        until(lambda: consumer._failure is not None)
    assert fake.asked == []


@pytest.mark.parametrize("follow", [True, False])
def test_a_broker_that_is_suggested_is_gone_to_in_its_window(fake: FakeTimelines, follow: bool) -> None:
    other = fake.url.replace("127.0.0.1", "localhost")
    with Timeline("t", fake.url) as timeline, timeline.consumer("c", follow=follow) as consumer:
        fake.say(switch=Switch(broker=Broker(id="b2", address=other), window=8))
        fake.say(status=TopicStatus(window=7))
        fake.push("a", due_ms=0, lease_ms=1 << 50)
        assert consumer.take() is not None  # not yet
        assert len(fake.talks) == 1
        fake.say(status=TopicStatus(window=8))
        fake.push("b", due_ms=0, lease_ms=1 << 50)
        if not follow:
            assert consumer.take() is not None
            assert len(fake.talks) == 1
            return
        until(lambda: len(fake.talks) == 2 and fake.talks[1].heard)
        assert (len(fake.greeted), consumer._link.url) == (2, other)
        fake.push("c", due_ms=0, lease_ms=1 << 50)
        while (message := consumer.take(timeout=PATIENCE_S)) is not None and message.id != b"c":
            assert message.id == b"b"
        assert message is not None


def test_asyncio_has_the_same(fake: FakeTimelines) -> None:
    async def run() -> list[bytes]:
        async with AsyncTimeline("t", fake.url) as timeline:
            async with await timeline.producer("g") as producer:
                await producer.create([b"a", b"b"], due="1s")
            async with await timeline.consumer("c", stop_after=2) as consumer:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await consumer.take()  # comes to nobody; the next one is not lost in it
                await asyncio.to_thread(fake.push, "x", "y", due_ms=0, lease_ms=1 << 50)
                found = []
                async for message in consumer:
                    found.append(message.id)
                    await message.delete()
                return found

    assert asyncio.run(run()) == [b"x", b"y"]
    assert [row[:2] for row in fake.asked] == [("create", 2), ("delete", 2)]
