from __future__ import annotations

import base64
import gc
import tracemalloc
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columns import COLUMNS, SMALL
from penstock.errors import Refusal
from penstock.message import Batch, Rows
from penstock.rest.record import Line, Reading, Writing, read_id, shown, shown_id

NOW_NS = 1_700_000_000_000_000_000
MAPPING = {"web": 0, "bulk": 63}


def rows_of(raw: bytes, mapping: Mapping[str, int], now_ns: int, message_bytes_max: int) -> Rows:
    """Read a body in slices of three lines."""
    reading = Reading(raw, mapping, now_ns, message_bytes_max, "api")
    while not reading.step(3):
        pass
    return reading.rows()


binary = st.binary(max_size=20)
rows = st.fixed_dictionaries(
    {"body": binary},
    optional={
        "key": binary,
        "message_id": binary,
        "dedup": binary,
        "group": binary,
        "tag": st.text(max_size=10),
        "due": st.integers(0, (1 << 63) - 1),
        "expires": st.integers(0, (1 << 63) - 1),
        "event_time": st.integers(0, (1 << 63) - 1),
        "headers": st.dictionaries(st.text(), st.text() | st.integers(-5, 5)).map(msgspec.json.encode),
        "traffic": st.integers(-(1 << 63), (1 << 63) - 1),
        "trace": st.integers(-(1 << 63), (1 << 63) - 1),
        "bucket": st.integers(0, 0xFFFF),
        "route": st.integers(-(1 << 63), (1 << 63) - 1),
    },
)


def stored(found: Rows) -> Batch:
    return Batch(5, found.count, NOW_NS, found.cuts, found.body, found.source, found.columns, 0)


def batch_of(messages: list[dict[str, Any]]) -> Batch:
    names = {name for message in messages for name in message} - {"body"}
    columns: dict[str, Any] = {name: [message.get(name) for message in messages] for name in names}
    return stored(Rows.of([message["body"] for message in messages], "test", columns))


def published(message: Any) -> bytes:
    """Return what was shown of a message as a line to publish."""
    value = msgspec.json.decode(msgspec.json.encode(message))
    return msgspec.json.encode({key: found for key, found in value.items() if key in Line.__struct_fields__})


@given(st.lists(rows, min_size=1, max_size=SMALL + 4))
def test_rows_that_were_shown_make_the_same_rows_again(messages: list[dict[str, Any]]) -> None:
    batch = batch_of(messages)
    lines = [published(shown(3, batch, row, MAPPING)) for row in range(batch.count)]
    again = stored(rows_of(b"\n".join(lines), MAPPING, NOW_NS, 1 << 20))
    for row, message in enumerate(messages):
        assert again.row_body(row) == message["body"]
        for name in COLUMNS:
            if name not in ("offset", "timestamp", "body", "source"):
                assert again.row_value(name, row) == message.get(name), name


def test_what_is_read_of_many_lines_takes_little_more_than_their_text() -> None:
    raw = b'{"body":"x","key":"a","tag":"b","message_id":"c","trace":7}\n' * 20_000
    reading = Reading(raw, {}, NOW_NS, 1 << 20, "api")
    gc.collect()  # what other tests left must not go meanwhile
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        while not reading.step():
            pass
        held, _ = tracemalloc.get_traced_memory()
        arrow = pa.total_allocated_bytes() - before
    finally:
        tracemalloc.stop()
    assert held + arrow < 2 * len(raw)
    assert reading.rows().count == 20_000


@given(st.lists(st.integers(1, (1 << 63) - 1), max_size=5))
def test_ids_are_written_as_texts(ids: list[int]) -> None:
    writing = Writing(ids)
    while not writing.step():
        pass
    assert msgspec.json.decode(bytes(writing.json())) == [shown_id(id_) for id_ in ids]


def test_shown_row_has_its_place_and_its_traffic_by_name() -> None:
    batch = batch_of([{"body": b"a"}, {"body": b"b", "traffic": -(1 << 63) + 1}])
    message = shown(2, batch, 1, MAPPING)
    assert (message.id, message.shard, message.offset) == (shown_id((2 << 48) + 7), 2, 6)
    assert message.timestamp == "2023-11-14T22:13:20.000000000Z"
    assert (message.traffic, message.traffic_types) == ((1 << 63) + 1, ["web", "bulk"])


def test_headers_that_are_no_json_are_shown_as_base64() -> None:
    message = shown(0, batch_of([{"body": b"", "headers": b"{\xff"}]), 0, {})
    assert message.headers_base64 == base64.b64encode(b"{\xff").decode()


@given(st.integers(1, (1 << 63) - 1))
def test_id_reads_back(id_: int) -> None:
    assert read_id(shown_id(id_)) == id_


@pytest.mark.parametrize(
    "text", ["", "1", "000000000000000G", "00000000000000001", "0x00000000000001", "００００００００００００００００"]
)
def test_text_that_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(Refusal, match="16 hex digits"):
        read_id(text)


@given(st.binary())
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        rows_of(raw, {}, NOW_NS, 1 << 20)
    except Refusal as refusal:
        assert str(refusal).startswith("line ")
