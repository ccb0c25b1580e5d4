from __future__ import annotations

import numpy as np
import pytest

from penstock.columns import Column
from penstock.delivery.policies import POLICIES
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.settings import SubscriptionSettings
from tests.delivery.parts import SECOND, Bench
from tests.delivery.policies.buckets import SLOTS, Buckets
from tests.site import Site

SETTINGS = SubscriptionSettings(policy="buckets")
PREFETCH_NS = 2 * SECOND


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> Buckets:
    policy = Buckets()
    monkeypatch.setitem(POLICIES, "buckets", lambda settings, key: policy)
    return policy


@pytest.fixture
def bench(policy: Buckets) -> Bench:
    return Bench(SETTINGS)


class Consumer:
    """A consumer of a timeline: it has a name, and leases that survive it."""

    def __init__(self, bench: Bench, name: str, credit: int = 1000) -> None:
        self.bench = bench
        self.buckets: list[int] = []
        self.seat = Seat(bench.subscription, self._deliver, 60 * SECOND, name, named=True)
        bench.subscription.join(self.seat)
        self.seat.set_credit(credit)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            rows = [offset - delivery.batch.first for offset in delivery.offsets()]
            self.buckets += [int(delivery.batch.row_value("bucket", row) or 0) for row in rows]

    def take(self) -> list[int]:
        self.bench.pump()
        taken, self.buckets = self.buckets, []
        return sorted(taken)


def put(bench: Bench, *buckets: int, due_ns: int | None = None) -> None:
    columns: dict[str, Column] = {"bucket": list(buckets)}
    if due_ns is not None:
        columns["due"] = [due_ns] * len(buckets)
    bench.shard.put([b"x"] * len(buckets), columns)


def test_slots_are_dealt_in_ranges_that_differ_by_one_at_most(policy: Buckets, bench: Bench) -> None:
    for count in (1, 2, 3, 7):
        Consumer(bench, f"c{count}")
        Consumer(bench, f"d{count}")
        sizes = np.bincount(policy.table)
        assert sizes.sum() == SLOTS
        assert sizes.max() - sizes.min() <= 1
        assert (np.diff(policy.table) >= 0).all()


def test_everybody_gets_its_own_also_when_the_first_in_line_has_room_for_all(bench: Bench) -> None:
    consumers = [Consumer(bench, name) for name in "abc"]
    put(bench, 0, 1, 21_844, 30_000, 30_001, 65_535)
    assert [one.take() for one in consumers] == [[0, 1, 21_844], [30_000, 30_001], [65_535]]


def test_what_its_owner_has_no_room_for_goes_to_the_others_after_their_own(bench: Bench) -> None:
    first, second = Consumer(bench, "a", credit=0), Consumer(bench, "b", credit=4)
    put(bench, 0, 1, 2, 3, 40_000, 40_001)
    assert (first.take(), second.take()) == ([], [0, 1, 40_000, 40_001])
    first.seat.set_credit(10)
    assert first.take() == [2, 3]


def test_join_and_leave_deal_anew_what_stands_ready_and_touch_no_lease(bench: Bench) -> None:
    one = Consumer(bench, "b", credit=2)
    put(bench, 10, 40_000, 11, 40_001, 12, 40_002)
    assert one.take() == [10, 40_000]
    two = Consumer(bench, "a", credit=2)
    assert two.take() == [11, 12]
    assert [lease.id for lease in one.seat.leases()] == [1, 2]
    two.seat.close(release=True)
    one.seat.set_credit(100)
    assert one.take() == [11, 12, 40_001, 40_002]
    assert bench.sums_hold()


def test_consumer_that_comes_back_after_a_crash_has_its_leases_and_its_range(bench: Bench) -> None:
    consumers = [Consumer(bench, name) for name in "ab"]
    put(bench, 10, 40_000)
    assert [one.take() for one in consumers] == [[10], [40_000]]
    bench.crash(flush=False)
    put(bench, 11, 40_001)
    again = [Consumer(bench, name) for name in "ab"]
    assert [[lease.id for lease in one.seat.leases()] for one in again] == [[1], [2]]
    assert [one.take() for one in again] == [[11], [40_001]]


@pytest.mark.parametrize("crash", [False, True])
def test_rows_go_out_a_moment_before_they_are_due_and_their_lease_begins_when_they_are(
    policy: Buckets, crash: bool
) -> None:
    policy.lead_ns = PREFETCH_NS
    bench = Bench(SETTINGS)
    due_ns = bench.instant.wall_ns + 10 * SECOND
    put(bench, 10, 11, due_ns=due_ns)
    if crash:
        bench.crash(due=(np.array([0, 1]), np.array([due_ns, due_ns])))
    one = Consumer(bench, "a")
    assert one.take() == []
    assert bench.cursor.states.waiting == 2
    assert bench.cursor.states.next_due_ns() == due_ns - PREFETCH_NS
    bench.advance(8 * SECOND - 1)
    assert one.take() == []
    bench.advance(1)
    assert one.take() == [10, 11]
    ends_ns = bench.instant.monotonic_ns + 2 * SECOND + 60 * SECOND
    assert [lease.ends_ns for lease in one.seat.leases()] == [ends_ns, ends_ns]
    bench.crash(flush=False)
    assert [lease.ends_ns for lease in bench.subscription.named["a"].leases()] == [ends_ns, ends_ns]
    bench.advance(61 * SECOND)
    assert bench.subscription.in_flight() == 2
    bench.advance(SECOND)
    assert bench.subscription.in_flight() == 0


def test_row_released_for_later_goes_out_a_moment_before_as_well(policy: Buckets) -> None:
    policy.lead_ns = PREFETCH_NS
    bench = Bench(SETTINGS)
    put(bench, 10)
    one = Consumer(bench, "a")
    assert one.take() == [10]
    assert one.seat.release([1], 10 * SECOND) == []
    bench.advance(7 * SECOND)
    assert one.take() == []
    bench.advance(SECOND)
    assert one.take() == [10]
    assert one.seat.leases()[0].ends_ns == bench.instant.monotonic_ns + 62 * SECOND


def test_lead_that_is_given_up_lets_rows_wait_until_they_are_due(policy: Buckets) -> None:
    policy.lead_ns = PREFETCH_NS
    bench = Bench(SETTINGS)
    put(bench, 10, due_ns=bench.instant.wall_ns + 10 * SECOND)
    receiver = bench.receiver()
    assert receiver.take() == []
    bench.subscription.configure(SubscriptionSettings())
    assert bench.subscription.policy.name == "shared"
    bench.advance(8 * SECOND)
    assert receiver.take() == []
    bench.advance(2 * SECOND)
    assert receiver.take() == [b"x"]


def test_prefetch_comes_in_time_on_a_node_where_nothing_else_happens(policy: Buckets) -> None:
    policy.lead_ns = PREFETCH_NS
    site = Site()
    topic = site.node.create_topic("t").now()
    subscription = topic.create_subscription("q", SETTINGS).now()
    got: list[int] = []
    seat = topic.attach(subscription, lambda deliveries: got.append(site.machine.clock.now()), holder="timeline/c1")
    seat.set_credit(10)
    due_ns = site.machine.clock.now() + 10 * SECOND
    assert site.offer(topic, b"x", due=[due_ns], bucket=[77]) == [None]
    site.machine.run(20)
    assert len(got) == 1
    assert 0 <= got[0] - (due_ns - PREFETCH_NS) < SECOND // 100
