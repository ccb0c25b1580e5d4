"""A hold keeps the log for a reader outside, for as long as it says."""

from __future__ import annotations

from random import Random

import pytest

from penstock.clock import SECOND
from penstock.config import Config
from penstock.errors import Refusal
from penstock.message import Rows
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.settings import TopicSettings
from tests.simulation.machine import Machine

HOUR_S = 3600
#: Everything older than a moment goes, unless somebody needs it.
SHORT = TopicSettings(retention_age_ns=SECOND, retention_bytes=1, retention_hard=True, segment_bytes=1 << 16)


class Site:
    def __init__(self) -> None:
        self.machine = Machine()
        self.start()

    def start(self) -> None:
        self.machine.start()
        self.node = Node(Config(data_dir="data"), self.machine.clock, self.machine.disk, Random(1))

    def fill(self, topic: Topic) -> None:
        for _ in range(8):
            topic.publish(Rows.of([bytes(30_000)], "test"), self, lambda *_: None)
            self.machine.run(0.1)


@pytest.fixture
def site() -> Site:
    return Site()


def test_retention_drops_what_nobody_holds(site: Site) -> None:
    topic = site.node.create_topic("t", SHORT).now()
    site.fill(topic)
    site.machine.run(60)
    assert topic.shards[0].start > 0


def test_hold_keeps_rows_from_its_offset_on_until_it_runs_out(site: Site) -> None:
    topic = site.node.create_topic("t", SHORT).now()
    site.node.holds.hold("query", topic.record, [0], 2 * HOUR_S * SECOND).now()
    site.fill(topic)
    site.machine.run(HOUR_S)
    assert topic.shards[0].start == 0
    site.machine.run(HOUR_S + 60)
    assert topic.shards[0].start > 0
    assert len(site.node.holds) == 0


def test_hold_moves_with_its_reader_and_ends_when_it_says_so(site: Site) -> None:
    topic = site.node.create_topic("t", SHORT).now()
    site.node.holds.hold("query", topic.record, [0], HOUR_S * SECOND).now()
    site.fill(topic)
    site.node.holds.hold("query", topic.record, [4], HOUR_S * SECOND).now()
    site.machine.run(60)
    assert 0 < topic.shards[0].start <= 4
    assert site.node.holds.release("query").now() == 1
    site.machine.run(60)
    assert topic.shards[0].start > 4


def test_hold_survives_a_crash(site: Site) -> None:
    topic = site.node.create_topic("t", SHORT).now()
    site.node.holds.hold("query", topic.record, [0], HOUR_S * SECOND).now()
    site.fill(topic)
    site.start()
    site.machine.run(60)
    assert site.node.topic("t").shards[0].start == 0


def test_hold_on_a_deleted_topic_does_not_hold_its_successor(site: Site) -> None:
    old = site.node.create_topic("t", SHORT).now()
    site.node.holds.hold("query", old.record, [0], HOUR_S * SECOND).now()
    site.node.delete_topic("t").now()
    topic = site.node.create_topic("t", SHORT).now()
    site.fill(topic)
    site.machine.run(60)
    assert topic.shards[0].start > 0


def test_holds_have_a_limit_and_one_that_is_there_is_renewed(site: Site) -> None:
    topic, holds = site.node.create_topic("t", SHORT).now(), site.node.holds
    holds.most = 2
    for name in "aba":
        holds.hold(name, topic.record, [0], HOUR_S * SECOND).now()
    with pytest.raises(Refusal, match=r"limits\.holds may be raised") as caught:
        holds.hold("c", topic.record, [0], HOUR_S * SECOND).now()
    assert caught.value.code == "limit_reached"
    holds.release("a").now()
    holds.hold("c", topic.record, [0], HOUR_S * SECOND).now()


def test_hold_that_makes_no_sense_is_refused(site: Site) -> None:
    topic = site.node.create_topic("t", SHORT).now()
    with pytest.raises(Refusal, match="takes 1 offsets, one per shard"):
        site.node.holds.hold("query", topic.record, [0, 0], SECOND).now()
    with pytest.raises(Refusal, match="a hold lasts"):
        site.node.holds.hold("query", topic.record, [0], 0).now()
