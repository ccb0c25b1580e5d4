"""Services that leave their topic, or shrink, while the relay does not run: nothing of theirs is kept for ever."""

from __future__ import annotations

import msgspec
import pytest

from penstock.config import FilterConfig, RoutingConfig
from penstock.node.declared import declare
from penstock.relays.m3msg.service import Service
from tests.m3msg.consumers import NAME, Way, placed, service, topic
from tests.site import PLAIN

ALL = [0, 1, 2, 3]


@pytest.mark.parametrize("consumption", ["shared", "replicated"])
def test_a_service_that_left_while_the_node_was_down_keeps_nothing_after_the_next_start(consumption: str) -> None:
    way = Way()
    one, two, three = way.consumer(), way.consumer(), way.consumer()
    way.topology.placements = {"one": placed({one: ALL}), "two": placed({two: ALL, three: ALL})}
    way.topology.say(topic(service("one"), service("two", consumption)))  # type: ignore[arg-type]
    way.run()
    assert len(way.topic.subscriptions) == (2 if consumption == "shared" else 3)
    way.topology.topic = topic(service("one"))
    way.restart()
    way.run(3)
    assert list(way.topic.subscriptions) == ["m3msg.one"]
    way.publish(b"after")
    way.run()
    assert (one.got[b"after"], two.got[b"after"], two.sessions) == (1, 0, [])
    assert not way.site.node.catalog.registry.get(f"m3msg/{NAME}/m3msg.two")
    # It is forgotten, too: whoever makes a subscription of that name by hand keeps it.
    way.site.node.topics[NAME].subscribe("m3msg.two").now()
    way.restart()
    way.run(3)
    assert sorted(way.topic.subscriptions) == ["m3msg.one", "m3msg.two"]


def test_a_restart_while_a_service_leaves_gracefully_loses_nothing_and_keeps_nothing() -> None:
    way = Way()
    one = way.consumer()
    one.acks = False
    way.config = msgspec.structs.replace(way.config, graceful_close=True)
    way.restart()
    way.topology.placements = {"one": placed({one: ALL})}
    way.topology.say(topic(service("one")))
    way.run()
    way.publish(b"before")
    way.run()
    way.topology.say(topic())
    way.run(3)
    way.restart()
    one.got.clear()
    way.run(3)
    way.publish(b"after")
    one.acks = True
    way.until(lambda: "m3msg.one" not in way.topic.subscriptions)
    assert (one.got[b"before"] >= 1, one.got[b"after"]) == (True, 0)


def test_a_flag_that_comes_after_the_topic_still_says_how_a_service_leaves_that_went_meanwhile() -> None:
    way = Way()
    one = way.consumer()
    one.acks = False
    way.config = msgspec.structs.replace(way.config, graceful_close_key="graceful")
    way.restart()
    way.topology.placements = {"one": placed({one: ALL})}
    way.topology.say(topic(service("one")))
    way.run()
    way.publish(b"before")
    way.run()
    way.topology.topic = topic()
    way.restart()
    way.topology.flag(True)
    way.run(5)
    assert "m3msg.one" in way.topic.subscriptions
    one.acks = True
    way.until(lambda: "m3msg.one" not in way.topic.subscriptions)


def test_a_service_that_left_is_not_made_again_by_the_filters_that_the_file_still_has_for_it() -> None:
    static = FilterConfig(topic=NAME, subscription="m3msg.one", shard_set="0..9")
    way = Way(msgspec.structs.replace(PLAIN, routing=RoutingConfig(filters=(static,))))
    way.topology.placements = {name: placed({way.consumer(): ALL}) for name in ("one", "two")}
    way.topology.say(topic(service("one"), service("two")))
    way.run()
    way.topology.say(topic(service("two")))
    way.run(3)
    assert list(way.topic.subscriptions) == ["m3msg.two"]
    for _ in range(2):
        way.outside.die(way.site.machine.clock)
        way.site.start()
        for answer in declare(way.site.node):
            answer.now()
        assert "m3msg.one" in way.site.node.topics[NAME].subscriptions
        way.start()
        way.run(3)
        assert list(way.topic.subscriptions) == ["m3msg.two"]


def test_a_replicated_service_that_shrank_keeps_nothing_for_replicas_that_nobody_has_after_a_restart() -> None:
    way = Way()
    one, two, three = way.consumer(), way.consumer(), way.consumer()
    way.topology.placements = {"r": placed({one: ALL, two: ALL, three: ALL})}
    way.topology.say(topic(service("r", "replicated")))
    way.run()
    way.topology.place("r", placed({one: ALL}))
    way.run()
    for _ in range(2):
        way.restart()
        way.run()
        way.publish(b"%d" % _)
        way.run()
        assert {name: each.depth() for name, each in way.topic.subscriptions.items()} == {
            "m3msg.r": 0,
            "m3msg.r.1": 0,
            "m3msg.r.2": 0,
        }
    way.topology.say(topic())
    way.run(3)
    assert not way.topic.subscriptions


def test_a_replicated_service_whose_placement_has_no_instance_keeps_nothing_and_counts_it() -> None:
    way = Way()
    way.topology.placements = {"r": placed({})}
    way.topology.say(topic(service("r", "replicated")))
    way.run()
    way.publish(b"a", b"b", b"c")
    way.run()
    assert (way.topic.subscription("m3msg.r").depth(), way.counts("r").unowned) == (0, 3)
    one = way.consumer()
    way.topology.place("r", placed({one: ALL}))
    way.run()
    way.publish(b"d")
    way.run()
    assert list(one.got) == [b"d"]


def test_a_service_cannot_become_replicated_and_stays_shared_as_it_was() -> None:
    way = Way()
    one, two = way.consumer(), way.consumer()
    way.topology.placements = {"one": placed({one: ALL, two: ALL})}
    way.topology.say(topic(service("one")))
    way.run()
    there: Service = way.service("one")
    way.topology.say(topic(service("one", "replicated", ttl_ns=7)))
    way.run()
    assert way.service("one") is there
    assert (there.said.consumption, there.said.ttl_ns) == ("shared", 7)
    assert list(way.topic.subscriptions) == ["m3msg.one"]
