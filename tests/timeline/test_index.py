"""The index of message ids against a dictionary, whatever comes and goes."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.timeline.index import ABSENT, COMING, Index, hashes_of

KEY = np.uint64(0xDECAF)


def array(ids: list[bytes]) -> pa.BinaryArray:
    return pa.array(ids, pa.binary())


def test_it_finds_what_was_put_and_not_dropped() -> None:
    random, index = Random(7), Index(1)
    known: dict[bytes, int] = {}
    for _ in range(200):
        new = [b"%x" % random.getrandbits(random.choice((16, 64, 128))) for _ in range(random.randrange(1, 300))]
        new = sorted({each for each in new if each not in known})
        places = np.array([random.randrange(1, 1 << 60) for _ in new], np.int64)
        index.put(index.hashes(array(new)), places)
        known |= dict(zip(new, places.tolist(), strict=True))
        gone = random.sample(sorted(known), len(known) // 3)
        if random.random() < 0.5:
            index.drop(index.hashes(array(gone)))
        else:
            index.drop_soon(array(gone[: len(gone) // 2]))
            index.drop_soon(array(gone[len(gone) // 2 :]))
        for each in gone:
            del known[each]
        asked = [*known, *gone, b"never"]
        found = index.find(index.hashes(array(asked))).tolist()
        assert found == [known.get(each, ABSENT) for each in asked]
        assert len(index) == len(known)


def test_a_batch_moves_no_more_than_a_few_rows_for_each_of_its_own() -> None:
    index, slowest = Index(1), 0
    for first in range(0, 100_000, 500):
        hashes = index.hashes(array([b"%d" % number for number in range(first, first + 500)]))
        before = index._next
        index.add(hashes, np.arange(500))
        slowest = max(slowest, index._next - before)
    assert 0 < slowest <= 500


def test_what_is_expected_is_there_at_once_and_has_its_place_later_wherever_the_table_went_meanwhile() -> None:
    index = Index(1)
    first, second = (array([b"%d-%d" % (part, number) for number in range(700)]) for part in range(2))
    expected = index.expect(index.hashes(first))
    assert set(index.find(index.hashes(first)).tolist()) == {COMING}
    index.add(index.hashes(second), np.arange(700))
    index.settle(expected, index.hashes(first), np.arange(1, 701))
    assert index.find(index.hashes(first)).tolist() == list(range(1, 701))
    third = array([b"x", b"y"])
    index.settle(index.expect(index.hashes(third)), index.hashes(third), np.array([7, 8]))
    assert index.find(index.hashes(third)).tolist() == [7, 8]


def test_it_takes_at_most_32_bytes_a_row_where_there_are_many_and_none_is_being_moved() -> None:
    index = Index(1)
    for first in range(0, 200_000, 1000):
        ids = array([b"%032d" % number for number in range(first, first + 1000)])
        index.put(index.hashes(ids), np.arange(first + 1, first + 1001))
        assert index._old is not None or len(index) < 1000 or index.nbytes / len(index) <= 16 / 0.5 + 1
    ids = array([b"%032d" % number for number in range(200_000)])
    assert (index.find(index.hashes(ids)) == np.arange(1, 200_001)).all()


@given(st.lists(st.binary(max_size=40), unique=True))
def test_hashes_of_different_ids_differ_and_do_not_depend_on_their_neighbours(ids: list[bytes]) -> None:
    together = hashes_of(array(ids), KEY).tolist()
    assert len(set(together)) == len(ids)
    assert together == [int(hashes_of(array([each]), KEY)[0]) for each in ids]
    assert together == hashes_of(array([b"before", *ids]).slice(1), KEY).tolist()


def test_an_id_that_comes_again_after_it_was_to_be_dropped_stays() -> None:
    index, ids = Index(1), array([b"a"])
    index.put(index.hashes(ids), np.array([1]))
    index.drop_soon(ids)
    index.put(index.hashes(ids), np.array([2]))
    assert index.find(index.hashes(ids)).tolist() == [2]
