"""The shard of a metric: upstream's hash."""

from __future__ import annotations

import mmh3
import pytest

from penstock.keyed import shard_of


@pytest.mark.parametrize(
    ("metric", "hashed", "of_1024"),
    [
        (b"foo", 0xF6A5C420, 32),
        (b"bar", 0x450E998D, 397),
        (b"baz", 0xF1686CEA, 234),
        (b"foobar", 0xA4C4D4BD, 189),
        (b"barbaz", 0x6B25015E, 350),
        (b"foobarbaz", 0x56281FB6, 950),
        (b"", 0, 0),
    ],
)
def test_m3msg_case_1_the_shard_of_an_id_is_murmur3_modulo_the_shards(metric: bytes, hashed: int, of_1024: int) -> None:
    assert mmh3.hash(metric, signed=False) == hashed
    assert (shard_of(metric, 1 << 32), shard_of(metric, 1024)) == (hashed, of_1024)
