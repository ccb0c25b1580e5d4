"""How long rows took is counted the same one by one and all at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import SECOND
from penstock.delivery.durations import BOUNDS_NS, Durations
from penstock.delivery.page import since_all_ns, since_ns
from penstock.delivery.source import Delivery
from penstock.message import Batch
from tests.delivery.parts import Bench

TIMES = st.one_of(
    st.integers(-SECOND, 2 * BOUNDS_NS[-1]), st.sampled_from(BOUNDS_NS), st.sampled_from([b + 1 for b in BOUNDS_NS])
)


@given(st.lists(TIMES))
def test_many_are_counted_as_one_by_one(times: list[int]) -> None:
    together, alone = Durations(), Durations()
    together.add_all(np.array(times, np.int64))
    for time_ns in times:
        alone.add(time_ns)
    assert (together.counts, together.sum_ns) == (alone.counts, alone.sum_ns)
    assert sum(alone.counts) == len(times)


def test_a_time_is_counted_at_the_first_bound_that_is_not_below_it() -> None:
    durations = Durations()
    durations.add(SECOND, 2)
    durations.add(SECOND + 1)
    at = BOUNDS_NS.index(SECOND)
    assert durations.counts[at : at + 2] == [2, 1]
    assert durations.sum_ns == 3 * SECOND + 1


@given(st.integers(0, 1 << 62), st.integers(0, 2 * 24 * 3600 * SECOND))
def test_when_a_row_went_out_is_known_to_a_tenth_of_a_millisecond(began_ns: int, passed_ns: int) -> None:
    began = began_ns >> 16 & 0xFFFFFFFF
    out_ns = since_ns(began, began_ns + passed_ns)
    assert abs(out_ns - passed_ns) < 100_000
    assert since_all_ns(np.array([began], np.uint32), began_ns + passed_ns).tolist() == [out_ns]


def delivery(times: int | list[int], attempts: list[int] | int, due: list[int | None] | None = None) -> Delivery:
    count = 3
    columns = {"due": due} if due is not None else {}
    batch = Batch(10, count, times, [0] * (count + 1), b"", "test", columns, 0)
    tried = attempts if isinstance(attempts, int) else np.array(attempts, np.uint16)
    return Delivery(0, batch, slice(0, count), count, tried)


def test_what_comes_again_is_not_counted_as_latency() -> None:
    durations = Durations()
    durations.add_first(delivery(0, [1, 2, 1]), 7 * SECOND)
    assert (sum(durations.counts), durations.sum_ns) == (2, 14 * SECOND)


def test_a_row_with_a_due_time_waits_from_then_on() -> None:
    durations = Durations()
    durations.add_first(delivery([0, 0, 0], 1, [5 * SECOND, None, -SECOND]), 7 * SECOND)
    assert (sum(durations.counts), durations.sum_ns) == (3, (2 + 7 + 7) * SECOND)


def test_rows_of_a_subscription_are_counted_when_they_go_out_and_when_they_are_acked() -> None:
    bench = Bench()
    receiver = bench.receiver()
    bench.shard.put([b"x"] * 40, taken_ns=bench.instant.wall_ns - 3 * SECOND)
    assert len(receiver.take()) == 40
    ids = receiver.last
    bench.advance(2 * SECOND)
    assert receiver.ack(ids[:30]) == []
    bench.advance(20 * SECOND)
    assert receiver.ack(ids[30:33]) == []
    assert receiver.ack(ids[:1]) == ids[:1]
    leased_for, waited = bench.subscription.leased_for, bench.subscription.waited
    assert (sum(waited.counts), waited.sum_ns) == (40, 40 * 3 * SECOND)
    assert sum(leased_for.counts) == 33
    assert leased_for.counts[BOUNDS_NS.index(5 * SECOND)] == 30
    assert abs(leased_for.sum_ns - (30 * 2 + 3 * 22) * SECOND) < SECOND // 100


def test_rows_acked_together_that_went_out_apart_are_counted_apart() -> None:
    bench = Bench()
    receiver = bench.receiver()
    ids = []
    for _ in range(20):
        bench.shard.put([b"x"])
        receiver.take()
        ids += receiver.last
        bench.advance(SECOND)
    bench.advance(SECOND // 2)
    assert receiver.ack(ids) == []
    leased_for = bench.subscription.leased_for
    assert [count for count in leased_for.counts if count] == [4, 5, 11]
    assert abs(leased_for.sum_ns - (sum(range(1, 21)) + 10) * SECOND) < SECOND // 100
