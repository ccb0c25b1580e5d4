from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery.policies import POLICIES
from penstock.delivery.policies.partition_locked import PartitionLocked
from penstock.delivery.policies.partitions import Partitions
from penstock.delivery.source import Delivery
from penstock.errors import Refusal
from penstock.settings import SubscriptionSettings, TopicSettings
from penstock.shown import SPACE, cuts, shown_ids
from tests.delivery.parts import SECOND, Bench
from tests.site import Site

VISIBILITY_NS = 30 * SECOND
AGE_NS = 432_000 * SECOND


@pytest.fixture
def bench() -> Bench:
    bench = Bench(SubscriptionSettings(policy="partition-locked"))
    have(bench, 4, 4)
    return bench


def policy_of(bench: Bench) -> PartitionLocked:
    policy = bench.subscription.policy
    assert isinstance(policy, PartitionLocked)
    return policy


def have(bench: Bench, least: int, most: int, age_ns: int = AGE_NS) -> None:
    policy_of(bench).configure(least, most, VISIBILITY_NS, age_ns, bench.instant.monotonic_ns)


def look(bench: Bench, limit: int = 10, *, is_free: bool = False) -> list[int]:
    """Receive once, as a client of the queue does, and return the ids."""
    got: list[int] = []

    def deliver(deliveries: list[Delivery]) -> None:
        got.extend(offset + 1 for delivery in deliveries for offset in delivery.offsets())

    seat = bench.subscription.holder("queue").look(limit, VISIBILITY_NS, deliver, is_free=is_free)
    bench.pump()
    seat.close()
    if not got and not is_free:
        policy_of(bench).passed(bench.instant.monotonic_ns)
    return got


def lanes(bench: Bench, ids: list[int]) -> set[int]:
    policy = policy_of(bench)
    return set(policy.lanes_of(policy.slots_of(0, None, np.array(ids) - 1)).tolist())


def test_lanes_are_the_ranges_of_shown_ids(bench: Bench) -> None:
    ids = np.arange(1, 100_001)
    lanes_by_range = np.searchsorted(cuts(0, SPACE, 4)[1:-1], shown_ids(ids, bench.incarnation), side="right")
    policy = policy_of(bench)
    assert (policy.lanes_of(policy.slots_of(0, None, ids - 1)) == lanes_by_range).all()
    assert (np.abs(np.bincount(lanes_by_range) - 25_000) < 1_000).all()


