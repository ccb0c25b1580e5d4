"""Traffic types and filters that the configuration declares."""

from __future__ import annotations

import msgspec

from penstock.config import FilterConfig, RoutingConfig
from penstock.node.declared import declare
from penstock.settings import SubscriptionSettings, TrafficSettings
from tests.site import PLAIN, Site

FILTERS = (
    FilterConfig(topic="metrics", subscription="live", allowed_traffic_types=("production",)),
    FilterConfig(topic="metrics", subscription="some", shard_set="0..9", percentage=0.5, storage_policies=("10s:2d",)),
)


def site(**routing: object) -> Site:
    made = Site(msgspec.structs.replace(PLAIN, routing=msgspec.convert(routing, RoutingConfig)))
    for answer in declare(made.node):
        answer.now()
    made.machine.run()
    return made


def test_what_is_declared_is_made_and_in_force() -> None:
    made = site(traffic_types={"production": 0}, filters=FILTERS)
    subscriptions = made.node.topic("metrics").subscriptions
    assert subscriptions["live"].settings == SubscriptionSettings(traffic=TrafficSettings(("production",)))
    some = SubscriptionSettings(shard_set="0..9", percentage=0.5, storage_policies=("10s:2d",))
    assert subscriptions["some"].settings == some
    assert made.node.routing.mapping == {"production": 0}


def test_a_subscription_that_is_there_gets_the_filters_and_keeps_the_rest() -> None:
    made = site()
    topic = made.node.create_topic("metrics").now()
    topic.subscribe("live", SubscriptionSettings(max_attempts=3, shard_set="7")).now()
    made.config = msgspec.structs.replace(made.config, routing=RoutingConfig(filters=FILTERS))
    made.start()
    for answer in declare(made.node):
        answer.now()
    expected = SubscriptionSettings(max_attempts=3, traffic=TrafficSettings(("production",)))
    assert made.node.topic("metrics").subscriptions["live"].settings == expected


def test_declared_types_are_added_and_one_that_moves_is_refused_and_counted() -> None:
    made = site(traffic_types={"a": 1})
    made.node.catalog.set_mapping({"a": 1, "b": 2}).now()
    made.config = msgspec.structs.replace(made.config, routing=RoutingConfig(traffic_types={"a": 5}))
    made.start()
    for answer in declare(made.node):
        answer.now()
    assert made.node.routing.mapping == {"a": 1, "b": 2}
    (entry,) = [entry for entry in made.node.ledger.entries() if entry.reason == "routing"]
    assert "a moves from bit 1 to 5" in str(entry.samples[0].content)
