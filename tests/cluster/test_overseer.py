"""How topics of a cluster come and go, with several brokers over one registry, near and far away."""

from __future__ import annotations

import logging
from collections import Counter
from itertools import groupby

import msgspec
import pytest

from penstock.clock import SECOND
from penstock.cluster.denial import Denial
from penstock.cluster.overseer import PROVISION_MS_MAX, SCAN_NS
from penstock.cluster.presence import TTL_NS
from tests.cluster.brokers import SETTINGS, Broker, World, kind_of
from tests.registry.far import Trouble

#: The lock of a broker that died goes, and the next scan finds what it left.
TAKEN_UP_S = (TTL_NS + SCAN_NS) / SECOND + 1


@pytest.fixture(params=["near", "far"])
def world(request: pytest.FixtureRequest) -> World:
    return World(is_far=request.param == "far")


def create(world: World, broker: Broker, ident: str = "a") -> str:
    return world.answered(broker.overseer.create(ident, SETTINGS)).incarnation


def test_a_topic_is_live_for_every_broker_once_its_storage_is_there(world: World) -> None:
    one, two = world.broker("one"), world.broker("two")
    entry = world.answered(one.overseer.create("a", SETTINGS))
    assert (entry.state, entry.master, entry.settings) == ("live", "one", dict(SETTINGS))
    world.run(0.1)
    assert two.overseer.find("a") == entry
    assert (one.told, two.told) == ([("live", "a")], [("live", "a")])
    assert world.store.done == [("one", "provision", entry.incarnation)]
    world.run(1)
    assert world.keys("masters") == []


def test_the_same_settings_find_the_topic_and_others_are_refused(world: World) -> None:
    one, two = world.broker("one"), world.broker("two")
    incarnation = create(world, one)
    world.run(0.1)
    assert create(world, two) == incarnation
    denial = world.denied(two.overseer.create("a", {**SETTINGS, "bucket_count": 17}))
    assert denial.kind == 405
    assert "bucket_count 16, not 17" in str(denial)


def test_of_two_who_make_a_topic_at_once_one_does_and_the_other_hears_so(world: World) -> None:
    one, two = world.broker("one"), world.broker("two")
    answers = [one.overseer.create("a", SETTINGS), two.overseer.create("a", SETTINGS)]
    world.until(lambda: all(answer.is_given for answer in answers))
    outcomes = []
    for answer in answers:
        try:
            outcomes.append(answer.now().incarnation)
        except Denial as denial:
            outcomes.append(str(denial.kind))
    world.run(20)
    live = one.overseer.find("a").incarnation
    assert set(outcomes) <= {live, "402"}
    assert live in outcomes
    assert set(world.store.rows) == {live}


def test_a_topic_that_is_not_there_has_a_kind_for_each_reason(world: World) -> None:
    one, two = world.broker("one"), world.broker("two")
    assert kind_of(one, "a") == 401
    one.fate = ("provision", "before")
    one.overseer.create("a", SETTINGS)
    world.until(lambda: not one.clock.alive)
    world.run(0.1)
    assert kind_of(two, "a") == 402
    assert world.denied(two.overseer.create("a", SETTINGS)).kind == 402
    assert world.denied(two.overseer.delete("a")).kind == 402
    assert world.denied(two.overseer.delete("b")).kind == 401


def test_a_name_is_not_found_by_its_beginning_and_may_hold_slashes(world: World) -> None:
    one = world.broker("one")
    create(world, one, "ab/c")
    assert kind_of(one, "ab/c") == 0
    assert [kind_of(one, ident) for ident in ("a", "ab", "ab/", "ab/c/")] == [401] * 4


@pytest.mark.parametrize("ident", ["", "x" * 1025, "a\tb", "a\x1fb", "\ud800"])
def test_an_id_that_cannot_be_shown_is_refused(world: World, ident: str) -> None:
    assert world.denied(world.broker("one").overseer.create(ident, SETTINGS)).kind == 300


def test_storage_that_cannot_be_made_is_an_error_and_frees_the_name(world: World) -> None:
    one = world.broker("one")
    world.store.fails = True
    denial = world.denied(one.overseer.create("a", SETTINGS))
    assert denial.kind == 100
    assert "the disk is gone" in str(denial)
    assert kind_of(one, "a") == 403
    assert world.keys("topics") == []
    world.store.fails = False
    world.until(lambda: not world.keys("deleted"))
    assert kind_of(one, "a") == 401
    create(world, one)


