"""Record batches without a broker: both ways of making them agree."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columns import Column, Offsets
from penstock.kafka import headers, records
from penstock.kafka.compression import Compression
from penstock.kafka.records import Flags, Piece, Records, laid_out, sealed
from penstock.message import Batch
from penstock.relays.kafka.records import null_empty

Row = tuple[bytes | None, bytes, int, bytes | None]

TOMBSTONE = b'{"penstock.tombstone":"true"}'
ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=70),
        st.binary(max_size=70) | st.sampled_from([b"a" * 64, b"b" * 8192]),
        st.integers(-1, 1 << 41) | st.integers(1_700_000_000_000, 1_700_000_000_100),
        st.none()
        | st.sampled_from(
            [
                *(b"", b"{}", b'{"a":"b"}', b'{"a":1,"b":null,"c":{"d":"e"}}', b"not JSON", b"[1]"),
                *(TOMBSTONE, b'{"a":"b",' + TOMBSTONE[1:], b'{"penstock.tombstone":"no"}', b'"penstock.tombstone"'),
            ]
        ),
    ),
    min_size=1,
    max_size=200,
)


def piece(rows: list[Row], null_empty: bool | Flags = True) -> Piece:
    keys, values, times, said = ([row[place] for row in rows] for place in range(4))
    cuts = np.cumsum([0, *map(len, values)]).astype(np.int32)  # type: ignore[arg-type]
    key = pa.array(keys, pa.binary()) if any(each is not None for each in keys) else None
    header = pa.array(said, pa.binary()) if any(each is not None for each in said) else None
    return Piece(cuts, b"".join(values), np.array(times, np.int64), key, header, null_empty)  # type: ignore[arg-type]


def whole(found: Records) -> tuple[int, bytes, int, int, int]:
    return found.count, bytes(found.data), found.first_ms, found.last_ms, found.weight


@given(
    ROWS,
    st.integers(0, 200),
    st.lists(st.booleans() | st.integers(0), min_size=2, max_size=2),
    st.sampled_from(["all", "no keys", "no headers", "values alone", "nothing"]),
)
def test_columns_make_the_bytes_that_the_plain_loop_makes(
    rows: list[Row], cut: int, nulls: list[bool | int], shape: str
) -> None:
    keys, said = shape in ("all", "no headers"), shape in ("all", "no keys")
    rows = [(key if keys else None, value, time, header if said else None) for key, value, time, header in rows]
    if shape == "nothing":
        rows = [(None, b"", 5, None) for _ in rows]
    pieces = [
        piece(part, flags(null, part)) for part, null in zip((rows[:cut], rows[cut:]), nulls, strict=True) if part
    ]
    assert whole(records._columns(pieces, len(rows))) == whole(records._each(pieces, len(rows)))


def flags(null: bool | int, rows: list[Row]) -> bool | Flags:
    """Return one for all rows, or one each: the bits of a number."""
    return null if isinstance(null, bool) else np.array([bool(null >> row & 1) for row in range(len(rows))], np.bool_)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 100, 8191, 8192])
@pytest.mark.parametrize("step_ms", [0, 1, 40])
def test_values_of_one_size_make_the_bytes_that_the_plain_loop_makes(size: int, step_ms: int) -> None:
    count = 40_000 if size == 1 else 9_000 if size <= 100 else 300
    rows: list[Row] = [(None, bytes([row % 256]) * size, 1_000 + step_ms * row, None) for row in range(count)]
    pieces = [piece(rows[: count // 3]), piece(rows[count // 3 :])]
    assert whole(laid_out(pieces)) == whole(records._each(pieces, count))


def test_rows_of_a_batch_are_picked_or_taken_as_they_stand() -> None:
    bodies = [b"body %d" % row * (row % 5) for row in range(100)]
    cuts = np.cumsum([0, *map(len, bodies)]).astype(np.int32)
    keys = pa.array([b"k%d" % row if row % 2 else None for row in range(100)], pa.binary())
    batch = Batch(0, 100, 7, cuts, b"".join(bodies), "nsq", {"key": keys}, 0)
    for rows in (slice(10, 90), slice(3, 5), np.arange(1, 100, 3), np.array([5, 6])):
        picks = np.arange(100)[rows].tolist()
        expected = piece([(keys[row].as_py(), bodies[row], 5, None) for row in picks])
        assert whole(laid_out([Piece.of(batch, rows, 5)])) == whole(laid_out([expected]))


@pytest.mark.parametrize("rows", [slice(1, 4), np.array([0, 2, 3])], ids=["in a row", "picked"])
def test_rows_that_dory_took_are_known_however_the_log_has_them(rows: slice | Offsets) -> None:
    def of(source: str | Column) -> bool | list[bool]:
        found = null_empty(Batch(0, 4, 7, [0] * 5, b"", source, {}, 0), rows)
        return found if isinstance(found, bool) else found.tolist()

    mixed = ["dory", "nsq", "dory", "nsq"]
    expected = np.array([True, False, True, False])[rows].tolist()
    assert [of("dory"), of("nsq"), of(["dory"] * 4), of(pa.array(["nsq"] * 4))] == [True, False, True, False]
    assert of(mixed) == of(pa.array(mixed)) == expected


def test_headers_keep_text_and_bytes_as_they_are_and_everything_else_as_json() -> None:
    said = b'{"text":"\xc3\xa4\\n","number":1.50,"null":null,"object":{"a": [1]}}'
    assert headers.section(said) == (
        b"\x08" + b"\x08text\x06\xc3\xa4\n" + b"\x0cnumber\x081.50" + b"\x08null\x01" + b'\x0cobject\x14{"a": [1]}'
    )
    raw = b'{"b":{"type":"Binary","value":"/wA="},"l":["x",null],"n":["x",1]}'
    assert headers.section(raw) == b'\x08\x02b\x04\xff\x00\x02l\x02x\x02l\x01\x02n\x0e["x",1]'
    assert headers.section(b'{"b":{"type":"Binary","value":"?"}}') == b'\x02\x02b:{"type":"Binary","value":"?"}'
    assert headers.section(b"no object") == b"\x02\x0eheaders\x12no object"
    assert headers.section(None) == headers.section(b"{}") == b"\0"


@pytest.mark.parametrize(
    ("value", "said", "null", "left"),
    [
        (b"", TOMBSTONE, True, None),
        (b"", b'{"a": "b", "penstock.tombstone": "true", "c": null}', True, b'{"a":"b","c":null}'),
        (b"", b'{"penstock.tombstone":"no"}', False, b'{"penstock.tombstone":"no"}'),
        (b"x", TOMBSTONE, False, TOMBSTONE),
        (b"", None, False, None),
    ],
)
def test_a_tombstone_that_came_from_kafka_goes_out_as_one(
    value: bytes, said: bytes | None, null: bool, left: bytes | None
) -> None:
    found = laid_out([piece([(b"k", value, 5, said)], null_empty=False)])
    inside = b"\0\0\0" + b"\2k" + (b"\1" if null else bytes([2 * len(value)]) + value) + headers.section(left)
    assert bytes(found.data) == bytes([2 * len(inside)]) + inside


@pytest.mark.parametrize(
    ("count", "compression", "codec"),
    [
        (101, Compression("gzip", bytes_min=128), "none"),
        (102, Compression("gzip", bytes_min=128), "gzip"),
        (102, Compression("lz4", percent=75), "lz4"),
        (102, Compression("zstd", level=19), "zstd"),
        (102, Compression("gzip", level=99), "gzip"),
        (102, Compression("snappy", level=3), "snappy"),
        (102, Compression("gzip", percent=0), "none"),
    ],
)
def test_a_set_is_compressed_from_its_least_size_on_and_if_it_shrinks(
    count: int, compression: Compression, codec: str
) -> None:
    made = sealed(laid_out([piece([(None, b"A" * count, 0, None)])]), compression)
    assert made.codec == codec
    assert made.size == sum(map(len, made.pieces))
    assert (made.sent_bytes < made.plain_bytes) == (codec != "none")


def test_what_does_not_shrink_goes_as_it_is() -> None:
    noise = np.random.default_rng(1).bytes(500)
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        made = sealed(laid_out([piece([(None, noise, 0, None)])]), Compression(codec, percent=75))
        assert (made.codec, made.sent_bytes) == ("none", made.plain_bytes)
