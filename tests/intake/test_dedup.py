"""Idempotent publish: keys, windows, expiry, and the same answers after a rebuild from the log."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columns import SMALL, place_of
from penstock.intake import dedup
from penstock.intake.dedup import NO_DUPLICATES, Dedup
from penstock.message import Batch, Rows

WINDOW = 300
Key = bytes | None


def rows_of(keys: Sequence[Key], sequence: bytes = b"") -> Rows:
    rows = Rows.of([b"body %d" % row for row in range(len(keys))], "sqs", {"dedup": list(keys)})
    rows.sequence = sequence
    return rows


def batch_of(first: int, time_ns: int | list[int], keys: Sequence[Key] | None, sequence: bytes = b"") -> Batch:
    count = len(keys) if keys is not None else 1
    rows = Rows.of([b"x"] * count, "sqs", {"dedup": list(keys)} if keys is not None else None)
    timestamp = np.array(time_ns, np.int64) if isinstance(time_ns, list) and count > SMALL else time_ns
    return Batch(first, count, timestamp, rows.cuts, rows.body, "sqs", rows.columns, 0, sequence)


def key_place(known: Dedup, key: bytes) -> tuple[int, int] | None:
    """Return where the row of a key lies."""
    found = known.check(rows_of([key])).stored.get(0)
    return None if found is None else place_of(found)


def sequence_place(known: Dedup, sequence: bytes) -> tuple[int, int] | None:
    """Return where the batch of a sequence begins."""
    found = known.check(rows_of([None], sequence)).batch
    return None if found is None else place_of(found)


def rebuilt_from(log: Iterable[tuple[int, Batch]]) -> Dedup:
    """Return the keys of (shard, batch) pairs that are read again."""
    rebuilt = Dedup(WINDOW)
    for shard, batch in log:
        rebuilt.stored(shard, batch)
    return rebuilt


def test_key_taken_before_is_a_duplicate_and_names_the_first_place() -> None:
    known = Dedup(WINDOW)
    known.add([b"a", None, b"b"], 2, 100, 1000)
    found = known.check(rows_of([b"b", b"c", b"a"]))
    assert bool(found)
    assert found.places(3, 0, 7) == [(2, 102), (0, 7), (2, 100)]
    assert key_place(known, b"a") == (2, 100)
    assert key_place(known, b"c") is None


def test_rows_without_keys_are_never_duplicates() -> None:
    known = Dedup(WINDOW)
    known.add([None, None], 0, 0, 1000)
    assert known.check(rows_of([None, None])) is NO_DUPLICATES
    assert known.check(Rows.of([b"x"], "nsq")) is NO_DUPLICATES
    assert len(known) == 0


def test_first_of_several_in_one_group_wins() -> None:
    found = Dedup(WINDOW).check(rows_of([b"a", b"b", b"a", None, b"a", b"b"]))
    assert found.inside == {2: 0, 4: 0, 5: 1}
    assert found.stored == {}
    assert found.places(6, 0, 10) == [(0, 10), (0, 11), (0, 10), (0, 12), (0, 10), (0, 11)]


def test_empty_key_is_a_key() -> None:
    known = Dedup(WINDOW)
    known.add([b""], 0, 5, 1000)
    assert known.check(rows_of([b""])).stored != {}


def test_window_is_counted_from_the_last_append_and_its_edge_is_inside() -> None:
    known = Dedup(WINDOW)
    known.add([b"a"], 0, 0, 1000)
    known.advance(1000 + WINDOW)
    assert key_place(known, b"a") == (0, 0)
    known.advance(1000 + WINDOW + 1)
    assert key_place(known, b"a") is None


def test_topic_at_rest_forgets_nothing() -> None:
    known = Dedup(WINDOW)
    known.add([b"a"], 0, 0, 1000)
    known.expire(1_000_000)
    assert key_place(known, b"a") == (0, 0)


def test_key_that_left_the_window_may_be_stored_again() -> None:
    known = Dedup(WINDOW)
    known.add([b"a"], 0, 0, 1000)
    known.advance(2000)
    assert known.check(rows_of([b"a"])) is NO_DUPLICATES
    known.add([b"a"], 0, 50, 2000)
    assert key_place(known, b"a") == (0, 50)
    known.expire(1_000_000)
    assert key_place(known, b"a") == (0, 50)


def test_sequence_repeats_a_whole_batch() -> None:
    known = Dedup(WINDOW)
    known.stored(1, batch_of(40, 1000, [None, None, None], b"query-7/3"))
    rows = rows_of([None, None, None], b"query-7/3")
    found = known.check(rows)
    assert found.batch is not None
    assert found.places(3, 9, 9) == [(1, 40), (1, 41), (1, 42)]
    assert found.unique(rows).count == 0
    assert sequence_place(known, b"query-7/3") == (1, 40)


def test_sequences_and_row_keys_are_told_apart() -> None:
    known = Dedup(WINDOW)
    known.add_sequence(b"same", 0, 0, 1000)
    assert key_place(known, b"same") is None
    known.add([b"same"], 0, 8, 1000)
    assert sequence_place(known, b"same") == (0, 0)


@pytest.mark.parametrize("count", [5, SMALL, SMALL + 1, SMALL + 4, 200])
def test_unique_rows_keep_body_columns_and_order(count: int) -> None:
    known = Dedup(WINDOW)
    keys = [b"k%d" % row for row in range(count)]
    dropped = {0, 2, count - 1}
    known.add([keys[row] for row in sorted(dropped)], 0, 0, 1000)
    labels = [f"t{row}" if row % 2 else None for row in range(count)]
    rows = Rows.of([b"b" * row for row in range(count)], "sqs", {"dedup": list(keys), "tag": labels})
    unique = known.check(rows).unique(rows)
    kept = [row for row in range(count) if row not in dropped]
    assert unique.count == len(kept)
    assert isinstance(unique.cuts, list) == (len(kept) <= SMALL)
    cuts = [int(cut) for cut in unique.cuts]
    assert [end - start for start, end in pairwise(cuts)] == kept
    assert bytes(unique.body) == b"".join(b"b" * row for row in kept)
    tags = unique.columns["tag"]
    assert isinstance(tags, list) == (len(kept) <= SMALL)
    assert (tags if isinstance(tags, list) else tags.to_pylist()) == [labels[row] for row in kept]


def test_rows_without_duplicates_are_passed_on_as_they_are() -> None:
    rows = rows_of([b"a", b"b"])
    assert Dedup(WINDOW).check(rows).unique(rows) is rows


def test_one_append_frees_a_bounded_number_of_keys_and_memory_shrinks_in_the_end() -> None:
    known = Dedup(WINDOW)
    known.add([b"%d" % key for key in range(10_000)], 0, 0, 1000)
    before = len(known)
    known.stored(0, batch_of(10_000, 5000, None))
    assert before - len(known) == dedup.EXPIRE_MIN
    assert key_place(known, b"5") is None
    while known.expire(1000):
        pass
    assert len(known) == 0


def test_too_many_keys_forget_the_oldest_and_say_so() -> None:
    known = Dedup(WINDOW, keys_max=100)
    for offset in range(150):
        known.add([b"%d" % offset], 0, offset, 1000 + offset)
    assert len(known) == 100
    assert known.forgotten == 50
    assert key_place(known, b"49") is None
    assert key_place(known, b"50") == (0, 50)
    assert key_place(known, b"149") == (0, 149)


def test_key_stored_again_is_not_forgotten_in_place_of_an_older_one() -> None:
    known = Dedup(WINDOW, keys_max=3)
    known.add([b"again"], 0, 0, 1000)
    known._rows.advance(2000)  # The old one has left the window, its memory is not yet freed.
    for offset, key in enumerate([b"oldest", b"again", b"c", b"d"]):
        known._rows.advance(2000 + 10 * offset)
        known._rows.add(key, offset + 1, 2000 + 10 * offset)
    assert key_place(known, b"oldest") is None
    assert [key_place(known, key) is not None for key in (b"again", b"c", b"d")] == [True] * 3
    assert known.forgotten == 1


def test_wider_window_applies_from_then_on() -> None:
    known = Dedup(WINDOW)
    known.add([b"a"], 0, 0, 1000)
    known.advance(1000 + WINDOW + 1)
    known.resize(2 * WINDOW)
    assert key_place(known, b"a") == (0, 0)


def test_key_costs_less_than_two_hundred_bytes() -> None:
    count = 100_000
    known = Dedup(2 * count)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for first in range(0, count, 1000):
            known.add(
                [b"%016d" % key for key in range(first, first + 1000)], 0, first, 1_700_000_000_000_000_000 + first
            )
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(known) == count
    assert (after - before) / count < 200


def test_rows_that_were_taken_back_are_forgotten_and_no_others() -> None:
    known = Dedup(WINDOW)
    known.stored(0, batch_of(0, 1000, [b"a", b"b"], b"s1"))
    known.stored(1, batch_of(0, 1001, [b"c"]))
    known.stored(0, batch_of(2, 1002, [b"d", None, b"e"], b"s2"))
    known.stored(1, batch_of(1, 1003, [b"f"], b"s3"))
    known.stored(0, batch_of(5, 1004, [b"g"]))
    known.forget(0, 2)
    assert [key_place(known, key) for key in (b"d", b"e", b"g")] == [None] * 3
    assert [key_place(known, key) for key in (b"a", b"b", b"c", b"f")] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [sequence_place(known, sequence) for sequence in (b"s1", b"s2", b"s3")] == [(0, 0), None, (1, 1)]
    known.stored(0, batch_of(6, 1005, [b"d"]))
    assert key_place(known, b"d") == (0, 6)


@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from(b"abcdefgh"), st.integers(0, 200)), max_size=30), st.data()
)
def test_keys_after_forgetting_are_those_of_a_log_without_the_rows(
    steps: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    log: list[tuple[int, Batch]] = []
    ends, now_ns = [0, 0], 1000
    for shard, letter, step_ns in steps:
        now_ns += step_ns
        log.append((shard, batch_of(ends[shard], now_ns, [bytes([letter])])))
        ends[shard] += 1
    live = Dedup(WINDOW)
    kept: list[tuple[int, Batch]] = []
    for shard, batch in log:
        if not live.check(rows_of([batch.row_value("dedup", 0)])):  # type: ignore[list-item]
            live.stored(shard, batch)
            kept.append((shard, batch))
    shard, first = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 30))
    live.forget(shard, first)
    wanted = rebuilt_from([(of, batch) for of, batch in kept if of != shard or batch.first < first])
    wanted.advance(max((batch.row_time(0) for _, batch in kept), default=0))
    for letter in b"abcdefgh":
        assert key_place(live, bytes([letter])) == key_place(wanted, bytes([letter]))


def test_of_two_rows_stored_under_one_key_the_earlier_is_the_first_in_any_order() -> None:
    log = [(0, batch_of(5, 1100, [b"a"])), (1, batch_of(9, 1000, [b"a"]))]
    for order in (log, log[::-1]):
        rebuilt = rebuilt_from(order)
        assert key_place(rebuilt, b"a") == (1, 9)


def test_arrow_column_is_read_like_a_list() -> None:
    known = Dedup(WINDOW)
    keys = [b"k%d" % row if row % 3 else None for row in range(50)]
    batch = batch_of(0, 1000, keys)
    assert isinstance(batch.columns["dedup"], pa.Array)
    known.stored(0, batch)
    assert [key_place(known, key) for key in keys if key] == [(0, row) for row, key in enumerate(keys) if key]


@pytest.mark.parametrize("count", [3, 40])
def test_batch_merged_by_sealing_brings_a_time_per_row(count: int) -> None:
    known = Dedup(WINDOW)
    keys = [b"k%d" % row for row in range(count)]
    known.stored(0, batch_of(0, [1000 + 200 * row for row in range(count)], keys))
    # The last append was at 1000 + 200 * (count - 1): two rows lie within 300 of it.
    assert [key_place(known, key) is not None for key in keys] == [False] * (count - 2) + [True] * 2


appends = st.lists(
    st.tuples(
        st.integers(0, 200),  # time since the last append
        st.integers(0, 1),  # shard
        st.lists(st.one_of(st.none(), st.sampled_from([b"a", b"b", b"c", b"d"])), max_size=4),
        st.sampled_from([b"", b"", b"s1", b"s2"]),
    ),
    max_size=30,
)


class Reference:
    """Everything ever stored, looked through each time."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, bytes, tuple[int, int]]] = []
        self.batches: list[tuple[int, bytes, tuple[int, int]]] = []
        self.last_ns = 0

    def find(self, entries: list[tuple[int, bytes, tuple[int, int]]], key: bytes) -> tuple[int, int] | None:
        for time_ns, known, place in entries:
            if known == key and time_ns >= self.last_ns - WINDOW:
                return place
        return None


