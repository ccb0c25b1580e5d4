"""Tags: rows go to the consumers that ask for their tag, wait for them, and delay nobody."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

from penstock.columns import Column, Offsets
from penstock.delivery.dealer import HANDS_MAX, SORTED_ROWS
from penstock.delivery.portion import LOOKS_MAX
from penstock.delivery.ready import Lane
from penstock.message import Batch
from penstock.settings import SubscriptionSettings
from tests.delivery.parts import SECOND, Bench, Receiver


@pytest.fixture
def bench() -> Bench:
    return Bench()


def put(bench: Bench, *tags: str | None) -> None:
    """Publish a row for each tag, its body being its number and its tag."""
    start = bench.shard.end
    column: Column = list(tags)
    bench.shard.put([f"{start + n}{tag or ''}".encode() for n, tag in enumerate(tags)], {"tag": column})


def test_nsq_case_36_all_rows_of_a_tag_go_to_its_client(bench: Bench) -> None:
    tagged, plain = bench.receiver(tag="A"), bench.receiver()
    put(bench, *["A"] * 11)
    assert len(tagged.take()) == 11
    assert plain.take() == []
    tagged.ack(tagged.last)
    tagged.leave()
    assert not bench.cursor.ready.many


def test_nsq_case_37_tagged_and_untagged_rows_part(bench: Bench) -> None:
    tagged, plain = bench.receiver(tag="A"), bench.receiver()
    put(bench, *["A", None, None] * 5)
    assert len(tagged.take()) == 5
    assert len(plain.take()) == 10


def test_nsq_case_38_each_tag_to_its_client(bench: Bench) -> None:
    one, two, plain = bench.receiver(tag="1"), bench.receiver(tag="2"), bench.receiver()
    put(bench, "1", "2", "1", "2", "2")
    assert (one.take(), two.take(), plain.take()) == ([b"01", b"21"], [b"12", b"32", b"42"], [])


def test_nsq_case_39_a_tag_client_that_leaves_and_returns_loses_nothing(bench: Bench) -> None:
    first, plain = bench.receiver(tag="A", credit=2), bench.receiver(credit=100)
    put(bench, *["A"] * 10)
    assert first.take() == [b"0A", b"1A"]
    assert plain.take() == []
    first.leave()
    assert sorted(plain.take()) == sorted(b"%dA" % n for n in range(10))
    second, third = bench.receiver(tag="A"), bench.receiver(tag="A")
    put(bench, *["A"] * 10)
    bench.pump()
    assert len(second.take()) + len(third.take()) == 10
    second.leave()
    assert bench.cursor.ready.many
    third.leave()
    assert not bench.cursor.ready.many


def test_nsq_case_40_rows_of_a_tag_nobody_here_takes_wait_for_its_client(bench: Bench) -> None:
    one = bench.receiver(tag="1")
    put(bench, *["2"] * 10)
    assert one.take() == []
    assert bench.subscription.depth() == 10
    two = bench.receiver(tag="2")
    assert len(two.take()) == 10


def test_nsq_case_41_each_client_sees_its_own_in_order(bench: Bench) -> None:
    tagged, plain = bench.receiver(tag="A", credit=3), bench.receiver(credit=3)
    put(bench, *[None, "A"] * 10)
    seen: dict[Receiver, list[bytes]] = {tagged: [], plain: []}
    for _ in range(10):
        for receiver, bodies in seen.items():
            bodies += receiver.take()
            receiver.ack(receiver.last)
    assert seen[tagged] == [b"%dA" % n for n in range(1, 20, 2)]
    assert seen[plain] == [b"%d" % n for n in range(0, 20, 2)]


def test_nsq_case_53_a_waiting_tag_delays_nobody(bench: Bench) -> None:
    tagged, plain = bench.receiver(tag="A", credit=0), bench.receiver()
    put(bench, "A", None)
    assert plain.take() == [b"1"]
    assert tagged.take() == []
    tagged.seat.set_credit(1)
    assert tagged.take() == [b"0A"]


def test_nsq_case_54_two_clients_of_a_tag_share_it(bench: Bench) -> None:
    clients = [bench.receiver(tag="A", credit=1) for _ in range(2)]
    put(bench, *["A"] * 100)
    got: list[bytes] = []
    for _ in range(100):
        for client in clients:
            got += client.take()
            client.ack(client.last)
    assert sorted(got) == sorted(b"%dA" % n for n in range(100))


def test_nsq_case_55_what_a_leaving_tag_client_held_goes_to_the_untagged(bench: Bench) -> None:
    tagged, plain = bench.receiver(tag="A"), bench.receiver()
    put(bench, "A")
    assert tagged.take() == [b"0A"]
    tagged.leave()
    assert plain.take() == [b"0A"]
    assert plain.tries == [2]


def test_nsq_case_56_a_closing_client_no_longer_claims_its_tag(bench: Bench) -> None:
    tagged, plain = bench.receiver(tag="A"), bench.receiver()
    put(bench, "A")
    assert tagged.take() == [b"0A"]
    tagged.seat.set_closing()
    put(bench, "A")
    assert plain.take() == [b"1A"]
    assert tagged.ack(tagged.last) == []


def test_released_and_expired_rows_keep_to_their_tag(bench: Bench) -> None:
    tagged, plain = bench.receiver(tag="A", lease_ns=SECOND), bench.receiver()
    put(bench, "A", "A", "A")
    assert len(tagged.take()) == 3
    tagged.release([1])
    tagged.release([2], SECOND)
    assert (plain.take(), tagged.take()) == ([], [b"0A"])
    bench.advance(2 * SECOND)
    assert plain.take() == []
    assert sorted(tagged.take()) == [b"0A", b"1A", b"2A"]


def test_rows_that_were_out_before_anybody_asked_for_tags_find_their_client(bench: Bench) -> None:
    plain = bench.receiver()
    put(bench, "A", None, "A", None)
    assert len(plain.take()) == 4
    tagged = bench.receiver(tag="A")
    plain.release(plain.last)
    assert sorted(plain.take()) == [b"1", b"3"]
    assert sorted(tagged.take()) == [b"0A", b"2A"]


def test_sessions_get_what_no_tag_client_claims(bench: Bench) -> None:
    bench.receiver(tag="A", credit=0)
    put(bench, "A", None, "B")
    got: list[int] = []
    bench.subscription.holder("api").look(10, SECOND, lambda ds: got.extend(o for d in ds for o in d.offsets()))
    bench.pump()
    assert got == [1, 2]


def test_own_filter_finishes_what_it_refuses(bench: Bench) -> None:
    def even(shard: int, batch: Batch, rows: slice | Offsets) -> npt.NDArray[np.bool_]:
        picked = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        mask: npt.NDArray[np.bool_] = (batch.first + picked) % 2 == 0
        return mask

    receiver = bench.receiver(keep=even)
    bench.shard.put([b"%d" % n for n in range(20)])
    assert receiver.take() == [b"%d" % n for n in range(0, 20, 2)]
    assert receiver.seat.in_flight == 10
    assert bench.subscription.counts()["filtered"] == 10
    assert bench.sums_hold()
    receiver.ack(receiver.last)
    assert bench.subscription.depth() == 0


def test_ordered_subscription_has_one_row_out_at_a_time() -> None:
    bench = Bench(SubscriptionSettings(order="shard"))
    bench.shard.put([b"0", b"1", b"2"])
    first, second = bench.receiver(), bench.receiver()
    holder = first if first.take() == [b"0"] else second
    assert holder is first
    assert (first.take(), second.take()) == ([], [])
    first.release([1], SECOND)
    assert (first.take(), second.take()) == ([], [])
    bench.advance(SECOND)
    again = first.take() or second.take()
    assert again == [b"0"]
    owner = first if first.last else second
    owner.ack([1])
    assert first.take() + second.take() == [b"1"]


@pytest.mark.parametrize("seed", range(20))
def test_random_comings_and_goings_lose_nothing_and_respect_tags(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench()
    tags = [None, "A", "B", "C"]
    receivers: list[tuple[str, Receiver]] = []
    done: set[bytes] = set()

    def check(tag: str, body: bytes) -> None:
        its = body.lstrip(b"0123456789").decode()
        assert its == tag if tag else its not in {other for other, _ in receivers if other}

    for _ in range(150):
        action = rng.randrange(6)
        if action == 0:
            put(bench, *rng.choices(tags, k=rng.choice([1, 3, 40])))
        elif action == 1 and len(receivers) < 5:
            tag = rng.choice(tags) or ""
            joined = bench.receiver(credit=rng.choice([1, 10, 100]), tag=tag)
            joined.check = partial(check, tag)
            receivers.append((tag, joined))
        elif action == 2 and receivers and rng.random() < 0.4:
            receivers.pop(rng.randrange(len(receivers)))[1].leave()
        elif action == 3 and rng.random() < 0.2:
            bench.crash()
            receivers.clear()
        for _, receiver in receivers:
            bodies = receiver.take()
            names = dict(zip(receiver.last, bodies, strict=True))
            picks = rng.sample(receiver.last, rng.randint(0, len(receiver.last)))
            if rng.random() < 0.5:
                assert receiver.ack(picks) == []
                done |= {names[id_] for id_ in picks}
            else:
                receiver.release(picks)
        assert bench.sums_hold()
    for _, receiver in receivers:
        receiver.leave()
    last = bench.receiver(credit=100_000)
    rest = last.take()
    assert len(rest) == len(set(rest))
    assert set(rest) | done == {b"%d" % n + tag for n, tag in _all(bench)}
    assert set(rest).isdisjoint(done)


def _all(bench: Bench) -> list[tuple[int, bytes]]:
    return [
        (batch.first + row, batch.row_body(row).lstrip(b"0123456789"))
        for batch in bench.shard.batches
        for row in range(batch.count)
    ]


def test_poll_that_waits_for_rows_without_a_tag_does_not_hold_up_those_with_one(bench: Bench) -> None:
    tagged = bench.receiver(tag="A")
    bench.subscription.holder("api").look(1, SECOND, lambda deliveries: None)
    put(bench, "A", "A")
    assert tagged.take() == [b"0A", b"1A"]


def test_poll_looks_at_a_few_batches_before_others_get_their_turn(bench: Bench) -> None:
    bench.receiver(tag="A", credit=0)
    got: list[int] = []
    for _ in range(3 * LOOKS_MAX):
        put(bench, "A")
    put(bench, None)
    bench.subscription.holder("api").look(1, SECOND, lambda ds: got.extend(o for d in ds for o in d.offsets()))
    turns = 0
    while not got:
        bench.turn()
        turns += 1
        assert got or bench.soon
    assert turns > 2
    assert got == [3 * LOOKS_MAX]


def test_a_crowd_gets_its_own_over_batches_and_pages_in_order(bench: Bench) -> None:
    rng = random.Random(5)
    crowd = {f"t{n}": bench.receiver(credit=50_000, tag=f"t{n}") for n in range(3 * HANDS_MAX)}
    late = bench.receiver(credit=0, tag="late")
    plain = bench.receiver(credit=50_000)
    names = [*crowd, "late", "nobody", None]
    published: list[str | None] = []
    for _ in range(40):  # two pages of rows, each consumer's spread over all of them
        tags = [rng.choice(names) for _ in range(2500)]
        put(bench, *tags)
        published += tags
        bench.turn()  # one turn only, so that rows of several batches come together
    for name, receiver in crowd.items():
        assert receiver.take() == [f"{n}{name}".encode() for n, tag in enumerate(published) if tag == name]
        assert set(receiver.tries) == {1}
        assert receiver.ack(receiver.last) == []
    assert len(plain.take()) == sum(tag in ("nobody", None) for tag in published)
    plain.ack(plain.last)
    assert bench.subscription.depth() == published.count("late")
    late.seat.set_credit(50_000)
    assert late.take() == [f"{n}late".encode() for n, tag in enumerate(published) if tag == "late"]
    assert bench.sums_hold()


def test_rows_are_sorted_many_at_a_time_while_a_crowd_waits_for_its_turn(bench: Bench) -> None:
    crowd = [bench.receiver(credit=50_000, tag=f"t{n}") for n in range(4 * HANDS_MAX)]
    tags = [f"t{n}" for n in range(len(crowd))]
    put(bench, *tags)  # the first seats in line are served, the others wait
    behind = []
    for _ in range(3):
        put(bench, *tags)
        bench.turn()
        behind.append(bench.cursor.position.behind())
    assert behind == [len(tags), 2 * len(tags), 3 * len(tags)]
    put(bench, *tags * (SORTED_ROWS // len(tags)))  # enough to be worth it
    bench.turn()
    assert bench.cursor.position.behind() < behind[-1] + SORTED_ROWS
    for number, receiver in enumerate(crowd):
        assert len(receiver.take()) == 4 + SORTED_ROWS // len(tags), number
    assert bench.cursor.position.behind() == 0


def test_rows_that_wait_one_by_one_are_kept_together(bench: Bench) -> None:
    tagged, plain = bench.receiver(tag="A", credit=0), bench.receiver()
    for _ in range(1000):
        put(bench, "A", None)
        plain.take()
        plain.ack(plain.last)
    lane = bench.cursor.ready.lane(tagged.seat.lane)
    assert isinstance(lane, Lane)
    assert len(lane.fresh) <= 20
    tagged.seat.set_credit(1000)
    assert tagged.take() == [b"%dA" % n for n in range(0, 2000, 2)]


@pytest.mark.parametrize("compacted", [False, True])
def test_scattered_acks_survive_a_crash(bench: Bench, compacted: bool) -> None:
    put(bench, *[None] * 200)
    receiver = bench.receiver()
    receiver.take()
    receiver.ack([id_ for id_ in receiver.last if id_ % 3 == 0])
    bench.journal.bloated = compacted
    bench.crash()
    assert bench.journal.compactions == compacted
    again = bench.receiver()
    assert bench.subscription.counts()["acked"] == 66
    assert [int(body) + 1 for body in again.take()] == [n for n in range(1, 201) if n % 3]