def test_a_deleted_topic_is_gone_at_once_and_its_name_is_free_while_the_purge_runs(world: World) -> None:
    one, two = world.broker("one"), world.broker("two")
    old = create(world, one)
    world.store.fill(one.overseer.find("a"), 100_000)
    world.run(0.1)
    world.answered(two.overseer.delete("a"))
    assert kind_of(two, "a") == 403
    denial = world.denied(two.overseer.create("a", SETTINGS))
    assert (denial.kind, denial.throttled_ms) == (403, 200)
    world.until(lambda: kind_of(one, "a") == 401)
    assert one.told == [("live", "a"), ("gone", "a")]
    new = create(world, one)
    assert new != old
    assert world.store.rows[new] == 0
    assert world.store.rows[old] > 0, "the purge is over already"
    world.until(lambda: not world.keys("deleted"))
    assert world.store.rows == {new: 0}
    assert one.overseer.find("a").incarnation == new


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_topic_whose_maker_died_becomes_live_by_another(world: World, when: str) -> None:
    one, two = world.broker("one"), world.broker("two")
    one.fate = ("provision", "before" if when == "before" else "after")
    one.overseer.create("a", SETTINGS)
    world.until(lambda: not one.clock.alive)
    world.run(0.1)
    assert kind_of(two, "a") == 402
    assert world.until(lambda: kind_of(two, "a") == 0) <= TAKEN_UP_S
    assert world.store.rows == {two.overseer.find("a").incarnation: 0}


@pytest.mark.parametrize(
    ("what", "when"),
    [("fence", "before"), ("fence", "after"), ("purge 0", "before"), ("purge 3", "after"), ("purge 9", "after")],
)
def test_a_deletion_is_finished_by_another_wherever_its_broker_died(world: World, what: str, when: str) -> None:
    one, two, three = (world.broker(name) for name in ("one", "two", "three"))
    gone = create(world, one)
    world.store.fill(one.overseer.find("a"), 100)
    one.fate = (what, "before" if when == "before" else "after")
    world.answered(one.overseer.delete("a"))
    world.until(lambda: not one.clock.alive)
    world.run(0.1)
    assert two.told == [("live", "a"), ("gone", "a")], "clients are cut off before anybody takes up the rest"
    world.until(lambda: not world.keys("deleted"), TAKEN_UP_S)
    assert world.store.rows == {}
    assert world.keys("fence") == []
    world.run(1)
    assert world.keys("masters") == []
    workers = [broker for broker, _ in groupby(broker for broker, did, inc in world.store.done if inc == gone)]
    assert len(workers) == len(set(workers)), f"they worked at the same time: {world.store.done}"
    assert kind_of(three, "a") == 401


def test_a_topic_that_cannot_be_made_for_a_minute_is_given_up(world: World) -> None:
    one, two = world.broker("one"), world.broker("two")
    one.fate = ("provision", "before")
    one.overseer.create("a", SETTINGS)
    world.until(lambda: not one.clock.alive)
    world.store.fails = True
    world.run(PROVISION_MS_MAX / 1000 - 5)
    assert kind_of(two, "a") == 402
    world.run(15)
    assert kind_of(two, "a") == 403
    world.store.fails = False
    world.until(lambda: not world.keys("deleted"))
    assert kind_of(two, "a") == 401


def test_a_broker_that_is_not_well_takes_nothing_up_and_stops_its_purge(world: World) -> None:
    one, two = world.broker("one"), world.broker("two")
    create(world, one)
    world.store.fill(one.overseer.find("a"), 100_000)
    world.answered(one.overseer.delete("a"))
    world.until(lambda: world.store.done[-1][1].startswith("purge"))
    one.is_well = two.is_well = False
    world.run(1)
    done = len(world.store.done)
    world.run(60)
    assert len(world.store.done) == done
    two.is_well = True
    world.until(lambda: not world.keys("deleted"))
    assert world.store.done[-1][0] == "two"
    assert world.store.rows == {}


def test_entries_that_cannot_be_read_are_said_once_and_hurt_nobody_else(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    one = world.broker("one")
    world.server.propose(
        {
            "timeline/blue/topics/bad": b"\xc1 garbage",
            "timeline/blue/topics/odd": msgspec.msgpack.encode({"id": 3}),
            "timeline/blue/deleted/bad/x": b"",
        }
    ).now()
    with caplog.at_level(logging.ERROR):
        create(world, one, "good")
        world.run(60)
    assert kind_of(one, "good") == 0
    assert kind_of(one, "bad") == kind_of(one, "odd") == 400
    assert [entry.id for entry in one.overseer.topics()] == ["good"]
    assert max(Counter(record.getMessage() for record in caplog.records).values()) == 1


def test_topics_come_and_go_once_however_unreliable_the_registry_is() -> None:
    world = World(is_far=True, trouble=Trouble(refused=0.05, request_lost=0.05, answer_lost=0.1, late=0.05))
    brokers = [world.broker(name) for name in ("one", "two", "three")]
    for number in range(20):
        broker = brokers[number % 3]
        ident = f"t{number % 4}"
        if kind_of(broker, ident) == 0:
            broker.overseer.delete(ident)
        else:
            broker.overseer.create(ident, SETTINGS)
        world.run(2)
    world.run(90)
    live = {entry.incarnation for entry in brokers[0].overseer.topics()}
    assert all(entry.state == "live" for entry in brokers[0].overseer.topics())
    assert world.keys("deleted") == world.keys("fence") == []
    assert set(world.store.rows) == live
