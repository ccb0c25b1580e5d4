"""What M3's topic and placements may say that cannot be: the rest holds, and it is counted."""

from __future__ import annotations

import msgspec
import pytest

from penstock.m3.placement import Instance, Placement
from tests.m3msg.consumers import NAME, Way, placed, service, topic

ALL = [0, 1, 2, 3]


def figures(way: Way) -> dict[str, float]:
    return {each.name: each.value for each in way.relay.samples()}


def with_endpoint(placement: Placement, endpoint: str) -> Placement:
    """Return a placement with one more instance, which is said to be there."""
    bad = Instance(id="bad", endpoint=endpoint, shards=next(iter(placement.instances.values())).shards)
    return msgspec.structs.replace(placement, instances={**placement.instances, "bad": bad})


@pytest.mark.parametrize("endpoint", ["nonsense", "10.0.0.9:0", "10.0.0.9:http", ":7507", ""])
@pytest.mark.parametrize("consumption", ["shared", "replicated"])
def test_an_instance_that_cannot_be_dialled_is_left_out_and_the_others_get_everything(
    consumption: str, endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    way = Way()
    one, two = way.consumer(), way.consumer()
    way.topology.placements = {"s": placed({one: ALL})}
    way.topology.say(topic(service("s", consumption)))  # type: ignore[arg-type]
    way.run()
    way.topology.place("s", with_endpoint(placed({two: ALL}), endpoint))
    way.run()
    way.publish(*[b"%d" % number for number in range(40)])
    way.run(2)
    assert (len(two.got), len(one.got)) == (40, 0)
    assert {name: each.depth() for name, each in way.topic.subscriptions.items()}["m3msg.s"] == 0
    assert figures(way)["unusable_instances"] == 1
    assert f'service m3msg.s does without an instance of its placement: bad: "{endpoint}" is no address' in caplog.text
    way.topology.place("s", placed({two: ALL}))
    way.run()
    assert figures(way)["unusable_instances"] == 0


def test_a_placement_that_cannot_be_followed_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    way = Way()
    one = way.consumer()
    way.topology.placements = {"r": placed({one: ()}, sharded=False)}
    way.topology.say(topic(service("r", "replicated")))
    way.run()
    assert figures(way)["refused_placements_total"] == 1
    way.topology.place("r", placed({one: ALL}))
    way.run()
    subscription = way.topic.subscription("m3msg.r")
    way.topic.update_subscription("m3msg.r", msgspec.structs.replace(subscription.settings, policy="in-order")).now()
    way.topology.place("r", placed({way.consumer(): ALL}))
    way.run()
    assert "service m3msg.r cannot follow its placement" in caplog.text
    assert figures(way)["refused_placements_total"] == 2


def test_m3msg_case_20_a_time_to_live_below_nothing_is_none() -> None:
    way = Way()
    one = way.consumer()
    way.topology.placements = {"one": placed({one: ALL})}
    way.topology.say(topic(service("one", ttl_ns=-1)))
    way.run()
    way.publish(b"a")
    way.run()
    assert list(one.got) == [b"a"]
    assert way.topic.subscription("m3msg.one").settings.ttl_ns == 0


def test_a_change_of_shards_is_counted_with_its_topic() -> None:
    way = Way()
    way.topology.say(topic())
    way.topology.say(topic(shards=9))
    way.run()
    (found,) = [each for each in way.relay.samples() if each.name == "refused_changes_total"]
    assert (found.value, found.labels) == (1, {"topic": NAME})


@pytest.mark.parametrize("consumption", ["shared", "replicated"])
def test_shards_of_a_placement_that_the_topic_does_not_have_are_told_and_counted(
    consumption: str, caplog: pytest.LogCaptureFixture
) -> None:
    way = Way()
    one, two = way.consumer(), way.consumer()
    way.topology.placements = {"s": placed({one: [0, 1, 2, 3, 4, 9], two: [4]})}
    way.topology.say(topic(service("s", consumption)))  # type: ignore[arg-type]
    way.run()
    way.publish(*[b"%d" % number for number in range(40)])
    way.run(2)
    assert (len(one.got), len(two.got)) == (40, 0)
    assert figures(way)["unknown_shards"] == 3
    assert f"service m3msg.s: i{one.port} has 2 shards that the topic, with 4, does not have" in caplog.text
    way.topology.place("s", placed({one: ALL}))
    way.run()
    assert figures(way)["unknown_shards"] == 0