def test_each_look_is_one_lane_and_every_lane_is_served_before_any_is_served_twice(bench: Bench) -> None:
    bench.shard.put([b"x"] * 100)
    seen = []
    for _ in range(4):
        seen.append(lanes(bench, look(bench)))
        bench.advance(SECOND)
    assert sorted(seen, key=min) == [{0}, {1}, {2}, {3}]
    assert look(bench) == []
    bench.advance(VISIBILITY_NS // 2)
    assert look(bench) == []
    bench.advance(VISIBILITY_NS)
    assert [lanes(bench, look(bench, 1000)) for _ in range(4)] == seen  # least recently used first
    assert bench.sums_hold()


def test_what_was_served_and_came_back_goes_first_again(bench: Bench) -> None:
    have(bench, 1, 1)
    bench.shard.put([b"x"] * 10)
    assert look(bench, 3) == [1, 2, 3]
    bench.advance(VISIBILITY_NS + SECOND)
    assert look(bench, 5) == [1, 2, 3, 4, 5]
    bench.advance(VISIBILITY_NS + SECOND)
    assert look(bench, 100) == list(range(1, 11))


def test_a_lane_is_still_locked_at_exactly_the_visibility_timeout(bench: Bench) -> None:
    have(bench, 1, 1)
    bench.shard.put([b"x"] * 10)
    assert look(bench, 3) == [1, 2, 3]
    bench.advance(VISIBILITY_NS)
    assert look(bench, 3) == []
    bench.advance(1)
    assert look(bench, 3) == [1, 2, 3]


def test_acking_does_not_unlock_a_lane_and_time_does(bench: Bench) -> None:
    bench.shard.put([b"x"] * 100)
    holder = bench.subscription.holder("queue")
    for _ in range(4):
        assert holder.ack(look(bench, 1000)) == []
    assert bench.subscription.depth() == 0
    bench.shard.put([b"y"] * 20)
    assert look(bench) == []
    opens_ns = policy_of(bench).opens_ns(bench.instant)
    assert opens_ns is not None
    bench.advance(opens_ns - bench.instant.monotonic_ns)
    assert len(look(bench)) > 0


def test_look_that_finds_nothing_locks_nothing(bench: Bench) -> None:
    assert [look(bench) for _ in range(5)] == [[]] * 5
    assert policy_of(bench).opens_ns(bench.instant) is None
    bench.shard.put([b"x"])
    assert look(bench) == [1]
    assert policy_of(bench).opens_ns(bench.instant) is not None


def test_locked_lanes_grow_by_one_at_a_time_and_no_row_is_given_twice(bench: Bench) -> None:
    have(bench, 1, 6)
    bench.advance(AGE_NS + SECOND)
    have(bench, 1, 6)
    bench.shard.put([b"x"] * 200)
    got: list[int] = []
    sizes = []
    for _ in range(30):
        got += look(bench, 10)
        sizes.append(len(policy_of(bench).partitions))
    assert sizes[:2] == [1, 2]
    assert max(sizes) == 6
    assert all(0 <= later - earlier <= 1 for earlier, later in pairwise(sizes))
    assert len(got) == len(set(got)) >= 20
    bench.advance(VISIBILITY_NS + SECOND)
    while more := look(bench, 1000):
        bench.subscription.holder("queue").ack(more)
        bench.advance(VISIBILITY_NS + SECOND)
    assert bench.subscription.counts()["acked"] == 200


def test_growth_reads_nothing_of_the_log(bench: Bench) -> None:
    have(bench, 1, 1)
    have(bench, 1, 2)
    bench.shard.put([b"x"] * 100)
    assert len(look(bench)) == 10
    policy, reads = policy_of(bench), 0
    real = policy.slots_of

    def counted(*args: object) -> object:
        nonlocal reads
        reads += 1
        return real(*args)  # type: ignore[arg-type]

    policy.slots_of = counted  # type: ignore[method-assign, assignment]
    assert len(look(bench)) == 10
    assert (len(policy.partitions), reads) == (2, 0)


def test_of_a_deep_log_no_more_is_sorted_than_looks_need(bench: Bench) -> None:
    for _ in range(500):
        bench.shard.put([b"x"] * 100)
    assert len(look(bench, 5)) == 5
    assert bench.cursor.states.held <= 2 * 4 * 5 + 100


def test_released_rows_stay_in_their_lane_and_a_crash_changes_none(bench: Bench) -> None:
    bench.shard.put([b"x"] * 40)
    ids = look(bench, 3)
    assert bench.subscription.holder("queue").release(ids) == []
    bench.crash()
    have(bench, 4, 4)
    bench.advance(VISIBILITY_NS + SECOND)
    (lane,) = lanes(bench, ids)
    for _ in range(4):
        again = look(bench, 1000)
        if lanes(bench, again) == {lane}:
            assert set(ids) <= set(again)
    assert bench.subscription.in_flight() == 40


def test_after_a_crash_a_lane_whose_rows_are_out_is_locked_until_the_last_of_them_comes_back(bench: Bench) -> None:
    bench.shard.put([b"x"] * 40)
    first = look(bench, 3)
    bench.advance(10 * SECOND)
    second = look(bench, 3)
    bench.crash()
    have(bench, 4, 4)
    locked = lanes(bench, first) | lanes(bench, second)
    assert len(locked) == 2
    for _ in range(2):
        assert not locked & lanes(bench, look(bench, 1))
    assert look(bench) == []
    bench.advance(20 * SECOND + 1)
    assert set(first) <= set(look(bench, 40))
    assert look(bench) == []
    bench.advance(10 * SECOND)
    assert set(second) <= set(look(bench, 40)) | set(look(bench, 40)) | set(look(bench, 40))


def test_a_failed_write_of_leases_gives_the_rows_back_and_locks_nothing(bench: Bench) -> None:
    have(bench, 1, 1)
    bench.shard.put([b"x"] * 10)
    failures: list[Exception] = []
    bench.failed = lambda seat, failure: failures.append(failure)  # type: ignore[method-assign]
    append = bench.journal.append

    def broken(entries: object) -> None:
        raise OSError("no disk")

    bench.journal.append = broken  # type: ignore[method-assign]
    assert look(bench, 3) == []
    assert [str(failure) for failure in failures] == ["no disk"]
    assert bench.subscription.in_flight() == 0
    bench.journal.append = append  # type: ignore[method-assign]
    assert look(bench, 3) == [1, 2, 3]
    assert bench.sums_hold()


def test_fewer_lanes_cover_everything_and_inherit_locks(bench: Bench) -> None:
    have(bench, 5, 5)
    bench.shard.put([b"x"] * 100)
    got = look(bench, 100)
    have(bench, 1, 2)
    assert len(policy_of(bench).partitions) == 2
    rest = look(bench, 100)
    assert not lanes(bench, rest) & lanes(bench, got)
    assert look(bench, 100) == []
    bench.advance(VISIBILITY_NS + SECOND)
    assert sorted(look(bench, 100) + look(bench, 100)) == list(range(1, 101))


def test_lanes_nobody_looks_into_go(bench: Bench) -> None:
    have(bench, 1, 1)
    have(bench, 6, 6)
    have(bench, 1, 6, 10 * SECOND)
    for _ in range(20):  # each is looked into at least once in ten seconds
        bench.advance(SECOND)
        look(bench)
        have(bench, 1, 6, 10 * SECOND)
    assert len(policy_of(bench).partitions) == 6
    bench.advance(11 * SECOND)
    have(bench, 1, 6, 10 * SECOND)
    assert len(policy_of(bench).partitions) == 1


@given(before=st.integers(1, 60), after=st.integers(1, 60), data=st.data())
def test_a_merged_partition_is_as_locked_as_those_it_overlaps(before: int, after: int, data: st.DataObject) -> None:
    partitions = Partitions(1)
    partitions.configure(before, before, VISIBILITY_NS, AGE_NS, 0)
    used = data.draw(st.lists(st.integers(0, before - 1), max_size=10))
    for number in used:
        partitions.served(number, SECOND)
    partitions.configure(after, after, VISIBILITY_NS, AGE_NS, 2 * SECOND)
    free = partitions.free(3 * SECOND)
    assert len(partitions) == after
    if after < before:
        for number in range(after):
            overlaps = [
                o for o in range(before) if o * after < (number + 1) * before and (o + 1) * after > number * before
            ]
            assert free[number] == (not set(overlaps) & set(used))


def test_remove_tells_what_was_there() -> None:
    bench = Bench(SubscriptionSettings(policy="partition-locked"))
    have(bench, 1, 1)
    bench.shard.put([b"x"] * 10)
    bench.shard.hole(5)
    bench.shard.put([b"y"] * 5)
    assert bench.subscription.remove([12, 16, 17, 3, 3, 99, 0, -4]).tolist() == [3, 16, 17]
    assert look(bench, 4) == [1, 2, 4, 5]
    assert bench.subscription.unfinished([1, 2, 3, 6, 16, 18]).tolist() == [1, 2, 6, 18]
    assert bench.subscription.remove(np.array([1, 3, 6, 16, 20])).tolist() == [1, 6, 20]
    assert bench.subscription.holder("queue").in_flight == 3
    bench.advance(VISIBILITY_NS + SECOND)
    assert look(bench, 100) == [2, 4, 5, 7, 8, 9, 10, 18, 19]
    assert bench.sums_hold()


def test_waiting_look_gets_its_row_when_the_lock_ends_and_nothing_else_happens() -> None:
    site = Site()
    topic = site.node.create_topic("t", TopicSettings(shards=2)).now()
    subscription = topic.create_subscription("q", SubscriptionSettings(policy="partition-locked")).now()
    policy = subscription.chosen_policy
    assert isinstance(policy, PartitionLocked)
    policy.configure(1, 1, 20 * SECOND, AGE_NS, site.machine.clock.monotonic())
    site.publish(topic, b"one", b"two")
    got: list[int] = []
    holder = subscription.holder("queue")
    holder.look(1, 20 * SECOND, lambda deliveries: got.append(1))
    site.machine.run()
    holder.ack([lease.id for lease in holder.leases()])
    holder.look(1, 20 * SECOND, lambda deliveries: got.append(2))
    site.machine.run(15)
    assert got == [1]
    site.machine.run(6)
    assert got == [1, 2]


def test_policy_that_is_not_there_is_refused_and_nothing_is_made() -> None:
    assert sorted(POLICIES) == ["buckets", "fair", "in-order", "partition-locked", "routed", "shared"]
    site = Site()
    topic = site.node.create_topic("t").now()
    with pytest.raises(Refusal, match="there is no policy 'luck'; choose one of shared"):
        topic.create_subscription("q", SubscriptionSettings(policy="luck")).now()
    assert topic.subscriptions == {}
    topic.create_subscription("q").now()
    with pytest.raises(Refusal, match="there is no policy 'luck'"):
        topic.update_subscription("q", SubscriptionSettings(policy="luck")).now()
    assert topic.subscription("q").settings.policy == "shared"


def test_a_free_look_takes_from_all_lanes_the_oldest_first_and_locks_none(bench: Bench) -> None:
    bench.shard.put([b"x"] * 100)
    locked = look(bench, 5)
    assert len(lanes(bench, locked)) == 1
    free = look(bench, 50, is_free=True)
    assert len(free) == 50
    assert not set(free) & set(locked)
    assert len(lanes(bench, free)) > 1
    assert min(free) == min(set(range(1, 101)) - set(locked))
    assert len(policy_of(bench).partitions) == 4
    assert not lanes(bench, look(bench, 1)) & lanes(bench, locked)
    assert len(look(bench, 100, is_free=True)) == 44
    assert look(bench, 1, is_free=True) == []


def test_what_a_free_look_had_locks_no_lane_for_longer_than_a_lock_lasts() -> None:
    policy = PartitionLocked(1)
    policy.recovered(0, np.arange(100), np.full(100, 1000 * SECOND))
    assert not policy.partitions.free(999 * SECOND).any()
    policy.configure(4, 4, VISIBILITY_NS, AGE_NS, 10 * SECOND)
    assert not policy.partitions.free(40 * SECOND).any()
    assert policy.partitions.free(40 * SECOND + 1).all()
