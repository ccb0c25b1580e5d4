"""The `buckets` policy, by the numbers of the timeline's acceptance cases where there is one."""

from __future__ import annotations

from functools import partial
from random import Random

import numpy as np
import pytest

from penstock.columns import Column
from penstock.dealing.buckets import of_ids
from penstock.dealing.table import DEALERS, Member, deal
from penstock.dealing.windows import Windows
from penstock.delivery.policies.buckets import Buckets
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.errors import Refusal
from penstock.settings import Dealer, SubscriptionSettings
from tests.delivery.parts import SECOND, Bench
from tests.site import Site

#: The cases of the specification have 12 buckets.
BUCKETS = 12
PREFETCH_NS = 2 * SECOND
MS = 1_000_000


def settings(dealer: Dealer = "simple", prefetch_ns: int = 0, **more: object) -> SubscriptionSettings:
    return SubscriptionSettings(
        policy="buckets",
        dealer=dealer,
        buckets=BUCKETS,
        prefetch_ns=prefetch_ns,
        **more,  # type: ignore[arg-type]
    )


def policy_of(bench: Bench) -> Buckets:
    policy = bench.subscription.chosen_policy
    assert isinstance(policy, Buckets)
    return policy


class Consumer:
    """A consumer of a timeline: it has a name, a rack by its first letter, and leases that survive it."""

    def __init__(self, bench: Bench, name: str, credit: int = 1000) -> None:
        self.bench = bench
        self.got: list[tuple[int, int]] = []
        self.due_ns: list[int] = []
        self.seat = Seat(
            *(bench.subscription, self._deliver, 60 * SECOND, f"timeline/{name}"),
            named=True,
            consumer=name,
            rack=name[0],
        )
        bench.subscription.join(self.seat)
        self.seat.set_credit(credit)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            for offset in delivery.offsets():
                bucket = delivery.batch.row_value("bucket", offset - delivery.batch.first)
                assert isinstance(bucket, int)
                self.got.append((offset + 1, bucket))
            assert delivery.due_ns is not None
            self.due_ns += delivery.due_ns.tolist()

    def taken(self) -> list[int]:
        """Return the buckets of what it got, in the order in which it came."""
        self.bench.pump()
        got, self.got = self.got, []
        return [bucket for _, bucket in got]

    def take(self) -> list[int]:
        return sorted(self.taken())


def put(bench: Bench, *buckets: int | None, due_ns: int | list[int | None] | None = None, taken_ns: int = 0) -> None:
    columns: dict[str, Column] = {"bucket": list(buckets)}
    if due_ns is not None:
        columns["due"] = [due_ns] * len(buckets) if isinstance(due_ns, int) else due_ns
    bench.shard.put([b"x"] * len(buckets), columns, taken_ns)


# --- by the seats that are here ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dealer", DEALERS)
def test_everybody_gets_its_own_also_when_the_first_in_line_has_room_for_all(dealer: Dealer) -> None:
    bench = Bench(settings(dealer))
    consumers = [Consumer(bench, name) for name in ("A1", "A2", "B1", "B2")]
    put(bench, 0, 1, 2, 3, 6, 8, 11)
    assert [one.take() for one in consumers] == [[0, 1, 2], [3], [6, 8], [11]]


def test_what_the_owner_of_a_range_has_no_room_for_waits() -> None:
    bench = Bench(settings("simple"))
    first, second = Consumer(bench, "A1", credit=0), Consumer(bench, "B1")
    put(bench, 0, 1, 7)
    assert (first.take(), second.take()) == ([], [7])
    first.seat.set_credit(10)
    assert first.take() == [0, 1]


@pytest.mark.parametrize("dealer", ["gladiator", "rack"])
def test_what_its_owner_has_no_room_for_goes_to_backups_after_their_own(dealer: Dealer) -> None:
    bench = Bench(settings(dealer))
    first, second = Consumer(bench, "A1", credit=0), Consumer(bench, "B1", credit=4)
    put(bench, 0, 1, 2, 3, 7, 8)
    assert (first.take(), second.taken()) == ([], [7, 8, 0, 1])
    first.seat.set_credit(10)
    assert first.take() == [2, 3]