@given(appends, st.integers(1, 10))
def test_live_keys_rebuilt_keys_and_the_reference_agree(
    steps: list[tuple[int, int, list[Key], bytes]], expire_min: int
) -> None:
    live, reference = Dedup(WINDOW), Reference()
    log: list[tuple[int, Batch]] = []
    ends, now_ns = [0, 0], 1_000_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dedup, "EXPIRE_MIN", expire_min)
        for step_ns, shard, keys, sequence in steps:
            now_ns += step_ns
            rows = rows_of(keys, sequence)
            found = live.check(rows)
            repeated = reference.find(reference.batches, sequence) if sequence else None
            assert (found.batch is not None) == (repeated is not None)
            unique = found.unique(rows)
            if repeated is not None or not unique.count:
                continue
            first, at, fresh = ends[shard], ends[shard], dict[bytes, tuple[int, int]]()
            expected = []
            for key in keys:
                place = (reference.find(reference.rows, key) or fresh.get(key)) if key is not None else None
                if place is None:
                    place = (shard, at)
                    at += 1
                    if key is not None:
                        fresh[key] = place
                expected.append(place)
            assert found.places(len(keys), shard, first) == expected
            assert unique.count == at - first
            ends[shard] = at
            reference.last_ns = now_ns
            reference.rows += [(now_ns, key, place) for key, place in fresh.items()]
            if sequence:
                reference.batches.append((now_ns, sequence, (shard, first)))
            batch = Batch(first, unique.count, now_ns, unique.cuts, unique.body, "sqs", unique.columns, 0, sequence)
            live.stored(shard, batch)
            log.append((shard, batch))
    shards_first = sorted(log, key=lambda item: item[0])
    for order in (log, shards_first, shards_first[::-1]):
        rebuilt = rebuilt_from(order)
        for key in (b"a", b"b", b"c", b"d"):
            assert key_place(rebuilt, key) == key_place(live, key) == reference.find(reference.rows, key)
        for sequence in (b"s1", b"s2"):
            assert sequence_place(rebuilt, sequence) == sequence_place(live, sequence)
