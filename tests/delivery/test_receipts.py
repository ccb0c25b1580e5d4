"""What clients hold of a lease, and what they may do by it."""

from __future__ import annotations

import pytest

from penstock.columns import OFFSET_MAX, SHARD_MAX, id_of
from penstock.delivery import receipts
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from tests.delivery.parts import SECOND, Bench

LAST = id_of(SHARD_MAX, OFFSET_MAX)


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.shard.put([b"%d" % number for number in range(5)])
    return bench


def holder(bench: Bench) -> Seat:
    return bench.subscription.holder("queue")


def look(bench: Bench, limit: int = 5) -> list[receipts.Receipt]:
    """Lease messages and return their receipts."""
    got: list[receipts.Receipt] = []

    def deliver(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            assert delivery.versions is not None
            ids = [offset + 1 for offset in delivery.offsets()]
            got.extend(zip(ids, delivery.versions, strict=True))

    seat = holder(bench).look(limit, 30 * SECOND, deliver)
    bench.pump()
    seat.close()
    return got


def test_a_receipt_is_read_back_by_its_own_topic_alone() -> None:
    for id_, version in ((1, 0), (LAST, (1 << 31) - 1)):
        text = receipts.written(id_, version, (1 << 63) - 1)
        assert receipts.read(text, (1 << 63) - 1) == (id_, version)
        assert receipts.read(text, 5) is None
    for text in ("", "x", "ä", "AAAA" * 9, receipts.written(1, 0, 5)[:-4]):
        assert receipts.read(text, 5) is None


def test_of_several_receipts_each_does_what_it_would_alone(bench: Bench) -> None:
    first, second, third, *_ = look(bench)
    stale = (third[0], third[1] + 7)
    foreign = (99, 1)
    given = [first, stale, foreign, first, second]
    assert receipts.finish(holder(bench), given) == ["done", "stale", "stale", "done", "done"]
    assert sorted(lease.id for lease in holder(bench).leases()) == [3, 4, 5]
    assert receipts.finish(holder(bench), [first]) == ["stale"]


def test_the_last_receipt_finishes_a_message_after_its_time_and_no_earlier_one(bench: Bench) -> None:
    before = look(bench)
    bench.advance(31 * SECOND)
    after = look(bench)
    assert sorted(id_ for id_, _ in after) == [1, 2, 3, 4, 5]
    assert receipts.finish(holder(bench), before) == ["stale"] * 5
    bench.advance(31 * SECOND)
    assert receipts.finish(holder(bench), after[:2], late=False) == ["late", "late"]
    assert receipts.finish(holder(bench), after[:2]) == ["done", "done"]
    assert sorted(id_ for id_, _ in look(bench)) == sorted(id_ for id_, _ in after[2:])


def test_leases_of_a_batch_end_each_at_their_own_time(bench: Bench) -> None:
    given = look(bench, 4)
    stale = (1, 99)
    times_ns = [0, 10 * SECOND, 100 * SECOND, 100 * SECOND, 7]
    assert receipts.extend(holder(bench), [*given, stale], times_ns) == [True] * 4 + [False]
    assert sorted(id_ for id_, _ in look(bench)) == [1, 5]
    bench.advance(11 * SECOND)
    assert [id_ for id_, _ in look(bench)] == [2]
    assert receipts.extend(holder(bench), [given[2], given[2]], [SECOND, 2 * SECOND]) == [True, True]


def test_what_is_released_with_a_delay_comes_then(bench: Bench) -> None:
    given = look(bench)
    assert receipts.release(holder(bench), given[:2], [0, 20 * SECOND]) == [True, True]
    assert [id_ for id_, _ in look(bench)] == [1]
    bench.advance(21 * SECOND)
    assert [id_ for id_, _ in look(bench)] == [2]
