"""Order by key: one consumer has a key, its rows go out one after the other, and a stuck key blocks only itself."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from penstock.columns import Column
from penstock.delivery.keys import KeyOrder
from penstock.delivery.rules import Rules
from penstock.settings import SubscriptionSettings
from tests.delivery.parts import SECOND, Bench, Receiver


def by_key(run: int = 1, **settings: int) -> Bench:
    return Bench(SubscriptionSettings(order="key", key_run=run, **settings))  # type: ignore[arg-type]


def put(bench: Bench, keys: str) -> None:
    """Publish a row for each letter, `-` being no key; a body is the row's number and its key."""
    start = bench.shard.end
    column: Column = [None if key == "-" else key.encode() for key in keys]
    bench.shard.put([f"{start + n}{key}".encode() for n, key in enumerate(keys)], {"key": column})


def test_one_row_of_a_key_is_out_and_the_others_flow() -> None:
    bench = by_key()
    put(bench, "aabba-c-")
    receiver = bench.receiver()
    assert receiver.take() == [b"0a", b"2b", b"5-", b"6c", b"7-"]
    assert receiver.take() == []
    receiver.ack([1])
    assert receiver.take() == [b"1a"]
    receiver.ack([2, 3])
    assert sorted(receiver.take()) == [b"3b", b"4a"]


def test_a_released_row_comes_before_the_later_ones_of_its_key() -> None:
    bench = by_key()
    put(bench, "aaa")
    receiver = bench.receiver()
    assert receiver.take() == [b"0a"]
    receiver.release([1], 5 * SECOND)
    assert receiver.take() == []
    bench.advance(5 * SECOND)
    assert receiver.take() == [b"0a"]
    receiver.ack([1])
    assert receiver.take() == [b"1a"]


def test_release_revokes_the_later_rows_of_a_run() -> None:
    bench = by_key(run=3)
    put(bench, "aaaab")
    receiver = bench.receiver()
    assert receiver.take() == [b"0a", b"1a", b"2a", b"4b"]
    receiver.release([1])
    assert receiver.seat.in_flight == 1
    assert receiver.ack([2, 3]) == [2, 3]
    got: list[bytes] = []
    for _ in range(6):
        got += receiver.take()
        receiver.ack(receiver.last)
    assert got == [b"0a", b"1a", b"2a", b"3a"]


def test_a_key_belongs_to_one_consumer_at_a_time() -> None:
    bench = by_key(run=5)
    first, second = bench.receiver(credit=1), bench.receiver(credit=10)
    put(bench, "aaaa")
    assert first.take() + second.take() in ([b"0a"], [b"0a", b"1a", b"2a", b"3a"])
    assert not (first.last and second.last)


def test_what_a_leaving_consumer_held_comes_again_in_order() -> None:
    bench = by_key(run=3)
    put(bench, "aaab")
    first = bench.receiver()
    assert len(first.take()) == 4
    first.leave()
    second = bench.receiver()
    got: list[bytes] = []
    for _ in range(6):
        got += [body for body in second.take() if body.endswith(b"a")]
        second.ack(second.last)
    assert got == [b"0a", b"1a", b"2a"]


def test_a_buried_row_frees_its_key() -> None:
    bench = by_key(max_attempts=1)
    put(bench, "aa")
    receiver = bench.receiver()
    assert receiver.take() == [b"0a"]
    receiver.release([1])
    assert receiver.take() == []
    bench.cursor.states.bury(bench.buried[0])
    assert receiver.take() == [b"1a"]


def test_removed_rows_free_their_key_whether_out_or_parked() -> None:
    bench = by_key()
    put(bench, "aaa")
    receiver = bench.receiver()
    assert receiver.take() == [b"0a"]
    bench.subscription.remove([2])
    bench.subscription.remove([1])
    assert receiver.take() == [b"2a"]


