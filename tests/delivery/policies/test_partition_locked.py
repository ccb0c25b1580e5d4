from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from penstock.delivery.policies import POLICIES
from penstock.delivery.source import Delivery
from penstock.errors import Refusal
from penstock.settings import SubscriptionSettings, TopicSettings
from tests.delivery.parts import SECOND, Bench
from tests.delivery.policies.partition_locked import PartitionLocked, shown_ids
from tests.site import Site

VISIBILITY_NS = 30 * SECOND


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> PartitionLocked:
    policy = PartitionLocked(least=4, most=4)
    monkeypatch.setitem(POLICIES, "partition-locked", lambda settings: policy)
    return policy


@pytest.fixture
def bench(policy: PartitionLocked) -> Bench:
    return Bench(SubscriptionSettings(policy="partition-locked"))


def look(bench: Bench, limit: int = 10) -> list[int]:
    """Receive once, as a client of the queue does, and return the ids."""
    got: list[int] = []

    def deliver(deliveries: list[Delivery]) -> None:
        got.extend(offset + 1 for delivery in deliveries for offset in delivery.offsets())

    seat = bench.subscription.holder("dynamiq/n1").look(limit, VISIBILITY_NS, deliver)
    bench.pump()
    seat.close()
    return got


def lanes(policy: PartitionLocked, ids: list[int]) -> set[int]:
    slots = (shown_ids(np.array(ids), 0x5DEECE66D) >> 32).astype(np.int32)
    return set(policy.lanes_of(slots).tolist())


def test_shown_ids_are_all_different_and_spread_over_the_lanes(policy: PartitionLocked) -> None:
    ids = shown_ids(np.arange(1, 100_001), 7)
    assert len(np.unique(ids)) == 100_000
    assert ids.min() >= 0
    counts = np.bincount(policy.lanes_of((ids >> 32).astype(np.int32)))
    assert (np.abs(counts - 25_000) < 1_000).all()


def test_each_look_is_one_lane_and_every_lane_is_served_before_any_is_served_twice(
    bench: Bench, policy: PartitionLocked
) -> None:
    bench.shard.put([b"x"] * 100)
    seen = [lanes(policy, look(bench)) for _ in range(4)]
    assert sorted(seen, key=min) == [{0}, {1}, {2}, {3}]
    assert look(bench) == []
    bench.advance(VISIBILITY_NS // 2)
    assert look(bench) == []
    bench.advance(VISIBILITY_NS)
    assert [lanes(policy, look(bench, 1000)) for _ in range(4)] == seen  # least recently used first
    assert bench.sums_hold()


def test_acking_does_not_unlock_a_lane_and_time_does(bench: Bench, policy: PartitionLocked) -> None:
    bench.shard.put([b"x"] * 100)
    holder = bench.subscription.holder("dynamiq/n1")
    for _ in range(4):
        assert holder.ack(look(bench, 1000)) == []
    assert bench.subscription.depth() == 0
    bench.shard.put([b"y"] * 20)
    assert look(bench) == []
    opens_ns = policy.opens_ns(bench.instant)
    assert opens_ns is not None
    bench.advance(opens_ns - bench.instant.monotonic_ns)
    assert len(look(bench)) > 0


def test_look_that_finds_nothing_locks_nothing(bench: Bench, policy: PartitionLocked) -> None:
    assert [look(bench) for _ in range(5)] == [[]] * 5
    assert policy.opens_ns(bench.instant) is None
    bench.shard.put([b"x"])
    assert look(bench) == [1]
    assert policy.opens_ns(bench.instant) is not None


def test_locked_lanes_grow_by_one_at_a_time_and_no_row_is_given_twice(bench: Bench, policy: PartitionLocked) -> None:
    policy.lanes, policy._most = 1, 6
    bench.shard.put([b"x"] * 200)
    got: list[int] = []
    sizes = []
    for _ in range(30):
        got += look(bench, 10)
        sizes.append(policy.lanes)
    assert sizes[:2] == [1, 2]
    assert max(sizes) == 6
    assert all(0 <= later - earlier <= 1 for earlier, later in pairwise(sizes))
    assert len(got) == len(set(got)) >= 20
    bench.advance(VISIBILITY_NS + SECOND)
    while more := look(bench, 1000):
        bench.subscription.holder("dynamiq/n1").ack(more)
        bench.advance(VISIBILITY_NS + SECOND)
    assert bench.subscription.counts()["acked"] == 200


def test_growth_reads_nothing_of_the_log(bench: Bench, policy: PartitionLocked) -> None:
    policy.lanes, policy._most = 1, 2
    bench.shard.put([b"x"] * 100)
    assert len(look(bench)) == 10
    reads = 0
    real = policy.slots_of

    def counted(*args: object) -> object:
        nonlocal reads
        reads += 1
        return real(*args)  # type: ignore[arg-type]

    policy.slots_of = counted  # type: ignore[method-assign, assignment]
    assert len(look(bench)) == 10
    assert (policy.lanes, reads) == (2, 0)


def test_released_rows_stay_in_their_lane_and_a_crash_changes_none(bench: Bench, policy: PartitionLocked) -> None:
    bench.shard.put([b"x"] * 40)
    ids = look(bench, 3)
    assert bench.subscription.holder("dynamiq/n1").release(ids) == []
    bench.crash()
    bench.advance(VISIBILITY_NS + SECOND)
    (lane,) = lanes(policy, ids)
    for _ in range(4):
        again = look(bench, 1000)
        if lanes(policy, again) == {lane}:
            assert set(ids) <= set(again)
    assert bench.subscription.in_flight() == 40


def test_waiting_look_gets_its_row_when_the_lock_ends_and_nothing_else_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(POLICIES, "partition-locked", lambda settings: PartitionLocked(1, 1))
    site = Site()
    topic = site.node.create_topic("t", TopicSettings(shards=2)).now()
    subscription = topic.create_subscription("q", SubscriptionSettings(policy="partition-locked")).now()
    assert subscription.policy.name == "partition-locked"
    site.publish(topic, b"one", b"two")
    got: list[int] = []
    holder = subscription.holder("dynamiq/n1")
    holder.look(1, 20 * SECOND, lambda deliveries: got.append(1))
    site.machine.run()
    holder.ack([lease.id for lease in holder.leases()])
    holder.look(1, 20 * SECOND, lambda deliveries: got.append(2))
    site.machine.run(15)
    assert got == [1]
    site.machine.run(6)
    assert got == [1, 2]


def test_policy_that_is_not_there_is_refused_and_nothing_is_made() -> None:
    site = Site()
    topic = site.node.create_topic("t").now()
    with pytest.raises(Refusal, match="there is no policy 'luck'; choose one of shared"):
        topic.create_subscription("q", SubscriptionSettings(policy="luck")).now()
    assert topic.subscriptions == {}
    topic.create_subscription("q").now()
    with pytest.raises(Refusal, match="there is no policy 'luck'"):
        topic.update_subscription("q", SubscriptionSettings(policy="luck")).now()
    assert topic.subscription("q").settings.policy == "shared"
