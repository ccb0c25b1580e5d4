"""Records in the registry that cannot be read: they cost the topics they stand for, no other, and nobody's data."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock.clock import SECOND
from penstock.cluster.deal import slot_of
from penstock.config import Config, EventsConfig
from penstock.errors import Refusal
from penstock.node.node import Node
from penstock.registry.catalog import SUBSCRIPTIONS, TOPICS
from penstock.registry.embedded import EmbeddedRegistry
from penstock.settings import TopicSettings
from tests.fakes import FakeClock, FakeDisk
from tests.node.test_share import Cluster, Consumer, made, publish
from tests.node.test_share_moves import lose, share_of, slot_of_topic, works

GARBAGE = b"\xff\x00garbage"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def put(cluster: Cluster, key: str, value: bytes) -> None:
    """Write something into the registry, as somebody with its tools may."""
    cluster.server.propose({key: value}).now()


def value_of(cluster: Cluster, key: str) -> bytes:
    entry = cluster.server.get(key)
    assert entry is not None
    return entry.value


def heard(node: Node, name: str) -> list[object]:
    """Ask for a topic, and return what comes of it."""
    found: list[object] = []
    node.obtain(name).then(lambda topic, error: found.append(topic or error))
    return found


@pytest.mark.parametrize("value", [GARBAGE, None], ids=["garbage", "the record of another"])
def test_a_record_that_cannot_be_read_costs_no_other_topic_its_take_over(cluster: Cluster, value: bytes | None) -> None:
    one = cluster.start("one")
    cluster.run()
    names = [made(cluster, one, f"t{number}").name for number in range(8)]
    put(cluster, f"{TOPICS}garbage", value or value_of(cluster, f"{TOPICS}t0"))
    cluster.run()
    cluster.stop("one")
    two = cluster.start("two")
    cluster.run(30 * SECOND)
    assert sorted(two.topics) == sorted(names)
    assert all(works(cluster, two.topic(name)) for name in names)
    assert two.bugs == 0
    [problem] = share_of(two).unreadable()
    assert "topic/garbage" in problem
    assert "remove the key" in problem
    answers = heard(two, "garbage")
    cluster.run()
    assert "topic/garbage" in str(answers[0])


def test_a_topic_whose_record_cannot_be_read_goes_on_where_it_is_open_and_heals_where_it_is_not(
    cluster: Cluster,
) -> None:
    one = cluster.start("one")
    cluster.run()
    topic = made(cluster, one, "t")
    assert works(cluster, topic)
    was = value_of(cluster, f"{TOPICS}t")
    put(cluster, f"{TOPICS}t", GARBAGE)
    cluster.run(60 * SECOND)
    assert one.topics["t"] is topic
    assert works(cluster, topic)
    lose(cluster, slot_of(topic.record.incarnation, share_of(one).slots.count))
    cluster.run()
    assert "t" not in one.topics
    assert topic.deleted
    assert share_of(one).holdings.coming == {}
    with pytest.raises(Refusal, match="topic/t cannot be read"):
        one.topic("t")
    cluster.run(60 * SECOND)  # sweeps come by
    assert len(cluster.store.topics()) == 2
    put(cluster, f"{TOPICS}t", was)
    cluster.run()
    assert share_of(one).unreadable() == []
    assert works(cluster, one.topic("t"))
    assert Consumer(cluster, one.topic("t")).bodies == [b"more"] * 3


def test_a_key_that_cannot_be_read_and_is_removed_leaves_no_problem(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    put(cluster, f"{TOPICS}garbage", GARBAGE)
    cluster.run()
    assert len(share_of(one).unreadable()) == 1
    cluster.server.propose({}, [f"{TOPICS}garbage"]).now()
    cluster.run()
    assert share_of(one).unreadable() == []
    assert works(cluster, made(cluster, one, "garbage"))


def test_a_subscription_that_cannot_be_read_keeps_its_topic_alone_and_nobody_waits(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    names = [made(cluster, one, f"t{number}").name for number in range(12)]
    consumer = Consumer(cluster, one.topic("t0"))
    publish(one.topic("t0"), b"a")
    cluster.run()
    assert consumer.bodies == [b"a"]
    key = f"{SUBSCRIPTIONS}{one.topics['t0'].record.number}/s"
    was = value_of(cluster, key)
    put(cluster, key, GARBAGE)
    put(cluster, f"{SUBSCRIPTIONS}none/s", GARBAGE)
    for slot in sorted({slot_of_topic(one, name) for name in names}):
        lose(cluster, slot)
    cluster.run(10 * SECOND)
    assert sorted(one.topics) == sorted(names[1:])
    assert one.bugs == 0
    answers = heard(one, "t0")
    cluster.run()
    assert isinstance(answers[0], Refusal)
    assert key in str(answers[0])
    [problem] = share_of(one).problems()
    assert key in problem
    assert "remove the key" in problem
    put(cluster, key, was)
    cluster.run()
    assert share_of(one).problems() == []
    assert "s" in one.topic("t0").subscriptions
    assert works(cluster, one.topic("t0"))


def test_what_is_on_a_nodes_own_disk_stays_there_whatever_becomes_of_its_record(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    topic = made(cluster, one, "t", TopicSettings(log="local", durability="fsync"))
    assert works(cluster, topic)
    key, was = f"{TOPICS}t", value_of(cluster, f"{TOPICS}t")
    put(cluster, key, GARBAGE)
    cluster.run(60 * SECOND)
    assert one.topics["t"] is topic
    cluster.stop("one")
    cluster.run(30 * SECOND)
    again = cluster.start("one")
    cluster.run(60 * SECOND)
    assert "t" not in again.topics
    assert again.lost() == []
    put(cluster, key, was)
    cluster.run()
    assert works(cluster, again.topic("t"))
    assert Consumer(cluster, again.topic("t")).bodies == [b"more"] * 2
    cluster.server.propose({}, [key]).now()  # and nobody wrote that it was deleted
    cluster.run(60 * SECOND)
    assert "t" not in again.topics
    [problem] = again.lost()
    assert "topic 't'" in problem


def node_on(path: Path, disk: FakeDisk, clock: FakeClock) -> Node:
    config = Config(data_dir=str(path), events=EventsConfig(mode="off"))
    return Node(config, clock, disk, Random(1))


@pytest.mark.parametrize("what", ["topic", "subscription"])
def test_a_node_that_is_alone_starts_without_what_it_cannot_read_and_keeps_its_files(tmp_path: Path, what: str) -> None:
    clock = FakeClock()
    disk = FakeDisk(clock)
    node = node_on(tmp_path, disk, clock)
    for name in ("good", "bad"):
        topic = node.obtain(name).now()
        topic.subscribe("s").now()
        publish(topic, b"a")
    number = node.topics["bad"].record.number
    key = f"{TOPICS}bad" if what == "topic" else f"{SUBSCRIPTIONS}{number}/s"
    node.close()
    registry = EmbeddedRegistry.open(disk, clock, f"{tmp_path}/registry")
    entry = registry.get(key)
    assert entry is not None
    registry.propose({key: GARBAGE}).now()
    registry.close()
    node = node_on(tmp_path, disk, clock)
    clock.advance(60 * SECOND)
    assert sorted(node.topics) == ["good"]
    assert (node.lost(), node.bugs) == ([], 0)
    [problem] = node.lifecycle.problems()
    assert key in problem
    assert "rebuild" in problem
    for settings in (None, TopicSettings(shards=2)):
        with pytest.raises(Refusal, match=key):
            node.obtain("bad", settings).now()
        with pytest.raises(Refusal, match=key):
            node.create_topic("bad", settings).now()
    with pytest.raises(Refusal, match=key):
        node.topic("bad")
    node.registry.propose({key: entry.value}).now()
    clock.advance(SECOND)
    assert node.lifecycle.problems() == []
    assert node.topics["bad"].shards[0].end == 1
    assert "s" in node.topics["bad"].subscriptions
    node.close()
