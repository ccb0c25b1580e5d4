"""Rows have one mark however they are cut and ordered, and other rows have another."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from penstock.intake.mark import BITS, mark


def batch(
    bodies: list[bytes], keys: list[bytes | None] | None = None, topics: list[str] | None = None
) -> pa.RecordBatch:
    columns = {"body": pa.array(bodies, pa.binary())}
    if keys is not None:
        columns["key"] = pa.array(keys, pa.binary())
    if topics is not None:
        columns["topic"] = pa.array(topics, pa.string())
    return pa.record_batch(columns)


@pytest.mark.parametrize("seed", range(20))
def test_order_and_cuts_do_not_count(seed: int) -> None:
    random = Random(seed)
    rows = [
        (random.randbytes(random.choice([0, 1, 7, 8, 9, 40])), random.choice([None, b"a", b"b"])) for _ in range(50)
    ]
    whole = mark(batch([body for body, _ in rows], [key for _, key in rows]))
    random.shuffle(rows)
    shuffled = batch([body for body, _ in rows], [key for _, key in rows])
    cut = random.randrange(50)
    assert mark(shuffled) == whole
    assert (mark(shuffled.slice(0, cut)) + mark(shuffled.slice(cut))) & BITS == whole


@pytest.mark.parametrize(
    "other",
    [
        batch([b"12", b"22"], [b"a", b"b"], ["t", "u"]),
        batch([b"12", b"21"], [b"b", b"a"], ["t", "u"]),
        batch([b"12", b"21"], [b"a", b"b"], ["u", "t"]),
        batch([b"11", b"22"], [b"a", b"b"], ["t", "u"]),
        batch([b"1", b"221"], [b"a", b"b"], ["t", "u"]),
        batch([b"12", b"21"], [b"a", None], ["t", "u"]),
        batch([b"12", b"21", b""], [b"a", b"b", None], ["t", "u", "u"]),
    ],
    ids=range(7),
)
def test_other_rows_have_another_mark(other: pa.RecordBatch) -> None:
    assert mark(other) != mark(batch([b"12", b"21"], [b"a", b"b"], ["t", "u"]))


def test_one_byte_anywhere_counts() -> None:
    body = bytes(range(100))
    marks = {mark(batch([body])), *(mark(batch([body[:at] + b"\xff" + body[at + 1 :]])) for at in range(100))}
    assert len(marks) == 101


def test_column_that_is_not_there_is_one_of_nulls() -> None:
    assert mark(batch([b"1", b""])) == mark(batch([b"1", b""], [None, b""]))


def test_mark_never_changes() -> None:
    assert mark(batch([])) == 0
    assert mark(batch([b"hello", b"", b"a longer body than a word"], [b"k", None, b""], ["t", "t", "u"])) == (
        2810625923449269753
    )
