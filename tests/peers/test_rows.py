"""Batches on their way to another node."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping

import numpy as np
import pytest

from penstock.columns import SMALL, Column
from penstock.errors import Refusal
from penstock.intake.receipt import PartRefusal, Receipt
from penstock.message import Rows
from penstock.peers.rows import FRAME_BYTES_MAX, BadFrame, Frames, Head, answered, read, told, written


def wire(rows: Rows, **more: object) -> bytes:
    head = Head(7, 3, "t", 1 << 62, None, rows.count, rows.source, rows.sequence)
    for name, value in more.items():
        setattr(head, name, value)
    return b"".join(bytes(part) for part in written(head, rows))


def columns(count: int) -> Mapping[str, Column]:
    due: list[int | None] = [None if row % 3 else row for row in range(count)]
    key: list[bytes | None] = [b"k%d" % row for row in range(count)]
    return {"due": due, "key": key}


@pytest.mark.parametrize("count", [1, SMALL, SMALL + 1, 1000])
@pytest.mark.parametrize("with_columns", [False, True])
def test_rows_arrive_as_they_were(count: int, with_columns: bool) -> None:
    bodies = [b"x" * (row % 7) for row in range(count)]
    rows = Rows.of(bodies, "nsq", columns(count) if with_columns else None)
    rows.sequence = b"s"
    (frame,) = Frames().feed(wire(rows, synced=True))
    head, got = read(frame)
    assert (head.number, head.publisher, head.topic, head.incarnation, head.synced) == (7, 3, "t", 1 << 62, True)
    assert (got.count, got.source, got.sequence, bytes(memoryview(got.body))) == (count, "nsq", b"s", b"".join(bodies))
    assert list(got.cuts) == list(rows.cuts)
    assert isinstance(got.cuts, list) == (count <= SMALL)
    shown = {name: each if isinstance(each, list) else each.to_pylist() for name, each in got.columns.items()}
    assert shown == (dict(columns(count)) if with_columns else {})


def test_frames_come_whole_however_they_are_cut() -> None:
    chance = random.Random(5)
    parts = [wire(Rows.of([b"a" * chance.randrange(50)] * chance.randrange(1, 40), "nsq")) for _ in range(20)]
    whole = b"".join(parts)
    for _ in range(50):
        frames, found, at = Frames(), list[bytes](), 0
        while at < len(whole):
            step = chance.randrange(1, 400)
            found += frames.feed(whole[at : at + step])
            at += step
        assert [struct.pack("<I", len(each)) + each for each in found] == parts
        assert frames.held == 0


def test_answers_say_exactly_what_the_owner_said() -> None:
    receipts = [Receipt(5, 2), Receipt(5, 1, None, {1: 9}, 1)]
    for receipt in receipts:
        (frame,) = Frames().feed(answered(3, receipt, None))
        number, got, error = told(frame)
        assert (number, error) == (3, None)
        assert got is not None
        assert (got.ids(), got.repeated) == (receipt.ids(), receipt.repeated)
    (frame,) = Frames().feed(answered(4, None, Refusal("rate_limited", "slowly", 9)))
    _, _, refusal = told(frame)
    assert refusal is not None
    assert (refusal.code, str(refusal), refusal.retry_ns) == ("rate_limited", "slowly", 9)
    (frame,) = Frames().feed(answered(4, None, PartRefusal("disk_full", "some", {0: 8})))
    _, _, part = told(frame)
    assert isinstance(part, PartRefusal)
    assert part.ids == {0: 8}
    (frame,) = Frames().feed(answered(4, None, ValueError("a bug")))
    assert told(frame)[2] is not None


def test_garbage_is_refused() -> None:
    good = wire(Rows.of([b"body"] * 20, "nsq"))[4:]
    chance = random.Random(6)
    for _ in range(300):
        bad = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        try:
            _, rows = read(bytes(bad[: chance.randrange(len(bad) + 1)]))
        except BadFrame:
            continue
        cuts = np.asarray(rows.cuts)
        assert cuts[0] == 0
        assert cuts[-1] == len(rows.body)
        assert (np.diff(cuts) >= 0).all()
    with pytest.raises(BadFrame):
        Frames().feed(struct.pack("<I", FRAME_BYTES_MAX + 1))
    with pytest.raises(BadFrame):
        told(b"\xff")
