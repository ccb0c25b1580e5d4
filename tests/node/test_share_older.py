"""A cluster's etcd that was put back to an older backup, or lost keys: what nobody deleted stays, and is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shutil import rmtree

import pytest

from penstock.clock import SECOND
from penstock.errors import Refusal
from penstock.log import label
from penstock.node.audit import TOPIC as AUDIT
from penstock.node.events import HISTORIES
from penstock.registry.catalog import DELETED, SUBSCRIPTIONS, TOPICS
from penstock.registry.counters import COUNTERS
from penstock.settings import TopicSettings
from tests.node.test_share import LEASE_NS, Cluster, Consumer, made, publish

LOCAL = TopicSettings(log="local")


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def saved(cluster: Cluster) -> dict[str, bytes]:
    """Return what a backup of etcd has of topics and subscriptions."""
    prefixes = (TOPICS, SUBSCRIPTIONS, COUNTERS, DELETED)
    return {key: each.value for prefix in prefixes for key, each in cluster.server.list(prefix).items()}


def put_back(cluster: Cluster, backup: Mapping[str, bytes]) -> None:
    """Restore a backup; nodes hear what changed by that."""
    cluster.server.propose(backup, [key for key in saved(cluster) if key not in backup]).now()
    cluster.run()


def test_an_older_registry_sets_a_local_topic_of_a_running_node_aside(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    one = cluster.start("one")
    cluster.run()
    kept = made(cluster, one, "kept", LOCAL)
    older = saved(cluster)
    lost = made(cluster, one, "lost", LOCAL)
    heard = publish(lost, b"a", b"b")
    consumer = Consumer(cluster, lost)
    assert heard.oks == 2
    put_back(cluster, older)
    assert sorted(one.topics) == ["kept"]
    assert consumer.evicted == 1
    assert "topic lost (number 2) is closed: the registry does not know it any more" in caplog.text
    aside = cluster.path / "one" / "lost" / "2"
    found = label.read(one.disk, str(aside))
    assert found is not None
    assert found.name == "lost"
    assert b"".join(path.read_bytes() for path in aside.glob("0/*.arrows")).count(b"a") > 0
    (said,) = one.lost()
    assert "lost/2 holds topic 'lost', which etcd does not know. It comes back by itself" in said
    # No number is given again: neither the topic's nor the subscription's.
    assert made(cluster, one, "next", LOCAL).record.number == 3
    assert Consumer(cluster, kept).seat.subscription.number == 2


def test_a_removed_key_deletes_nothing_on_kafka(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    one = cluster.start("one")
    cluster.run()
    topic = made(cluster, one, "t")
    publish(topic, b"a")
    Consumer(cluster, topic)
    backup, there = saved(cluster), cluster.store.topics()
    put_back(cluster, {key: value for key, value in backup.items() if key != f"{TOPICS}t"})
    assert "t" not in one.topics
    cluster.run(60 * SECOND)
    assert "topic t (number 1) is closed" in caplog.text
    assert cluster.store.topics() == there
    assert one.share is not None
    (said,) = one.share.problems()
    assert "in Kafka hold topic 't', which etcd does not know. It comes back by itself" in said
    put_back(cluster, backup)
    assert one.share.problems() == []
    assert Consumer(cluster, one.topic("t")).bodies == [b"a"]


def test_a_topic_that_another_node_deleted_is_gone_with_its_data(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.run()
    made(cluster, one, "t", LOCAL)
    two.catalog.delete_topic("t")
    cluster.run()
    assert "t" not in one.topics
    assert not list((cluster.path / "one" / "topics").iterdir())
    assert one.lost() == []


def test_a_topic_on_kafka_with_a_subscription_that_an_older_etcd_does_not_know_is_refused(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    topic, other = made(cluster, one, "t"), made(cluster, one, "other")
    older = saved(cluster)
    publish(topic, b"a", b"b")
    publish(other, b"c")
    consumer = Consumer(cluster, topic)
    consumer.seat.ack(consumer.ids)
    cluster.run()
    cluster.stop("one")
    put_back(cluster, older)
    cluster.run(LEASE_NS)
    two = cluster.start("two")
    cluster.run(LEASE_NS)
    assert list(two.topics) == ["other"]
    assert two.share is not None
    (problem,) = two.share.problems()
    assert problem.startswith("topic t: etcd does not know subscription s of topic t, which is in Kafka")
    assert "or set its key penstock/counter/subscription to 1" in problem
    with pytest.raises(Refusal, match="topic t cannot be used now: etcd does not know subscription s"):
        two.topic("t")
    # Whoever goes on without it gets a number of its own, and all that is there.
    cluster.server.propose({"counter/subscription": b"5"}).now()
    cluster.run()
    assert Consumer(cluster, two.topic("t")).bodies == [b"a", b"b"]
    assert Consumer(cluster, two.topic("other")).bodies == [b"c"]
    assert two.share.problems() == []


def test_a_local_topic_is_back_once_etcd_knows_it_again(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    older = saved(cluster)
    publish(made(cluster, one, "t", LOCAL), b"a")
    cluster.run()
    newest = saved(cluster)
    put_back(cluster, older)
    assert len(one.lost()) == 1
    put_back(cluster, newest)
    assert one.lost() == []
    assert Consumer(cluster, one.topic("t")).bodies == [b"a"]
    put_back(cluster, older)
    one.close()
    cluster.stop("one")
    put_back(cluster, newest)
    cluster.run(2 * LEASE_NS)
    one = cluster.start("one")  # also when it was away meanwhile
    cluster.run()
    assert one.lost() == []
    assert Consumer(cluster, one.topic("t")).bodies == [b"a"]


def test_a_local_topic_whose_files_are_gone_says_so_at_every_node(cluster: Cluster) -> None:
    one = cluster.start("one")
    cluster.run()
    made(cluster, one, "t", LOCAL)
    one.close()
    cluster.run()
    cluster.stop("one")
    rmtree(cluster.path / "one" / "topics" / "1")
    cluster.run(2 * LEASE_NS)
    one = cluster.start("one")
    cluster.run()
    with pytest.raises(Refusal, match=r"topic t cannot be used now: topic t is not open: .*topics/1 is gone"):
        one.topic("t")
    one.delete_topic("t")
    cluster.run()
    assert made(cluster, one, "t", LOCAL).record.number == 2


def test_a_node_that_lost_its_disk_tells_of_itself_on_the_next_one(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    one = cluster.start("one")
    cluster.run()
    histories = [one.own_name(each) for each in (*HISTORIES, AUDIT)]
    before = [made(cluster, one, name, LOCAL) for name in histories]
    on_kafka = made(cluster, one, "t")
    publish(on_kafka, b"1")
    cluster.run()
    one.close()
    cluster.run()
    cluster.stop("one")
    rmtree(cluster.path / "one")
    cluster.run(2 * LEASE_NS)
    one = cluster.start("one")
    cluster.run()
    assert one.lost() == []
    assert Consumer(cluster, one.topic("t")).bodies == [b"1"]
    after = [made(cluster, one, name, LOCAL) for name in histories]
    assert not {each.record.number for each in before} & {each.record.number for each in after}
    assert all(name in caplog.text for name in histories)
