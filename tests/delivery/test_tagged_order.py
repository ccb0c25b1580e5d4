"""Order beside tags and across restarts: who comes and goes, and when, changes nothing about what goes out first."""

from __future__ import annotations

import numpy as np

from penstock.columns import Column
from penstock.delivery.rules import RowTest, Rules
from penstock.settings import SubscriptionSettings
from tests.delivery.parts import SECOND, Bench, Receiver

#: A filter makes the cursor judge and queue rows; without one they are taken straight from the log.
ALL_BUT_THE_FIRST = Rules(RowTest(lambda batch, rows, _: np.arange(batch.count)[rows] > 0, plain=False))


def put(bench: Bench, *rows: str) -> None:
    """Publish a row for each word: its number, its key and its tag, `-` being none: "a-" has a key, "-T" a tag."""
    start = bench.shard.end
    keys: Column = [None if row[0] == "-" else row[:1].encode() for row in rows]
    tags: Column = [None if row[1] == "-" else row[1] for row in rows]
    bodies = [f"{start + number}{row}".encode() for number, row in enumerate(rows)]
    bench.shard.put(bodies, {"key": keys, "tag": tags})


def one_by_one(receiver: Receiver, count: int) -> list[bytes]:
    """Take and ack rows one at a time."""
    got = []
    for _ in range(count):
        got += receiver.take()
        receiver.ack(receiver.last)
    return got


def test_rows_that_were_never_out_keep_their_order_when_a_tag_is_asked_for() -> None:
    bench = Bench(rules=ALL_BUT_THE_FIRST)
    plain = bench.receiver(credit=1)
    put(bench, *["--"] * 5)
    assert plain.take() == [b"1--"]
    bench.receiver(tag="T", credit=1)  # it looks for more than there is
    put(bench, *["--"] * 5)
    plain.ack(plain.last)
    assert one_by_one(plain, 7) == [b"%d--" % number for number in (2, 3, 4, 6, 7, 8, 9)]


def test_rows_that_were_never_out_keep_their_order_when_a_tag_is_asked_for_no_more() -> None:
    bench = Bench()
    plain, tagged = bench.receiver(credit=1), bench.receiver(tag="T", credit=0)
    put(bench, "--", "-S", "-T", "-S", "--", "-T")
    assert plain.take() == [b"0--"]
    tagged.leave()
    put(bench, *["--"] * 3)
    plain.ack(plain.last)
    assert one_by_one(plain, 8) == [b"1-S", b"2-T", b"3-S", b"4--", b"5-T", b"6--", b"7--", b"8--"]


def test_rows_that_were_never_out_keep_their_order_across_a_restart() -> None:
    bench = Bench(rules=ALL_BUT_THE_FIRST)
    put(bench, *["--"] * 3)
    put(bench, *["--"] * 3)
    assert len(bench.receiver(credit=3).take()) == 3  # the journal knows that the cursor passed the first batch
    bench.crash()
    assert one_by_one(bench.receiver(credit=1), 4) == [b"%d--" % number for number in (1, 2, 4, 5)]


def test_a_row_that_waits_for_its_tag_holds_back_the_later_rows_of_its_key_and_no_others() -> None:
    bench = Bench(SubscriptionSettings(order="key"))
    tagged, plain = bench.receiver(tag="T", credit=0), bench.receiver()
    put(bench, "aT", "a-", "b-", "aT", "a-")
    assert plain.take() == [b"2b-"]
    tagged.seat.set_credit(1)
    assert tagged.take() == [b"0aT"]
    tagged.seat.set_credit(0)
    tagged.ack([1])
    assert plain.take() == [b"1a-"]
    plain.ack([2])
    assert plain.take() == []
    tagged.seat.set_credit(1)
    assert tagged.take() == [b"3aT"]
    tagged.ack([4])
    assert plain.take() == [b"4a-"]


def test_rows_that_came_back_before_a_restart_go_before_the_later_rows_of_their_key() -> None:
    bench = Bench(SubscriptionSettings(order="key"))
    put(bench, "a-", "b-", "c-")
    first = bench.receiver()
    assert len(first.take()) == 3
    first.release([1, 2, 3])
    bench.crash()
    put(bench, "c-", "c-", "a-")
    got = one_by_one(bench.receiver(credit=1), 6)
    assert [body for body in got if body.endswith(b"c-")] == [b"2c-", b"3c-", b"4c-"]
    assert [body for body in got if body.endswith(b"a-")] == [b"0a-", b"5a-"]


def test_a_key_that_is_out_when_order_is_asked_for_stays_where_it_is() -> None:
    bench = Bench()
    put(bench, "a-", "a-", "b-")
    first, second = bench.receiver(credit=1), bench.receiver(credit=0)
    assert first.take() == [b"0a-"]
    bench.cursor.use_rules(Rules(key_run=1))
    second.seat.set_credit(10)
    assert second.take() == [b"2b-"]
    first.ack([1])
    first.leave()
    assert second.take() == [b"1a-"]


def test_an_ordered_shard_gives_what_came_back_before_what_is_new_also_by_tag() -> None:
    bench = Bench(SubscriptionSettings(order="shard"))
    plain = bench.receiver()
    bench.receiver(tag="T", credit=0)
    put(bench, "-S", "--", "-S", "--")
    for number, body in enumerate([b"0-S", b"1--", b"2-S", b"3--"]):
        for _ in range(2):  # once it comes back
            assert plain.take() == [body]
            plain.release([number + 1])
        assert plain.take() == [body]
        plain.ack([number + 1])


def test_an_ordered_shard_gives_a_row_that_came_back_before_a_later_one_whose_time_has_come() -> None:
    bench = Bench(SubscriptionSettings(order="shard"))
    due: Column = [None, None, bench.instant.wall_ns + SECOND]
    bench.shard.put([b"0", b"1", b"2"], {"due": due})
    first = bench.receiver()
    assert first.take() == [b"0"]
    bench.advance(2 * SECOND)
    bench.cursor.states.arrive(np.array([2]), bench.instant.wall_ns)
    first.leave()
    second = bench.receiver()
    assert one_by_one(second, 3) == [b"0", b"1", b"2"]


def test_a_row_behind_damaged_ones_keeps_its_tag() -> None:
    bench = Bench()
    put(bench, "--", "--")
    put(bench, "-T", "--")
    first = bench.receiver()
    assert len(first.take()) == 4
    first.release([1, 2, 3, 4])
    bench.crash()
    del bench.shard.batches[0]
    bench.receiver(tag="T", credit=0)
    assert bench.receiver().take() == [b"3--"]


def test_rows_lost_at_the_end_of_the_log_do_not_hold_up_the_keys_of_the_others() -> None:
    bench = Bench(SubscriptionSettings(order="key"))
    put(bench, "a-", "b-")
    put(bench, "c-")
    first = bench.receiver()
    assert len(first.take()) == 3
    first.release([1, 2, 3])
    bench.crash()
    del bench.shard.batches[1]
    second = bench.receiver()
    assert second.take() == []  # the order asks for the keys of all of them first
    bench.shard.warm()
    assert second.take() == [b"0a-", b"1b-"]
