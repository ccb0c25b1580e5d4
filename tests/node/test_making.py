"""Topics of many shards are made and removed in a thread: the loop serves everybody else meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from penstock.config import LimitsConfig
from penstock.errors import Refusal
from penstock.node.making import AT_ONCE
from penstock.node.topic import Topic
from penstock.registry.answer import Answer
from penstock.settings import TopicSettings
from tests.nsq.parts import Broker

MANY = TopicSettings(shards=AT_ONCE + 1)


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    """A node whose threads work when they are told to."""
    broker = Broker(tmp_path)
    broker.client().pub("here", b"before")
    broker.disk.eager = False
    return broker


def work(broker: Broker) -> None:
    """Let the threads do all they have to."""
    while broker.disk.work:
        broker.disk.step()
        broker.clock.run()


def shards_on_disk(broker: Broker) -> set[str]:
    """Return the directories of shards of all topics but the one that was there."""
    topics = Path(broker.config.data_dir, "topics")
    return {f"{path.name}/{each.name}" for path in topics.iterdir() for each in path.iterdir() if each.is_dir()}


def grow(topic: Topic, shards: int) -> Answer[None]:
    return topic.update(msgspec.structs.replace(topic.settings, shards=shards))


def test_others_are_served_while_many_shards_are_made(broker: Broker) -> None:
    before = shards_on_disk(broker)
    made = broker.node.create_topic("many", MANY)
    assert not made.is_given
    assert shards_on_disk(broker) == before
    other = broker.client()
    other.pub("here", b"meanwhile")
    assert other.replies() == ["OK"]
    work(broker)
    assert len(made.now().shards) == MANY.shards
    assert len(shards_on_disk(broker) - before) == MANY.shards


def test_who_needs_a_topic_that_is_being_made_waits_for_it_and_nobody_makes_it_twice(broker: Broker) -> None:
    made = broker.node.create_topic("many", MANY)
    with pytest.raises(Refusal, match="topic many is being made"):
        broker.node.create_topic("many").now()
    client = broker.client()
    client.pub("many", b"x")
    assert client.replies() == []
    work(broker)
    assert client.replies() == ["OK"]
    assert made.now().published == 1


def test_what_cannot_be_made_is_taken_back(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = broker.node.create_topic("many", MANY)

    def full(path: str) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr(broker.disk, "make", full)
        work(broker)
    with pytest.raises(Refusal, match=r"topic many could not be made \(No space left on device\)") as caught:
        made.now()
    assert caught.value.code == "disk_full"
    assert broker.node.catalog.topic("many") is None
    again = broker.node.create_topic("many", MANY)
    work(broker)
    assert len(again.now().shards) == MANY.shards


def test_a_node_that_dies_while_shards_are_made_has_the_topic_when_it_is_back(broker: Broker) -> None:
    broker.node.create_topic("many", MANY)
    broker.kill()  # the record was written, nothing else
    assert len(broker.node.topic("many").shards) == MANY.shards


def test_shards_that_are_being_made_count(tmp_path: Path) -> None:
    broker = Broker(tmp_path, limits=LimitsConfig(topics=2, shards=MANY.shards + 1))
    broker.disk.eager = False
    broker.node.create_topic("many", MANY)
    with pytest.raises(Refusal, match=r"limits\.shards"):
        broker.node.create_topic("two", TopicSettings(shards=2)).now()
    broker.node.create_topic("one").now()
    work(broker)
    with pytest.raises(Refusal, match=r"limits\.topics"):
        broker.node.create_topic("third").now()


def test_the_files_of_many_shards_are_removed_in_a_thread(broker: Broker) -> None:
    before = shards_on_disk(broker)
    broker.node.create_topic("many", MANY)
    work(broker)
    broker.node.delete_topic("many").now()
    assert "many" not in broker.node.topics
    assert shards_on_disk(broker) != before
    broker.node.create_topic("many", MANY)  # another one, and elsewhere
    work(broker)
    assert len(broker.node.topic("many").shards) == MANY.shards
    assert len(shards_on_disk(broker) - before) == MANY.shards


def test_a_topic_grows_by_many_shards_while_it_is_published_to(broker: Broker) -> None:
    topic = broker.node.topic("here")
    grown = grow(topic, 1 + MANY.shards)
    with pytest.raises(Refusal, match="is getting more shards already"):
        grow(topic, 2 + MANY.shards).now()
    client = broker.client()
    client.pub("here", b"meanwhile")
    assert client.replies() == ["OK"]
    work(broker)
    grown.now()
    assert len(topic.shards) == 1 + MANY.shards
    assert topic.settings.shards == 1 + MANY.shards


def test_a_topic_that_is_deleted_while_it_grows_leaves_nothing(broker: Broker) -> None:
    topic = broker.node.topic("here")
    grown = grow(topic, 1 + MANY.shards)
    broker.node.delete_topic("here").now()
    work(broker)
    with pytest.raises(Refusal, match="was deleted"):
        grown.now()
    broker.disk.eager = True
    broker.node.ticker._sweep()
    assert shards_on_disk(broker) == set()


def test_growth_has_the_limits_that_making_has(tmp_path: Path) -> None:
    broker = Broker(tmp_path, limits=LimitsConfig(topic_shards=4, shards=6))
    topic = broker.node.create_topic("here").now()
    broker.node.create_topic("there", TopicSettings(shards=4)).now()
    with pytest.raises(Refusal, match=r"topic here would have 5 shards, more than 4; limits\.topic_shards"):
        grow(topic, 5).now()
    with pytest.raises(Refusal, match=r"all topics together have 5 shards, and 3 more are too many"):
        grow(topic, 4).now()
    grow(topic, 2).now()
    assert len(topic.shards) == 2
