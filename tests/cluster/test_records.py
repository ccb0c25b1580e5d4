"""Who is there, as all brokers know it, and the tables that follow from that."""

from __future__ import annotations

import logging

import pytest

from penstock.clock import MILLISECOND, SECOND
from penstock.cluster.presence import LEASE_KEYS_MAX, RENEW_NS, TTL_NS
from penstock.cluster.records import RETURN_MS_MAX, BrokerRecord, ClientRecord
from penstock.dealing.form import pack
from penstock.dealing.table import Member, Table, deal
from penstock.errors import Refusal
from tests.cluster.brokers import SETTINGS, Broker, World

GONE_S = (TTL_NS + RENEW_NS) / SECOND + 1


@pytest.fixture(params=["near", "far"])
def world(request: pytest.FixtureRequest) -> World:
    return World(is_far=request.param == "far")


def members(broker: Broker, topic: str = "a") -> list[str]:
    entry = broker.overseer.find(topic)
    return [f"{each.id} at {each.broker}" for each in broker.records.members(topic, entry.incarnation)]


def make(world: World, *names: str) -> list[Broker]:
    brokers = [world.broker(name) for name in names]
    world.answered(brokers[0].overseer.create("a", SETTINGS))
    world.run(0.2)
    return brokers


def to(world: World, part: float) -> int:
    """Go on to a part of the next window, and return the number of that."""
    now_ms = world.machine.clock.now() // MILLISECOND
    window = now_ms // 1000 + 1
    world.run((window * 1000 + part * 1000 - now_ms) / 1000)
    return window


def owners(table: Table | None) -> dict[str, int]:
    assert table is not None
    return {member.name: len(table.work(member.name).own) for member in table.members}


def test_consumers_of_all_brokers_are_members_until_they_leave(world: World) -> None:
    one, two = make(world, "one", "two")
    two.join("a", "c2")
    one.join("a", "c1")
    one.join("a", "c3", "rack")
    world.run(0.2)
    assert members(one) == members(two) == ["c1 at one", "c2 at two", "c3 at one"]
    world.answered(one.records.leave("consumer", "a", "c1"))
    world.run(0.2)
    assert members(two) == ["c2 at two", "c3 at one"]


def test_members_of_a_broker_that_died_are_gone_with_its_lease_and_those_of_others_stay(world: World) -> None:
    one, two = make(world, "one", "two")
    one.join("a", "c1")
    two.join("a", "c2")
    one.announce(hostname="h1")
    two.announce(hostname="h2")
    world.run(60)
    assert members(two) == ["c1 at one", "c2 at two"]
    one.kill()
    world.run(GONE_S)
    assert members(two) == ["c2 at two"]
    assert [(each.id, each.state) for each in two.records.brokers()] == [("one", "inactive"), ("two", "healthy")]


