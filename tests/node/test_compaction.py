"""A message that waits for long does not keep the log around it, and comes when its time has come."""

from __future__ import annotations

import pytest

from penstock.clock import SECOND
from penstock.errors import Refusal
from penstock.node.topic import Topic
from penstock.settings import SubscriptionSettings, TopicSettings
from tests.site import Site

HOUR_S = 3600
#: Longer than history is kept.
LONG_S = 4 * HOUR_S
#: About 400 rows of 100 bytes, and what whole segments are more.
SMALL = TopicSettings(retention_bytes=60_000, retention_age_ns=HOUR_S * SECOND, segment_bytes=16_384)


@pytest.fixture
def site() -> Site:
    return Site()


def flow(site: Site, topic: Topic, messages: int = 8000) -> None:
    """Publish, deliver and ack in hundreds, as a topic that is kept up with."""
    for start in range(0, messages, 100):
        end = topic.shards[0].end
        site.publish(topic, *(b"%06d" % (start + row) + bytes(100) for row in range(100)))
        site.seat.ack(list(range(end + 1, end + 101)))
    site.machine.run(120)


def rows(topic: Topic) -> int:
    shard = topic.shards[0]
    return shard.rows_between(shard.kept_from, shard.end)


def sums(topic: Topic, name: str = "audit") -> dict[str, int]:
    counts = topic.subscription(name).counts()
    assert counts["passed"] == sum(value for reason, value in counts.items() if reason != "passed")
    return counts


def test_message_due_much_later_does_not_keep_the_8000_after_it(site: Site) -> None:
    topic = site.node.create_topic("t", SMALL).now()
    got = site.consume(topic, "audit", credit=10_000)
    site.publish(topic, b"first")
    site.seat.ack([1])
    due_ns = site.machine.clock.now() + 2 * LONG_S * SECOND
    site.publish(topic, b"later", due_ns=due_ns)
    flow(site, topic)
    assert rows(topic) < 700
    assert topic.stored_bytes() < 100_000
    assert sums(topic) == {
        "passed": 8002, "held": 1, "acked": 8001, "filtered": 0, "expired": 0, "dead_lettered": 0, "removed": 0,
    }  # fmt: skip
    assert topic.shards[0].start > 7000
    site.machine.run(LONG_S)
    assert (len(got), rows(topic)) == (8001, 1)
    site.machine.run(LONG_S - 120)
    assert got[-1] == b"later"
    site.seat.ack([2])
    site.machine.run(2 * HOUR_S)
    assert (rows(topic), topic.stored_bytes()) == (0, 0)
    assert site.node.bugs == 0


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
def test_message_that_waits_comes_after_a_restart_too(site: Site, power: bool) -> None:
    topic = site.node.create_topic("t", SMALL).now()
    site.consume(topic, "audit", credit=10_000)
    due_ns = site.machine.clock.now() + LONG_S * SECOND
    site.publish(topic, b"one", b"two", due_ns=due_ns)
    flow(site, topic, 2000)
    kept = rows(topic)
    assert kept < 700
    if power:
        site.machine.lose_power()
    site.start()
    topic = site.node.topic("t")
    assert rows(topic) == kept
    assert sums(topic)["held"] == 2
    got = site.consume(topic, "audit")
    site.machine.run(LONG_S - HOUR_S)
    assert got == []
    site.machine.run(HOUR_S - 100)  # with the two minutes before the restart
    assert got == [b"one", b"two"]
    assert site.node.damage() == []
    assert site.node.bugs == 0


def test_message_that_was_released_for_long_comes_with_its_attempts(site: Site) -> None:
    topic = site.node.create_topic("t", SMALL).now()
    got = site.consume(topic, "audit", credit=10_000)
    site.publish(topic, b"again")
    subscription = topic.subscription("audit")
    assert site.seat.release([1], LONG_S * SECOND) == []
    flow(site, topic, 2000)
    assert rows(topic) < 700
    site.machine.run(LONG_S)
    assert got[-1] == b"again"
    assert subscription.cursors[0].states.leased == 1
    assert sums(topic)["held"] == 1


def test_what_any_subscription_waits_for_stays(site: Site) -> None:
    topic = site.node.create_topic("t", SMALL).now()
    waits = SubscriptionSettings(lease_ns=30 * LONG_S * SECOND, lease_max_ns=30 * LONG_S * SECOND)
    slow = site.consume(topic, "slow", waits, credit=3)
    due_ns = site.machine.clock.now() + LONG_S * SECOND
    site.consume(topic, "audit", credit=10_000)
    site.publish(topic, b"later", due_ns=due_ns)
    flow(site, topic, 1000)
    assert rows(topic) == 1001  # one has not come to them
    topic.subscription("slow").empty()
    site.machine.run(60)
    assert rows(topic) < 700
    assert slow
    assert sums(topic, "slow")["removed"] == 1001
    assert sums(topic)["held"] == 1


def test_hold_of_a_reader_outside_keeps_everything_from_its_offset_on(site: Site) -> None:
    topic = site.node.create_topic("t", SMALL).now()
    site.consume(topic, "audit", credit=10_000)
    site.publish(topic, b"later", due_ns=site.machine.clock.now() + 30 * LONG_S * SECOND)
    site.node.holds.hold("query", topic.record, [1000], LONG_S * SECOND).now()
    flow(site, topic, 2000)
    shard = topic.shards[0]
    assert 300 < shard.start <= 1000
    assert shard.rows_between(1000, shard.end) == 1001
    assert rows(topic) < 1700
    site.machine.run(2 * LONG_S)
    assert rows(topic) == 1


def test_place_before_what_is_kept_whole_cannot_be_sought(site: Site) -> None:
    topic = site.node.create_topic("t", SMALL).now()
    site.consume(topic, "audit", credit=10_000)
    site.publish(topic, b"later", due_ns=site.machine.clock.now() + 30 * LONG_S * SECOND)
    flow(site, topic, 2000)
    start = topic.shards[0].start
    with pytest.raises(Refusal, match=f"offset 0 of shard 0 is not kept; choose one from {start} to 2001"):
        topic.subscription("audit").seek(0, 0)
    topic.create_subscription("all", earliest=True).now()
    assert topic.subscription("all").depth() == 2001 - start


def test_waiting_messages_make_room_in_a_full_topic(site: Site) -> None:
    topic = site.node.create_topic("t", TopicSettings(quota_bytes=1 << 20)).now()
    site.consume(topic, "audit", credit=10_000)
    due_ns = site.machine.clock.now() + 30 * LONG_S * SECOND
    refused = 0
    for number in range(400):
        if number % 20 == 0:
            refused += site.offer(topic, b"later", due=[due_ns]) != [None]
        id_ = topic.shards[0].end + 1
        if site.offer(topic, bytes(10_000)) == [None]:
            site.seat.ack([id_])
        else:
            refused += 1
            site.machine.run(1)
        assert topic.stored_bytes() <= 1 << 20
    assert refused < 80
    assert sums(topic)["acked"] > 320
