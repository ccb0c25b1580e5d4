"""What a cursor must not get wrong when rows are removed, moved, damaged or out of date while others flow."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from penstock.delivery.page import READY
from penstock.delivery.pages import Pages
from penstock.delivery.rules import RowTest, Rules
from penstock.message import Batch
from penstock.settings import SubscriptionSettings
from tests.delivery.parts import SECOND, Bench


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def _odd(batch: Batch, rows: slice, _: int) -> npt.NDArray[np.bool_]:
    verdicts: npt.NDArray[np.bool_] = np.arange(batch.count)[rows] % 2 == 1
    return verdicts


#: Takes every second row.
ODD = RowTest(_odd, plain=True)


def test_a_row_that_grew_too_old_while_it_waited_for_credit_is_not_delivered() -> None:
    bench = Bench(SubscriptionSettings(ttl_ns=SECOND))
    bench.shard.put(numbered(4), taken_ns=bench.instant.wall_ns)
    receiver = bench.receiver(credit=2)
    assert receiver.take() == [b"0", b"1"]
    bench.advance(2 * SECOND)
    receiver.ack(receiver.last)
    assert receiver.take() == []
    assert bench.subscription.counts()["expired"] == 2
    assert bench.sums_hold()


def test_a_row_removed_ahead_of_the_cursor_does_not_let_others_past_the_filter() -> None:
    bench = Bench(rules=Rules(ODD))
    bench.shard.put(numbered(5), {"traffic": [1] * 5})
    bench.subscription.remove([4])
    bench.crash()
    assert bench.receiver().take() == [b"1"]
    counts = bench.subscription.counts()
    assert (counts["filtered"], counts["removed"]) == (3, 1)
    assert bench.sums_hold()


def test_a_removed_row_that_is_also_filtered_counts_once() -> None:
    bench = Bench(rules=Rules(ODD))
    bench.shard.put(numbered(5), {"traffic": [1] * 5})
    bench.subscription.remove([1])
    assert bench.receiver().take() == [b"1", b"3"]
    assert bench.sums_hold()


def test_a_removed_row_that_waits_for_its_time_never_comes() -> None:
    bench = Bench()
    due = bench.instant.wall_ns + SECOND
    bench.shard.put(numbered(2), {"due": [due, due]})
    bench.subscription.remove([1])
    receiver = bench.receiver()
    assert receiver.take() == []
    bench.cursor.states.arrive(np.array([0, 1]), due)
    assert receiver.take() == [b"1"]
    assert bench.sums_hold()


def test_a_row_removed_inside_a_batch_that_was_judged_already_is_not_delivered() -> None:
    bench = Bench(SubscriptionSettings(ttl_ns=60 * SECOND))
    bench.shard.put(numbered(3), taken_ns=bench.instant.wall_ns)
    receiver = bench.receiver(credit=1)
    assert receiver.take() == [b"0"]
    bench.subscription.remove([2])
    receiver.ack([1])
    assert receiver.take() == [b"2"]


def test_a_released_row_waits_although_its_first_due_time_is_announced_again() -> None:
    bench = Bench()
    bench.shard.put(numbered(1))
    receiver = bench.receiver()
    receiver.take()
    receiver.release([1], 10 * SECOND)
    bench.cursor.states.arrive(np.array([0]), bench.instant.wall_ns + SECOND)
    assert receiver.take() == []
    bench.advance(10 * SECOND)
    assert receiver.take() == [b"0"]


def test_waiting_rows_come_although_the_clock_was_set_back_after_they_were_announced() -> None:
    bench = Bench()
    due = bench.instant.wall_ns + SECOND
    bench.cursor.states.agenda.seen_ns = lambda: due  # the topic took them for due, and then the clock was set back
    bench.shard.put(numbered(1), {"due": [due]})
    receiver = bench.receiver()
    assert receiver.take() == []
    assert bench.cursor.states.agenda.next_ns() == due
    bench.advance(SECOND)
    assert receiver.take() == [b"0"]


def test_rows_that_cannot_be_read_any_more_hold_nobody_up() -> None:
    bench = Bench()
    bench.shard.put(numbered(2))
    lost = bench.shard.put(numbered(2))
    receiver = bench.receiver()
    receiver.take()
    receiver.release([3, 4])
    receiver.release([1, 2])
    bench.shard.batches.remove(lost)
    receiver.take()
    bench.shard.warm()
    assert receiver.take() == [b"0", b"1"]
    assert bench.subscription.counts()["removed"] == 2
    assert bench.sums_hold()


def test_rows_of_a_damaged_end_are_no_depth() -> None:
    bench = Bench()
    bench.shard.put(numbered(3))
    bench.shard.read = lambda offset, joined_below=0: None  # type: ignore[method-assign]
    receiver = bench.receiver()
    assert receiver.take() == []
    bench.shard.warm()
    assert bench.subscription.depth() == 0


def test_a_row_emptied_on_its_way_to_the_dead_letters_stays_finished() -> None:
    for refused in (True, False):
        bench = Bench(SubscriptionSettings(max_attempts=1))
        bench.shard.put(numbered(1))
        receiver = bench.receiver()
        receiver.take()
        receiver.release([1])
        assert receiver.take() == []
        (rows,) = bench.buried
        bench.subscription.empty()
        if refused:
            bench.cursor.states.unbury(rows, bench.instant)
        else:
            bench.cursor.states.bury(rows)
        assert bench.subscription.counts()["held"] == 0
        assert bench.sums_hold()


def test_a_session_may_extend_for_longer_than_it_leased_at_first() -> None:
    bench = Bench(SubscriptionSettings(lease_max_ns=100 * SECOND))
    bench.shard.put(numbered(1))
    bench.subscription.holder("api").look(1, SECOND, lambda deliveries: None)
    bench.pump()
    assert bench.subscription.holder("api").extend([1], 90 * SECOND) == []
    receiver = bench.receiver()
    bench.advance(80 * SECOND)
    assert receiver.take() == []
    bench.advance(11 * SECOND)
    assert receiver.take() == [b"0"]


def test_sessions_whose_leases_end_after_a_restart_are_sent_nothing() -> None:
    bench = Bench()
    bench.shard.put(numbered(2))
    bench.subscription.holder("api").look(2, SECOND, lambda deliveries: None)
    bench.pump()
    bench.crash()
    assert bench.subscription.holder("api").in_flight == 2
    bench.advance(2 * SECOND)
    bench.pump()
    assert bench.subscription.holder("api").in_flight == 0
    assert bench.receiver().take() == [b"0", b"1"]


def test_rows_behind_the_gate_are_not_passed_because_they_wait() -> None:
    bench = Bench()
    due = bench.instant.wall_ns + SECOND
    bench.shard.put(numbered(3), {"due": [due] * 3})
    bench.cursor.position.gate = 1
    bench.cursor.pass_waiting((np.arange(3), np.full(3, due)), bench.instant.wall_ns)
    assert (bench.cursor.position.offset, bench.cursor.states.waiting) == (1, 1)


def test_what_a_journal_did_not_take_is_written_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.shard.put([b"one", b"two", b"three"])
    receiver = bench.receiver()
    receiver.take()
    receiver.ack([1])
    receiver.release([2])
    bench.cursor.remove(np.array([2]))

    def fail(entries: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(bench.journal, "append", fail)
        with pytest.raises(OSError, match="Input"):
            bench.cursor.flush(bench.instant)
    assert bench.cursor.dirty
    bench.crash()
    receiver = bench.receiver()
    assert (receiver.take(), receiver.tries) == ([b"two"], [2])


def test_attempts_count_up_to_what_sixteen_bits_hold() -> None:
    pages = Pages()
    row = np.array([7])
    pages.hold(row, READY, 0xFFFD)
    seen = []
    for _ in range(4):
        seen += pages.lease(row, 1, 0).tolist()
        pages.move(row, READY)
    assert seen == [0xFFFE, 0xFFFF, 0xFFFF, 0xFFFF]
