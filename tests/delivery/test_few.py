"""A few rows are handled without arrays, and come out as many would."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.columns import SMALL
from penstock.delivery import journal as records
from penstock.delivery import receipts
from penstock.delivery.durations import Durations
from penstock.delivery.instant import Instant
from penstock.delivery.page import PAGE_ROWS
from penstock.delivery.pages import Pages
from penstock.delivery.rules import Rules
from penstock.delivery.source import Delivery
from penstock.delivery.states import RowStates
from penstock.message import Batch
from penstock.shown import SPACE, hidden_id, shown_few, shown_id, shown_ids
from tests.delivery.parts import SECOND, ListJournal

NOW = Instant(40 * SECOND, 1000 * SECOND)
#: Rows at the end of one page and at the beginning of the next.
PLACES = st.integers(PAGE_ROWS - 12, PAGE_ROWS + 12)
PICKED = st.lists(PLACES, min_size=1, max_size=SMALL, unique=True).map(sorted)


def states() -> tuple[RowStates, ListJournal]:
    """Return row states with all the rows on lease, to two holders, some for the second time, and their journal."""
    journal = ListJournal()
    made = RowStates(Pages(), journal, {1: "one", 2: "two"}, lambda offsets: None)
    first = PAGE_ROWS - 12
    made.lease_fresh(first, 10, 1, 50 * SECOND, 3 * SECOND)
    made.lease_fresh(first + 10, 10, 2, 60 * SECOND, 4 * SECOND)
    made.returns.release(np.arange(first + 5, first + 15), 1, 0, NOW)
    again = np.arange(first + 5, first + 8)
    made.lease(again, 1, 70 * SECOND, 5 * SECOND)
    made.journal.flush(0, lambda now: np.zeros((0, 5), np.int64), NOW)
    return made, journal


@given(PICKED, st.data())
def test_entries_of_a_few_rows_are_those_of_an_array(offsets: list[int], data: st.DataObject) -> None:
    def column(*values: int) -> list[int]:
        return data.draw(st.lists(st.sampled_from(values), min_size=len(offsets), max_size=len(offsets)))

    attempts, due_ns, versions = column(1, 2), column(0, 9), column(1, 2)
    rows, tries, dues, told = (np.array(values, np.int64) for values in (offsets, attempts, due_ns, versions))
    few = records.pending_few(records.HELD, offsets, attempts, due_ns, versions, 3)
    assert few == records.pending(records.HELD, rows, tries, dues, told, 3)
    assert records.finished_few(records.ACKED, offsets) == records.finished(records.ACKED, rows)


@given(PICKED, st.sampled_from((1, 2)))
def test_a_few_acks_do_what_an_array_of_them_does(offsets: list[int], holder: int) -> None:
    (few, few_wrote), (many, many_wrote) = states(), states()
    refused = few.ack_few(offsets, holder, 9 * SECOND)
    assert refused == many.ack(np.array(offsets), holder, 9 * SECOND).tolist()
    assert (few.leased, few.counts, few.held) == (many.leased, many.counts, many.held)
    assert (few.leased_for.counts, few.leased_for.sum_ns) == (many.leased_for.counts, many.leased_for.sum_ns)
    assert few.leases.of(holder).tolist() == many.leases.of(holder).tolist()
    for made in (few, many):
        made.journal.flush(0, lambda now: np.zeros((0, 5), np.int64), NOW)
    assert few_wrote.entries == many_wrote.entries
    assert few.ack_few(offsets, holder, 9 * SECOND) == offsets  # nothing is finished twice


@given(PICKED, st.sampled_from((1, 2)), st.data())
def test_a_few_acks_by_version_are_those_of_the_leases_that_hold(
    offsets: list[int], holder: int, data: st.DataObject
) -> None:
    (few, few_wrote), (many, many_wrote) = states(), states()
    rows = np.array(offsets)
    late = data.draw(st.lists(st.sampled_from((0, 0, 1, -1)), min_size=len(offsets), max_size=len(offsets)))
    versions = few.pages.versions(rows) + np.array(late)
    refused = few.ack_few(offsets, holder, 9 * SECOND, versions.tolist())
    good = many.named.current(rows, versions, holder)
    assert refused == rows[~good].tolist()
    if good.any():
        assert len(many.ack(rows[good], holder, 9 * SECOND)) == 0
    assert (few.leased, few.counts, few.held) == (many.leased, many.counts, many.held)
    for made in (few, many):
        made.journal.flush(0, lambda now: np.zeros((0, 5), np.int64), NOW)
    assert few_wrote.entries == many_wrote.entries


@given(PICKED, st.sampled_from((1, 2)))
def test_one_lease_is_known_as_those_of_an_array_are(offsets: list[int], holder: int) -> None:
    made, _ = states()
    rows = np.array(offsets)
    versions = made.pages.versions(rows)
    good = made.named.current(rows, versions, holder).tolist()
    found = [made.pages.few.lease_of(offset, holder) for offset in offsets]
    told = zip(made.pages.details(rows)[2].tolist(), versions.tolist(), strict=True)
    assert found == [lease if holds else (0, -1) for lease, holds in zip(told, good, strict=True)]


@given(st.integers(1, SMALL))
def test_a_range_of_leases_is_written_as_its_rows_are(count: int) -> None:
    batch = Batch(PAGE_ROWS - 3, 100, 0, list(range(101)), b"x" * 100, "test", {}, 0)
    wrote = []
    for rows in (slice(0, count), np.arange(count)):
        journal = ListJournal()
        made = RowStates(Pages(), journal, {1: "one"}, lambda offsets: None)
        made.lease_fresh(batch.first, 100, 1, 50 * SECOND, 0)
        out = [Delivery(0, batch, rows, count, 1)]
        made.named.note(out, 1, NOW)
        made.journal.flush(0, lambda now: np.zeros((0, 5), np.int64), NOW)
        wrote.append((journal.entries, out[0].versions))
    assert wrote[0] == wrote[1]
    state = records.replay(np.array(wrote[0][0], np.int64), batch.first)
    assert state.rows.tolist() == list(range(batch.first, batch.first + count))
    assert state.versions.tolist() == wrote[0][1]
    assert set(state.due_ns.tolist()) == {50 * SECOND + NOW.wall_ns - NOW.monotonic_ns}


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=SMALL),
    st.integers(0, 10),
    st.booleans(),
    st.sampled_from((None, "due", "expires")),
)
def test_rows_that_all_go_are_all_ready_when_they_are_judged(
    times: list[int], ttl_ns: int, as_array: bool, column: str | None
) -> None:
    count = len(times)
    taken = np.array(times, np.int64) if as_array else times
    columns = {column: [15] * count} if column is not None else {}
    batch = Batch(7, count, taken, list(range(count + 1)), b"x" * count, "test", columns, 0)
    rules = Rules(ttl_ns=ttl_ns)
    ready = rules.sift(batch, 0, count, 12).ready.tolist()
    assert rules.all_go(batch, 0, count, 12) == (column is None and ready == list(range(7, 7 + count)))


@given(st.lists(st.integers(0, 50 * SECOND), min_size=1, max_size=SMALL), st.booleans())
def test_waits_of_a_few_rows_are_counted_as_those_of_picked_ones(times: list[int], as_array: bool) -> None:
    count = len(times)
    taken = np.array(times, np.int64) if as_array else times
    batch = Batch(0, count, taken, list(range(count + 1)), b"x" * count, "test", {}, 0)
    few, many = Durations(), Durations()
    few.add_first(Delivery(0, batch, slice(0, count), count, 1), 30 * SECOND)
    many.add_first(Delivery(0, batch, np.arange(count), count, 1), 30 * SECOND)
    assert (few.counts, few.sum_ns) == (many.counts, many.sum_ns)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(1, (1 << 63) - 1), st.integers(0, (1 << 31) - 1)),
            st.text(max_size=40),
            st.text("AZaz09-_=+/ ", min_size=30, max_size=34),
        ),
        max_size=10,
    )
)
def test_receipts_are_written_and_read_together_as_each_alone(given_: list[tuple[int, int] | str]) -> None:
    pairs = [each for each in given_ if not isinstance(each, str)]
    written = receipts.written_all([id_ for id_, _ in pairs], [version for _, version in pairs], 77)
    assert written == [receipts.written(id_, version, 77) for id_, version in pairs]
    assert receipts.read_all(written, 77) == pairs
    texts = [each if isinstance(each, str) else receipts.written(*each, 77) for each in given_]
    assert receipts.read_all(texts, 77) == [receipts.read(text, 77) for text in texts]
    assert receipts.read_all(written, 78) == [None] * len(pairs)


@given(st.lists(st.integers(1, SPACE), max_size=SMALL), st.integers(0, 1 << 62))
def test_a_few_ids_are_shown_as_each_alone(ids: list[int], key: int) -> None:
    ids = [*ids, hidden_id(0, key)]
    assert shown_few(ids, key) == [shown_id(id_, key) for id_ in ids] == shown_ids(np.array(ids), key).tolist()


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=40), st.data())
def test_bodies_of_some_rows_are_those_of_each(bodies: list[bytes], data: st.DataObject) -> None:
    ends = np.cumsum([0, *map(len, bodies)])
    cuts = ends.tolist() if len(bodies) <= SMALL else ends
    batch = Batch(0, len(bodies), 0, cuts, b"".join(bodies), "test", {}, 0)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, len(bodies)), st.integers(0, len(bodies)))))
    assert batch.bodies(slice(start, stop)) == bodies[start:stop]
    assert batch.bodies(np.arange(start, stop)) == bodies[start:stop]
