"""Every form of a frame reads back with pyarrow, with Polars and with our own decoder."""

from __future__ import annotations

import io

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columns import BASE_COLUMNS, COLUMNS, OPTIONAL_COLUMNS, SMALL, Column
from penstock.errors import CorruptionError
from penstock.log.decode import Decoder, frames
from penstock.log.frame import Template, schema_of, template_of
from penstock.log.run import Run, run_from
from penstock.message import Batch, Rows
from tests.log.samples import listed, rows_of

COUNTS = (1, 2, 15, 16, 17, 1000)
NOW = 1_710_000_000_000_000_000


def stored(rows: Rows, first: int = 70, weight: int = 9000, sequence: bytes = b"") -> Batch:
    return Batch(first, rows.count, NOW, rows.cuts, rows.body, rows.source, rows.columns, weight, sequence)


def names_with(*optional: str) -> tuple[str, ...]:
    return tuple(name for name in COLUMNS if name in (*BASE_COLUMNS, *optional))


def stream(names: tuple[str, ...], *batches: Batch) -> bytes:
    message: bytes = schema_of(names).serialize().to_pybytes()
    for batch in batches:
        message += b"".join(template_of(names, len(batch.sequence)).encode(batch))
    return message


def by_pyarrow(content: bytes) -> list[tuple[object, ...]]:
    table = pa.ipc.open_stream(content).read_all()
    table.validate(full=True)
    absent = [None] * len(table)
    order = [*BASE_COLUMNS, *OPTIONAL_COLUMNS]
    columns = [table[name].to_pylist() if name in table.column_names else absent for name in order]
    return list(zip(*columns, strict=True))


def by_polars(content: bytes, names: tuple[str, ...]) -> dict[str, list[object]]:
    return {name: column.to_list() for name, column in pl.read_ipc_stream(io.BytesIO(content)).to_dict().items()}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("optional", [(), ("due",), ("key",), ("tag",), ("bucket",), OPTIONAL_COLUMNS])
@pytest.mark.parametrize("nulls", [False, True])
def test_frame_reads_back_with_pyarrow_polars_and_our_decoder(
    count: int, optional: tuple[str, ...], nulls: bool
) -> None:
    batch = stored(rows_of(count, names=optional, nulls=nulls))
    names = names_with(*optional)
    content = stream(names, batch, batch)
    wanted = listed(batch)
    assert by_pyarrow(content) == wanted * 2
    polars = by_polars(content, names)
    assert polars["body"] == [row[2] for row in wanted] * 2
    for name in optional:
        assert polars[name] == [batch.row_value(name, row) for row in range(count)] * 2
    start = len(schema_of(names).serialize().to_pybytes())
    found = list(frames(content, start))
    assert [listed(Decoder(names).batch(content, frame)) for frame in found] == [wanted, wanted]
    again = Decoder(names).batch(content, found[0])
    assert (again.first, again.weight, again.sequence) == (70, 9000, b"")


@pytest.mark.parametrize("name", OPTIONAL_COLUMNS)
@pytest.mark.parametrize("count", COUNTS)
def test_column_that_a_batch_lacks_reads_as_null(name: str, count: int) -> None:
    batch = stored(rows_of(count))
    content = stream(names_with(name), batch)
    assert by_pyarrow(content) == listed(batch)
    table = pa.ipc.open_stream(content).read_all()
    assert table[name].null_count == count


@pytest.mark.parametrize("count", COUNTS)
def test_absent_columns_share_one_region_of_zeros(count: int) -> None:
    batch = stored(rows_of(count))
    plain = len(stream(BASE_COLUMNS, batch)) - len(stream(BASE_COLUMNS))
    wide_names = tuple(COLUMNS)
    wide = len(stream(wide_names, batch)) - len(stream(wide_names))
    metadata = template_of(wide_names).layout.body_at - template_of(BASE_COLUMNS).layout.body_at
    assert wide - plain - metadata == 8 * count


@pytest.mark.parametrize("count", [17, 64, 1000])
@pytest.mark.parametrize("skip", [0, 1, 7, 8, 13])
def test_sliced_arrow_columns_keep_their_values(count: int, skip: int) -> None:
    rows = rows_of(count)
    whole = rows_of(count + skip + 5, names=OPTIONAL_COLUMNS)
    columns: dict[str, Column] = {name: column[skip : skip + count] for name, column in whole.columns.items()}
    batch = stored(Rows(count, rows.cuts, rows.body, "nsq", columns))
    content = stream(tuple(COLUMNS), batch)
    assert by_pyarrow(content) == listed(batch)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("sequence", [b"s", b"producer-7/12345", bytes(range(200))])
def test_sequence_travels_in_the_metadata(count: int, sequence: bytes) -> None:
    batch = stored(rows_of(count), sequence=sequence)
    content = stream(BASE_COLUMNS, batch)
    assert by_pyarrow(content) == listed(batch)
    (frame,) = frames(content, len(stream(BASE_COLUMNS)))
    assert Decoder(BASE_COLUMNS).batch(content, frame).sequence == sequence


@pytest.mark.parametrize("optional", [(), ("due", "tag"), OPTIONAL_COLUMNS])
@pytest.mark.parametrize("count", range(1, SMALL + 1))
def test_small_and_large_way_store_the_same_rows(count: int, optional: tuple[str, ...]) -> None:
    batch = stored(rows_of(count, names=optional, seed=count))
    names = names_with(*optional)
    template = template_of(names)
    head = schema_of(names).serialize().to_pybytes()
    small = head + b"".join(template.encode(batch))
    large = head + b"".join(template._large(batch))
    assert by_pyarrow(small) == by_pyarrow(large) == listed(batch)
    for content in (small, large):
        (frame,) = frames(content, len(head))
        assert listed(Decoder(names).batch(content, frame)) == listed(batch)