def test_a_backup_helps_the_nearest_rack_first_and_nobody_of_its_own() -> None:
    bench = Bench(settings("rack"))
    consumers = {name: Consumer(bench, name, credit=0) for name in ("A1", "A2", "B1", "C1")}
    put(bench, *range(BUCKETS))
    consumers["B1"].seat.set_credit(100)
    # Its own, then those of rack A, owner by owner, then those of rack C.
    assert consumers["B1"].taken() == [6, 7, 8, 0, 1, 2, 3, 4, 5, 9, 10, 11]
    consumers["B1"].seat.set_credit(0)
    put(bench, *range(BUCKETS))
    consumers["A1"].seat.set_credit(100)
    table = policy_of(bench).table
    assert consumers["A1"].take() == sorted(np.concatenate(table.work("A1")).tolist())
    assert set(table.work("A1").backups.tolist()).isdisjoint(table.work("A2").own.tolist())


def test_join_and_leave_deal_anew_what_stands_ready_and_touch_no_lease() -> None:
    bench = Bench(settings())
    one = Consumer(bench, "b", credit=2)
    put(bench, 0, 7, 1, 8, 2, 9)
    assert one.take() == [0, 7]
    two = Consumer(bench, "a", credit=2)
    assert two.take() == [1, 2]
    assert [lease.id for lease in one.seat.leases()] == [1, 2]
    two.seat.close(release=True)
    one.seat.set_credit(100)
    assert one.take() == [1, 2, 8, 9]
    assert bench.sums_hold()


def test_a_deal_reads_no_row() -> None:
    bench = Bench(settings("rack"))
    one = Consumer(bench, "A1", credit=0)
    put(bench, *range(BUCKETS))
    one.seat.set_credit(1)
    assert one.take() == [0]
    bench.shard.cold = True
    for name in ("A2", "B1", "B2"):
        Consumer(bench, name, credit=0)
    bench.pump()
    assert len(policy_of(bench).table.members) == 4
    assert policy_of(bench).moves == 9
    assert bench.shard.fetches == []
    bench.shard.cold = False
    two = Consumer(bench, "B3", credit=100)
    assert two.take()


def test_connections_of_one_name_share_and_consumers_of_one_name_are_one() -> None:
    bench = Bench(settings())
    for _ in range(3):
        seat = Seat(bench.subscription, lambda deliveries: None, 60 * SECOND, "host")
        bench.subscription.join(seat)
    assert np.bincount(policy_of(bench).table.primary).tolist() == [4, 4, 4]
    other = Bench(settings())
    for rack in ("a", "b"):
        other.subscription.join(Seat(other.subscription, lambda _: None, 60 * SECOND, "host", consumer="c", rack=rack))
    assert policy_of(other).table.members == (Member("a", "c"),)


def test_whoever_only_looks_gets_what_seats_leave_and_all_where_there_are_none() -> None:
    bench = Bench(settings())
    holder = bench.subscription.holder("sqs")
    found: list[int] = []
    put(bench, 0, 1, 2)
    holder.look(2, 60 * SECOND, lambda deliveries: found.extend(delivery.count for delivery in deliveries))
    bench.pump()
    assert sum(found) == 2
    seat = Consumer(bench, "A1", credit=5)
    put(bench, *range(8))
    holder.look(10, 60 * SECOND, lambda deliveries: found.extend(delivery.count for delivery in deliveries))
    assert len(seat.take()) == 5
    assert sum(found) == 2 + 4


