"""Ranges of removed rows agree with a set of offsets, and an emptied topic stays empty whoever comes to the place."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery.position import Position
from penstock.delivery.rules import Rules
from penstock.delivery.skips import Skips
from penstock.settings import SubscriptionSettings, TopicSettings
from tests.delivery.parts import Bench
from tests.nsq.parts import Broker, dpub, pub

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


@given(SPANS, st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_ranges_agree_with_a_set_of_offsets(spans: list[tuple[int, int]], below: int, first: int, end: int) -> None:
    skips = Skips()
    model: set[int] = set()
    for a, b in spans:
        skips.add(a, b)
        model |= set(range(a, b))
    assert Skips(spans).ranges() == skips.ranges()
    skips.drop_below(below)
    model = {offset for offset in model if offset >= below}
    flat = [offset for a, b in skips.ranges() for offset in range(a, b)]
    assert flat == sorted(model)
    assert all(a < b for a, b in skips.ranges())
    assert all(b < c for (_, b), (c, _) in zip(skips.ranges(), skips.ranges()[1:], strict=False))
    assert skips.offsets(first, end).tolist() == sorted(o for o in model if first <= o < end)
    after = first
    while after in model:
        after += 1
    assert skips.end_at(first) == after


def test_a_skipped_range_is_passed_unread_and_counts_as_removed() -> None:
    bench = Bench()
    bench.shard.put(numbered(10))
    bench.cursor.position.gate = 10
    bench.shard.put(numbered(5, 10))
    bench.shard.hole(1 << 20)
    bench.shard.put(numbered(5, 15))
    bench.cursor.position.skip(10, bench.shard.end)
    bench.shard.put(numbered(3, 20))
    assert bench.subscription.depth() == 10
    bench.cursor.position.gate = None
    assert bench.subscription.depth() == 13
    receiver = bench.receiver()
    assert receiver.take() == [*numbered(10), *numbered(3, 20)]
    assert bench.subscription.counts()["removed"] == 10
    assert bench.sums_hold()


@pytest.mark.parametrize("compacted", [False, True])
def test_a_skipped_range_survives_a_crash_before_and_after_it_was_passed(compacted: bool) -> None:
    bench = Bench()
    bench.shard.put(numbered(30))
    bench.cursor.position.skip(10, 20)
    bench.journal.bloated = compacted
    bench.crash()
    assert bench.journal.compactions == compacted
    receiver = bench.receiver(credit=5)
    assert receiver.take() == numbered(5)
    receiver.ack(receiver.last)
    assert receiver.take() == numbered(5, 5)
    receiver.ack(receiver.last)
    assert receiver.take() == numbered(5, 20)
    receiver.ack(receiver.last)
    bench.crash()
    assert bench.receiver().take() == numbered(5, 25)
    assert bench.subscription.counts()["removed"] == 10
    assert bench.sums_hold()


def test_a_skip_at_the_cursor_lets_retention_have_the_rows_at_once() -> None:
    bench = Bench()
    bench.shard.put(numbered(30))
    bench.cursor.position.skip(0, 20)
    assert (bench.cursor.floor, bench.subscription.depth()) == (20, 10)


def test_a_skip_does_not_touch_what_was_handed_out() -> None:
    bench = Bench()
    bench.shard.put(numbered(10))
    receiver = bench.receiver(credit=4)
    assert receiver.take() == numbered(4)
    bench.cursor.position.skip(0, 8)
    assert bench.cursor.states.leased == 4
    assert receiver.ack(receiver.last) == []
    assert receiver.take() == numbered(2, 8)
    assert bench.sums_hold()


def test_a_million_skipped_rows_are_one_entry_and_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.shard.put([b"before"])
    bench.shard.put([b"x"] * 1_000_000)
    bench.cursor.position.skip(1, 1_000_001)
    assert bench.cursor.dirty
    bench.crash()
    assert len(bench.journal.entries) == 1
    looks = 0
    real = Position.batch_at

    def counted(position: Position, offset: int) -> object:
        nonlocal looks
        looks += 1
        return real(position, offset)

    monkeypatch.setattr(Position, "batch_at", counted)
    bench.shard.put([b"after"])
    assert bench.receiver().take() == [b"before", b"after"]
    assert looks < 10


@pytest.mark.parametrize("order", ["none", "key", "shard"])
@pytest.mark.parametrize("tag", ["", "blue"])
def test_skips_hold_for_every_way_of_handing_out(order: str, tag: str) -> None:
    bench = Bench(SubscriptionSettings(order=order))  # type: ignore[arg-type]
    columns = {"tag": ["blue"] * 9, "key": [b"k"] * 9}
    bench.shard.put(numbered(9), columns if tag else {"key": [b"k"] * 9})
    bench.cursor.position.skip(2, 7)
    receiver = bench.receiver(tag=tag)
    got: list[bytes] = []
    for _ in range(9):
        got += receiver.take()
        receiver.ack(receiver.last)
    assert got == [b"0", b"1", b"7", b"8"]
    assert bench.sums_hold()


@pytest.mark.parametrize("seed", range(20))
def test_random_skips_and_removals_agree_with_a_set(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(rules=Rules(key_run=rng.choice([0, 0, 1])))
    wanted: set[int] = set()
    receiver = bench.receiver(credit=7)
    for _ in range(60):
        action = rng.randrange(6)
        if action == 0:
            first = bench.shard.end
            bench.shard.put([b"%d" % offset for offset in range(first, first + rng.choice([1, 3, 30]))])
            wanted |= set(range(first, bench.shard.end))
        elif action == 1 and bench.shard.end:
            low, high = sorted(rng.sample(range(bench.shard.end + 1), 2))
            bench.cursor.position.skip(low, high)
            ahead = {offset for offset in wanted if offset >= bench.cursor.position.offset}
            wanted -= {
                offset for offset in range(low, high) if offset in ahead or offset >= bench.cursor.position.offset
            }
        elif action == 2 and bench.shard.end:
            ids = rng.sample(range(1, bench.shard.end + 1), min(bench.shard.end, 3))
            bench.subscription.remove(sorted(ids))
            wanted -= {id_ - 1 for id_ in ids}
        elif action == 3 and rng.random() < 0.2:
            bench.crash()
            receiver = bench.receiver(credit=7)
        for body, id_ in zip(receiver.take(), receiver.last, strict=True):
            assert int(body) in wanted
            assert receiver.ack([id_]) == []
            wanted.discard(int(body))
        assert bench.sums_hold()


# --- on a node ----------------------------------------------------------------------------------------------------


def depths(broker: Broker, topic: str = "t") -> tuple[int, int]:
    found = broker.node.topic(topic)
    return found.depth(), sum(subscription.depth() for subscription in found.subscriptions.values())


@pytest.mark.parametrize("killed", [False, True])
def test_emptying_a_paused_topic_drops_what_the_pause_keeps_back(tmp_path: Path, killed: bool) -> None:
    broker = Broker(tmp_path)
    quick, producer = broker.client(), broker.client()
    quick.sub("t", "quick", 10)
    broker.client().sub("t", "slow")
    producer.pub("t", b"before")
    quick.fin(*quick.messages())
    quick.hang_up()
    topic = broker.node.topic("t")
    topic.pause(paused=True).now()
    producer.pub("t", b"gone", b"gone too")
    producer.send(dpub("t", 500, b"gone as well"))
    assert depths(broker) == (3, 1)
    topic.empty().now()
    assert depths(broker) == (0, 1)
    producer.pub("t", b"after")
    if killed:
        broker.kill()
        topic = broker.node.topic("t")
    assert depths(broker)[0] == 1
    topic.pause(paused=False).now()
    broker.advance(1)
    for channel in ("quick", "slow"):
        client = broker.client()
        client.sub("t", channel, 10)
        seen = [message.body for message in client.messages()]
        assert seen == [b"before", b"after"][channel == "quick" :]
        counts = topic.subscription(channel).counts()
        assert counts["removed"] == 3
        assert counts.pop("passed") == sum(counts.values())


def test_emptying_a_paused_topic_twice_and_a_channel_between(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.client().sub("t", "ch")
    producer = broker.client()
    producer.pub("t", b"a")
    topic = broker.node.topic("t")
    topic.pause(paused=True).now()
    producer.pub("t", b"b")
    topic.empty().now()
    producer.pub("t", b"c")
    topic.subscription("ch").empty()
    assert depths(broker) == (1, 0)
    topic.empty().now()
    producer.pub("t", b"d")
    topic.pause(paused=False).now()
    consumer = broker.client()
    consumer.sub("t", "ch", 10)
    assert [message.body for message in consumer.messages()] == [b"d"]
    assert topic.subscription("ch").counts()["removed"] == 3


def test_a_channel_is_emptied_of_rows_that_are_on_disk_only(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    topic = broker.node.create_topic("t", TopicSettings(segment_bytes=64 << 10)).now()
    topic.subscribe("ch").now()
    producer = broker.client()
    for number in range(40):
        producer.send(b"".join(pub("t", b"%d" % number * 500) for _ in range(10)))
    producer.send(dpub("t", 60_000, b"later"))
    broker.kill()
    topic = broker.node.topic("t")
    subscription = topic.subscription("ch")
    assert subscription.depth() + subscription.waiting() == 401
    subscription.empty()
    assert (subscription.depth(), subscription.waiting()) == (0, 0)
    producer = broker.client()
    producer.pub("t", b"new")
    subscription.flush()
    broker.kill()
    consumer = broker.client()
    consumer.sub("t", "ch", 1000)
    assert [message.body for message in consumer.messages()] == [b"new"]
    broker.advance(20)
    assert consumer.messages() == []
    assert broker.node.topic("t").subscription("ch").counts()["removed"] == 401


def test_a_channel_is_emptied_of_rows_that_are_being_fetched() -> None:
    bench = Bench()
    bench.shard.put(numbered(5))
    bench.shard.cold = True
    receiver = bench.receiver()
    assert receiver.take() == []
    bench.subscription.empty()
    bench.shard.warm()
    assert receiver.take() == []
    bench.shard.put([b"new"])
    assert receiver.take() == [b"new"]
    assert bench.subscription.counts()["removed"] == 5
    assert np.array_equal(bench.cursor.states.leases.of(receiver.seat.holder), [5])
