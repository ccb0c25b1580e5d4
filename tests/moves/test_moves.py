"""A message that moves to another topic is safe there before it is gone where it came from."""

from __future__ import annotations

import pytest

from penstock.moves.redrive import Redriven, redrive
from penstock.node.topic import Topic
from penstock.settings import Durability, SubscriptionSettings, TopicSettings
from tests.site import Site

SEEDS = range(8)


def bury(site: Site, topic: Topic, body: bytes) -> None:
    """Let one message fail until it is in the dead-letter topic."""
    site.consume(topic, "audit", SubscriptionSettings(max_attempts=1))
    subscription = topic.subscription("audit")
    site.publish(topic, body)
    assert site.seat.release([1]) == []
    until(site, lambda: subscription.counts()["dead_lettered"] == 1)
    settle(site, topic)


def until(site: Site, condition: object) -> None:
    world = site.machine.scheduler
    assert callable(condition)
    for _ in range(10_000):
        if condition():
            return
        world.run_until(world.time_ns + 100_000)
    raise AssertionError("it never came true")


def settle(site: Site, topic: Topic) -> None:
    """Bring what became of the messages to the disk, and nothing else."""
    told: list[BaseException | None] = []
    for subscription in topic.subscriptions.values():
        subscription.flush()
        for cursor in subscription.cursors:
            cursor.states.journal.keep(told.append)
    until(site, lambda: len(told) == sum(len(each.cursors) for each in topic.subscriptions.values()))
    assert set(told) == {None}


def stored(site: Site, name: str) -> int:
    return sum(shard.rows_between(shard.start, shard.end) for shard in site.node.topic(name).shards)


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("seed", SEEDS)
def test_dead_letter_is_synced_before_its_message_is_finished(seed: int, durability: Durability) -> None:
    site = Site(seed=seed)
    topic = site.node.create_topic("orders", TopicSettings(durability="fsync")).now()
    site.node.create_topic("orders.dead", TopicSettings(durability=durability)).now()
    bury(site, topic, b"poison")
    site.lose_power()
    assert site.node.topic("orders").subscription("audit").counts()["dead_lettered"] == 1
    assert stored(site, "orders.dead") == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_redriven_letter_is_synced_before_it_is_finished(seed: int) -> None:
    site = Site(seed=seed)
    topic = site.node.create_topic("orders").now()
    bury(site, topic, b"poison")
    site.machine.run(5)
    before = stored(site, "orders")
    dead, told = site.node.topic("orders.dead"), list[Redriven]()
    redrive(site.node, dead, None, 10, told.append)
    until(site, lambda: bool(told))
    assert told[0].moved == 1
    settle(site, dead)
    site.lose_power()
    assert site.node.topic("orders.dead").subscription("redrive").depth() == 0
    assert stored(site, "orders") == before + 1


def test_letters_are_moved_no_faster_than_they_may() -> None:
    site = Site()
    topic = site.node.create_topic("orders").now()
    site.consume(topic, "audit", SubscriptionSettings(max_attempts=1))
    for number in range(5):
        site.publish(topic, b"poison %d" % number)
    assert site.seat.release([1, 2, 3, 4, 5]) == []
    until(site, lambda: topic.subscription("audit").counts()["dead_lettered"] == 5)
    world, told = site.machine.scheduler, list[Redriven]()
    began_ns = world.time_ns
    redrive(site.node, site.node.topic("orders.dead"), None, 10, told.append, rate=2)
    moved: dict[int, int] = {}
    while not told:
        world.run_until(world.time_ns + 1_000_000)
        running = site.node.redrives.get("orders.dead")
        if running is not None:
            moved.setdefault(running.moved, world.time_ns - began_ns)
    assert told[0].moved == 5
    assert [count for count in moved if count] == [2, 4]
    assert 1_000_000_000 <= moved[4] < 1_100_000_000
    assert 2_000_000_000 <= world.time_ns - began_ns < 2_100_000_000


def test_dead_letter_that_cannot_be_synced_leaves_its_message_where_it_is() -> None:
    site = Site()
    topic = site.node.create_topic("orders").now()
    site.node.create_topic("orders.dead", TopicSettings(durability="os")).now()
    subscription = topic.subscribe("audit", SubscriptionSettings(max_attempts=1)).now()
    site.consume(topic, "audit")
    site.publish(topic, b"poison")
    site.machine.fail_syncs(of=".arrows")
    assert site.seat.release([1]) == []
    site.machine.run(3)
    assert subscription.counts()["dead_lettered"] == 0
    site.machine.mend()
    site.machine.run(60)
    assert subscription.counts()["dead_lettered"] == 1
    assert stored(site, "orders.dead") == 1


def test_dead_letters_of_a_topic_in_memory_wait_for_no_disk() -> None:
    site = Site()
    topic = site.node.create_topic("orders").now()
    site.node.create_topic("orders.dead", TopicSettings(durability="memory")).now()
    bury(site, topic, b"poison")
    assert stored(site, "orders.dead") == 1


def test_messages_that_were_stored_one_by_one_die_together() -> None:
    site = Site()
    topic = site.node.create_topic("orders").now()
    subscription = topic.subscribe("audit", SubscriptionSettings(max_attempts=1)).now()
    for number in range(40):
        site.publish(topic, b"poison %d" % number)
    site.consume(topic, "audit")
    assert site.seat.release(list(range(1, 41))) == []
    until(site, lambda: subscription.counts()["dead_lettered"] == 40)
    assert stored(site, "orders.dead") == 40
