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
