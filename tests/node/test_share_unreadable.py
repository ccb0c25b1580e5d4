"""Records in the registry that cannot be read: they cost the topics they stand for, no other, and nobody's data."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from penstock.clock import SECOND
from penstock.cluster.deal import slot_of
from penstock.config import Config, EventsConfig
from penstock.errors import Refusal
from penstock.intake.staging import digest, name_of
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


#: One key below each prefix that a node reads when it starts or takes over, with what is there.
BAD = [
    ("hold/x", GARBAGE),
    ("commit/x", GARBAGE),
    (f"commit/{digest('q')}/{digest('t0')}", GARBAGE),
    ("decision/x", GARBAGE),
    ("redrive/t0", GARBAGE),
    ("fanout/x", GARBAGE),
    ("routing/mapping", GARBAGE),
    ("counter/subscription", b"many"),
    ("counter/topic", b"many"),
]


@pytest.mark.parametrize(("key", "value"), BAD, ids=[key for key, _ in BAD])
def test_a_bad_key_keeps_no_node_from_starting_and_no_topic_from_being_taken_over(
    cluster: Cluster, key: str, value: bytes
) -> None:
    one = cluster.start("one")
    cluster.run()
    names = [made(cluster, one, f"t{number}").name for number in range(4)]
    assert all(works(cluster, one.topic(name)) for name in names)
    if key == "redrive/t0":
        key = f"redrive/{one.topics['t0'].record.number}"
    put(cluster, key, value)
    cluster.run()
    cluster.stop("one")
    two = cluster.start("two")
    cluster.run(30 * SECOND)
    assert sorted(two.topics) == sorted(names)
    assert all(works(cluster, two.topic(name)) for name in names)
    cluster.run(120 * SECOND)  # sweeps come by
    assert (one.bugs, two.bugs) == (0, 0)
    [problem] = share_of(two).problems() + share_of(two).unreadable()
    assert key in problem
    assert value_of(cluster, key) == value
    cluster.server.propose({}, [key]).now()
    cluster.run()
    assert share_of(two).unreadable() == []


def test_what_comes_together_with_a_bad_key_is_heard(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    made(cluster, one, "a")
    record = one.topics["a"].record
    one.holds.hold("query", record, [0], 3600 * SECOND).then(lambda *_: None)
    cluster.run()
    [(key, was)] = [(key, entry.value) for key, entry in cluster.server.list("hold/").items()]
    cluster.server.propose({"hold/0": GARBAGE, "hold/z": was, key: GARBAGE, "decision/0": GARBAGE}).now()
    cluster.run()
    for node in (one, two):
        assert len(node.holds.floors(record)) == 2, "what was held is held until it runs out"
        assert node.bugs == 0
        assert [key in str(share_of(node).unreadable()) for key in ("hold/0", key, "decision/0")] == [True] * 3


def test_a_number_is_given_to_nobody_while_it_cannot_be_told_which_were(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    topic = made(cluster, one, "t")
    Consumer(cluster, topic)
    was = {counter: value_of(cluster, counter) for counter in ("counter/topic", "counter/subscription")}
    cluster.server.propose(dict.fromkeys(was, b"many")).now()
    cluster.run()
    refused: list[BaseException | None] = []
    topic.subscribe("other").then(lambda _, error: refused.append(error))
    one.obtain("other").then(lambda _, error: refused.append(error))
    cluster.run()
    assert [isinstance(error, Refusal) and error.code for error in refused] == ["unavailable"] * 2
    assert "counter/subscription" in str(refused[0])
    cluster.server.propose(was).now()
    cluster.run()
    assert works(cluster, made(cluster, one, "other"))


def test_a_query_whose_last_commit_cannot_be_read_goes_no_further_until_it_can(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    made(cluster, one, "a")

    def commit(batch: int) -> str:
        rows = pa.record_batch({"body": pa.array([b"1"], pa.binary())})
        attempt = f"{batch}"
        if not one.staging.has(name_of("q", batch, attempt)):
            writer = one.staging.writer("q", batch, attempt, "a", rows.schema)
            writer.write(rows)
            writer.finish()
            one.staging.add("q", batch, attempt, one.clock.now())
        told: list[str] = []
        one.transactions.commit("q", batch, [attempt], lambda _, error: told.append(str(error or "")))
        cluster.run()
        return told[0]

    assert commit(0) == ""
    key = f"commit/{digest('q')}/{digest('a')}"
    was = value_of(cluster, key)
    put(cluster, key, GARBAGE)
    cluster.run()
    assert key in commit(1)
    cluster.run(25 * 3600 * SECOND)
    put(cluster, key, was)
    cluster.run()
    assert commit(1) == "", "what was staged is there, though a day has passed"
    assert one.topic("a").shards[0].end == 2


def test_a_mapping_that_cannot_be_read_is_replaced_only_by_force(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    put(cluster, "routing/mapping", GARBAGE)
    cluster.run()
    told: list[BaseException | None] = []
    for force in (False, True):
        one.catalog.set_mapping({"live": 1}, force=force).then(lambda _, error: told.append(error))
        cluster.run()
    assert isinstance(told[0], Refusal)
    assert told[1] is None
    assert one.routing.mapping == {"live": 1}
    assert share_of(one).unreadable() == []
