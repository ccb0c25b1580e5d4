"""A topic keeps its word when it is paused twice, when the disk is full, and when everybody left."""

from __future__ import annotations

from random import Random

import pytest

from penstock.config import Config
from penstock.delivery.consumer import Consumer
from penstock.delivery.source import Delivery
from penstock.errors import Refusal
from penstock.message import Rows
from penstock.node import Node
from penstock.settings import SubscriptionSettings, TopicSettings
from penstock.topic import Topic
from tests.simulation.machine import Machine


class Site:
    """A node on a simulated machine."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.start()

    def start(self) -> None:
        self.machine.start()
        self.node = Node(Config(data_dir="data"), self.machine.clock, self.machine.disk, Random(1))

    def publish(self, topic: Topic, *bodies: bytes, due_ns: int | None = None) -> None:
        columns = {"due": [due_ns] * len(bodies)} if due_ns is not None else None
        told: list[BaseException | None] = []
        topic.publish(Rows.of(bodies, "test", columns), self, lambda _, error: told.append(error))
        self.machine.run()
        assert told == [None]

    def consume(self, topic: Topic, name: str, settings: SubscriptionSettings | None = None) -> list[bytes]:
        """Return the list into which a new consumer puts every body it gets."""
        got: list[bytes] = []

        def deliver(deliveries: list[Delivery]) -> None:
            for delivery in deliveries:
                got.extend(delivery.batch.row_body(offset - delivery.batch.first) for offset in delivery.offsets())

        subscription = topic.subscribe(name, settings)
        self.consumer = Consumer(deliver, 60_000_000_000)
        topic.attach(subscription, self.consumer, lambda: None)
        subscription.set_credit(self.consumer, 100)
        topic.pump(subscription)
        self.machine.run()
        return got


@pytest.fixture
def site() -> Site:
    return Site()


def test_second_pause_lets_nothing_through(site: Site) -> None:
    topic = site.node.create_topic("t")
    got = site.consume(topic, "audit")
    topic.pause(paused=True)
    site.publish(topic, b"held")
    topic.pause(paused=True)
    site.machine.run()
    assert got == []
    topic.pause(paused=False)
    site.machine.run()
    assert got == [b"held"]


def test_rows_of_a_paused_topic_that_wait_for_their_time_stay_behind_the_gate(site: Site) -> None:
    topic = site.node.create_topic("t")
    topic.pause(paused=True)
    site.publish(topic, b"later", due_ns=site.machine.clock.now() + 200_000_000)
    got = site.consume(topic, "audit")
    site.machine.run(1)
    assert got == []
    topic.pause(paused=False)
    site.machine.run()
    assert got == [b"later"]


def test_topic_deleted_on_a_disk_that_fills_up_meanwhile_is_gone_in_memory_too(site: Site) -> None:
    topic = site.node.create_topic("t")
    topic.create_subscription("a")
    topic.create_subscription("b")
    for room in range(400):
        site.machine.platter.capacity_bytes = site.machine.platter.used_bytes + room
        try:
            site.node.delete_topic("t")
        except Refusal:
            assert site.node.topic("t") is topic
            continue
        break
    assert "t" not in site.node.topics
    site.machine.make_room()
    site.start()
    assert "t" not in site.node.topics
    assert site.node.create_topic("t").subscriptions == {}


def test_last_consumer_of_an_ephemeral_subscription_may_leave_when_the_disk_is_full(site: Site) -> None:
    topic = site.node.create_topic("t")
    site.consume(topic, "passing", SubscriptionSettings(ephemeral=True))
    site.machine.fill()
    topic.detach(topic.subscription("passing"), site.consumer)
    site.machine.make_room()
    site.start()
    assert site.node.topic("t").subscriptions == {}


def test_subscription_after_a_restart_does_not_get_what_an_ephemeral_one_had(site: Site) -> None:
    topic = site.node.create_topic("t")
    got = site.consume(topic, "passing", SubscriptionSettings(ephemeral=True))
    site.publish(topic, b"before")
    assert got == [b"before"]
    site.start()
    topic = site.node.topic("t")
    got = site.consume(topic, "audit")
    site.publish(topic, b"after")
    assert got == [b"after"]


def test_acks_survive_a_power_loss_once_the_journal_had_its_two_seconds(site: Site) -> None:
    topic = site.node.create_topic("t", TopicSettings(durability="fsync"))
    site.consume(topic, "audit")
    site.publish(topic, b"one")
    subscription = topic.subscription("audit")
    assert subscription.ack(site.consumer, [1]) == []
    site.machine.run(3)
    site.machine.lose_power()
    site.start()
    assert site.consume(site.node.topic("t"), "audit") == []


def test_acks_held_back_by_a_full_disk_are_written_when_there_is_room(site: Site) -> None:
    topic = site.node.create_topic("t")
    site.consume(topic, "audit")
    site.publish(topic, b"one")
    site.machine.fill()
    assert topic.subscription("audit").ack(site.consumer, [1]) == []
    site.machine.run(1)
    site.machine.make_room()
    site.machine.run()
    site.start()
    assert site.consume(site.node.topic("t"), "audit") == []