def test_rows_without_a_bucket_have_that_of_their_id_and_numbers_beyond_the_last_begin_anew() -> None:
    bench = Bench(settings())
    names = ("A1", "A2", "B1")
    got: dict[str, list[int]] = {name: [] for name in names}
    for name in names:

        def deliver(deliveries: list[Delivery], mine: list[int] = got[name]) -> None:
            mine.extend(offset for delivery in deliveries for offset in delivery.offsets())

        seat = Seat(bench.subscription, deliver, 60 * SECOND, name, consumer=name)
        bench.subscription.join(seat)
        seat.set_credit(1000)
    bench.shard.put([b"x"] * 300)
    bench.shard.put([b"x"] * 2, {"bucket": [None, BUCKETS + 11]})
    bench.pump()
    expected = [*of_ids(np.arange(1, 302), BUCKETS).tolist(), 11]
    for number, name in enumerate(names):
        assert sorted(got[name]) == [row for row, bucket in enumerate(expected) if bucket // 4 == number]
    assert min(map(len, got.values())) > 90


def test_consumer_that_comes_back_after_a_crash_has_its_leases_and_its_range() -> None:
    bench = Bench(settings())
    consumers = [Consumer(bench, name) for name in "ab"]
    put(bench, 1, 7)
    assert [one.take() for one in consumers] == [[1], [7]]
    bench.crash(flush=False)
    put(bench, 2, 8)
    again = [Consumer(bench, name) for name in "ab"]
    assert [[lease.id for lease in one.seat.leases()] for one in again] == [[1], [2]]
    assert [one.take() for one in again] == [[2], [8]]


def test_another_dealer_or_number_of_buckets_is_put_into_force_at_once() -> None:
    bench = Bench(settings())
    one, two = Consumer(bench, "a", credit=0), Consumer(bench, "b")
    put(bench, 0, 1)
    assert two.take() == []
    bench.subscription.configure(settings("gladiator"))
    assert two.take() == [0, 1]
    put(bench, 2, 3)
    bench.subscription.configure(SubscriptionSettings(policy="buckets", buckets=1))
    one.seat.set_credit(10)
    assert (two.take(), one.take()) == ([], [2, 3])
    bench.subscription.configure(SubscriptionSettings())
    assert bench.subscription.policy.name == "shared"
    for buckets in (0, 65_536):
        with pytest.raises(Refusal, match="choose from 1 to 65535"):
            bench.subscription.configure(SubscriptionSettings(policy="buckets", buckets=buckets))


@pytest.mark.parametrize("dealer", DEALERS)
def test_nothing_is_lost_and_nothing_comes_twice_whoever_comes_and_goes(dealer: Dealer) -> None:
    for seed in range(10):
        random = Random(seed)
        bench = Bench(settings(dealer))
        here: dict[str, Consumer] = {}
        acked: list[int] = []
        for _ in range(60):
            name = random.choice("AB") + random.choice("123")
            act = random.randrange(5)
            if name in here and act == 0:
                here.pop(name).seat.close(release=True)
            elif name not in here:
                here[name] = Consumer(bench, name, credit=random.randrange(1, 20))
            put(bench, *(random.randrange(BUCKETS) for _ in range(random.randrange(1, 9))))
            bench.pump()
            for one in here.values():
                ids = [id_ for id_, _ in one.got]
                one.got = []
                one.seat.ack(ids[::2])
                one.seat.release(ids[1::2])
                acked += ids[::2]
        while bench.subscription.ready() or bench.subscription.in_flight() or bench.cursor.more():
            for one in here.values() or [Consumer(bench, "A9")]:
                bench.pump()
                ids, one.got = [id_ for id_, _ in one.got], []
                one.seat.ack(ids)
                acked += ids
            if not here:
                break
        assert len(acked) == len(set(acked)), seed
        assert sorted(acked) == list(range(1, bench.shard.end + 1)), seed
        assert bench.sums_hold()


# --- by due time ------------------------------------------------------------------------------------------------------


def test_timeline_case_27_what_was_due_first_goes_first_across_buckets_and_batches() -> None:
    bench = Bench(settings())
    now_ns = bench.instant.wall_ns
    one = Consumer(bench, "a", credit=0)
    put(bench, 0, 11, 5, due_ns=[now_ns + 30, now_ns + 10, now_ns + 50])
    put(bench, 11, 0, 7, due_ns=[now_ns + 40, now_ns + 20, now_ns + 10])
    assert one.take() == []
    bench.advance(SECOND)
    bench.cursor.states.arrive(np.arange(6), bench.instant.wall_ns)
    one.seat.set_credit(4)
    assert one.taken() == [11, 7, 0, 0]
    assert one.due_ns == [now_ns + 10, now_ns + 10, now_ns + 20, now_ns + 30]
    one.seat.set_credit(10)
    assert one.taken() == [11, 5]


def test_rows_that_were_due_before_they_came_go_first_and_others_as_they_came() -> None:
    bench = Bench(settings())
    now_ns = bench.instant.wall_ns
    one = Consumer(bench, "a")
    put(bench, 3, 2, 1, 0, due_ns=[None, now_ns - 5, None, now_ns - 7], taken_ns=now_ns)
    assert one.taken() == [0, 2, 3, 1]


def test_row_that_came_back_goes_by_the_time_it_did() -> None:
    bench = Bench(settings())
    one = Consumer(bench, "a", credit=2)
    put(bench, 1, 2, 3, taken_ns=bench.instant.wall_ns)
    assert one.taken() == [1, 2]
    bench.advance(1)
    one.seat.release([1])
    assert one.taken() == [3]
    one.seat.release([2], SECOND)
    bench.advance(SECOND)
    one.seat.set_credit(10)
    assert one.taken() == [1, 2]
    bench.advance(62 * SECOND)
    put(bench, 4, taken_ns=bench.instant.wall_ns - 1)
    assert one.taken() == [4, 1, 2, 3]


def test_recovered_rows_go_by_due_time_as_well() -> None:
    bench = Bench(settings())
    now_ns = bench.instant.wall_ns
    one = Consumer(bench, "a", credit=1)
    put(bench, 3, 2, 1, due_ns=[now_ns - 3, now_ns - 9, now_ns - 6])
    assert one.taken() == [2]
    bench.crash()
    assert Consumer(bench, "b").taken() == [1, 3]


def test_order_of_a_shard_goes_before_due_times() -> None:
    bench = Bench(settings(order="shard"))
    now_ns = bench.instant.wall_ns
    one = Consumer(bench, "a")
    put(bench, 3, 2, 1, due_ns=[now_ns - 3, now_ns - 9, now_ns - 6])
    for bucket in (3, 2, 1):
        assert one.taken() == [bucket]
        one.seat.ack([lease.id for lease in one.seat.leases()])


def test_order_of_keys_is_kept_across_buckets() -> None:
    bench = Bench(settings("gladiator", order="key"))
    now_ns = bench.instant.wall_ns
    consumers = [Consumer(bench, name) for name in "ab"]
    dues: Column = [now_ns - 1, now_ns - 2, now_ns - 3]
    bench.shard.put([b"x"] * 3, {"bucket": [1, 11, 7], "key": [b"k", b"k", b"l"], "due": dues})
    assert [one.taken() for one in consumers] == [[1], [7]]
    consumers[0].seat.ack([1])
    assert [one.taken() for one in consumers] == [[], [11]]


def test_rows_of_a_key_that_go_out_together_go_in_order_whatever_they_were_due_at() -> None:
    bench = Bench(settings(order="key", key_run=10))
    now_ns = bench.instant.wall_ns
    one = Consumer(bench, "a")
    dues: Column = [now_ns - 1, now_ns - 3, now_ns - 2]
    bench.shard.put([b"x"] * 3, {"bucket": [1, 11, 7], "key": [b"k", b"k", b"l"], "due": dues})
    assert one.taken() == [1, 11, 7]


def test_order_of_a_shard_lets_nobody_pass_by_a_row_that_is_somebody_elses() -> None:
    bench = Bench(settings(order="shard"))
    one, two = Consumer(bench, "a", credit=0), Consumer(bench, "b")
    put(bench, 0, 11, 1)
    assert two.take() == []
    one.seat.set_credit(10)
    for consumer, bucket in ((one, 0), (two, 11), (one, 1)):
        assert [one.take(), two.take()] == [[bucket] if consumer is each else [] for each in (one, two)]
        consumer.seat.ack([lease.id for lease in consumer.seat.leases()])


@pytest.mark.parametrize("crash", [False, True])
def test_rows_go_out_a_moment_before_they_are_due_and_their_lease_begins_when_they_are(crash: bool) -> None:
    bench = Bench(settings(prefetch_ns=PREFETCH_NS))
    due_ns = bench.instant.wall_ns + 10 * SECOND
    put(bench, 10, 11, due_ns=due_ns)
    if crash:
        bench.crash(due=(np.array([0, 1]), np.array([due_ns, due_ns])))
    one = Consumer(bench, "a")
    assert one.take() == []
    assert bench.cursor.states.waiting == 2
    assert bench.cursor.states.agenda.next_ns() is None  # the topic announces them
    bench.advance(8 * SECOND - 1)
    assert one.take() == []
    bench.advance(1)
    assert one.take() == [10, 11]
    assert one.due_ns == [due_ns, due_ns]
    ends_ns = bench.instant.monotonic_ns + 2 * SECOND + 60 * SECOND
    assert [lease.ends_ns for lease in one.seat.leases()] == [ends_ns, ends_ns]
    bench.crash(flush=False)
    assert [lease.ends_ns for lease in bench.subscription.named["timeline/a"].leases()] == [ends_ns, ends_ns]
    bench.advance(61 * SECOND)
    assert bench.subscription.in_flight() == 2
    bench.advance(SECOND)
    assert bench.subscription.in_flight() == 0


def test_row_released_for_later_goes_out_a_moment_before_as_well() -> None:
    bench = Bench(settings(prefetch_ns=PREFETCH_NS))
    put(bench, 10)
    one = Consumer(bench, "a")
    assert one.take() == [10]
    assert one.seat.release([1], 10 * SECOND) == []
    bench.advance(7 * SECOND)
    assert one.take() == []
    bench.advance(SECOND)
    assert one.take() == [10]
    assert one.seat.leases()[0].ends_ns == bench.instant.monotonic_ns + 62 * SECOND


def test_lead_that_is_given_up_lets_rows_wait_until_they_are_due() -> None:
    bench = Bench(settings(prefetch_ns=PREFETCH_NS))
    put(bench, 10, due_ns=bench.instant.wall_ns + 10 * SECOND)
    receiver = bench.receiver()
    assert receiver.take() == []
    bench.subscription.configure(SubscriptionSettings())
    assert bench.subscription.policy.name == "shared"
    bench.advance(8 * SECOND)
    assert receiver.take() == []
    bench.advance(2 * SECOND)
    assert receiver.take() == [b"x"]


def test_what_one_subscription_is_given_ahead_of_its_time_others_get_when_it_is_due() -> None:
    site = Site()
    clock = site.machine.clock
    topic = site.node.create_topic("t").now()
    got: list[tuple[str, int]] = []

    def note(name: str, deliveries: list[Delivery]) -> None:
        got.extend([(name, clock.now())] * sum(each.count for each in deliveries))

    for name, chosen in (("ahead", settings(prefetch_ns=PREFETCH_NS)), ("plain", SubscriptionSettings())):
        subscription = topic.create_subscription(name, chosen).now()
        topic.attach(subscription, partial(note, name), holder=f"timeline/{name}").set_credit(10)
    due_ns = clock.now() + 10 * SECOND
    assert site.offer(topic, b"x", b"y", due=[due_ns, due_ns + SECOND], bucket=[7, 8]) == [None]
    ahead, plain = (topic.subscriptions[name] for name in ("ahead", "plain"))
    # Nobody but the topic keeps them while nothing is to be done.
    assert [each.cursors[0].states.agenda.next_ns() for each in (ahead, plain)] == [None, None]
    site.machine.run(9)
    assert [name for name, _ in got] == ["ahead", "ahead"]
    assert [topic.backlog(each).waiting for each in (ahead, plain)] == [0, 2]
    assert sorted(topic.coming(plain, due_ns + 20 * SECOND)[0].tolist()) == [due_ns, due_ns + SECOND]
    site.machine.run(20)
    late_ns = [at_ns - (due_ns + number * SECOND) for number, (_, at_ns) in enumerate(got[2:])]
    assert [name for name, _ in got[2:]] == ["plain", "plain"]
    assert all(0 <= each < SECOND // 100 for each in late_ns)
    assert all(at_ns >= due_ns - PREFETCH_NS for _, at_ns in got[:2])


def test_each_row_that_comes_due_makes_room_for_another_one_ahead_of_its_time() -> None:
    bench = Bench(settings(prefetch_ns=PREFETCH_NS))
    policy_of(bench).ahead_max = lambda: 3
    put(bench, *range(5), due_ns=[bench.instant.wall_ns + (100 + number) * SECOND // 10 for number in range(5)])
    one = Consumer(bench, "a")
    assert one.take() == []
    bench.advance(99 * SECOND // 10)
    assert one.take() == [0, 1, 2]
    bench.advance(SECOND // 10)
    assert one.take() == [3]
    bench.advance(SECOND // 10)
    assert one.take() == [4]


def test_rows_that_could_not_be_leased_do_not_count_as_ahead_of_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(settings(prefetch_ns=PREFETCH_NS))
    policy = policy_of(bench)
    policy.ahead_max = lambda: 5
    one = Consumer(bench, "a")
    due_ns = bench.instant.wall_ns + 10 * SECOND
    put(bench, 1, 2, 3, due_ns=[due_ns, due_ns + SECOND, due_ns + SECOND])
    assert one.take() == []
    bench.advance(8 * SECOND)
    assert one.take() == [1]

    def full(*_: object) -> None:
        raise Refusal("disk_full", "no lease can be noted")

    one.seat.set_credit(0)
    bench.advance(SECOND)
    assert one.take() == []
    one.seat.credit = 2
    with monkeypatch.context() as patched:
        patched.setattr(bench.journal, "append", full)
        with pytest.raises(Refusal, match="no lease can be noted"):
            bench.cursor.take(2, one.seat, 60 * SECOND, bench.instant, 0)
    assert policy.ahead_rows(bench.instant.wall_ns) == 4
    one.seat.set_credit(1000)
    assert one.take() == [2, 3]


def test_without_prefetch_nothing_counts_as_ahead_of_its_time() -> None:
    policy = Buckets()
    policy.ahead_max = lambda: 5
    policy.went_ahead(np.array([SECOND]), 0)  # the clock was set back
    assert policy.ahead_rows(0) == 5


def test_prefetch_comes_in_time_on_a_node_where_nothing_else_happens() -> None:
    site = Site()
    topic = site.node.create_topic("t").now()
    subscription = topic.create_subscription("q", settings(prefetch_ns=PREFETCH_NS)).now()
    got: list[int] = []
    seat = topic.attach(subscription, lambda deliveries: got.append(site.machine.clock.now()), holder="timeline/c1")
    seat.set_credit(10)
    due_ns = site.machine.clock.now() + 10 * SECOND
    assert site.offer(topic, b"x", due=[due_ns], bucket=[77]) == [None]
    site.machine.run(20)
    assert len(got) == 1
    assert 0 <= got[0] - (due_ns - PREFETCH_NS) < SECOND // 100


# --- by tables and windows --------------------------------------------------------------------------------------------


def members(names: str) -> list[Member]:
    return [Member(name[0], name) for name in names.split()]


def test_timeline_case_12_a_rack_lost_within_a_window_is_served_by_the_other_before_the_next_deal() -> None:
    bench = Bench(settings("rack"))
    windows = Windows(1000)
    window = windows.at(bench.instant.wall_ns // MS)
    policy = policy_of(bench)
    policy.use_windows(windows)
    policy.adopt(deal("rack", members("A1 A2 B1 B2"), BUCKETS, window=window))
    consumers = {name: Consumer(bench, name, credit=3) for name in ("A1", "A2", "B1", "B2")}
    put(bench, *[bucket for bucket in range(BUCKETS) for _ in range(10)])
    taken = [id_ for _ in range(2) for one in consumers.values() for id_ in _acked(one)]
    assert len(taken) == 2 * 4 * 3
    for name in ("B1", "B2"):  # what they hold is theirs until its lease ends
        consumers[name].seat.close()
        bench.pump()
    assert policy.table.rack_names() == ["A", "B"]
    held = bench.subscription.in_flight()
    before_ns = bench.instant.wall_ns
    while rest := [id_ for name in ("A1", "A2") for id_ in _acked(consumers[name])]:
        taken += rest
    assert bench.instant.wall_ns == before_ns
    assert bench.subscription.ready() == 0
    assert len(taken) == len(set(taken)) == 10 * BUCKETS - bench.subscription.in_flight()
    assert held >= bench.subscription.in_flight() > 0
    bench.advance(60 * SECOND)
    while rest := [id_ for name in ("A1", "A2") for id_ in _acked(consumers[name])]:
        taken += rest
    assert sorted(taken) == list(range(1, 10 * BUCKETS + 1))


def _acked(one: Consumer) -> list[int]:
    """Return what a consumer got, and finish it."""
    one.bench.pump()
    ids, one.got = [id_ for id_, _ in one.got], []
    one.seat.ack(ids)
    return ids


def test_timeline_case_28_tables_hold_from_their_windows_on_and_nobody_is_served_before() -> None:
    site = Site()
    topic = site.node.create_topic("t").now()
    subscription = topic.create_subscription("q", settings()).now()
    policy = subscription.chosen_policy
    assert isinstance(policy, Buckets)
    windows = Windows(1000)
    policy.use_windows(windows)
    got: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    for name, mine in got.items():

        def deliver(deliveries: list[Delivery], mine: list[tuple[int, int]] = mine) -> None:
            window = windows.at(site.machine.clock.now() // MS)
            mine += [(window, int(delivery.batch.row_value("bucket", row) or 0)) for delivery in deliveries
                     for row in delivery.picks().tolist()]  # fmt: skip

        topic.attach(subscription, deliver, holder=name, consumer=name).set_credit(100)
    assert site.offer(topic, *[b"x"] * BUCKETS, bucket=list(range(BUCKETS))) == [None]
    now = windows.at(site.machine.clock.now() // MS)
    site.machine.run(2)
    assert got == {"a": [], "b": []}
    first = deal("simple", members("a"), BUCKETS, window=now + 5)
    second = deal("simple", members("a b"), BUCKETS, first, window=now + 7)
    for table in (first, second):
        policy.adopt(table)
    subscription.pump()
    site.machine.run(4)
    assert got["a"] == [(now + 5, bucket) for bucket in range(BUCKETS)]
    assert site.offer(topic, b"x", b"x", bucket=[0, 11]) == [None]
    site.machine.run(5)
    late = windows.at(site.machine.clock.now() // MS)
    assert late > now + 8
    assert site.offer(topic, b"x", b"x", bucket=[1, 10]) == [None]
    assert [bucket for _, bucket in got["a"]][BUCKETS:] == [0, 11, 1]
    assert got["b"] == [(late, 10)]
    assert policy.moves == BUCKETS // 2


def test_a_table_of_other_buckets_is_not_taken_in() -> None:
    bench = Bench(settings())
    policy = policy_of(bench)
    policy.use_windows(Windows(1000))
    one = Consumer(bench, "a")
    put(bench, 0, 11)
    assert not policy.adopt(deal("simple", members("a"), 5))  # of a topic of the same name, before it was deleted
    assert one.take() == []
    assert policy.adopt(deal("simple", members("a"), BUCKETS))
    assert one.take() == [0, 11]


def test_other_settings_go_by_the_tables_that_were_given() -> None:
    bench = Bench(settings("rack"))
    policy = policy_of(bench)
    policy.use_windows(Windows(1000))
    policy.adopt(deal("rack", members("A1 B1"), BUCKETS))
    consumers = [Consumer(bench, name) for name in ("A1", "B1", "C1")]
    bench.subscription.configure(settings("rack", PREFETCH_NS))
    assert policy_of(bench) is not policy
    put(bench, 0, 11)
    assert [one.take() for one in consumers] == [[0], [11], []]
    bench.subscription.configure(SubscriptionSettings(policy="buckets", buckets=4))
    put(bench, 0, 3)
    assert [one.take() for one in consumers] == [[], [], []]
    assert policy_of(bench).adopt(deal("simple", members("C1"), 4))
    assert [one.take() for one in consumers] == [[], [], [0, 3]]
