"""The node counts exactly, whatever the history samples: what came, what was delivered, and what became of it."""

from __future__ import annotations

import itertools
from collections import Counter

import msgspec
import pytest

from penstock.clock import MILLISECOND
from penstock.config import Config
from penstock.node.counts import DISCARDS_MAX, ENTRIES_MAX, INTERVAL_NS, Tally
from penstock.settings import SubscriptionSettings, TopicSettings
from penstock.tally import TOPIC, Counted, Interval
from tests.site import Site

INTERVAL_US = INTERVAL_NS // 1000
MOMENT_US = 10 * MILLISECOND // 1000


@pytest.fixture
def site() -> Site:
    return Site(Config(data_dir="data"))  # with the history as it is by default: one message in 64


def intervals(site: Site) -> list[Interval]:
    """Return every interval that is written."""
    if TOPIC not in site.node.topics:
        return []
    shard = site.node.topic(TOPIC).shards[0]
    told, offset = [], shard.start
    while offset < shard.end:
        batch = shard.read(offset)
        if batch is None:
            shard.fetch(offset, lambda: None)
            site.machine.run(0.1)
            continue
        told += [msgspec.json.decode(batch.row_body(row), type=Interval) for row in range(batch.count)]
        offset = batch.end
    return told


def sums(found: list[Interval], topic: str, subscription: str | None = None) -> dict[str, int]:
    """Return the sums of a topic or subscription that are not zero."""
    total: Counter[str] = Counter()
    for counted in of(found, topic, subscription):
        total.update({f"discarded {reason}": count for reason, count in counted.discarded.items()})
        told = msgspec.structs.asdict(counted)
        total.update({name: many for name, many in told.items() if isinstance(many, int) and name != "backlog"})
    return {name: count for name, count in total.items() if count}


def of(found: list[Interval], topic: str, subscription: str | None) -> list[Counted]:
    rows = [counted for each in found for counted in each.counts]
    return [row for row in rows if (row.topic, row.subscription) == (topic, subscription)]


def test_few_messages_and_a_dead_letter_are_all_counted_though_none_is_in_the_sample(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    site.consume(topic, "audit", SubscriptionSettings(max_attempts=2))
    site.publish(topic, b"one", b"two", b"three")
    site.seat.ack([1, 3])
    site.seat.release([2], 0)
    site.seat.release([2], 0)
    site.machine.run(3)
    found = intervals(site)
    assert sums(found, "t") == {"published": 3, "published_bytes": 11}
    assert sums(found, "t", "audit") == {"delivered": 4, "again": 1, "acked": 2, "released": 2, "dead": 1}
    assert sums(found, "t.dead") == {"published": 1, "published_bytes": 3}
    assert [row.backlog for row in of(found, "t", "audit") if row.backlog is not None][-1] == 0


def test_a_hundred_thousand_messages_are_counted_one_by_one(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    site.consume(topic, "audit", credit=10_000)
    for first in range(0, 100_000, 1000):
        site.publish(topic, *([b"body"] * 1000))
        assert site.seat.ack(list(range(first + 1, first + 1000))) == []
        assert site.seat.ack([first + 1000]) == []  # a lone one goes another way
        site.machine.run(0.2)
    site.machine.run(3)
    found = intervals(site)
    assert sums(found, "t") == {"published": 100_000, "published_bytes": 400_000}
    assert sums(found, "t", "audit") == {"delivered": 100_000, "acked": 100_000}
    assert len(found) < 12  # thirty seconds


def test_an_interval_never_crosses_ten_seconds_and_none_overlaps_another(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    for _ in range(120):
        site.publish(topic, b"x")
        site.machine.run(0.3)
    site.machine.run(3)
    found = intervals(site)
    assert sums(found, "t")["published"] == 120
    # It is written at the multiple, or a moment later.
    assert all(each.from_us // INTERVAL_US == (each.until_us - MOMENT_US) // INTERVAL_US for each in found)
    assert all(one.until_us <= other.from_us for one, other in itertools.pairwise(found))
    assert len(found) <= 8  # 36 seconds of traffic


def test_a_node_that_stops_writes_everything_and_says_so(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    site.consume(topic, "audit")
    site.publish(topic, b"one", b"two")
    site.node.close()
    site.start()
    found = intervals(site)
    assert sums(found, "t", "audit") == {"delivered": 2, "released": 2}
    assert [each.ended for each in found][-1]
    assert not any(each.ended for each in found[:-1])
    started_us = found[-1].started_us
    site.publish(site.node.topic("t"), b"three")
    site.machine.run(3)
    assert intervals(site)[-1].started_us > started_us
    assert sums(intervals(site), "t")["published"] == 3


def test_a_process_that_dies_leaves_what_was_written_and_no_word_of_an_end(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    site.publish(topic, b"one", b"two")
    site.machine.run(3)
    site.start()
    found = intervals(site)
    assert sums(found, "t")["published"] == 2
    assert not any(each.ended for each in found)


def test_a_deleted_topic_keeps_its_counts(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    site.consume(topic, "audit")
    site.publish(topic, b"one", b"two")
    site.seat.ack([1])
    site.node.delete_topic("t").now()
    site.machine.run(3)
    found = intervals(site)
    assert sums(found, "t")["published"] == 2
    assert sums(found, "t", "audit")["acked"] == 1


def test_discards_are_counted_by_reason_and_invented_topics_together(site: Site) -> None:
    topic = site.node.create_topic("t", TopicSettings(rate=5)).now()
    for _ in range(3):
        site.offer(topic, b"a", b"b", b"c", b"d", b"e")
    for number in range(DISCARDS_MAX + 5):
        site.node.ledger.add("unknown_topic", f"t{number}", 1, site.machine.clock.now())
    site.machine.run(3)
    found = intervals(site)
    refused = sums(found, "t")["discarded rate_limited"]
    assert refused + sums(found, "t")["published"] == 15
    rows = [row for each in found for row in each.counts]
    assert sum(sum(row.discarded.values()) for row in rows) == refused + DISCARDS_MAX + 5
    assert max(len(each.counts) for each in found) <= ENTRIES_MAX


def test_the_backlog_of_a_subscription_without_a_consumer_is_told(site: Site) -> None:
    topic = site.node.create_topic("t").now()
    topic.subscribe("idle").now()
    site.publish(topic, b"one", b"two")
    site.machine.run(3)
    assert [row.backlog for row in of(intervals(site), "t", "idle")] == [2]


def test_an_idle_node_writes_nothing_and_no_history_no_counts(site: Site) -> None:
    site.machine.run(60)
    assert TOPIC not in site.node.topics
    without = Site()
    without.publish(without.node.create_topic("t").now(), b"x")
    without.machine.run(30)
    assert TOPIC not in without.node.topics


def test_a_tally_begins_anew_once_it_is_taken(site: Site) -> None:
    assert site.node.events is not None
    tally = Tally(site.node.events.counts, "t", "s")
    tally.delivered += 5
    tally.touch()
    assert (tally.take().delivered, tally.take().delivered, tally.busy) == (5, 0, False)
