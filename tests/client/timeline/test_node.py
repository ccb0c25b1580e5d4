"""Timelines of a real node, by the SDK."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from penstock.client import AsyncTimeline, Timeline
from penstock.client.timeline import Kind, Message, RefusedRows, Scheduled, TimelineError, TopicStatus
from penstock.client.timeline.consumer import Consumer
from tests.cli.program import Node
from tests.client.conftest import restarted, url_of
from tests.served import PATIENCE_S


def taken(consumer: Consumer) -> Message:
    message = consumer.take(timeout=PATIENCE_S)
    assert message is not None
    return message


def test_messages_come_when_they_are_due_and_go_when_they_are_deleted(url: str, topic: str) -> None:
    with Timeline(topic, url) as timeline:
        timeline.create(bucket_count=16)
        timeline.create(bucket_count=16)  # found
        with timeline.producer("shop") as producer:
            later = producer.create([b"later %d" % n for n in range(20)], due="1s")
            now = producer.create([Scheduled("now", message_id="first")])
            assert now == [b"first"]
            assert timeline.count() == 21
            with timeline.consumer("worker", stop_after=21) as consumer:
                seen = []
                for message in consumer:
                    assert time.time() * 1000 >= message.due_ms
                    assert message.expires_ms - message.due_ms >= 60_000
                    assert message.producer_group == b"shop"
                    seen.append(message.id)
                    message.delete()
            assert seen[0] == b"first"
            assert sorted(seen[1:]) == sorted(later)
            assert timeline.count() == 0


def test_holder_and_owner_have_their_rights(url: str, topic: str) -> None:
    with Timeline(topic, url) as timeline:
        timeline.create()
        with timeline.producer("g") as producer, timeline.producer("other") as other:
            waiting = producer.create([b"a", b"b"], due="1h")
            with pytest.raises(RefusedRows) as caught:
                other.delete(waiting)
            assert [each.kind for each in caught.value.refused] == [Kind.NOT_THE_HOLDER] * 2
            assert producer.delete(waiting) == 2
            assert producer.delete(waiting) == 0
            (id_,) = producer.create(b"c")
            with timeline.consumer("c") as consumer:
                message = taken(consumer)
                with pytest.raises(RefusedRows, match="kind 411"):
                    producer.delete(id_)
                message.extend("120s")
                assert message.version == 3
                with pytest.raises(TimelineError) as refused:
                    message.extend("301s")
                assert refused.value.kind == Kind.TIME_OUT_OF_RANGE
                message.release("1s")
                again = taken(consumer)
                assert (again.id, again.body) == (id_, b"c")
                assert again.due_ms > message.due_ms
                again.delete()
                consumer.flush()
                assert consumer.refused == 0
            assert timeline.count() == 0
            with pytest.raises(RefusedRows, match="kind 414"):
                producer.create(b"far", due="400d")


def test_a_consumer_that_comes_back_goes_on_with_its_leases(url: str, topic: str) -> None:
    with Timeline(topic, url) as timeline:
        timeline.create()
        with timeline.producer("g") as producer:
            producer.create([b"a", b"b", b"c"])
        with timeline.consumer("c", buffer=2) as consumer:
            first = taken(consumer)
        with timeline.consumer("c") as consumer:
            again = taken(consumer)
            assert (again.id, again.version, again.expires_ms) == (first.id, first.version, first.expires_ms)
            again.delete()
            for _ in range(2):  # what it had not looked at was given back
                taken(consumer).delete()
        assert timeline.count() == 0


def test_the_second_of_a_name_ends_the_first(url: str, topic: str) -> None:
    with Timeline(topic, url) as timeline:
        timeline.create()
        with timeline.consumer("c") as first, timeline.consumer("c") as second:
            with pytest.raises(Exception, match="another consumer greeted as 'c'"):
                first.take(timeout=PATIENCE_S)
            with timeline.producer("g") as producer:
                producer.create(b"a")
            taken(second).delete()


def test_a_burst_shows_in_the_status_of_the_topic(url: str, topic: str) -> None:
    heard: list[TopicStatus] = []
    with Timeline(topic, url) as timeline:
        timeline.create()
        with timeline.consumer("c", buffer=1, on_status=heard.append), timeline.producer("g") as producer:
            producer.create([b"x"] * 10_000)
            end = time.monotonic() + PATIENCE_S
            while not heard or heard[-1].available < 9000:
                assert time.monotonic() < end, heard
                time.sleep(0.01)
            assert heard[-1].consumers == 1


def test_what_cannot_be_had_says_why(url: str, topic: str) -> None:
    with Timeline(topic, url, patience=1) as timeline:
        with pytest.raises(TimelineError) as missing:
            timeline.producer("g")
        assert missing.value.kind == Kind.TOPIC_NOT_FOUND
        timeline.create(bucket_count=4)
        with pytest.raises(TimelineError) as other:
            timeline.create(bucket_count=5)
        assert other.value.kind == Kind.TOPIC_EXISTS
        with pytest.raises(TimelineError) as long:
            timeline.consumer("c", lease="301s")
        assert long.value.kind == Kind.LEASE_TOO_LONG
    with Timeline(topic, url, cluster="elsewhere") as timeline, pytest.raises(TimelineError) as wrong:
        timeline.producer("g")
    assert wrong.value.kind == Kind.WRONG_CLUSTER


def test_asyncio_has_the_same(url: str, topic: str) -> None:
    async def run() -> list[bytes]:
        async with AsyncTimeline(topic, url) as timeline:
            await timeline.create()
            async with await timeline.producer("g") as producer:
                await producer.create([b"a", b"b"])
            async with await timeline.consumer("c", stop_after=2) as consumer:
                found = []
                async for message in consumer:
                    found.append(message.body)
                    await message.delete()
            assert await timeline.count() == 0
            return found

    assert sorted(asyncio.run(run())) == [b"a", b"b"]


def test_a_program_goes_on_when_the_node_dies_and_comes_back(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        url, port = url_of(node), node.port("flight.port")
        with Timeline("t", url) as timeline:
            timeline.create()
            producer, consumer = timeline.producer("g"), timeline.consumer("c")
            producer.create([b"a", b"b"])
            first = taken(consumer)
            node.end(signal.SIGKILL)
            with restarted(tmp_path, port):
                ids = set(producer.create([b"c", b"d"]))
                first.delete()
                seen: list[bytes] = []
                while len(seen) < 3:
                    message = taken(consumer)
                    message.delete()
                    seen.append(message.id)
                consumer.flush()
                assert first.id not in seen
                assert ids < set(seen)
                assert timeline.count() == 0
                consumer.close()
                producer.close()
