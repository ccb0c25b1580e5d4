"""M3Msg's frames: by columns and one by one they say the same, however the wire cuts them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.columns import SMALL
from penstock.m3 import acks, frames
from penstock.m3 import entries as naming
from penstock.m3 import messages as written
from penstock.m3.acks import AckReader
from penstock.m3.entries import Metadata, Metadatas
from penstock.m3.frames import FrameTooLarge
from penstock.m3.messages import MessageReader, Messages
from penstock.m3.wire import BadMessage
from penstock.varints import varint

SENT = 1_700_000_000_000_000_000
MESSAGE = bytes.fromhex("00 00 00 17 0a 0e 08 05 10 01 18 80 80 a8 b1 e3 9f e7 cb 17 12 05 68 65 6c 6c 6f")
EMPTY = bytes.fromhex("00 00 00 02 0a 00")
ACK = bytes.fromhex(
    "00 00 00 21 0a 0e 08 05 10 01 18 80 80 a8 b1 e3 9f e7 cb 17 0a 0f 08 45 10 ac 02 18 81 80 a8 b1 e3 9f e7 cb 17"
)
ACKED = [Metadata(5, 1, SENT), Metadata(69, 300, SENT + 1)]

Said = list[tuple[Metadata, bytes]]

numbers = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1), st.sampled_from([0, 2**63, 2**64 - 1, 2**56]))
metadatas = st.builds(Metadata, numbers, numbers, numbers)
messages = st.tuples(metadatas, st.one_of(st.binary(max_size=20), st.binary(min_size=120, max_size=140)))


def said(found: Messages | None) -> Said:
    """Return messages of either shape as values."""
    if found is None:
        return []
    data = bytes(memoryview(found.values))
    cuts = [int(cut) for cut in found.cuts]
    values = [data[start:stop] for start, stop in pairwise(cuts)]
    names = found.names()
    assert len(values) == found.count == len(names)
    assert [int(shard) for shard in found.shard] == [name.shard for name in names]
    assert isinstance(found.entries, list) == (found.count <= SMALL)
    entries = found.entries if isinstance(found.entries, list) else found.entries.to_pylist()
    assert entries == [naming.entry(name) for name in names]
    return list(zip(names, values, strict=True))


def read(data: bytes, cuts: Sequence[int] = (), bytes_max: int = frames.FRAME_BYTES_MAX) -> tuple[Said, str]:
    """Return what a stream says that arrives in these pieces, and what is wrong with it."""
    reader, found = MessageReader(bytes_max), []
    places = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    for start, stop in pairwise(places):
        found += said(reader.feed(data[start:stop]))
    return found, reader.frames.fault


def acked(data: bytes) -> list[Metadata]:
    reader = AckReader()
    found = reader.feed(data)
    assert not reader.frames.fault
    return [Metadata(*map(int, row)) for row in zip(*found, strict=True)] if found is not None else []


def columns_of(rows: Said) -> tuple[Metadatas, np.ndarray[tuple[int], np.dtype[np.int32]], bytes]:
    values = [value for _, value in rows]
    cuts = np.cumsum([0, *map(len, values)]).astype(np.int32)
    columns = (np.array([row[place] for row, _ in rows], np.uint64) for place in range(3))
    return Metadatas(*columns), cuts, b"".join(values)


def test_the_vectors_are_read_and_written() -> None:
    assert read(MESSAGE) == ([(Metadata(5, 1, SENT), b"hello")], "")
    assert written.encoded(Metadata(5, 1, SENT), b"hello") == MESSAGE
    assert read(EMPTY) == ([(Metadata(), b"")], "")
    assert written.encoded(Metadata(), b"") == EMPTY
    assert read(bytes(4)) == ([(Metadata(), b"")], "")
    assert acked(ACK) == ACKED
    assert acks.acks([[naming.entry(each) for each in ACKED]]) == (ACK, 1)


@given(st.lists(messages, max_size=60), st.lists(st.integers(0, 10_000), max_size=4))
@example([(Metadata(5, number, SENT), b"x" * 64) for number in range(200)], [1000, 1003])
@example([(Metadata(number % 130, 5000 + number, SENT), b"x" * (64 + number % 2)) for number in range(600)], [70_000])
@example([(Metadata(number % 7, 5000 + number, SENT + number), b"x" * 64) for number in range(100)], [])
@example([(Metadata(1, 2**63 + number, SENT), b"x" * 64) for number in range(100)], [])
@example([(Metadata(5, 1, SENT), b"")] * 40 + [(Metadata(), b"y" * 200)] * 40, [])
def test_what_is_written_by_columns_is_read_by_columns_wherever_it_is_cut(rows: Said, cuts: list[int]) -> None:
    wire = b"".join(written.encoded(*row) for row in rows)
    places, together = written.encode(*columns_of(rows)) if rows else ([0], b"")
    assert bytes(memoryview(together)) == wire
    assert [int(place) for place in places] == [0, *np.cumsum([len(written.encoded(*row)) for row in rows])]
    assert read(wire, cuts) == (rows, "")


@given(st.lists(messages, min_size=17, max_size=40))
@example([(Metadata(number % 3, 5000 + number, SENT), b"x" * 64) for number in range(100)])
def test_numbers_that_are_0_may_be_written_and_say_the_same(rows: Said) -> None:
    _, wire = written.encode(*columns_of(rows), zeros=True)
    reader = MessageReader()
    found = reader.feed(bytes(memoryview(wire)))
    assert found is not None
    assert not reader.frames.fault
    assert found.names() == [name for name, _ in rows]
    assert [int(shard) for shard in found.shard] == [name.shard for name, _ in rows]
    assert bytes(memoryview(found.values)) == b"".join(value for _, value in rows)


#: Fields that a Message of another version may have, and forms that others may write.
strange = st.sampled_from(
    [
        b"\x1a\x03abc",  # a field nobody knows
        b"\x22\x00",
        b"\x0a\x02\x10\x09",  # more metadata
        b"\x12\x01z",  # another value
        b"\x28\x01",
        b"\x0a\x04\x08\x85\x80\x00",  # a number written longer than it must be
        b"\x0a\x82\x00\x08\x01",  # and a length
        b"\x0a\x03\x20\x01\x08",  # cut off
        b"\x08\x01",  # metadata that is a number
        b"\x12\x7f",  # a value that is longer than its message
        b"\x0a\x0b\x08" + b"\x80" * 9 + b"\x01",
        b"\x0a\x0c\x08" + b"\x80" * 10 + b"\x01",
        b"\x00",
    ]
)


@given(
    st.lists(
        st.one_of(messages.map(lambda row: written.encoded(*row)[4:]), st.lists(strange).map(b"".join)), max_size=40
    )
)
def test_columns_and_the_plain_form_say_the_same_of_anything(bodies: list[bytes]) -> None:
    wire = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    expected: Said = []
    fault = False
    for body in bodies:
        try:
            expected.append(written.message(body))
        except BadMessage:
            fault = True
            break
    found, wrong = read(wire)
    assert (found, bool(wrong)) == (expected, fault)


@given(
    st.lists(st.tuples(st.integers(0, 127), st.integers(1 << 21, (1 << 28) - 1)), min_size=20, max_size=60),
    st.integers(0, 140),
    st.tuples(st.integers(0, 10_000), st.integers(0, 255)) | st.none(),
)
@example([(number, 1 << 21) for number in range(60)], 64, None)
def test_messages_that_are_written_alike_say_the_same_one_by_one_also_where_a_byte_is_spoilt(
    names: list[tuple[int, int]], size: int, spoilt: tuple[int, int] | None
) -> None:
    rows = [(Metadata(shard or 1, id_, SENT), bytes([shard]) * size) for shard, id_ in names]
    wire = bytearray(b"".join(written.encoded(*row) for row in rows))
    assert wire == bytes(memoryview(written.encode(*columns_of(rows))[1]))
    step = len(wire) // len(rows)
    if spoilt is not None:
        at, byte = spoilt
        if at % step >= 4:  # not the length of a frame
            wire[at % len(wire)] = byte
    expected: Said = []
    fault = False
    for at in range(0, len(wire), step):
        try:
            expected.append(written.message(bytes(wire[at + 4 : at + step])))
        except BadMessage:
            fault = True
            break
    reader = MessageReader()
    found = reader.feed(bytes(wire))
    assert bool(reader.frames.fault) == fault
    assert (found.count if found is not None else 0) == len(expected)
    if found is not None:  # a number that is 0 may be there or left out, so that entries are compared by what they say
        assert found.names() == [name for name, _ in expected]
        assert [int(shard) for shard in found.shard] == [name.shard for name, _ in expected]
        assert bytes(memoryview(found.values)) == b"".join(value for _, value in expected)


@given(st.lists(metadatas, max_size=60), st.integers(35, 200))
@example([Metadata(7, 2**20 + number, SENT) for number in range(100)], 4096)
@example([Metadata(number, 2**20 + number, SENT + number) for number in range(100)], 4096)
@example([Metadata(7, 2**63 + number, 2**64 - 1) for number in range(100)], 4096)
@example([Metadata()] * 100, 4096)
def test_acks_are_read_as_they_were_written_in_frames_that_fit(rows: list[Metadata], bytes_max: int) -> None:
    columns = Metadatas(*([row[place] for row in rows] for place in range(3)))
    entries = naming.entries(columns)
    listed = entries if isinstance(entries, list) else entries.to_pylist()
    assert listed == [naming.entry(row) for row in rows]
    wire, count = acks.acks([entries, listed[:3]], bytes_max)
    assert acked(wire) == rows + rows[:3]
    at = seen = 0
    while at < len(wire):
        (size,) = struct.unpack_from(">I", wire, at)
        assert 0 < size <= bytes_max
        at, seen = at + 4 + size, seen + 1
    assert seen == count


def test_a_piece_of_a_column_is_acked_and_not_more() -> None:
    entries = pa.array([naming.entry(Metadata(1, number, SENT)) for number in range(50)], pa.binary())
    assert [each.id for each in acked(acks.acks([entries[20:25]]).wire)] == [20, 21, 22, 23, 24]


def test_a_message_above_the_limit_is_not_written() -> None:
    with pytest.raises(FrameTooLarge, match="above the 4 "):
        written.encoded(Metadata(), b"0123456789", 4)
    rows = [(Metadata(1, 1, 1), b"x")] * 30 + [(Metadata(1, 1, 1), b"y" * 100)]
    with pytest.raises(FrameTooLarge):
        written.encode(*columns_of(rows), bytes_max=100)
    assert len(written.encode(*columns_of(rows), bytes_max=110)[0]) == 32


def test_a_frame_above_the_limit_is_refused_by_its_head_and_one_at_the_limit_is_not() -> None:
    reader = MessageReader(8)
    assert reader.feed(struct.pack(">I", 9)) is None
    assert "9 bytes, above the 8" in reader.frames.fault
    assert reader.frames.held == 0
    assert reader.feed(EMPTY) is None
    found, fault = read(struct.pack(">I", 8) + b"\x12\x06abcdef", bytes_max=8)
    assert (found, fault) == ([(Metadata(), b"abcdef")], "")


def test_a_stream_that_ends_inside_a_frame_delivers_nothing_of_it() -> None:
    reader = MessageReader()
    assert reader.feed(struct.pack(">I", 100) + bytes(50)) is None
    assert (reader.frames.held, reader.frames.fault) == (54, "")
    reader.frames.forget()
    assert reader.frames.held == 0


def test_a_large_frame_comes_in_many_pieces() -> None:
    value = bytes(range(256)) * 8192
    wire = written.encoded(Metadata(1, 2, 3), value)
    found, fault = read(wire + MESSAGE, range(0, len(wire), 65_536))
    assert (found, fault) == ([(Metadata(1, 2, 3), value), (Metadata(5, 1, SENT), b"hello")], "")


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50))
@example([0, 127, 128, 2**56 - 1, 2**56, 2**63 - 1, 2**63, 2**64 - 1])
def test_numbers_by_the_column_are_numbers_one_by_one(values: list[int]) -> None:
    from penstock.varints import PAD, Reader, Writer, sizes_of

    wire = b"".join(map(varint, values))
    sizes = [len(varint(value)) for value in values]
    ends = np.cumsum(np.array(sizes, np.int64), dtype=np.int64)
    found, stops, good = Reader(wire + PAD).numbers(ends - sizes)
    assert (found.tolist(), stops.tolist(), bool(good.all())) == (values, ends.tolist(), True)
    writer = Writer(len(values))
    writer.numbers(np.array(values, np.uint64))
    cuts, written = writer.done()
    assert (cuts.tolist(), written.tobytes()) == ([0, *ends.tolist()], wire)
    assert sizes_of(np.array(values, np.uint64)).tolist() == sizes
