"""The wire by itself: however a stream is cut and however many come at once, the same messages come out."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from penstock.columns import SMALL
from penstock.dialects.dory.codec import MALFORMED, Decoded, Fault, Stream, decode
from penstock.dory import TooLong, encode

NOW_MS = 1_700_000_000_000
INT64 = struct.Struct(">q")


def rows(found: Decoded) -> dict[bytes, list[tuple[object, ...]]]:
    """Return what was found, row by row."""
    topics = {}
    for topic, group, times in found.groups:
        body = bytes(memoryview(group.body))
        listed = {
            name: column if isinstance(column, list) else column.to_pylist() for name, column in group.columns.items()
        }
        nothing: list[object] = [None] * group.count
        topics[topic] = [
            (
                body[group.cuts[row] : group.cuts[row + 1]],
                int(times[row]),
                *(listed.get(name, nothing)[row] for name in ("event_time", "key", "route")),
            )
            for row in range(group.count)
        ]
    return topics


def at_once(wires: Sequence[bytes]) -> Decoded:
    stops = np.cumsum([len(wire) for wire in wires])
    return decode(b"".join(wires), stops - [len(wire) for wire in wires], stops, NOW_MS)


def one_by_one(wires: Sequence[bytes]) -> tuple[dict[bytes, list[tuple[object, ...]]], dict[Fault, list[bytes]]]:
    found = [decode(wire, [0], [len(wire)], NOW_MS) for wire in wires]
    topics: dict[bytes, list[tuple[object, ...]]] = {}
    faults: dict[Fault, list[bytes]] = {}
    for each in found:
        for topic, some in rows(each).items():
            topics.setdefault(topic, []).extend(some)
        for fault, contents in each.faults.items():
            faults.setdefault(fault, []).extend(contents)
    return topics, faults


def mutated(wire: bytes, dice: random.Random) -> bytes:
    """Return a message with something wrong with it, or nothing."""
    data = bytearray(wire)
    kind = dice.randrange(8)
    if kind == 0:
        data[dice.randrange(4, len(data))] ^= 1 << dice.randrange(8)
    elif kind == 1:
        data = data[: dice.randrange(4, len(data))]
    elif kind == 2:
        data += bytes(dice.randrange(1, 9))
    elif kind == 3:
        struct.pack_into(">h", data, 4, dice.choice([0, 255, 258, -1]))
    elif kind == 4:
        struct.pack_into(">h", data, 6, dice.choice([1, -1, 256]))
    if dice.random() < 0.9:
        struct.pack_into(">i", data, 0, len(data))
    return bytes(data)


def messages(dice: random.Random, count: int, topics: Sequence[bytes]) -> list[bytes]:
    return [
        encode(
            dice.choice(topics),
            dice.randbytes(dice.randrange(0, 40)),
            dice.choice([b"", b"", dice.randbytes(dice.randrange(1, 9))]),
            partition_key=dice.choice([None, dice.randrange(1 << 32)]),
            timestamp_ms=dice.choice([NOW_MS - 5, NOW_MS + 5, 0, -1, -(1 << 63), (1 << 63) - 1]),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(40))
def test_many_messages_are_read_as_each_by_itself_good_and_bad(seed: int) -> None:
    dice = random.Random(seed)
    topics = [b"t", b"t\0", b"other", b"\xff\xfe", b"x" * 300][: dice.randrange(1, 6)]
    wires = messages(dice, dice.choice([SMALL + 1, 40, 300]), topics)
    if seed % 2:
        wires = [mutated(wire, dice) for wire in wires]
    found = at_once(wires)
    assert (rows(found), found.faults) == one_by_one(wires)
    counted = sum(group.rows.count for group in found.groups) + sum(map(len, found.faults.values()))
    assert counted == len(wires)


@pytest.mark.parametrize(("key", "partition_key"), [(b"", None), (b"k", None), (b"", 7)])
def test_messages_of_one_size_are_read_as_each_by_itself_wherever_one_differs(
    key: bytes, partition_key: int | None
) -> None:
    alike = [encode(b"t", b"%4d" % n, key, partition_key=partition_key, timestamp_ms=n) for n in range(SMALL + 2)]
    for row in (0, SMALL, SMALL + 1):
        for place in range(len(alike[0])):
            wires = list(alike)
            wires[row] = bytes(byte ^ (at == place) for at, byte in enumerate(alike[row]))
            found = at_once(wires)
            assert (rows(found), found.faults) == one_by_one(wires), (row, place)
    assert rows(at_once(alike)) == one_by_one(alike)[0]


class Looked(np.ndarray[Any, Any]):
    """Places of a read that count how many of them are looked up."""

    lookups = 0

    def __getitem__(self, picks: Any) -> Any:
        found = super().__getitem__(picks)
        Looked.lookups += np.size(picks if isinstance(picks, np.ndarray) else found)
        return found


@pytest.mark.parametrize("place", [4, 6], ids=["API key", "version"])
def test_bad_messages_are_looked_at_as_often_whatever_is_in_them(place: int) -> None:
    def lookups(numbers: Sequence[int]) -> int:
        wires = [bytearray(struct.pack(">ihh", 8, 256, 0)) for _ in numbers]
        for wire, number in zip(wires, numbers, strict=True):
            struct.pack_into(">h", wire, place, number)
        stops = np.cumsum([8] * len(wires))
        Looked.lookups = 0
        found = decode(b"".join(wires), (stops - 8).view(Looked), stops.view(Looked), NOW_MS)
        assert [len(contents) for contents in found.faults.values()] == [
            numbers.count(number) for number in dict.fromkeys(numbers)
        ]
        return Looked.lookups

    assert lookups(range(1000, 3000)) <= 2 * lookups([1000] * 2000)


def test_empty_datagrams_are_malformed_however_many_come_at_once() -> None:
    for count in (1, SMALL, SMALL + 1, 100):
        assert at_once([b""] * count) == Decoded([], {MALFORMED: [b""] * count})


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_cut_anywhere_gives_the_same_messages(seed: int) -> None:
    dice = random.Random(seed)
    sizes = [dice.choice([100, 100, 100, 7, 4]) for _ in range(400)]
    wires = [struct.pack(">i", size) + dice.randbytes(size - 4) for size in sizes]
    wire = b"".join(wires)
    stream, found, at = Stream(1000), [], 0
    while at < len(wire):
        step = dice.choice([1, 3, 50, 1000, 20_000])
        data, starts, stops = stream.cut(wire[at : at + step])
        found += [data[start:stop] for start, stop in zip(starts, stops, strict=True)]
        at += step
    assert found == wires
    assert (stream.held, stream.fault) == (0, "")


@pytest.mark.parametrize(("size", "fault"), [(3, "size"), (-5, "size"), (105, "large"), ((1 << 31) - 1, "large")])
def test_a_stream_ends_at_a_size_that_cannot_be_and_keeps_what_was_before_it(size: int, fault: str) -> None:
    good = struct.pack(">i", 104) + bytes(100)
    stream = Stream(100)
    _, starts, stops = stream.cut(good * 30 + struct.pack(">i", size) + good)
    assert len(starts) == len(stops) == 30
    assert stream.fault == fault
    assert stream.rest()[:4] == struct.pack(">i", size)


def test_a_time_to_come_is_now_and_one_before_all_times_is_the_first_there_is() -> None:
    for count in (1, SMALL + 1):
        wires = [encode("t", b"", timestamp_ms=time) for time in (NOW_MS + 1, -(1 << 63))] * count
        found = at_once(wires) if count > 1 else decode(b"".join(wires), [0, 29], [29, 58], NOW_MS)
        (group,) = found.groups
        assert list(group.times_ms)[:2] == [NOW_MS + 1, -(1 << 63)]
        column = group.rows.columns["event_time"]
        times = column if isinstance(column, list) else column.to_pylist()
        assert times[0] == NOW_MS * 10**6
        assert min(times) < -(10**18)


def test_what_does_not_fit_the_format_is_not_made() -> None:
    for topic in ("", "x" * 32768):
        with pytest.raises(TooLong):
            encode(topic, b"")
    assert len(encode("x" * 32767, b"v", b"k", partition_key=1)) == 32 + 32767 + 2
