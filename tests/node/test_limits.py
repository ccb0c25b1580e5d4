"""What clients can make a node do has a limit with a name."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock.config import Config, LimitsConfig
from penstock.errors import Refusal
from penstock.node.node import Node
from penstock.settings import TopicSettings
from tests.fakes import FakeClock, FakeDisk
from tests.nsq.parts import Broker


@pytest.fixture
def node(tmp_path: Path) -> Node:
    clock = FakeClock()
    limits = LimitsConfig(topics=3, topic_shards=4, shards=6)
    return Node(Config(data_dir=str(tmp_path), limits=limits), clock, FakeDisk(clock), Random(1))


def refused(node: Node, name: str, shards: int = 1) -> str:
    """Return why a topic cannot be had; nothing of it is left."""
    with pytest.raises(Refusal) as caught:
        node.create_topic(name, TopicSettings(shards=shards)).now()
    assert caught.value.code == "limit_reached"
    assert name not in node.topics
    assert node.catalog.topic(name) is None
    return str(caught.value)


def test_topics_have_a_limit(node: Node) -> None:
    for name in "abc":
        node.create_topic(name).now()
    assert refused(node, "d") == "there are 3 topics already; limits.topics may be raised"
    assert node.ledger.total("limits.topics", "d") == 1
    assert node.obtain("a").now().name == "a"
    node.delete_topic("a")
    node.create_topic("d").now()


def test_shards_have_a_limit_in_one_topic_and_in_all(node: Node) -> None:
    text = "topic a would have 5 shards, more than 4; limits.topic_shards may be raised"
    assert refused(node, "a", 5) == text
    assert refused(node, "a", 32_768).startswith("topic a would have 32768 shards")
    node.create_topic("a", TopicSettings(shards=4)).now()
    assert "limits.shards may be raised" in refused(node, "b", 3)
    node.create_topic("b", TopicSettings(shards=2)).now()
    assert node.ledger.total("limits.topic_shards") == 2
    assert node.ledger.total("limits.shards") == 1


@pytest.mark.parametrize(("name", "most"), [("topic_subscriptions", 2), ("subscriptions", 3)])
def test_subscriptions_have_a_limit_in_one_topic_and_in_all(tmp_path: Path, name: str, most: int) -> None:
    broker = Broker(tmp_path, limits=LimitsConfig(**{name: most}))
    other = broker.node.create_topic("other").now()
    other.create_subscription("one").now()
    topic = broker.node.create_topic("t").now()
    for each in "ab":
        topic.create_subscription(each).now()
    with pytest.raises(Refusal, match=rf"limits\.{name} may be raised") as caught:
        topic.create_subscription("c").now()
    assert caught.value.code == "limit_reached"
    assert broker.node.catalog.subscription(topic.record, "c") is None
    client = broker.client()
    client.send(b"SUB t c\n")
    assert f"limits.{name}" in client.replies()[0]
    assert broker.node.ledger.total(f"limits.{name}", "t") == 2
    assert topic.subscribe("a").now().name == "a"
    topic.delete_subscription("b").now()
    topic.create_subscription("c").now()


def test_a_subscription_that_comes_leaves_the_rules_of_others_alone(node: Node) -> None:
    topic = node.create_topic("t").now()
    for number in range(5):
        topic.create_subscription(f"s{number}").now()
    rules = {name: each.cursors[0].rules for name, each in topic.subscriptions.items()}
    topic.create_subscription("more").now()
    for name, kept in rules.items():
        assert topic.subscriptions[name].cursors[0].rules is kept


@pytest.mark.parametrize("name", ["connections", "connections_per_address"])
def test_connections_have_a_limit(tmp_path: Path, name: str) -> None:
    broker = Broker(tmp_path, limits=LimitsConfig(**{name: 2}))
    first, second, third = broker.client(), broker.client(), broker.client()
    (told,) = third.replies()
    assert told.startswith("E_TOO_MANY_CONNECTIONS 2 connections ")
    assert f"limits.{name}" in told
    assert third.closed
    assert broker.node.ledger.total("nsq:too_many_connections") == 1
    first.pub("t", b"x")
    assert first.replies() == ["OK"]
    second.hang_up()
    fourth = broker.client()
    fourth.pub("t", b"x")
    assert fourth.replies() == ["OK"]
