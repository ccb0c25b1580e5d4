"""A topic and a node store no more than they may: history gives way, then publishes are refused, or the oldest go."""

from __future__ import annotations

import msgspec
import pytest

from penstock.config import Config
from penstock.config.tree import NodeConfig
from penstock.errors import Refusal
from penstock.message import Rows
from penstock.node.topic import Topic
from penstock.settings import TopicSettings
from tests.site import Site

QUOTA = 1 << 20
BODY = bytes(10_000)
REFUSING = TopicSettings(quota_bytes=QUOTA)
DROPPING = TopicSettings(quota_bytes=QUOTA, quota_full="drop")


@pytest.fixture
def site() -> Site:
    return Site()


def fill(site: Site, topic: Topic, messages: int = 200) -> list[int]:
    """Publish one after the other, and return which were taken."""
    taken = [number for number in range(messages) if site.offer(topic, BODY) == [None]]
    assert topic.stored_bytes() <= (topic.settings.quota_bytes or 1 << 60)
    assert site.node.quota.left() >= 0
    return taken


def on_disk(site: Site) -> int:
    """Return what the data files of topics hold."""
    files = site.machine.platter.files
    return sum(len(file.data) for name, file in files.items() if name.endswith(".arrows"))


def sums(topic: Topic, name: str) -> dict[str, int]:
    counts = topic.subscription(name).counts()
    assert counts["passed"] == sum(value for reason, value in counts.items() if reason != "passed")
    return counts


def test_publishes_beyond_the_quota_are_refused_and_taken_again_after_acks(site: Site) -> None:
    topic = site.node.create_topic("t", REFUSING).now()
    got = site.consume(topic, "audit", credit=1000)
    taken = fill(site, topic)
    assert 90 < len(taken) < 105
    (error,) = site.offer(topic, BODY)
    assert isinstance(error, Refusal)
    assert error.code == "quota_full"
    assert error.reason.retry
    assert "topic t holds its quota_bytes of 1MiB: the message was not stored" in str(error)
    assert site.node.ledger.total("quota_full", "t") == 201 - len(taken)
    assert len(got) == len(taken) == topic.published
    site.seat.ack(list(range(1, 51)))
    site.machine.run(1)
    assert site.offer(topic, BODY) == [None]
    assert sums(topic, "audit")["removed"] == 0


def test_history_that_nobody_needs_gives_way_before_anything_is_refused(site: Site) -> None:
    topic = site.node.create_topic("t", REFUSING).now()
    got = site.consume(topic, "audit", credit=1)
    for number in range(500):
        assert site.offer(topic, BODY) == [None]
        site.seat.ack([number + 1])
    assert len(got) == 500
    assert topic.stored_bytes() <= QUOTA
    assert site.node.ledger.total(topic="t") == 0
    site.machine.run(15)
    assert on_disk(site) <= QUOTA + (64 << 10)


def test_topic_without_a_subscription_is_refused_too(site: Site) -> None:
    topic = site.node.create_topic("t", REFUSING).now()
    taken = fill(site, topic)
    assert topic.depth() == len(taken)
    topic.empty().now()
    site.machine.run(1)
    assert len(fill(site, topic, 50)) == 50


def test_oldest_unread_go_and_are_counted_where_the_user_chose_that(site: Site) -> None:
    topic = site.node.create_topic("t", DROPPING).now()
    topic.create_subscription("idle").now()
    got = site.consume(topic, "slow", credit=20)
    assert len(fill(site, topic, 400)) == 400
    kept = topic.shards[0].rows_between(0, topic.shards[0].end)
    assert site.node.ledger.total("quota_dropped", "t") == 400 - kept
    assert kept > 70
    counts = sums(topic, "slow")
    assert counts["removed"] == 400 - kept
    assert sums(topic, "idle")["removed"] == 400 - kept
    assert topic.subscription("idle").depth() == kept
    assert len(got) > 20  # what went from under it made room for more


def test_rows_that_every_subscription_finished_are_dropped_without_being_counted(site: Site) -> None:
    topic = site.node.create_topic("t", DROPPING).now()
    site.consume(topic, "quick", credit=1000)
    topic.create_subscription("idle").now()
    for number in range(400):
        assert site.offer(topic, BODY) == [None]
        site.seat.ack([number + 1])
    lost = site.node.ledger.total("quota_dropped", "t")
    assert sums(topic, "quick")["removed"] == 0
    assert sums(topic, "idle")["removed"] == lost > 250


def test_sums_hold_across_a_restart_after_drops(site: Site) -> None:
    topic = site.node.create_topic("t", DROPPING).now()
    topic.create_subscription("idle").now()
    fill(site, topic, 400)
    site.machine.run(5)
    before = sums(topic, "idle")
    site.start()
    topic = site.node.topic("t")
    assert sums(topic, "idle") == before
    assert topic.stored_bytes() <= QUOTA
    assert len(fill(site, topic, 100)) == 100