def test_batch_with_a_time_and_a_dialect_per_row_reads_back() -> None:
    for count in COUNTS:
        rows = rows_of(count)
        times = [NOW + row for row in range(count)]
        sources = ["nsq" if row % 2 else "flight" for row in range(count)]
        batch = Batch(5, count, times, rows.cuts, rows.body, sources, {}, 0)
        content = stream(BASE_COLUMNS, batch)
        assert by_pyarrow(content) == listed(batch)
        (frame,) = frames(content, len(stream(BASE_COLUMNS)))
        assert listed(Decoder(BASE_COLUMNS).batch(content, frame)) == listed(batch)


def test_many_small_frames_merge_into_the_rows_they_hold() -> None:
    names = names_with("due", "key", "tag", "bucket")
    batches, first = [], 3
    for number, count in enumerate([1, 1, 1, 2, 16, 17, 300, 1, 5] * 4):
        optional = [(), ("due",), ("key", "tag"), ("due", "key", "tag", "bucket")][number % 4]
        batch = stored(rows_of(count, seed=number, names=optional, nulls=number % 3 > 0), first=first)
        batch.timestamp = NOW + number
        batches.append(batch)
        first += count
    content = stream(names, *batches)
    found = list(frames(content, len(stream(names))))
    merged = Decoder(names).batches(content, [Run.of(frame) for frame in found], 10_000)
    assert len(merged) == 1
    assert listed(merged[0]) == [row for batch in batches for row in listed(batch)]


def one_row_frames(count: int) -> bytes:
    frames_ = [template_of(BASE_COLUMNS).encode(stored(rows_of(1, seed=row), first=70 + row)) for row in range(count)]
    return b"".join(part for frame in frames_ for part in frame)


def test_quick_way_finds_the_frames_that_the_slow_way_finds() -> None:
    content = one_row_frames(60)
    run = run_from(content, 0, len(content))
    assert run is not None
    assert [run.frame(number) for number in range(len(run))] == list(frames(content))


@given(st.integers(0, 1 << 20), st.integers(0, 7))
def test_quick_way_finds_nothing_where_a_bit_is_flipped(place: int, bit: int) -> None:
    content = bytearray(one_row_frames(20))
    place %= len(content)
    content[place] ^= 1 << bit
    run = run_from(bytes(content), 0, len(content))
    assert run is None or int(run.ends[-1]) <= place


def test_frames_with_a_hole_or_a_sequence_between_them_do_not_merge() -> None:
    batches = [
        stored(rows_of(20), first=0),
        stored(rows_of(20), first=20),
        stored(rows_of(20), first=50),
        stored(rows_of(20), first=70, sequence=b"seq"),
        stored(rows_of(20), first=90),
    ]
    content = stream(BASE_COLUMNS, *batches)
    found = list(frames(content, len(stream(BASE_COLUMNS))))
    merged = Decoder(BASE_COLUMNS).batches(content, [Run.of(frame) for frame in found])
    assert [(batch.first, batch.count) for batch in merged] == [(0, 40), (50, 20), (70, 20), (90, 20)]


def test_empty_bodies_and_an_empty_source_are_rows_too() -> None:
    for count in COUNTS:
        rows = Rows.of([b""] * count, "")
        content = stream(BASE_COLUMNS, stored(rows))
        assert by_pyarrow(content) == listed(stored(rows))
        (frame,) = frames(content, len(stream(BASE_COLUMNS)))
        assert listed(Decoder(BASE_COLUMNS).batch(content, frame)) == listed(stored(rows))


def test_caches_per_row_count_stay_bounded() -> None:
    template = Template(schema_of(BASE_COLUMNS), 0)
    for number in range(2000):
        batch = stored(Rows.of([b"x"], f"source-{number}"))
        template.encode(batch)
    assert len(template._plans) <= 512


@given(st.integers(0, 10_000), st.integers(0, 7), st.sampled_from([1, 2, 17, 60]))
def test_any_flipped_bit_is_detected(place: int, bit: int, count: int) -> None:
    batch = stored(rows_of(count, names=("due", "tag")))
    frame = bytearray(b"".join(template_of(names_with("due", "tag")).encode(batch)))
    frame[place % len(frame)] ^= 1 << bit
    with pytest.raises(CorruptionError):
        list(frames(bytes(frame)))


@given(st.integers(0, 4000))
def test_any_shorter_frame_is_detected(length: int) -> None:
    frame = b"".join(template_of(BASE_COLUMNS).encode(stored(rows_of(9))))
    with pytest.raises(CorruptionError):
        list(frames(frame[: length % len(frame)] or b"\xff"))


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=40), st.integers(0, 2**47), st.integers(0, 2**60))
def test_any_bodies_read_back(bodies: list[bytes], first: int, weight: int) -> None:
    rows = Rows.of(bodies, "nsq")
    content = stream(BASE_COLUMNS, stored(rows, first, weight))
    assert pa.ipc.open_stream(content).read_all()["body"].to_pylist() == bodies
    (frame,) = frames(content, len(stream(BASE_COLUMNS)))
    batch = Decoder(BASE_COLUMNS).batch(content, frame)
    assert [batch.row_body(row) for row in range(batch.count)] == bodies
    assert (batch.first, batch.weight) == (first, weight)


def test_large_frame_hands_out_views_of_the_bytes_it_was_read_from() -> None:
    content = stream(BASE_COLUMNS, stored(rows_of(1000)))
    (frame,) = frames(content, len(stream(BASE_COLUMNS)))
    batch = Decoder(BASE_COLUMNS).batch(content, frame)
    assert isinstance(batch.body, memoryview)
    assert isinstance(batch.cuts, np.ndarray)
    assert not batch.cuts.flags.owndata
