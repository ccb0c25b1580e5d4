"""A topic with nothing to do sleeps; whatever has a deadline wakes it in time."""

from __future__ import annotations

import pytest

from penstock.clock import MILLISECOND, SECOND
from penstock.delivery.instant import Instant
from penstock.node.topic import Topic
from tests.site import Site

#: What `Site.consume` leases for.
LEASE_S = 60


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The times at which a topic was looked after."""
    times: list[int] = []
    tick = Topic.tick

    def noted(self: Topic, now: Instant) -> bool:
        times.append(now.monotonic_ns)
        return tick(self, now)

    monkeypatch.setattr(Topic, "tick", noted)
    return times


def held(site: Site) -> Topic:
    """Return a topic whose one message is out, some time after anything happened."""
    topic = site.node.create_topic("t").now()
    site.consume(topic, "audit")
    site.publish(topic, b"x")
    site.machine.run(10)
    return topic


def test_a_lease_that_lasts_costs_nothing(ticks: list[int]) -> None:
    site = Site()
    held(site)
    ticks.clear()
    site.machine.run(LEASE_S - 20)
    assert ticks == []


def test_a_lease_ends_in_time_although_its_topic_sleeps() -> None:
    site = Site()
    topic = site.node.create_topic("t").now()
    site.consume(topic, "audit")
    site.publish(topic, b"x")
    began_ns = site.machine.clock.monotonic()
    site.machine.run(LEASE_S - 1)
    assert topic.subscription("audit").expired_leases == 0
    while topic.subscription("audit").expired_leases == 0:
        site.machine.run(0.01)
    late_ns = site.machine.clock.monotonic() - began_ns - LEASE_S * SECOND
    assert late_ns <= 50 * MILLISECOND


def test_an_ack_in_a_topic_that_sleeps_is_written_down_as_soon_as_in_any_other() -> None:
    site = Site()
    topic = held(site)
    cursor = topic.subscription("audit").cursors[0]
    assert site.seat.ack([1]) == []
    assert cursor.dirty
    site.machine.run(0.03)
    assert not cursor.dirty


def test_a_release_in_a_topic_that_sleeps_is_written_down_too() -> None:
    site = Site()
    topic = held(site)
    cursor = topic.subscription("audit").cursors[0]
    assert site.seat.release([1], 30 * SECOND) == []
    site.machine.run(0.03)
    assert not cursor.dirty


def test_what_a_consumer_held_that_leaves_a_topic_that_sleeps_is_written_down() -> None:
    site = Site()
    topic = held(site)
    cursor = topic.subscription("audit").cursors[0]
    site.seat.close()
    site.machine.run(0.03)
    assert not cursor.dirty


def test_a_lease_made_shorter_in_a_topic_that_sleeps_ends_then() -> None:
    site = Site()
    topic = held(site)
    assert site.seat.extend([1], SECOND) == []
    site.machine.run(1.1)
    assert topic.subscription("audit").expired_leases == 1


def test_a_topic_that_only_trickles_is_looked_after_a_few_times_a_second(ticks: list[int]) -> None:
    site = Site()
    topic = site.node.create_topic("t").now()
    site.consume(topic, "audit")
    for number in range(20):
        site.publish(topic, b"x")
        site.seat.ack([number + 1])
        site.machine.run(1)
    # 100 a second while it was looked after every 10 ms; the history's own topic is counted, too.
    assert len(ticks) < 20 * 60


def test_leases_that_were_acked_do_not_wake_a_topic(ticks: list[int]) -> None:
    site = Site()
    topic = site.node.create_topic("t").now()
    site.consume(topic, "audit")
    for number in range(50):
        site.publish(topic, b"x")
        assert site.seat.ack([number + 1]) == []
        site.machine.run(0.05)
    site.machine.run(10)
    ticks.clear()
    site.machine.run(2 * LEASE_S)
    assert ticks == []