def test_a_record_that_cannot_be_read_is_said_once_each_time_it_is_written(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = make(world, "one", "two")
    two.announce()
    two.join("a", "good")
    world.run(0.2)
    keys = one.overseer.keys
    places = [keys.broker("bad"), keys.known_broker("bad"), keys.consumer("a", "bad")]
    for times in (1, 2):
        world.server.propose(dict.fromkeys(places, b"\xc1 garbage")).now()
        for _ in range(3):
            world.run(1)
            for broker in (one, two):
                assert members(broker) == ["good at two"]
                assert [each.id for each in broker.records.brokers()] == ["two"]
        for key in places:
            said = [each for each in caplog.records if each.levelno == logging.ERROR and key in each.getMessage()]
            assert len(said) == 2 * times, "once by each of two brokers"


def test_a_broker_that_does_not_return_is_forgotten_after_a_day_and_one_that_says_goodbye_at_once(world: World) -> None:
    one, two = make(world, "one", "two")
    three = world.broker("three")
    for broker in (one, two, three):
        broker.announce()
    world.run(1)
    world.answered(three.records.depart())
    world.answered(three.overseer.close())
    one.kill()
    world.run(30)
    assert [each.id for each in two.records.brokers()] == ["one", "two"]
    world.machine.scheduler.jump(RETURN_MS_MAX * MILLISECOND)
    world.run(10)
    assert [each.id for each in two.records.brokers()] == ["two"]


def test_a_broker_says_only_what_is_new(world: World) -> None:
    (one,) = make(world, "one")
    one.announce(connections=3)
    world.run(1)
    revision = world.server.revision
    one.announce(connections=3)
    world.run(1)
    assert world.server.revision == revision
    one.announce(connections=4)
    world.run(1)
    assert world.server.revision > revision
    assert [each.connections for each in one.records.brokers()] == [4]


def test_two_brokers_with_one_name_are_told_and_the_first_stays(world: World) -> None:
    one, other = make(world, "one", "one")
    one.announce(hostname="h1")
    world.run(1)
    other.announce(hostname="h2")
    world.run(1)
    assert "another broker calls itself one (at h1)" in other.records.problem
    assert one.records.problem == ""
    assert [each.hostname for each in one.records.brokers()] == ["h1"]
    one.kill()
    world.run(GONE_S)
    other.announce(hostname="h2")
    world.run(1)
    assert other.records.problem == ""
    assert [each.hostname for each in other.records.brokers()] == ["h2"]


def test_a_consumer_that_goes_to_another_broker_is_that_ones(world: World) -> None:
    one, two = make(world, "one", "two")
    one.join("a", "c1")
    world.run(0.2)
    two.join("a", "c1")
    world.run(0.5)
    world.answered(one.records.leave("consumer", "a", "c1"))
    world.run(GONE_S)
    assert members(one) == ["c1 at two"]


def test_clients_of_a_deleted_topic_are_none_of_the_next_with_its_name(world: World) -> None:
    (one,) = make(world, "one")
    one.join("a", "c1")
    world.answered(one.overseer.delete("a"))
    world.until(lambda: not world.keys("deleted"))
    world.answered(one.overseer.create("a", SETTINGS))
    assert members(one) == []


def test_many_clients_hang_on_several_leases_and_outlast_them() -> None:
    world = World(is_far=False)
    (one,) = make(world, "one")
    for number in range(2 * LEASE_KEYS_MAX + 1):
        one.join("a", f"c{number}")
    world.run(60)
    assert len(members(one)) == 2 * LEASE_KEYS_MAX + 1
    hanging = [len(entry.value) for key, entry in world.server.list("lease/").items()]
    assert len(hanging) >= 3


def test_what_a_broker_says_comes_back_after_its_leases_were_lost_and_its_locks_do_not(world: World) -> None:
    one, two = make(world, "one", "two")
    one.join("a", "c1")
    one.announce()
    revision = world.answered(one.overseer.presence.take("lock", b"one"))
    world.run(1)
    for lease in list(world.server._leases.values()):
        lease.end()
    world.run(0.5)
    assert members(two) == []
    assert not one.overseer.presence.holds("lock", revision)
    world.until(lambda: members(two) == ["c1 at one"])
    world.until(lambda: [each.state for each in two.records.brokers()] == ["healthy"])
    assert world.server.get("lock") is None


def test_a_table_is_dealt_at_the_deal_point_for_the_next_window_and_by_one_broker(world: World) -> None:
    one, two = make(world, "one", "two")
    begun: list[int] = []
    two.tables.watch(lambda entry, table: begun.append(two.tables.window(entry.id)))
    first = to(world, 0.2)
    one.join("a", "c1")
    two.join("a", "c2")
    assert to(world, 0.3) == first + 1
    assert owners(one.tables.at_present("a")) == owners(two.tables.at_present("a")) == {"c1": 8, "c2": 8}
    assert begun == [first + 1]
    assert one.tables.written + two.tables.written == 1
    world.run(30)
    assert one.tables.written + two.tables.written == 1, "nobody came or went"


def test_who_joins_after_the_deal_point_serves_one_window_later(world: World) -> None:
    (one,) = make(world, "one")
    to(world, 0.2)
    one.join("a", "c1")
    window = to(world, 0.7)
    one.join("a", "c2")
    world.run(0.6)
    assert (one.tables.window("a"), owners(one.tables.at_present("a"))) == (window + 1, {"c1": 16})
    world.run(1)
    assert (one.tables.window("a"), owners(one.tables.at_present("a"))) == (window + 2, {"c1": 8, "c2": 8})
    assert one.tables.moves == {"a": 8}


def test_the_members_of_a_broker_that_died_are_dealt_to_others_by_another(world: World) -> None:
    one, two = make(world, "one", "two")
    one.join("a", "c1")
    two.join("a", "c2")
    world.run(3)
    one.kill()
    world.run(GONE_S + 3)
    assert owners(two.tables.at_present("a")) == {"c2": 16}


def test_a_broker_that_starts_finds_the_table_and_one_that_cannot_be_read_changes_nothing(world: World) -> None:
    (two,) = make(world, "two")
    two.join("a", "c1")
    world.run(3)
    late = world.broker("late")
    assert owners(late.tables.at_present("a")) == {"c1": 16}
    world.server.propose({"timeline/blue/tables/a": b"garbage"}).now()
    world.run(1)
    assert owners(late.tables.at_present("a")) == {"c1": 16}
    two.join("a", "c2")
    world.run(3)
    assert owners(late.tables.at_present("a")) == {"c1": 8, "c2": 8}


def test_an_operator_clears_what_joins_and_leaves_have_scattered(world: World) -> None:
    (one,) = make(world, "one")
    world.answered(one.overseer.create("r", {**SETTINGS, "dealer": "rack"}))
    for ident in ("c1", "c2", "c3"):
        one.join("r", ident)
    world.run(3)
    world.answered(one.records.leave("consumer", "r", "c1"))
    world.run(3)
    table = one.tables.at_present("r")
    assert table is not None
    assert list(table.work("c2").own) != list(range(8))
    assert world.answered(one.tables.redeal("r"))
    world.run(3)
    table = one.tables.at_present("r")
    assert table is not None
    assert list(table.work("c2").own) == list(range(8))


def test_the_table_goes_with_its_topic(world: World) -> None:
    (one,) = make(world, "one")
    one.join("a", "c1")
    world.run(3)
    world.answered(one.overseer.delete("a"))
    world.run(1)
    assert world.keys("tables") == []
    assert one.tables.at_present("a") is None


def test_records_that_cannot_be_read_are_passed_over(world: World) -> None:
    (one,) = make(world, "one")
    one.join("a", "c1")
    world.server.propose({f"timeline/blue/{what}/x": b"\xc1" for what in ("brokers", "known", "consumers/a")}).now()
    world.run(10)
    assert members(one) == ["c1 at one"]
    assert one.records.brokers() == []
    assert isinstance(BrokerRecord(id="x", life="", since_ms=0).seen("producer").counts, dict)
    assert ClientRecord(id="c", topic="a", incarnation="", broker="b", since_ms=0).weight == 1


def test_a_lock_is_in_one_hand(world: World) -> None:
    one, two = make(world, "one", "two")
    revision = world.answered(one.overseer.presence.take("lock", b"one"))
    world.run(0.2)
    with pytest.raises(Refusal, match="held by one"):
        world.answered(two.overseer.presence.take("lock", b"two"))
    assert one.overseer.presence.holds("lock", revision)
    one.overseer.presence.release("lock")
    assert not one.overseer.presence.holds("lock", revision)
    world.run(0.2)
    assert world.answered(two.overseer.presence.take("lock", b"two")) > revision


def test_a_table_dealt_by_a_clock_that_is_ahead_holds_from_the_next_window_on(world: World) -> None:
    one, two = make(world, "one", "two")
    one.join("a", "c1")
    world.run(3)
    table = one.tables.at_present("a")
    assert table is not None
    ahead = deal("simple", [*table.members, Member("", "c2")], 16, table, table.window + 3600)
    world.server.propose({"timeline/blue/tables/a": pack(ahead)}).now()
    two.join("a", "c2")
    world.run(3)
    assert owners(one.tables.at_present("a")) == owners(two.tables.at_present("a")) == {"c1": 8, "c2": 8}


def test_buckets_are_dealt_although_the_clock_was_set_back_an_hour(world: World) -> None:
    (one,) = make(world, "one")
    to(world, 0.2)
    one.join("a", "c1")
    world.run(0.6)
    world.machine.scheduler.jump(-3600 * SECOND)
    world.run(3)
    assert owners(one.tables.at_present("a")) == {"c1": 16}
    one.join("a", "c2")
    world.run(3)
    assert owners(one.tables.at_present("a")) == {"c1": 8, "c2": 8}
