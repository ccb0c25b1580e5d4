"""Subscriptions: who gets what, when it comes again, and what is left after a crash."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pytest

from penstock.delivery.rules import RowTest, Rules
from penstock.errors import Refusal
from penstock.message import Batch, int64s
from penstock.settings import SubscriptionSettings
from tests.delivery.parts import SECOND, Bench, Receiver


@pytest.fixture
def bench() -> Bench:
    return Bench()


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


def test_rows_are_delivered_once_in_order_within_credit(bench: Bench) -> None:
    bench.shard.put(numbered(30))
    first = bench.receiver(credit=20)
    assert first.take() == numbered(20)
    assert first.take() == []
    assert first.ack(first_ids(20)) == []
    assert first.take() == numbered(10, 20)
    assert bench.sums_hold()


def first_ids(count: int, start: int = 1) -> list[int]:
    return list(range(start, start + count))


def test_expired_lease_is_delivered_again(bench: Bench) -> None:
    bench.shard.put([b"hello"])
    first, second = bench.receiver(), bench.receiver()
    assert first.take() == [b"hello"]
    bench.advance(59 * SECOND)
    assert second.take() == []
    bench.advance(SECOND + 20_000_000)
    assert second.take() + first.take() == [b"hello"]
    assert bench.subscription.expired_leases == 1


def test_whoever_waits_gets_what_somebody_else_found_to_be_over(bench: Bench) -> None:
    bench.shard.put([b"hello"])
    first, second = bench.receiver(), bench.receiver()
    assert first.take() == [b"hello"]
    bench.advance(61 * SECOND)  # somebody counts: no tick will find a lease that ended
    bench.is_open = True
    for call in bench.soon:
        call()
    assert [body for _, body, _ in second.got + first.got] == [b"hello"]


def test_attempts_count_every_delivery(bench: Bench) -> None:
    bench.shard.put([b"hello"])
    receiver = bench.receiver()
    for attempt in (1, 2, 3):
        assert receiver.take() == [b"hello"]
        assert receiver.tries == [attempt]
        assert receiver.release(receiver.last) == []


def test_released_row_waits_for_its_delay(bench: Bench) -> None:
    bench.shard.put([b"hello"])
    receiver = bench.receiver()
    receiver.take()
    receiver.release([1], 5 * SECOND)
    assert bench.subscription.waiting() == 1
    bench.advance(5 * SECOND - 1)
    assert receiver.take() == []
    bench.advance(1)
    assert receiver.take() == [b"hello"]


def test_foreign_and_unknown_leases_cannot_be_acked(bench: Bench) -> None:
    bench.shard.put(numbered(2))
    first, second = bench.receiver(credit=1), bench.receiver(credit=1)
    first.take()
    ids = [id_ for id_, _, _ in first.got] or first.last
    assert second.ack(ids) == ids
    assert first.ack([99, -5, 1 << 60]) == [99, -5, 1 << 60]
    assert second.extend(ids) == ids
    assert second.release(ids) == ids
    assert first.ack(ids) == []
    assert first.ack(ids) == ids


def test_duplicate_ids_in_one_run_of_acks_count_once(bench: Bench) -> None:
    bench.shard.put(numbered(50))
    receiver = bench.receiver()
    receiver.take()
    assert receiver.ack([*first_ids(50), *first_ids(50)]) == first_ids(50)
    assert receiver.seat.in_flight == 0


def test_extended_lease_lasts_but_not_for_ever(bench: Bench) -> None:
    bench.shard.put([b"hello"])
    first, second = bench.receiver(lease_ns=60 * SECOND), bench.receiver()
    first.take()
    taken_by_first = bool(first.last)
    holder = first if taken_by_first else second
    for _ in range(14):
        bench.advance(59 * SECOND)
        assert holder.extend([1]) == []
    bench.advance(59 * SECOND)
    holder.extend([1])
    bench.advance(59 * SECOND)
    # 15 minutes after delivery even an extended lease ends.
    assert first.take() + second.take() == [b"hello"]


def test_lease_that_is_extended_for_longer_than_the_longest_lease_lasts_as_long_as_one_may(bench: Bench) -> None:
    bench.shard.put([b"hello"])
    first = bench.receiver(lease_ns=60 * SECOND)
    assert first.take() == [b"hello"]
    assert first.seat.extend([1], 3600 * SECOND) == []
    bench.advance(14 * 60 * SECOND)
    assert first.take() == []
    bench.advance(61 * SECOND)
    assert first.take() == [b"hello"]


def test_what_a_leaving_consumer_held_goes_to_the_others(bench: Bench) -> None:
    bench.shard.put(numbered(20))
    first = bench.receiver()
    assert len(first.take()) == 20
    first.leave()
    second = bench.receiver()
    assert second.take() == numbered(20)
    assert second.tries == [2] * 20


def test_a_row_that_keeps_coming_back_does_not_starve_the_others(bench: Bench) -> None:
    bench.shard.put(numbered(10))
    receiver = bench.receiver(credit=1)
    seen: set[bytes] = set()
    for _ in range(40):
        for body in receiver.take():
            seen.add(body)
            if body == b"0":
                receiver.release(receiver.last)
            else:
                receiver.ack(receiver.last)
    assert seen == set(numbered(10))


def test_competing_consumers_share_the_rows(bench: Bench) -> None:
    receivers = [bench.receiver(credit=5) for _ in range(4)]
    bench.shard.put(numbered(20))
    bench.pump()
    assert sorted(len(receiver.take()) for receiver in receivers) == [5, 5, 5, 5]


def test_rows_not_due_are_held_back_and_never_early(bench: Bench) -> None:
    due = bench.instant.wall_ns + 10 * SECOND
    bench.shard.put(numbered(3), {"due": [None, due, 5]})
    receiver = bench.receiver()
    assert receiver.take() == [b"0", b"2"]
    assert bench.subscription.waiting() == 1
    bench.cursor.states.arrive(np.array([1]), due - 1)
    assert receiver.take() == []
    bench.cursor.states.arrive(np.array([1]), due)
    assert receiver.take() == [b"1"]


def test_old_rows_expire_before_they_are_delivered() -> None:
    bench = Bench(SubscriptionSettings(ttl_ns=SECOND))
    bench.shard.put(numbered(3), taken_ns=bench.instant.wall_ns - 2 * SECOND)
    bench.shard.put(numbered(2, 3), taken_ns=bench.instant.wall_ns)
    receiver = bench.receiver()
    assert receiver.take() == numbered(2, 3)
    receiver.release(receiver.last)
    bench.advance(2 * SECOND)
    assert receiver.take() == []
    assert bench.subscription.counts()["expired"] == 5
    assert bench.sums_hold()


def test_filtered_rows_are_finished_and_counted() -> None:
    def odd(batch: Batch, rows: slice, _: int) -> npt.NDArray[np.bool_]:
        return (
            (int64s(batch.columns["traffic"])[0][rows] & 1) != 0
            if "traffic" in batch.columns
            else np.zeros(rows.stop - rows.start, bool)
        )

    bench = Bench(rules=Rules(RowTest(odd, plain=False)))
    bench.shard.put(numbered(40), {"traffic": [n % 4 for n in range(40)]})
    bench.shard.put(numbered(3))
    receiver = bench.receiver()
    assert receiver.take() == [b"%d" % n for n in range(40) if n % 2]
    assert bench.subscription.counts()["filtered"] == 23
    assert bench.sums_hold()


def test_row_that_failed_too_often_is_buried() -> None:
    bench = Bench(SubscriptionSettings(max_attempts=2))
    bench.shard.put(numbered(2))
    receiver = bench.receiver()
    for _ in range(2):
        receiver.take()
        receiver.release([1])
    assert receiver.take() == []
    assert [rows.tolist() for rows in bench.buried] == [[0]]
    bench.cursor.states.bury(bench.buried[0])
    assert bench.subscription.counts()["dead_lettered"] == 1
    assert bench.sums_hold()


def test_removed_rows_are_not_delivered_whatever_their_state(bench: Bench) -> None:
    bench.shard.put(numbered(40))
    receiver = bench.receiver(credit=10)
    receiver.take()
    bench.subscription.remove([2, 15, 40])
    assert receiver.seat.in_flight == 9
    receiver.seat.set_credit(1000)
    assert receiver.take() == [b"%d" % n for n in range(10, 39) if n != 14]
    assert bench.subscription.counts()["removed"] == 3
    assert bench.sums_hold()


def test_ack_up_to_finishes_everything_before(bench: Bench) -> None:
    bench.shard.put(numbered(40))
    receiver = bench.receiver(credit=10)
    receiver.take()
    bench.subscription.ack_up_to(20)
    assert receiver.seat.in_flight == 0
    assert receiver.take() == numbered(10, 20)
    assert bench.subscription.counts()["acked"] == 20
    assert bench.sums_hold()


def test_nsq_case_24_empty_clears_queue_leases_and_waiting_rows(bench: Bench) -> None:
    bench.shard.put(numbered(40))
    receiver = bench.receiver(credit=25)
    receiver.take()
    receiver.release([25], 100 * SECOND)
    bench.subscription.empty()
    assert (bench.subscription.depth(), bench.subscription.in_flight(), bench.subscription.waiting()) == (0, 0, 0)
    assert receiver.seat.in_flight == 0
    assert receiver.ack([1]) == [1]
    bench.advance(200 * SECOND)
    assert receiver.take() == []


def test_consumers_that_come_and_go_leave_nothing_in_line(bench: Bench) -> None:
    stays = bench.receiver(credit=1)
    for _ in range(100):
        bench.receiver(credit=5).leave()
    assert len(bench.subscription.dealer.line) < 5
    bench.shard.put(numbered(1))
    assert stays.take() == numbered(1)


def test_seek_replays_and_forgets_leases(bench: Bench) -> None:
    bench.shard.put(numbered(20))
    receiver = bench.receiver()
    receiver.take()
    receiver.ack(first_ids(10))
    bench.subscription.seek(0, 5)
    assert receiver.seat.in_flight == 0
    assert receiver.take() == numbered(15, 5)
    assert receiver.tries == [1] * 15
    with pytest.raises(Refusal, match="choose one from 0 to 20"):
        bench.subscription.seek(0, 21)
    with pytest.raises(Refusal):
        bench.subscription.seek(0, -1)


def test_paused_subscription_delivers_nothing() -> None:
    bench = Bench(SubscriptionSettings(paused=True))
    bench.shard.put(numbered(2))
    receiver = bench.receiver()
    assert receiver.take() == []
    assert bench.subscription.depth() == 2


def test_nobody_passes_the_gate_of_a_paused_topic(bench: Bench) -> None:
    bench.shard.put(numbered(20))
    bench.cursor.position.gate = 12
    receiver = bench.receiver()
    assert receiver.take() == numbered(12)
    bench.cursor.position.gate = None
    assert receiver.take() == numbered(8, 12)


def test_holes_are_skipped_and_not_counted(bench: Bench) -> None:
    bench.shard.put(numbered(3))
    bench.shard.hole(1 << 24)
    bench.shard.put(numbered(3, 3))
    receiver = bench.receiver()
    assert receiver.take() == numbered(6)
    receiver.ack(receiver.last)
    bench.crash()
    assert bench.cursor.states.held == 0
    assert bench.subscription.counts()["acked"] == 6


def test_cold_rows_are_fetched_and_delivered_when_they_come(bench: Bench) -> None:
    bench.shard.put(numbered(3))
    bench.shard.cold = True
    receiver = bench.receiver()
    assert receiver.take() == []
    assert receiver.take() == []
    assert len(bench.shard.fetches) == 1
    bench.shard.warm()
    assert bench.woken == 1
    assert receiver.take() == numbered(3)


def test_after_a_crash_acked_rows_stay_away_and_the_others_come(bench: Bench) -> None:
    bench.shard.put(numbered(30))
    receiver = bench.receiver()
    receiver.take()
    receiver.ack([2, 3, 4, 20])
    receiver.release([7])
    bench.crash()
    receiver = bench.receiver()
    got = dict(zip(receiver.take(), receiver.tries, strict=True))
    assert sorted(got) == sorted(b"%d" % n for n in range(30) if n + 1 not in (2, 3, 4, 20))
    assert got[b"6"] == 2
    assert got[b"0"] == 1
    assert bench.sums_hold()


def test_delays_and_attempts_survive_a_crash(bench: Bench) -> None:
    bench.shard.put(numbered(2))
    receiver = bench.receiver()
    receiver.take()
    receiver.release([1], 10 * SECOND)
    receiver.ack([2])
    bench.crash()
    receiver = bench.receiver()
    assert receiver.take() == []
    bench.advance(10 * SECOND)
    assert receiver.take() == [b"0"]
    assert receiver.tries == [2]


def test_session_leases_survive_a_crash_until_their_deadline(bench: Bench) -> None:
    bench.shard.put(numbered(3))
    got: list[int] = []
    bench.subscription.holder("api").look(2, 30 * SECOND, lambda deliveries: got.extend(d.count for d in deliveries))
    bench.pump()
    assert got == [2]
    bench.crash(flush=False)
    receiver = bench.receiver()
    assert receiver.take() == [b"2"]
    holder = bench.subscription.holder("api")
    assert holder.current([(1, 1), (2, 2), (3, 1)]) == [True, False, False]
    assert holder.ack([1]) == []
    bench.advance(31 * SECOND)
    assert receiver.take() == [b"1"]
    assert holder.current([(2, 1)]) == [False]


def test_compacted_journal_says_the_same(bench: Bench) -> None:
    bench.shard.put(numbered(200))
    receiver = bench.receiver(credit=150)
    receiver.take()
    receiver.ack([id_ for id_ in range(1, 101) if id_ % 3])
    receiver.release([120, 121], 50 * SECOND)
    receiver.release([130])
    bench.cursor.flush(bench.instant)
    before = bench.subscription.counts()
    bench.journal.bloated = True
    receiver.ack([140])
    bench.cursor.flush(bench.instant)
    assert bench.journal.compactions == 1
    bench.crash()
    counts = bench.subscription.counts()
    assert counts["acked"] == before["acked"] + 1
    receiver = bench.receiver()
    bodies = receiver.take()
    gone = {id_ - 1 for id_ in range(1, 101) if id_ % 3} | {119, 120, 139}
    assert sorted(bodies) == sorted(b"%d" % n for n in range(200) if n not in gone)
    bench.advance(50 * SECOND)
    assert sorted(receiver.take()) == [b"119", b"120"]
    assert bench.sums_hold()


def test_many_pages_shrink_and_go(bench: Bench) -> None:
    count = 200_000
    bench.shard.put([b"x"] * count)
    receiver = bench.receiver(credit=count)
    assert len(receiver.take()) == count
    keep = {5, 70_000, 140_000}
    assert receiver.ack([id_ for id_ in range(1, count + 1) if id_ not in keep]) == []
    assert len(bench.cursor.states.pages) <= 4
    assert receiver.ack([5]) == []
    assert receiver.release([70_000]) == []
    assert receiver.take() == [b"x"]
    assert receiver.tries == [2]
    assert receiver.ack([70_000, 140_000]) == []
    assert len(bench.cursor.states.pages) == 1
    assert bench.cursor.states.leased == 0


class Model:
    """The same rules, one row at a time, as slowly as can be."""

    def __init__(self) -> None:
        self.state: dict[int, str] = {}
        self.attempts: dict[int, int] = {}
        self.owner: dict[int, Receiver] = {}


@pytest.mark.parametrize("seed", range(25))
def test_random_moves_agree_with_a_slow_model(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench()
    receivers = [bench.receiver(credit=rng.choice([3, 40, 400])) for _ in range(3)]
    model = Model()
    total = 0
    for _ in range(120):
        action = rng.randrange(8)
        if action == 0:
            count = rng.choice([1, 5, 60])
            bench.shard.put(numbered(count, total))
            model.state.update(dict.fromkeys(range(total + 1, total + count + 1), "ready"))
            total += count
        elif action == 7 and rng.random() < 0.3:
            bench.crash()
            for receiver in receivers:
                for id_ in [i for i, owner in model.owner.items() if owner is receiver]:
                    # A first lease on a connection is not written down: it is the first again.
                    model.attempts[id_] -= 1
                    model.state[id_] = "ready"
            model.owner.clear()
            receivers = [bench.receiver(credit=rng.choice([3, 40, 400])) for _ in range(3)]
        for receiver in receivers:
            receiver.take()
        for receiver in receivers:
            for id_, tries in zip(receiver.last, receiver.tries, strict=True):
                assert model.state[id_] == "ready"
                model.attempts[id_] = model.attempts.get(id_, 0) + 1
                assert tries == model.attempts[id_]
                model.state[id_] = "leased"
                model.owner[id_] = receiver
        receiver = rng.choice(receivers)
        mine = [id_ for id_, owner in model.owner.items() if owner is receiver]
        picked = rng.sample(mine, min(len(mine), rng.choice([1, 4, 50])))
        if action in (1, 2):
            others = [id_ for id_ in model.owner if model.owner[id_] is not receiver][:2]
            assert sorted(receiver.ack(picked + others)) == sorted(others)
            for id_ in picked:
                model.state[id_] = "done"
                del model.owner[id_]
        elif action == 3:
            assert receiver.release(picked) == []
            for id_ in picked:
                model.state[id_] = "ready"
                del model.owner[id_]
        elif action == 4:
            bench.cursor.flush(bench.instant)
        assert bench.sums_hold()
        assert bench.cursor.states.leased == len(model.owner)
    done = sum(state == "done" for state in model.state.values())
    assert bench.subscription.counts()["acked"] == done


def test_one_look_hands_out_no_more_than_a_socket_should_get(bench: Bench) -> None:
    bench.shard.put([b"x" * 400_000] * 20)
    receiver = bench.receiver()
    out = bench.cursor.take(100, receiver.seat, SECOND, bench.instant)
    assert sum(delivery.count for delivery in out) == 2
    assert len(receiver.take()) == 18
