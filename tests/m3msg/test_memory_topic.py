"""A relay of a topic that is nowhere but in memory: upstream's guarantees, and nobody waits for what is gone."""

from __future__ import annotations

import pytest

from penstock.settings import TopicSettings
from tests.m3msg.consumers import NAME, Consumer, Way, placed, service, topic
from tests.site import Site

ALL = [0, 1, 2, 3]
ROWS = 100


def way(rows: int = ROWS) -> Way:
    site = Site()
    site.node.create_topic(NAME, TopicSettings(durability="memory", memory_rows=rows)).now()
    return Way(site=site)


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.mark.parametrize("out", [False, True])
def test_of_a_full_topic_the_oldest_are_gone_and_the_others_are_sent(out: bool) -> None:
    made = way()
    one, other = made.consumer(), made.consumer()
    if out:  # they are on lease when they go
        one.acks = False
    else:
        one.die()
    made.topology.placements = {"one": placed({one: ALL}), "other": placed({other: ALL})}
    made.topology.say(topic(service("one"), service("other")))
    made.run()
    for first in range(0, 5 * ROWS, 10):
        made.publish(*numbered(first, first + 10), keys=[b"%d" % (first + each) for each in range(10)])
    made.run()
    assert set(other.got) == set(numbered(0, 5 * ROWS))
    found = made.topic.subscription("m3msg.one")
    before = set(one.got)
    one.got.clear()
    if out:
        for session in list(one.sessions):
            session.hang_up()
        one.acks = True
        again = one
    else:
        again = Consumer(made, one.port)
    made.until(lambda: found.depth() + found.in_flight() == 0)
    assert set(again.got) == set(numbered(4 * ROWS, 5 * ROWS))
    assert before == (set(numbered(0, 5 * ROWS)) if out else set())
    made.publish(b"new")
    made.run()
    assert (again.got[b"new"], other.got[b"new"]) == (1, 1)


def test_a_restart_begins_with_nothing_and_sends_what_comes() -> None:
    made = way(1000)
    one = made.consumer()
    one.acks = False
    made.topology.placements = {"one": placed({one: ALL})}
    made.topology.say(topic(service("one")))
    made.run()
    made.publish(b"gone")
    made.run()
    assert one.got[b"gone"] == 1
    made.restart()
    one.acks = True
    made.run(3)
    made.publish(b"new")
    made.run(3)
    assert (one.got[b"gone"], one.got[b"new"]) == (1, 1)
    assert made.topic.subscription("m3msg.one").depth() == 0
