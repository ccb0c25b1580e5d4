"""Rows go to the shard of their key, in their order, however many there are."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.intake.spread import spread
from penstock.keyed import shard_of
from penstock.message import Rows

keys = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"\x00\xff"]), st.binary(max_size=6))
rows = st.lists(
    st.tuples(st.binary(max_size=9), keys, st.one_of(st.none(), st.text(max_size=4))), min_size=1, max_size=60
)


def cells(column: Any) -> list[Any]:
    return list(column) if isinstance(column, list) else list(column.to_pylist())


@given(rows, st.integers(2, 5))
def test_every_row_is_in_the_part_of_its_shard_and_in_order(given_rows: list[Any], shards: int) -> None:
    bodies, keys, tags = (list(column) for column in zip(*given_rows, strict=True))
    parts = spread(Rows.of(bodies, "test", {"key": keys, "tag": tags}), shards, home=shards)
    assert sorted(row for _, _, picks in parts for row in picks) == list(range(len(bodies)))
    for number, part, picks in parts:
        assert picks == sorted(picks)
        assert {shards if keys[row] is None else shard_of(keys[row], shards) for row in picks} == {number}
        view = memoryview(part.body)
        found = [bytes(view[int(part.cuts[row]) : int(part.cuts[row + 1])]) for row in range(part.count)]
        assert found == [bodies[row] for row in picks]
        for name, column in (("key", keys), ("tag", tags)):
            wanted = [column[row] for row in picks]
            assert cells(part.columns.get(name, [None] * len(picks))) == wanted
