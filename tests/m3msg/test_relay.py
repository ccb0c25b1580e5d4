"""What a relay sends to consumer services, by the numbers of the specification's cases."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest

from penstock.clock import SECOND
from penstock.config import FilterConfig, RoutingConfig
from penstock.keyed import shard_of
from penstock.m3.placement import Shard
from penstock.m3.topic import Filters, RoutingFilter
from penstock.message import Rows
from penstock.node.declared import declare
from penstock.relays.m3msg.retry import Retry
from penstock.relays.m3msg.topology import flag
from penstock.settings import TrafficSettings
from tests.m3msg.consumers import NAME, Consumer, Way, placed, service, topic
from tests.simulation.host import finish
from tests.site import PLAIN


class Draw(Random):
    """Chance that comes out as a test says."""

    def __init__(self, draw: float) -> None:
        super().__init__()
        self._draw = draw

    def random(self) -> float:
        return self._draw


ALL = [0, 1, 2, 3]
BODIES = [b"metric %d" % number for number in range(200)]
KEYS: list[bytes | None] = [b"id %d" % (number % 50) for number in range(200)]


def once(bodies: list[bytes]) -> Counter[bytes]:
    return Counter(bodies)


def test_m3msg_case_15_a_message_is_finished_for_each_service_once_that_service_has_acked_it() -> None:
    way = Way()
    one, other = way.consumer(), way.consumer()
    other.acks = False
    way.topology.placements = {"one": placed({one: ALL}), "other": placed({other: ALL})}
    way.topology.say(topic(service("one"), service("other")))
    way.run()
    way.publish(*BODIES, keys=KEYS)
    way.run(1)
    assert one.got == once(BODIES)
    assert [way.counts(name).acked for name in ("one", "other")] == [200, 0]
    other.acks = True
    way.until(lambda: way.counts("other").acked == 200)
    assert set(other.got) == set(BODIES)
    assert one.got == once(BODIES)


def test_a_topic_that_was_deleted_is_relayed_again_once_it_is_made_anew() -> None:
    way = Way()
    consumer = way.consumer()
    way.topology.placements = {"s": placed({consumer: ALL})}
    way.topology.say(topic(service("s")))
    way.run()
    way.publish(b"before", keys=[b"k"])
    way.until(lambda: set(consumer.got) == {b"before"})
    way.site.node.delete_topic(NAME).now()
    way.run(1)
    assert way.relay.topics == {}
    way.topic = way.site.node.create_topic(NAME).now()
    way.run(1)
    way.publish(b"after", keys=[b"k"])
    way.until(lambda: set(consumer.got) == {b"before", b"after"})


def test_m3msg_case_17_a_change_of_the_number_of_shards_changes_nothing() -> None:
    way = Way()
    one = way.consumer()
    way.topology.placements = {"one": placed({one: ALL}), "other": placed({one: ALL})}
    way.topology.say(topic(service("one")))
    way.run()
    way.topology.say(topic(service("one"), service("other"), shards=8))
    way.run()
    assert list(way.topic.subscriptions) == ["m3msg.one"]
    assert way.relay.topics["aggregated_metrics"].refused == 1


def test_m3msg_case_19_services_in_another_order_keep_their_connections() -> None:
    way = Way()
    one, other = way.consumer(), way.consumer()
    way.topology.placements = {"one": placed({one: ALL}), "other": placed({other: ALL})}
    way.topology.say(topic(service("one"), service("other")))
    way.run()
    before = [*one.sessions, *other.sessions]
    assert len(before) == 8
    way.topology.say(topic(service("other"), service("one")))
    way.run()
    assert [*one.sessions, *other.sessions] == before


def test_m3msg_case_20_a_time_to_live_lets_go_of_what_nobody_takes() -> None:
    way = Way()
    gone = way.consumer()
    gone.die()
    way.topology.placements = {"one": placed({gone: ALL})}
    way.topology.say(topic(service("one")))
    way.run()
    way.publish(*BODIES[:10])
    way.run(1)
    found = way.topic.subscription("m3msg.one")
    assert found.depth() == 10
    way.topology.say(topic(service("one", ttl_ns=SECOND // 20)))
    way.run(1)
    new = Consumer(way, gone.port)
    way.until(lambda: len(new.sessions) == 4)
    assert found.depth() == 0
    way.publish(b"young")
    way.run(1)
    assert new.got == once([b"young"])


def test_m3msg_case_21_a_message_without_an_ack_goes_to_an_instance_that_comes_later() -> None:
    way = Way()
    silent = way.consumer()
    silent.acks = False
    way.topology.placements = {"one": placed({silent: ALL})}
    way.topology.say(topic(service("one")))
    way.run()
    way.publish(*BODIES[:20])
    way.run(1)
    assert len(silent.got) == 20
    new = way.consumer()
    way.topology.place("one", placed({new: ALL}))
    way.run(2)
    assert new.got == once(BODIES[:20])
    assert way.topic.subscription("m3msg.one").depth() == 0


def test_m3msg_case_22_an_owner_gets_messages_from_its_cutover_until_its_cutoff() -> None:
    way = Way()
    old, new = way.consumer(), way.consumer()
    now_ns = way.site.machine.clock.now()
    moved_ns = now_ns + 5 * SECOND
    way.topology.placements = {
        "one": placed(
            {
                old: (Shard(0, "leaving", cutoff_ns=moved_ns), 1, 2, 3),
                new: (Shard(0, "initializing", cutover_ns=moved_ns),),
            }
        )
    }
    way.topology.say(topic(service("one", "replicated")))
    way.run(1)
    way.publish(b"before", routes=[0])
    way.run(6)
    way.publish(b"after", b"elsewhere", routes=[0, 1])
    way.run(2)
    assert (set(old.got), set(new.got)) == ({b"before", b"elsewhere"}, {b"after"})
    counts = way.counts("one")
    assert counts.untimely == 2


@pytest.mark.parametrize(("draw", "expected"), [(0.0, [30, 60, 120, 120]), (0.999999, [60, 120, 120, 120])])
def test_m3msg_case_24_pauses_double_up_to_the_longest_half_of_them_by_chance(draw: float, expected: list[int]) -> None:
    retry = Retry(60 * SECOND, 120 * SECOND, Draw(draw))
    assert [round(retry.after_ns(attempt) / SECOND) for attempt in (1, 2, 3, 4)] == expected
    listed = Retry(1, 0, Draw(draw), pauses_ns=[60, 10, 5])
    assert [listed.after_ns(attempt) for attempt in (1, 2, 3, 4)] == [60, 10, 5, 5]


def test_m3msg_case_25_replicas_have_shards_of_their_own() -> None:
    way = Way()
    one, two, three = way.consumer(), way.consumer(), way.consumer()
    way.topology.placements = {"r": placed({one: [1], two: [1]})}
    way.topology.say(topic(service("r", "replicated"), shards=200))
    way.run()
    way.publish(b"a", routes=[1])
    way.run()
    assert sorted((one.shards[b"a"], two.shards[b"a"])) == [1, 201]
    kept = two.shards[b"a"]
    way.topology.place("r", placed({two: [1], three: [1]}))
    way.run()
    way.publish(b"b", routes=[1])
    way.run()
    assert (two.shards[b"b"], three.shards[b"b"]) == (kept, 202 - kept)
    four, five = way.consumer(), way.consumer()
    way.topology.place("r", placed({two: [1], three: [1], four: [1], five: [1]}))
    way.run()
    way.publish(b"c", routes=[1])
    way.run()
    assert sorted((four.shards[b"c"], five.shards[b"c"])) == [401, 601]


@pytest.mark.parametrize("again", [False, True])
def test_replicas_share_the_four_connections_to_an_instance(again: bool) -> None:
    way = Way()
    one, two = way.consumer(), way.consumer()
    # The first owner of shards 2 and 3 is the second one of shards 0 and 1.
    way.topology.placements = {"r": placed({one: [0, 1], two: ALL})}
    way.topology.say(topic(service("r", "replicated")))
    way.run()
    assert (len(one.sessions), len(two.sessions)) == (4, 4)
    assert len(list(way.service("r").connections)) == 8
    if again:
        for session in list(two.sessions):
            session.hang_up()
        way.until(lambda: len(two.sessions) == 4)
    bodies = [b"%d" % number for number in range(80)]
    way.publish(*bodies, routes=[number % 4 for number in range(80)])
    way.run(2)
    assert (one.got, two.got) == (once([each for each in bodies if int(each) % 4 < 2]), once(bodies))
    assert {two.shards[each] for each in bodies} == {2, 3, 4, 5}
    counts = way.counts("r")
    assert (counts.acked, counts.unknown) == (120, 0)
    assert {each.depth() + each.in_flight() for each in way.topic.subscriptions.values()} == {0}
    # What one replica needs no more, the other one keeps.
    way.topology.place("r", placed({one: [0, 1], two: [2, 3]}))
    way.run()
    assert (len(one.sessions), len(two.sessions)) == (4, 4)
    way.publish(b"last", routes=[3])
    way.run()
    assert two.got[b"last"] == 1
    way.topology.place("r", placed({one: ALL}))
    way.run()
    assert (len(one.sessions), len(two.sessions)) == (4, 0)


def test_m3msg_case_26_what_waits_for_a_replica_goes_to_the_instance_that_takes_its_place_also_after_a_kill() -> None:
    way = Way()
    one, two, three = way.consumer(), way.consumer(), way.consumer()
    way.topology.placements = {"r": placed({one: ALL, three: ALL})}
    way.topology.say(topic(service("r", "replicated")))
    way.run()
    three.die()
    way.publish(*BODIES[:40], keys=KEYS[:40])
    way.run()
    assert one.got == once(BODIES[:40])
    way.topology.place("r", placed({one: ALL, two: ALL}))
    two.acks = False
    way.run()
    way.restart()
    two.acks = True
    way.until(lambda: all(each.depth() == 0 for each in way.topic.subscriptions.values()))
    assert set(two.got) == set(BODIES[:40])
    assert one.got == once(BODIES[:40])


@pytest.mark.parametrize("sharded", [True, False])
def test_m3msg_case_27_of_two_instances_the_one_that_does_not_read_holds_nothing_up(
    sharded: bool,
) -> None:
    way = Way()
    slow, fast = way.consumer(), way.consumer()
    way.topology.placements = {"one": placed({slow: ALL, fast: ALL}, sharded=sharded)}
    way.topology.say(topic(service("one")))
    way.run()
    full = [each for each in way.service("one").connections if each.link.address[1] == slow.port]
    for connection in full:
        connection.link.pause_writing()
    way.publish(*BODIES, keys=KEYS)
    way.run(1)
    assert (fast.got, slow.got) == (once(BODIES), once([]))
    # Where nobody reads, whoever does first gets what waits; who does not is hung up on after the write timeout.
    for connection in way.service("one").connections:
        connection.link.pause_writing()
    way.publish(b"late")
    way.run(3)
    assert fast.got[b"late"] + slow.got[b"late"] == 0
    way.until(lambda: fast.got[b"late"] + slow.got[b"late"] == 1)
    assert way.counts("one").resets >= 4


def test_m3msg_case_28_a_service_that_leaves_a_topic_of_a_node_gets_what_was_stored_before_if_asked_for() -> None:
    way = Way()
    one = way.consumer()
    way.topology.placements = {"one": placed({one: ALL})}
    for graceful in (True, False):
        way.relay._way.be_graceful(graceful)
        one.acks, one.got = False, once([])
        way.topology.say(topic(service("one")))
        way.run()
        way.publish(b"before")
        way.run()
        way.topology.say(topic())
        way.run(3)
        assert ("m3msg.one" in way.topic.subscriptions) == graceful
        way.publish(b"after")
        one.acks = True
        way.until(lambda: "m3msg.one" not in way.topic.subscriptions)
        assert (one.got[b"before"] >= 1, one.got[b"after"], one.sessions) == (True, 0, [])


@pytest.mark.parametrize(("value", "says"), [(b"", False), (b"\x08\x01", True), (b"\x08\x00", False)])
def test_a_flag_in_etcd_is_a_message_with_one_field(value: bytes, says: bool) -> None:
    assert flag(value) is says


def test_a_service_that_comes_back_before_it_has_gone_stays() -> None:
    way = Way()
    one = way.consumer()
    one.acks = False
    way.relay._way.be_graceful(True)
    way.topology.placements = {"one": placed({one: ALL})}
    way.topology.say(topic(service("one")))
    way.run()
    way.publish(b"before")
    way.run()
    way.topology.say(topic())
    way.run(3)
    way.publish(b"meanwhile")
    way.run()
    assert set(one.got) == {b"before"}
    way.topology.say(topic(service("one")))
    one.acks = True
    way.until(lambda: way.counts("one").acked == 2)
    way.run(3)
    assert "m3msg.one" in way.topic.subscriptions
    assert one.got[b"meanwhile"] == 1


def test_m3msg_case_29_a_replicated_service_needs_a_placement_with_shards() -> None:
    way = Way()
    one = way.consumer()
    way.topology.placements = {"r": placed({one: ()}, sharded=False)}
    way.topology.say(topic(service("r", "replicated")))
    way.run()
    assert not one.sessions
    way.topology.place("r", placed({one: ALL}))
    way.run()
    assert len(one.sessions) == 4


@pytest.mark.parametrize("sharded", [True, False])
def test_m3msg_case_30_a_shared_service_gets_every_message(sharded: bool) -> None:
    way = Way()
    one, two = way.consumer(), way.consumer()
    owners = {one: (0, 1), two: (2, 3)} if sharded else {one: (), two: ()}
    way.topology.placements = {"one": placed(owners, sharded=sharded)}
    way.topology.say(topic(service("one")))
    way.run()
    way.publish(*BODIES, keys=KEYS)
    way.run(2)
    assert one.got + two.got == once(BODIES)
    if sharded:
        went = one.shards | two.shards
        assert [went[body] for body in BODIES] == [shard_of(key or b"", 4) for key in KEYS]
        assert set(one.shards.values()) <= {0, 1}


def test_m3msg_case_31_a_replicated_service_gets_every_message_as_often_as_it_has_owners() -> None:
    way = Way()
    consumers = [way.consumer() for _ in range(3)]
    one, two, three = consumers
    way.topology.placements = {"r": placed({one: [0, 1, 2], two: [1, 2, 3], three: [3, 0]})}
    way.topology.say(topic(service("r", "replicated")))
    way.run()
    way.publish(*BODIES, keys=KEYS)
    way.run(2)
    assert one.got + two.got + three.got == once(BODIES + BODIES)


def test_m3msg_case_32_nothing_is_lost_when_an_instance_dies() -> None:
    way = Way()
    one, two = way.consumer(), way.consumer()
    way.topology.placements = {"one": placed({one: ALL, two: ALL})}
    way.topology.say(topic(service("one")))
    way.run()
    for number in range(20):
        way.publish(*BODIES[10 * number : 10 * number + 10])
        if number == 2:
            one.acks = False
        if number == 4:
            one.die()
    found = way.topic.subscription("m3msg.one")
    way.until(lambda: found.depth() == 0 and found.in_flight() == 0)
    assert set(one.got) | set(two.got) == set(BODIES)
    assert set(two.got) >= set(BODIES[50:])


def test_m3msg_case_33_nothing_is_lost_when_connections_break() -> None:
    way = Way()
    one = way.consumer()
    way.topology.placements = {"one": placed({one: ALL})}
    way.topology.say(topic(service("one")))
    way.run()
    for number in range(20):
        way.publish(*BODIES[10 * number : 10 * number + 10], keys=KEYS[:10])
        if number % 5 == 0:
            for session in list(one.sessions)[:2]:
                session.hang_up()
    way.until(lambda: way.counts("one").acked >= 200)
    assert set(one.got) == set(BODIES)


def test_m3msg_case_34_instances_come_go_and_replace_each_other_and_nothing_is_lost() -> None:
    way = Way()
    one, two, three = way.consumer(), way.consumer(), way.consumer()
    places = [{one: ALL}, {one: [0, 1], two: [2, 3]}, {two: ALL}, {three: ALL}]
    way.topology.placements = {"one": placed(places[0])}
    way.topology.say(topic(service("one")))
    way.run()
    for number in range(20):
        way.publish(*BODIES[10 * number : 10 * number + 10], keys=KEYS[:10])
        if number % 5 == 4:
            way.topology.place("one", placed(places[number // 5]))
    way.until(lambda: way.counts("one").acked >= 200)
    assert set(one.got) | set(two.got) | set(three.got) == set(BODIES)


def test_m3msg_case_35_a_service_that_goes_keeps_nothing_and_one_that_comes_begins_now() -> None:
    way = Way()
    one, two = way.consumer(), way.consumer()
    two.acks = False
    way.topology.placements = {"one": placed({one: ALL}), "two": placed({two: ALL})}
    way.topology.say(topic(service("one"), service("two")))
    way.run()
    way.publish(*BODIES[:100])
    way.topology.say(topic(service("one")))
    way.run()
    assert list(way.topic.subscriptions) == ["m3msg.one"]
    assert not two.sessions
    assert one.got == once(BODIES[:100])
    three = way.consumer()
    way.topology.placements["three"] = placed({three: ALL})
    way.topology.say(topic(service("one"), service("three")))
    way.run()
    way.publish(*BODIES[100:])
    way.run()
    assert three.got == once(BODIES[100:])


def test_a_service_takes_the_traffic_types_that_its_topic_says() -> None:
    way = Way()
    way.site.node.catalog.set_mapping({"production": 0, "staging": 1}).now()
    one = way.consumer()
    way.topology.placements = {"one": placed({one: ALL})}
    way.topology.say(topic(service("one", filters=Filters(routing=RoutingFilter(("production",), False)))))
    way.run()
    rows = Rows.of([b"p", b"s", b"none"], "test", {"traffic": [1, 2, None]})
    way.topic.publish(rows, way, lambda _, error: None)
    way.run()
    assert one.got == once([b"p"])


def test_filters_of_a_topic_replace_those_of_a_subscription_and_without_any_those_stay() -> None:
    way = Way()
    one = way.consumer()
    way.topology.placements = {"one": placed({one: ALL})}
    way.topology.say(topic(service("one")))
    way.run()
    found = way.topic.subscription("m3msg.one")
    way.topic.update_subscription("m3msg.one", msgspec.structs.replace(found.settings, shard_set="0..1"))
    way.topology.say(topic(service("one", ttl_ns=60 * SECOND)))
    way.run()
    assert (found.settings.shard_set, found.settings.ttl_ns) == ("0..1", 60 * SECOND)
    said = Filters(percentage=50.0, storage_policies=("10s:2d",))
    way.topology.say(topic(service("one", filters=said)))
    way.run()
    settings = found.settings
    assert (settings.shard_set, settings.percentage, settings.storage_policies) == ("", 0.5, ("10s:2d",))


def test_m3msg_case_37_filters_of_a_topic_replace_those_of_the_file_which_come_back_without_them() -> None:
    static = FilterConfig(topic=NAME, subscription="m3msg.one", allowed_traffic_types=("production",), shard_set="0..9")
    way = Way(msgspec.structs.replace(PLAIN, routing=RoutingConfig(filters=(static,))))
    for answer in declare(way.site.node):
        answer.now()
    way.topology.placements = {name: placed({way.consumer(): ALL}) for name in ("one", "two")}
    way.topology.say(topic(service("one"), service("two")))
    way.run()

    def filters(name: str) -> tuple[object, ...]:
        settings = way.topic.subscription(f"m3msg.{name}").settings
        assert settings.policy == "routed"
        return settings.traffic, settings.shard_set, settings.storage_policies

    production = TrafficSettings(("production",))
    assert filters("one") == (production, "0..9", ())
    said = Filters(storage_policies=("10s:2d",))
    way.topology.say(topic(service("one", filters=said), service("two", filters=said)))
    way.run()
    assert filters("one") == filters("two") == (None, "", ("10s:2d",))
    way.topology.say(topic(service("one", filters=Filters()), service("two", filters=said)))
    way.run()
    assert filters("one") == (None, "", ())
    way.topology.say(topic(service("one"), service("two")))
    way.run()
    assert filters("one") == (production, "0..9", ())
    assert filters("two") == (None, "", ())


def test_m3msg_case_38_a_routing_filter_needs_no_mapping_without_which_its_default_decides() -> None:
    way = Way()
    one, two = way.consumer(), way.consumer()
    way.topology.placements = {"one": placed({one: ALL}), "two": placed({two: ALL})}
    names = ("production",)
    way.topology.say(
        topic(
            service("one", filters=Filters(routing=RoutingFilter(names, is_default=False))),
            service("two", filters=Filters(routing=RoutingFilter(names, is_default=True))),
        )
    )
    way.run()
    way.topic.publish(Rows.of([b"p", b"none"], "test", {"traffic": [1, None]}), way, lambda _, error: None)
    way.run()
    assert (one.got, two.got) == (once([]), once([b"p", b"none"]))


@pytest.mark.parametrize("many", [1, 300])
def test_the_shard_of_a_metric_is_that_of_its_id_whatever_its_producer_says(many: int) -> None:
    way = Way()
    one = way.consumer()
    way.topology.placements = {"one": placed({one: ALL})}
    way.topology.say(topic(service("one")))
    way.run()
    bodies = [b"%d" % number for number in range(many)]
    keys: list[bytes | None] = [b"id %d" % number for number in range(many)]
    way.publish(*bodies, keys=keys, routes=[(shard_of(key or b"", 4) + 1) % 4 for key in keys])
    way.publish(b"without an id", keys=[None], routes=[7])
    way.run()
    assert one.shards == {body: shard_of(key or b"", 4) for body, key in zip(bodies, keys, strict=True)} | {
        b"without an id": 3
    }


def shard_sets(way: Way, **sets: str | None) -> None:
    services = [service(name, filters=Filters(shard_set=said) if said else None) for name, said in sets.items()]
    way.topology.say(topic(*services))
    way.run()


def test_a_shard_set_of_the_topic_takes_the_shards_that_messages_are_sent_to() -> None:
    way = Way()
    one, other = way.consumer(), way.consumer()
    way.topology.placements = {"one": placed({one: ALL}), "other": placed({other: [2, 3]})}
    shard_sets(way, one="0..1", other="2..3")
    way.publish(*BODIES, keys=KEYS)
    way.publish(b"far", b"none", routes=[9, None])
    way.run(3)
    shards = {body: shard_of(key or b"", 4) for body, key in zip(BODIES, KEYS, strict=True)} | {b"far": 1, b"none": 1}
    assert one.got == once([body for body, shard in shards.items() if shard < 2])
    assert other.got == once([body for body, shard in shards.items() if shard >= 2])
    for name, got in (("one", one.got), ("other", other.got)):
        subscription = way.topic.subscription(f"m3msg.{name}")
        # Nobody has these shards, and nothing is kept for them.
        assert (subscription.depth(), subscription.in_flight()) == (0, 0)
        assert subscription.refused == {"shard-set": len(shards) - len(got)}


def test_a_shard_set_that_changes_holds_for_what_is_sent_from_then_on() -> None:
    way = Way()
    one = way.consumer()
    way.topology.placements = {"one": placed({one: ALL})}
    shard_sets(way, one=None)
    way.publish(b"a", b"b", routes=[0, 1])
    way.run()
    shard_sets(way, one="1")
    way.publish(b"c", b"d", routes=[0, 1])
    way.run()
    shard_sets(way, one="0")
    way.publish(b"e", b"f", routes=[0, 1])
    way.run()
    assert one.got == once([b"a", b"b", b"d", b"e"])
    # Somebody's own, where the topic says nothing.
    way.restart()
    shard_sets(way, one=None)
    found = way.topic.subscription("m3msg.one")
    way.topic.update_subscription(found.name, msgspec.structs.replace(found.settings, shard_set="2")).now()
    way.publish(b"g", b"h", routes=[0, 2])
    way.run()
    assert set(one.got) == {b"a", b"b", b"d", b"e", b"h"}


def test_m3msg_case_49_a_connection_that_is_not_read_delays_its_own_shards_only() -> None:
    way = Way()
    one = way.consumer()
    way.topology.placements = {"one": placed({one: ALL})}
    way.topology.say(topic(service("one")))
    way.run()
    connections = list(way.service("one").connections)
    connections[1].link.pause_writing()
    way.publish(*[b"%d" % shard for shard in ALL], routes=[0, 1, 2, 3])
    way.run(0.2)
    assert set(one.got) == {b"0", b"2", b"3"}
    connections[1].link.resume_writing()
    way.run(0.2)
    assert set(one.got) == {b"0", b"1", b"2", b"3"}


def test_who_does_not_read_for_long_is_hung_up_on_and_dialled_again() -> None:
    way = Way()
    one = way.consumer()
    way.topology.placements = {"one": placed({one: ALL})}
    way.topology.say(topic(service("one")))
    way.run()
    connection = next(iter(way.service("one").connections))
    connection.link.pause_writing()
    way.publish(*BODIES, keys=KEYS)
    way.until(lambda: way.counts("one").acked == 200)
    assert one.got == once(BODIES)


def test_acks_that_are_none_break_the_connection_and_lose_nothing() -> None:
    way = Way()
    one = way.consumer()
    way.topology.placements = {"one": placed({one: ALL})}
    way.topology.say(topic(service("one")))
    way.run()
    for session in list(one.sessions):
        session.say(b"\xff\xff\xff\xff")
    way.publish(*BODIES)
    way.until(lambda: way.counts("one").acked == 200)
    assert set(one.got) == set(BODIES)


def test_an_ack_twice_or_of_what_was_never_sent_changes_nothing() -> None:
    from penstock.m3.acks import acks
    from penstock.m3.entries import Metadata, entry

    way = Way()
    one = way.consumer()
    way.topology.placements = {"one": placed({one: ALL})}
    way.topology.say(topic(service("one")))
    way.run()
    way.publish(b"a")
    way.run()
    one.sessions[0].say(acks([[entry(Metadata(0, number)) for number in (1, 1, 77, 2**63, 2**64 - 1)]]).wire)
    way.run()
    way.publish(b"b")
    way.run()
    assert one.got == once([b"a", b"b"])
    counts = way.counts("one")
    assert (counts.acked, counts.unknown) == (2, 5)


def test_an_instance_that_comes_while_the_node_stops_gets_nothing_until_the_next_start() -> None:
    way = Way()
    one = way.consumer()
    one.die()
    two = way.consumer()
    way.topology.placements = {"one": placed({one: ALL})}
    way.topology.say(topic(service("one")))
    way.run()
    way.publish(*BODIES, keys=KEYS)
    finish(way.relay.drain())
    way.site.node.stop()
    one.revive()
    way.topology.place("one", placed({one: [0, 1], two: [2, 3]}))
    way.topology.say(topic(service("one"), service("two")))
    way.run(30)
    assert not one.got
    assert not two.got
    finish(way.relay.close())
    way.site.node.close()
    way.restart()
    way.until(lambda: way.counts("one").acked == 200)
    assert one.got + two.got == once(BODIES)
