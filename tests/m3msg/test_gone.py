"""Services that leave their topic, or shrink, while the relay does not run: nothing of theirs is kept for ever."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from penstock.clock import MILLISECOND, SECOND
from penstock.config import FilterConfig, RoutingConfig
from penstock.node.declared import declare
from penstock.node.node import Node
from penstock.registry import EmbeddedRegistry
from penstock.relays.m3msg.service import Service
from tests.m3msg.consumers import NAME, Way, placed, service, topic
from tests.registry.far import Far, Trouble
from tests.site import PLAIN, Site

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


@pytest.mark.parametrize("number", [0, 1])
def test_a_subscription_that_somebody_deletes_is_made_anew_for_what_comes_from_then_on(number: int) -> None:
    way = Way()
    one, two = way.consumer(), way.consumer()
    one.acks = two.acks = False
    way.topology.placements = {"r": placed({one: ALL, two: ALL})}
    way.topology.say(topic(service("r", "replicated")))
    way.run()
    way.publish(b"before")
    way.run()
    names = sorted(way.topic.subscriptions)
    way.topic.delete_subscription(names[number]).now()
    way.run(3)
    assert sorted(way.topic.subscriptions) == names
    one.acks = two.acks = True
    way.publish(b"after")
    way.until(lambda: {each.depth() + each.in_flight() for each in way.topic.subscriptions.values()} == {0})
    assert (one.got[b"after"], two.got[b"after"], len(one.sessions), len(two.sessions)) == (1, 1, 4, 4)


def test_the_subscription_of_a_service_without_a_placement_is_made_anew_too() -> None:
    way = Way()
    one = way.consumer()
    way.topology.say(topic(service("other"), service("s")))
    way.run()
    way.topic.delete_subscription("m3msg.s").now()
    way.run()
    way.publish(b"after")
    way.topology.place("s", placed({one: ALL}))
    way.until(lambda: one.got[b"after"] == 1)


class FarSite(Site):
    """A node whose registry is elsewhere and answers later."""

    def start(self) -> None:
        self.machine.start()
        clock, disk = self.machine.clock, self.machine.disk
        server = EmbeddedRegistry.open(disk, clock, "data/registry")
        far = Far(server, clock, Random(3), Trouble(delay_ns=200 * MILLISECOND))
        self.node = Node(self.config, clock, disk, Random(1), far)


def far_way() -> Way:
    site = FarSite()
    site.machine.run(2)
    site.node.obtain(NAME)
    site.machine.run(2)
    return Way(site=site)


def test_a_service_that_comes_back_while_the_registry_still_removes_it_is_sent_to() -> None:
    way = far_way()
    one, two = way.consumer(), way.consumer()
    way.topology.placements = {"r": placed({one: ALL, two: ALL})}
    way.topology.say(topic(service("r", "replicated")))
    way.run(5)
    for _ in range(2):
        way.topology.say(topic())
        way.run(0.1)
        way.topology.say(topic(service("r", "replicated")))
        way.run(5)
        assert sorted(way.topic.subscriptions) == ["m3msg.r", "m3msg.r.1"]
        way.publish(b"after %d" % _)
        way.run(5)
        assert (one.got[b"after %d" % _], two.got[b"after %d" % _]) == (1, 1)
        assert way.site.node.catalog.registry.get(f"m3msg/{NAME}/m3msg.r")


def test_a_service_whose_subscription_is_being_deleted_while_it_is_placed_anew_is_sent_to() -> None:
    way = far_way()
    one = way.consumer()
    way.topology.say(topic(service("s")))
    way.run(5)
    way.topic.delete_subscription("m3msg.s")
    way.topology.place("s", placed({one: ALL}))
    way.topology.say(topic(service("s", ttl_ns=3600 * SECOND)))
    way.run(5)
    way.publish(b"after")
    way.run(5)
    assert list(one.got) == [b"after"]


def test_a_replica_that_comes_while_the_subscription_of_one_before_it_goes_has_its_own_place() -> None:
    way = far_way()
    one, two = way.consumer(), way.consumer()
    way.topology.placements = {"r": placed({one: ALL})}
    way.topology.say(topic(service("r", "replicated")))
    way.run(5)
    first = way.topic.subscription("m3msg.r")
    way.topic.delete_subscription("m3msg.r")
    way.run(0.05)
    way.topology.place("r", placed({one: ALL, two: ALL}))
    way.run(5)
    assert way.topic.subscription("m3msg.r") is not first
    way.publish(b"after")
    way.run(5)
    assert (one.got[b"after"], two.got[b"after"]) == (1, 1)
    assert {each.depth() + each.in_flight() for each in way.topic.subscriptions.values()} == {0}


def test_a_service_that_goes_while_its_placement_waits_for_the_registry_calls_nobody() -> None:
    way = far_way()
    one = way.consumer()
    way.topology.say(topic(service("s")))
    way.run(5)
    way.topic.delete_subscription("m3msg.s")  # made anew, which takes the registry a while
    way.run(0.25)
    way.topology.place("s", placed({one: ALL}))
    way.run(0.05)
    way.service("s").close()
    way.run(5)
    assert one.sessions == []
