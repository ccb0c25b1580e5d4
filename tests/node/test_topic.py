"""A topic keeps its word when it is paused twice, when the disk is full, and when everybody left."""

from __future__ import annotations

from typing import Literal

import pytest

from penstock.clock import SECOND
from penstock.delivery.source import Delivery
from penstock.errors import Refusal
from penstock.message import Rows
from penstock.settings import SubscriptionSettings, TopicSettings
from tests.simulation.disk import Died
from tests.site import Site


@pytest.fixture
def site() -> Site:
    return Site()


def test_second_pause_lets_nothing_through(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    got = site.consume(topic, "audit")
    topic.pause(paused=True).now()
    site.publish(topic, b"held")
    topic.pause(paused=True).now()
    site.machine.run()
    assert got == []
    topic.pause(paused=False).now()
    site.machine.run()
    assert got == [b"held"]


def test_rows_of_a_paused_topic_that_wait_for_their_time_stay_behind_the_gate(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    topic.pause(paused=True).now()
    site.publish(topic, b"later", due_ns=site.machine.clock.now() + 200_000_000)
    got = site.consume(topic, "audit")
    site.machine.run(1)
    assert got == []
    topic.pause(paused=False).now()
    site.machine.run()
    assert got == [b"later"]


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("fuse", range(1, 24, 2))
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_gate_keeps_back_what_comes_after_a_failed_sync_took_rows_before_it(
    durability: Literal["os", "fsync"], fuse: int, power: bool
) -> None:
    site = Site(seed=fuse)
    topic = site.node.create_topic("t", TopicSettings(durability=durability)).now()
    topic.create_subscription("audit").now()
    site.publish(topic, b"before")
    site.machine.run(3)
    for _ in range(3):
        topic.publish(Rows.of([b"lost"], "test"), site, lambda _, __: None)
    topic.pause(paused=True).now()
    site.machine.fail_syncs(of=".arrows")
    site.machine.platter.fuse = fuse
    try:
        site.machine.run(3)
    except Died:
        pass
    site.machine.mend()
    if power:
        site.lose_power()
    else:
        site.start()
    topic = site.node.topic("t")
    site.publish(topic, *[b"after"] * 5)
    got = site.consume(topic, "audit")
    site.machine.run(1)
    assert (got[:1], b"after" in got) == ([b"before"], False)
    topic.pause(paused=False).now()
    site.machine.run(1)
    assert got.count(b"after") == 5


def test_topic_deleted_on_a_disk_that_fills_up_meanwhile_is_gone_in_memory_too(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    topic.create_subscription("a").now()
    topic.create_subscription("b").now()
    for room in range(400):
        site.machine.platter.capacity_bytes = site.machine.platter.used_bytes + room
        try:
            site.node.delete_topic("t").now()
        except Refusal:
            assert site.node.topic("t") is topic
            continue
        break
    assert "t" not in site.node.topics
    site.machine.make_room()
    site.start()
    assert "t" not in site.node.topics
    assert site.node.create_topic("t").now().subscriptions == {}


def test_last_consumer_of_an_ephemeral_subscription_may_leave_when_the_disk_is_full(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    site.consume(topic, "passing", SubscriptionSettings(ephemeral=True))
    site.machine.fill()
    site.seat.close()
    site.machine.make_room()
    site.start()
    assert site.node.topic("t").subscriptions == {}


def test_subscription_after_a_restart_does_not_get_what_an_ephemeral_one_had(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    got = site.consume(topic, "passing", SubscriptionSettings(ephemeral=True))
    site.publish(topic, b"before")
    assert got == [b"before"]
    site.start()
    topic = site.node.topic("t")
    got = site.consume(topic, "audit")
    site.publish(topic, b"after")
    assert got == [b"after"]


def test_acks_survive_a_power_loss_once_the_journal_had_its_two_seconds(site: Site) -> None:
    topic = site.node.create_topic("t", TopicSettings(durability="fsync")).now()
    site.consume(topic, "audit")
    site.publish(topic, b"one")
    assert site.seat.ack([1]) == []
    site.machine.run(3)
    site.machine.lose_power()
    site.start()
    assert site.consume(site.node.topic("t"), "audit") == []


def test_acks_held_back_by_a_full_disk_are_written_when_there_is_room(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    site.consume(topic, "audit")
    site.publish(topic, b"one")
    site.machine.fill()
    assert site.seat.ack([1]) == []
    site.machine.run(1)
    site.machine.make_room()
    site.machine.run()
    site.start()
    assert site.consume(site.node.topic("t"), "audit") == []


def test_rows_that_become_due_while_the_clock_is_read_are_all_delivered(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    got = site.consume(topic, "audit", credit=1000)
    clock = site.machine.clock
    start_ns = clock.now()
    real, reads = clock.now, 0

    def passing() -> int:
        nonlocal reads
        reads += 1
        return real() + reads * 1_000_000

    clock.now = passing  # type: ignore[method-assign]
    due = [start_ns + 200_000_000 + number * 500_000 for number in range(200)]
    assert site.offer(topic, *[b"%d" % number for number in range(200)], due=due) == [None]
    site.machine.run(3)
    assert sorted(got, key=int) == [b"%d" % number for number in range(200)]


@pytest.mark.parametrize("order", ["key", "shard"])
def test_row_that_waits_for_one_that_dies_goes_out_when_that_one_is_buried(
    site: Site, order: Literal["key", "shard"]
) -> None:
    topic = site.node.create_topic("t").now()
    got = site.consume(topic, "audit", SubscriptionSettings(order=order, max_attempts=1))
    assert site.offer(topic, b"poison", b"next", key=[b"k", b"k"]) == [None]
    assert got == [b"poison"]
    site.seat.release([1], 0)
    site.machine.run()
    assert got == [b"poison", b"next"]


def test_consumer_that_cannot_be_served_goes_and_its_messages_go_to_others(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    evicted: list[str] = []

    def fail(deliveries: list[Delivery]) -> None:
        raise RuntimeError("a bug in a dialect")

    subscription = topic.subscribe("audit").now()
    broken = topic.attach(subscription, fail, lease_ns=60_000_000_000, evict=lambda: evicted.append("gone"))
    broken.set_credit(10)
    assert site.offer(topic, b"one") == [None]
    assert (evicted, site.node.bugs, list(subscription.seats)) == (["gone"], 1, [])
    assert site.consume(topic, "audit") == [b"one"]
    assert broken.ack([1]) == [1]  # its place may be another's by now


def test_follower_and_eviction_and_poll_that_fail_are_bugs_of_their_own(site: Site) -> None:
    topic = site.node.create_topic("t").now()

    def fail(*_: object) -> None:
        raise RuntimeError("a bug in a dialect")

    topic.follow(fail)
    got = site.consume(topic, "audit", evict=fail)
    site.publish(topic, b"one")
    assert (got, site.node.bugs) == ([b"one"], 1)
    subscription = topic.subscribe("polled").now()
    subscription.holder("api").look(1, 60_000_000_000, fail)
    site.publish(topic, b"two")
    assert site.node.bugs == 3
    answers: list[int] = []
    subscription.holder("api").look(1, 60_000_000_000, lambda deliveries: answers.append(len(deliveries)))
    assert answers == [1]  # what nobody got the receipt of is there at once
    topic.delete_subscription("audit").now()
    assert "audit" not in topic.subscriptions
    assert site.node.bugs == 4


@pytest.mark.parametrize("way", ["empty", "remove", "ack_up_to"])
def test_ordered_subscription_goes_on_after_a_delayed_row_was_finished_otherwise(site: Site, way: str) -> None:
    topic = site.node.create_topic("t").now()
    got = site.consume(topic, "audit", SubscriptionSettings(order="shard"))
    site.publish(topic, b"one")
    subscription = topic.subscription("audit")
    assert site.seat.release([1], 3600 * SECOND) == []
    if way == "empty":
        subscription.empty()
    elif way == "remove":
        subscription.remove([1])
    else:
        subscription.ack_up_to(1)
    site.publish(topic, b"two")
    assert got == [b"one", b"two"]


def test_ordered_subscription_waits_for_a_delayed_row_also_after_a_restart(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    got = site.consume(topic, "audit", SubscriptionSettings(order="shard"))
    site.publish(topic, b"one", b"two")
    assert site.seat.release([1], 10 * SECOND) == []
    site.machine.run(1)
    assert got == [b"one"]
    site.start()
    got = site.consume(site.node.topic("t"), "audit")
    assert got == []
    site.machine.run(10)
    assert got == [b"one"]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("number", [-1, 3])
def test_shard_that_does_not_exist_is_refused(site: Site, shards: int, number: int) -> None:
    topic = site.node.create_topic("t", TopicSettings(shards=shards)).now()
    told: list[BaseException | None] = []
    topic.publish(Rows.of([b"x"], "test"), site, lambda _, error: told.append(error), number)
    site.machine.run()
    assert [str(error) for error in told] == [f"there is no shard {number}; topic t has 0 to {shards - 1}"]
    assert topic.published == 0
    with pytest.raises(Refusal, match=f"there is no shard {number}"):
        topic.shard(number)
    subscription = topic.subscribe("audit").now()
    with pytest.raises(Refusal, match=f"there is no shard {number}"):
        topic.attach(subscription, lambda _: None, shard=number)
    with pytest.raises(Refusal, match=f"there is no shard {number}"):
        subscription.seek(number, 0)
    assert subscription.seats == {}


def test_ephemeral_topic_that_was_emptied_stays_empty_after_a_pause(site: Site) -> None:
    topic = site.node.create_topic("t", TopicSettings(ephemeral=True)).now()
    site.publish(topic, b"before")
    topic.empty().now()
    topic.pause(paused=True).now()
    topic.pause(paused=False).now()
    assert site.consume(topic, "audit") == []


def test_what_waits_is_told_by_its_time_whether_or_not_anybody_came_to_it() -> None:
    site = Site()
    topic = site.node.create_topic("t").now()
    subscription = topic.subscribe("audit").now()
    now_ns = site.machine.clock.now()
    for seconds in (2, 5, 60):
        site.publish(topic, b"x", due_ns=now_ns + seconds * SECOND)

    def coming(until_s: int) -> list[int]:
        (shard,) = topic.coming(subscription, now_ns + until_s * SECOND)
        return sorted((shard - now_ns).tolist())

    assert coming(10) == [2 * SECOND, 5 * SECOND]
    got = site.consume(topic, "audit")
    assert coming(10) == [2 * SECOND, 5 * SECOND], "they were passed, and wait"
    site.machine.run(3)
    assert got == [b"x"]
    assert coming(10) == [5 * SECOND]
    site.seat.release([1], 40 * SECOND)
    site.machine.run(0.1)
    assert len(coming(50)) == 2
    assert len(coming(100)) == 3
