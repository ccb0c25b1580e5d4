"""Rows of a key delay no other: lanes take turns, whatever stands in them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.columns import Column
from penstock.delivery.policies import fair
from penstock.delivery.source import Delivery
from penstock.settings import SubscriptionSettings
from tests.delivery.parts import SECOND, Bench
from tests.site import Site

LEASE_NS = 30 * SECOND


@pytest.fixture
def bench() -> Bench:
    return Bench(SubscriptionSettings(policy="fair"))


def put(bench: Bench, key: bytes | None, count: int, *, rows: int = 100) -> None:
    """Store rows of a key, some in a batch."""
    for _ in range(0, count, rows):
        bench.shard.put([key or b"none"] * rows, {"key": [key] * rows})


def look(bench: Bench, limit: int = 10) -> list[bytes]:
    """Receive once and return the keys."""
    got: list[bytes] = []

    def deliver(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            got.extend(delivery.batch.row_body(row) for _, _, row in delivery.each())

    seat = bench.subscription.holder("queue").look(limit, LEASE_NS, deliver)
    bench.pump()
    seat.close()
    return got


def test_a_key_behind_ten_thousand_rows_of_another_has_its_turn_at_once(bench: Bench) -> None:
    put(bench, b"noisy", 10_000, rows=1000)
    put(bench, b"quiet", 10, rows=10)
    assert sorted([*look(bench), *look(bench)]) == [b"noisy"] * 10 + [b"quiet"] * 10


def test_a_key_far_behind_is_found_while_others_are_handed_out(bench: Bench) -> None:
    put(bench, b"noisy", 100_000, rows=1000)
    put(bench, b"quiet", 10, rows=10)
    seen = [look(bench) for _ in range(60)]
    assert [b"quiet"] * 10 in seen
    assert all(len(each) == 10 for each in seen)  # nobody waited for that


def test_a_key_that_comes_later_does_not_wait_for_those_that_are_there(bench: Bench) -> None:
    put(bench, b"noisy", 10_000, rows=1000)
    for _ in range(5):
        assert look(bench) == [b"noisy"] * 10
    put(bench, b"quiet", 10, rows=10)
    assert look(bench) == [b"quiet"] * 10


def test_lanes_take_turns_and_rows_without_a_key_are_one(bench: Bench) -> None:
    for key in (None, b"a", b"b"):
        put(bench, key, 100)
    seen = [look(bench, 5)[0] for _ in range(9)]
    assert all(sorted(seen[at : at + 3]) == [b"a", b"b", b"none"] for at in (0, 3, 6))


def test_a_look_gets_as_many_as_it_may_whatever_their_keys(bench: Bench) -> None:
    for key in (b"a", b"b", b"c"):
        put(bench, key, 2, rows=2)
    assert sorted(look(bench)) == [b"a", b"a", b"b", b"b", b"c", b"c"]


def test_what_comes_back_stands_with_its_key_and_after_a_crash_too(bench: Bench) -> None:
    put(bench, b"a", 100)
    put(bench, b"b", 100)
    look(bench), look(bench)
    bench.crash()
    bench.advance(2 * LEASE_NS)
    assert sorted([*look(bench, 200), *look(bench, 200)]) == [b"a"] * 100 + [b"b"] * 100


def test_a_list_and_an_array_of_keys_have_the_same_lanes() -> None:
    keys: list[bytes | None] = [b"a", None, b"b", b"a", b""]
    listed: Column = list(keys)
    assert fair.lanes(listed).tolist() == fair.lanes(pa.array(keys, pa.binary())).tolist()
    assert fair.lanes(listed)[1] == 0
    assert fair.lanes(pa.array([b"a"], pa.binary())).tolist() == fair.lanes([b"a"]).tolist()


def test_a_subscription_becomes_fair_while_rows_are_out_and_waiting() -> None:
    site = Site()
    topic = site.node.create_topic("t").now()
    site.consume(topic, "s", credit=1)
    site.publish(topic, *[b"x"] * 50)
    site.machine.run(1)
    topic.update_subscription("s", SubscriptionSettings(policy="fair")).now()
    site.publish(topic, *[b"y"] * 50)
    site.seat.set_credit(1000)
    site.machine.run(1)
    assert len(site.consume(topic, "s")) + topic.subscriptions["s"].in_flight() >= 100
