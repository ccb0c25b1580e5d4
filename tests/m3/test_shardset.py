from __future__ import annotations

import pytest

from penstock.m3.shardset import BadShardSet, ranges


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("7", ((7, 7),)),
        ("0..511", ((0, 511),)),
        (" 3 .. 5 , 9", ((3, 5), (9, 9))),
        ("5,1..3,4", ((1, 5),)),
        ("0..10,2..4", ((0, 10),)),
        ("0..4294967295", ((0, 4294967295),)),
    ],
)
def test_a_shard_set_is_read_into_ranges(text: str, found: tuple[tuple[int, int], ...]) -> None:
    assert ranges(text) == found


@pytest.mark.parametrize("text", ["", "a", "-1", "1..", "..2", "5..2", "1...3", "[1..5]", "1,,2", "0..4294967296", "٣"])
def test_what_is_no_shard_set_is_refused(text: str) -> None:
    with pytest.raises(BadShardSet, match="shard set"):
        ranges(text)