def test_shards_share_the_quota_of_their_topic(site: Site) -> None:
    topic = site.node.create_topic("t", msgspec.structs.replace(REFUSING, shards=4)).now()
    topic.create_subscription("idle").now()
    taken = 0
    for number in range(200):
        taken += site.offer(topic, BODY, key=[b"%d" % number]) == [None]
        site.machine.run(0.05)
    assert 85 < taken < 105
    assert topic.stored_bytes() <= QUOTA


def test_quota_may_change_while_messages_flow(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    topic.create_subscription("idle").now()
    assert len(fill(site, topic, 300)) == 300
    topic.update(msgspec.structs.replace(topic.settings, quota_bytes=QUOTA)).now()
    assert isinstance(site.offer(topic, BODY)[0], Refusal)
    topic.update(msgspec.structs.replace(topic.settings, quota_full="drop")).now()
    site.machine.run(5)
    assert site.offer(topic, BODY) == [None]
    assert topic.stored_bytes() <= QUOTA
    topic.update(msgspec.structs.replace(topic.settings, quota_bytes=0, quota_full="refuse")).now()
    assert len(fill(site, topic, 300)) == 300


def test_all_topics_together_store_no_more_than_the_node_may() -> None:
    site = Site(Config(data_dir="data", node=NodeConfig(quota_bytes=QUOTA)))
    topics = [site.node.create_topic(f"t{number}").now() for number in range(3)]
    taken = [fill(site, topic, 60) for topic in topics]
    assert 85 < sum(map(len, taken)) < 105
    (error,) = site.offer(topics[0], BODY)
    assert isinstance(error, Refusal)
    assert "the node holds its node.quota_bytes of 1MiB" in str(error)
    site.node.delete_topic("t1").now()
    site.machine.run(1)
    assert len(fill(site, topics[2], 30)) == 30


def test_history_of_one_topic_gives_way_to_another_where_the_node_is_full() -> None:
    site = Site(Config(data_dir="data", node=NodeConfig(quota_bytes=QUOTA)))
    old, new = site.node.create_topic("old").now(), site.node.create_topic("new").now()
    site.consume(old, "audit", credit=1000)
    taken = fill(site, old)
    site.seat.ack([number + 1 for number in taken])
    for _ in range(50):
        site.offer(new, BODY)
        site.machine.run(0.2)
    assert new.published > 40


def test_node_counts_what_is_there_when_it_starts() -> None:
    site = Site(Config(data_dir="data", node=NodeConfig(quota_bytes=QUOTA)))
    fill(site, site.node.create_topic("t").now())
    site.start()
    assert isinstance(site.offer(site.node.topic("t"), BODY)[0], Refusal)


def test_dropped_files_stay_for_readers_only_while_there_is_room(site: Site) -> None:
    topic = site.node.create_topic("t", DROPPING).now()
    fill(site, topic, 300)
    site.machine.run(1)
    assert on_disk(site) <= QUOTA
    roomy = site.node.create_topic("roomy", TopicSettings(quota_bytes=8 * QUOTA, segment_bytes=1 << 16)).now()
    site.consume(roomy, "audit", credit=1000)
    fill(site, roomy, 100)
    site.seat.ack(list(range(1, 101)))
    roomy.update(msgspec.structs.replace(roomy.settings, retention_bytes=0)).now()
    before = on_disk(site)
    site.machine.run(60)
    assert roomy.stored_bytes() < 1 << 17
    assert on_disk(site) >= before


def test_quiet_topic_keeps_no_room_that_others_need() -> None:
    site = Site(Config(data_dir="data", node=NodeConfig(quota_bytes=QUOTA)))
    for number in range(20):
        site.publish(site.node.create_topic(f"t{number}").now(), b"x")
    site.machine.run(1)
    stored = sum(topic.stored_bytes() for topic in site.node.topics.values())
    assert site.node.quota.used == stored


def test_message_larger_than_the_quota_is_refused_and_drops_nothing_in_vain(site: Site) -> None:
    topic = site.node.create_topic("t", TopicSettings(quota_bytes=100_000, quota_full="drop")).now()
    site.publish(topic, b"x")
    (error,) = site.offer(topic, bytes(200_000))
    assert isinstance(error, Refusal)
    assert error.code == "quota_full"
    assert topic.shards[0].rows_between(0, 10) == 1


def test_publishers_that_try_again_at_once_do_not_have_history_looked_through_each_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = site.node.create_topic("t", REFUSING).now()
    fill(site, topic)
    site.machine.run(1)
    looks: list[int] = []
    monkeypatch.setattr(topic.storage, "retain", looks.append)
    told: list[BaseException | None] = []
    for _ in range(100):
        topic.publish(Rows.of([BODY], "test"), site, lambda _, error: told.append(error))
    assert len(told) == 100
    assert all(isinstance(error, Refusal) for error in told)
    assert len(looks) == 1
