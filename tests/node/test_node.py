"""A node looks after all its topics, whatever becomes of one of them."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from penstock.clock import SECOND
from penstock.config import Config
from penstock.config.tree import MemoryConfig
from penstock.errors import Refusal
from penstock.log.read_cache import READ_BYTES
from penstock.node.node import Node
from penstock.settings import HOUR_NS, TopicSettings
from tests.site import Site

HOUR_S = 3600


@pytest.fixture
def site() -> Site:
    return Site()


def fail(*_: object, **__: object) -> bool:
    raise RuntimeError("a bug in one topic")


def test_topic_whose_tick_fails_does_not_end_the_housekeeping_of_others(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, sound = site.node.create_topic("broken").now(), site.node.create_topic("sound").now()
    site.consume(sound, "audit")
    site.publish(broken, b"x")
    monkeypatch.setattr(broken, "tick", fail)
    site.publish(sound, b"one")
    assert site.seat.ack([1]) == []
    site.machine.run(1)
    assert site.node.bugs > 0
    assert not any(cursor.dirty for cursor in sound.subscription("audit").cursors)


def test_topic_whose_retention_fails_does_not_keep_the_others_from_theirs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.node.create_topic("broken").now()
    sound = site.node.create_topic("sound").now()
    looks: list[int] = []
    monkeypatch.setattr(site.node.topic("broken").storage, "retain", fail)
    monkeypatch.setattr(sound.storage, "retain", lambda: looks.append(1))
    site.machine.run(10 * site.node.config.node.retention_check_ns / SECOND)
    assert len(looks) > 5


def test_cursor_that_fails_when_a_row_is_due_leaves_the_timer_armed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = site.node.create_topic("t").now()
    topic.create_subscription("broken").now()
    got = site.consume(topic, "sound")
    now_ns = site.machine.clock.now()
    site.publish(topic, b"first", due_ns=now_ns + SECOND)
    site.publish(topic, b"second", due_ns=now_ns + 2 * SECOND)
    monkeypatch.setattr(topic.subscription("broken").cursors[0].states, "arrive", fail)
    site.machine.run(3)
    assert got == [b"first", b"second"]
    assert site.node.bugs > 0


def test_topic_that_cannot_be_closed_leaves_the_others_closed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, sound = site.node.create_topic("broken").now(), site.node.create_topic("sound").now()
    monkeypatch.setattr(broken, "close", fail)
    site.node.close()
    assert sound.deleted
    assert site.node.bugs == 1


def test_files_of_a_quiet_topic_are_removed_when_their_time_has_come(site: Site) -> None:
    settings = TopicSettings(segment_bytes=4096, retention_bytes=0, retention_age_ns=60 * SECOND)
    topic = site.node.create_topic("t", settings).now()
    site.consume(topic, "audit")
    for _ in range(20):
        site.publish(topic, bytes(2000))
    for id_ in range(1, 21):
        site.seat.ack([id_])
    site.machine.run(3 * HOUR_S)
    segments = [name for name in site.machine.platter.files if "/topics/" in name and name.endswith(".arrows")]
    assert topic.shards[0].stored_bytes() == 0
    assert segments == []


def test_stopping_node_hands_nothing_to_consumers_that_come_or_drain_now(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    got = site.consume(topic, "audit", credit=0)
    subscription = topic.subscription("audit")
    site.publish(topic, b"one")
    site.seat.block()
    site.node.stop()
    site.seat.unblock()  # its socket drained
    site.seat.set_credit(5)
    site.machine.run()
    assert got == []
    with pytest.raises(Refusal, match="stopping"):
        topic.attach(subscription, lambda _: None)


def test_consumer_of_a_stopping_node_may_finish_what_it_holds(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    got = site.consume(topic, "audit", credit=1)
    site.publish(topic, b"one", b"two")
    site.node.stop()
    assert site.node.held() == 1
    assert site.seat.ack([1]) == []
    site.machine.run()
    assert (got, site.node.held()) == ([b"one"], 0)


def test_all_topics_together_keep_no_more_of_the_log_in_memory_than_the_node_may(site: Site) -> None:
    config = Config(data_dir="data", memory=MemoryConfig(cache_bytes=1 << 20))
    site.node = Node(config, site.machine.clock, site.machine.disk, Random(1))
    topics = [site.node.create_topic(f"t{number}").now() for number in range(5)]
    for topic in topics:
        for _ in range(8):
            site.publish(topic, bytes(60_000))
    site.machine.run(2)
    assert sum(shard.cached_bytes for topic in topics for shard in topic.shards) <= 1 << 20
    assert len(site.consume(topics[0], "audit")) == 8


def test_jump_of_the_wall_clock_ages_no_history_out() -> None:
    site = Site()
    topic = site.node.create_topic("orders", TopicSettings(retention_age_ns=24 * HOUR_NS)).now()
    got = site.consume(topic, "audit")
    site.publish(topic, b"one")
    assert got == [b"one"]
    assert site.seat.ack([1]) == []
    topic.shards[0].roll()
    site.machine.run(5)
    site.machine.scheduler.jump(30 * 24 * HOUR_NS)
    site.node.ticker.retain()
    assert topic.shards[0].rows_between(0, 1) == 1
    site.machine.run(25 * 3600)
    assert topic.shards[0].rows_between(0, 1) == 0


def test_jump_of_the_wall_clock_ends_no_hold_and_sweeps_no_stage() -> None:
    site = Site()
    topic = site.node.create_topic("orders").now()
    site.node.holds.hold("spark", topic.record, (0,), 600 * SECOND).now()
    writer = site.node.staging.writer("q", 0, "a", "orders", pa.schema([("body", pa.binary())]))
    writer.finish()
    site.node.staging.add("q", 0, "a", site.node.clock.now())
    site.machine.scheduler.jump(30 * 24 * HOUR_NS)
    site.node.ticker.retain()
    assert (len(site.node.holds.floors(topic.record)), len(site.node.staging)) == (1, 1)
    site.machine.run(25 * 3600)
    assert (len(site.node.holds.floors(topic.record)), len(site.node.staging)) == (0, 0)


def test_a_topic_whose_consumers_keep_up_keeps_little_in_memory(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    site.publish(topic, b"first")
    got = site.consume(topic, "ch", credit=10_000)
    for _ in range(100):
        site.publish(topic, *[bytes(10_000)] * 10)
    site.machine.run(5)
    assert len(got) == 1001
    assert topic.shards[0].cached_bytes <= READ_BYTES
    site.seat.release([1])
    site.machine.run(1)
    assert got[1001:] == [b"first"]  # from the disk