@pytest.mark.parametrize("seed", range(40))
def test_random_traffic_keeps_every_key_in_order(seed: int) -> None:
    rng = random.Random(seed)
    run = rng.choice([1, 1, 3])
    bench = by_key(run)
    receivers = [bench.receiver(credit=rng.choice([1, 3, 50]), lease_ns=SECOND) for _ in range(3)]
    out: dict[bytes, dict[int, Receiver]] = {}
    acked: dict[bytes, list[int]] = {}
    total = 0
    for _ in range(200):
        action = rng.randrange(7)
        if action == 0:
            keys = "".join(rng.choices("abcdefgh-", k=rng.choice([1, 4, 30])))
            put(bench, keys)
            total += len(keys)
        elif action == 1:
            bench.advance(rng.choice([SECOND // 10, 2 * SECOND]))
        elif action == 2 and rng.random() < 0.3:
            receivers.pop(rng.randrange(3)).leave()
            receivers.append(bench.receiver(credit=rng.choice([1, 3, 50]), lease_ns=SECOND))
        for receiver in receivers:
            for body, id_ in zip(receiver.take(), receiver.last, strict=True):
                assert body.startswith(b"%d" % (id_ - 1))
        held = {receiver: bench.cursor.states.leases.of(receiver.seat.holder).tolist() for receiver in receivers}
        for receiver, offsets in held.items():
            assert receiver.seat.in_flight == len(offsets)
        out.clear()
        for receiver, offsets in held.items():
            for offset in offsets:
                key = body_of(bench, offset)[-1:]
                out.setdefault(key, {})[offset] = receiver
        for key, rows in out.items():
            if key != b"-":
                assert len(set(rows.values())) == 1
                assert len(rows) <= run
                assert all(offset > max(acked.get(key, [-1])) for offset in rows)
        receiver = rng.choice(receivers)
        mine = held[receiver]
        picks = rng.sample(mine, rng.randint(0, len(mine)))
        if rng.random() < 0.6:
            done = sorted(picks)
            for offset in done:
                key = body_of(bench, offset)[-1:]
                # A consumer may finish rows of a run in any order it likes; here it does so in order.
                if key == b"-" or offset == min(out[key]):
                    assert receiver.ack([offset + 1]) == []
                    acked.setdefault(key, []).append(offset)
                    out[key].pop(offset)
        else:
            receiver.release([offset + 1 for offset in picks], rng.choice([0, 0, SECOND]))
        assert bench.sums_hold()
    for receiver in receivers:
        receiver.leave()
    last = bench.receiver(credit=1000)
    for _ in range(2000):
        bench.advance(SECOND // 10)
        if not last.take():
            if bench.subscription.waiting() == 0 and bench.subscription.depth() == 0:
                break
            continue
        for id_ in last.last:
            key = body_of(bench, id_ - 1)[-1:]
            acked.setdefault(key, []).append(id_ - 1)
        assert last.ack(last.last) == []
    assert sum(len(offsets) for offsets in acked.values()) == total
    for key, offsets in acked.items():
        if key != b"-":
            assert offsets == sorted(offsets)
    assert bench.cursor.states.keys is not None
    assert len(bench.cursor.states.keys) == 0


def body_of(bench: Bench, offset: int) -> bytes:
    batch = next(batch for batch in bench.shard.batches if batch.first <= offset < batch.end)
    return batch.row_body(offset - batch.first)


@pytest.mark.parametrize("order", ["none", "shard"])
def test_rows_that_waited_for_their_key_go_out_when_the_subscription_keeps_no_order_by_key_any_more(order: str) -> None:
    bench = by_key()
    put(bench, "aaab")
    receiver = bench.receiver()
    assert receiver.take() == [b"0a", b"3b"]
    bench.cursor.use_rules(Rules(ordered=order == "shard"))
    got = []
    for _ in range(4):
        receiver.ack(receiver.last)
        got += receiver.take()
    assert sorted(got) == [b"1a", b"2a"]
    receiver.ack(receiver.last)
    assert bench.sums_hold()
    assert bench.cursor.states.held == 0


class Counted(int):
    """A number that counts how often it is compared with another."""

    comparisons = 0

    def __lt__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) > int(other)

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return isinstance(other, int) and int(self) == int(other)

    def __neg__(self) -> Counted:
        return Counted(-int(self))

    __hash__ = int.__hash__


def comparisons(work: Iterable[object]) -> int:
    Counted.comparisons = 0
    for _ in work:
        pass
    return Counted.comparisons


@pytest.mark.parametrize("run", [1, 10])
def test_a_row_of_a_hot_key_costs_no_more_than_the_logarithm_of_those_that_wait_with_it(run: int) -> None:
    rows = 4096

    def drain(order: KeyOrder) -> Iterable[int]:
        queue = [Counted(offset) for offset in range(rows)]
        while queue:
            out = [offset for offset in queue if order.admit(b"hot", offset, 1)]
            yield from out
            queue = [Counted(offset) for offset in sorted(map(int, [*order.freed, *order.finished(out)]))]
            order.freed = []

    order = KeyOrder(run)
    assert comparisons(drain(order)) < rows * 60  # it was 4,300 a row when every look searched a list
    assert len(order) == 0


def test_a_row_of_a_hot_key_that_comes_back_costs_no_more_than_the_rows_behind_it() -> None:
    rows = 4096
    order = KeyOrder(rows)
    assert all(order.admit(b"hot", Counted(offset), 1) for offset in range(rows))

    def go_back_and_forth() -> Iterable[int]:
        for offset in reversed(range(rows // 2, rows)):  # each revokes none
            queue, revoked = order.came_back([Counted(offset)], delayed=False)
            assert not revoked
            assert order.admit(b"hot", Counted(queue[0]), 1)
            order.finished([Counted(offset)])
            yield offset

    assert comparisons(go_back_and_forth()) < rows * 60


def test_rows_that_waited_for_their_key_come_first_once_nobody_asks_for_order() -> None:
    bench = by_key()
    put(bench, "aaaa")
    receiver = bench.receiver(credit=9)
    assert receiver.take() == [b"0a"]
    receiver.seat.set_credit(1)
    bench.cursor.use_rules(Rules())
    put(bench, "ccc")
    got = []
    for number in range(6):
        receiver.ack([number + 1])
        got += receiver.take()
    assert got == [b"1a", b"2a", b"3a", b"4c", b"5c", b"6c"]
