"""NSQ's extension header: what is taken, what it fills, and batches against single rows."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columns import COLUMNS, SMALL
from penstock.filters import header as header_module
from penstock.filters.header import (
    FILLED,
    HEADER_BYTES_MAX,
    BadHeader,
    BadTrace,
    HeaderReader,
    Parsed,
    check,
    members_of,
    only_reserved,
)
from tests.filters.imports import loaded_by


def of(**members: Any) -> bytes:
    return json.dumps({name.replace("__", "##"): value for name, value in members.items()}).encode()


def test_a_header_without_reserved_names_is_stored_as_it_is() -> None:
    sent = b' { "nsq.client.compress" : "gz\\u0069p", "A-b_9#":"" } '
    assert check(sent) == Parsed(sent)


def test_every_reserved_name_fills_its_column_and_stays_in_the_header() -> None:
    sent = of(
        __client_dispatch_tag="tagA",
        __trace_id="123",
        __key="käse",
        __due_ms="1500000000123",
        __traffic_types="5",
        __event_ms="1400000000000",
        __dedup="once",
        __other="kept",
    )
    assert check(sent) == Parsed(
        headers=sent,
        tag="tagA",
        trace=123,
        key="käse".encode(),
        due=1_500_000_000_123_000_000,
        traffic=5,
        event_time=1_400_000_000_000_000_000,
        dedup=b"once",
    )
    assert check(sent, lenient=True) == check(sent)


def test_all_64_bits_of_trace_and_traffic_are_kept_in_a_signed_column() -> None:
    parsed = check(of(__trace_id=str(2**64 - 1), __traffic_types=str(2**63)))
    assert (parsed.trace, parsed.traffic) == (-1, -(2**63))


@pytest.mark.parametrize("lenient", [False, True])
def test_an_empty_trace_counts_as_absent_and_is_dropped_while_the_rest_stays_as_sent(lenient: bool) -> None:
    parsed = check(b'{ "a":"\\u0041", "##trace_id":"", "##client_dispatch_tag":"t"}', lenient)
    assert parsed.trace is None
    assert parsed.tag == "t"
    assert parsed.headers == b'{"a":"\\u0041","##client_dispatch_tag":"t"}'
    assert check(b'{"##trace_id":""}', lenient).headers == b"{}"


def test_an_empty_tag_key_or_dedup_says_nothing() -> None:
    parsed = check(of(__client_dispatch_tag="", __key="", __dedup=""))
    assert parsed == Parsed(parsed.headers)


def test_trace_zero_is_a_trace() -> None:
    assert check(of(__trace_id="0")).trace == 0
    assert check(of(__trace_id="000000000000000000000000000007")).trace == 7


@pytest.mark.parametrize(
    "value", [5, None, True, ["1"], "x", "-1", "+1", "1.0", " 1", "1 ", "٣", "1_0", str(2**64), "9" * 6000]
)
def test_a_wrong_trace_is_told_as_such_whatever_else_is_wrong(value: object) -> None:
    for sent in (of(__trace_id=value), of(__trace_id=value, **{"a b": 1}), of(**{"a b": "c"}, __trace_id=value)):
        with pytest.raises(BadTrace):
            check(sent)


@pytest.mark.parametrize("name", ["__due_ms", "__traffic_types", "__event_ms"])
@pytest.mark.parametrize("value", ["", "soon", "-1", "1.5", "0x1", "9" * 19 + "99"])
@pytest.mark.parametrize("lenient", [False, True])
def test_a_reserved_number_that_does_not_parse_is_refused_by_name(name: str, value: str, lenient: bool) -> None:
    with pytest.raises(BadHeader, match=name.replace("__", "##")):
        check(of(**{name: value}), lenient)


def test_the_last_time_that_fits_is_taken_and_the_next_refused() -> None:
    assert check(of(__due_ms="9223372036854")).due == 9_223_372_036_854_000_000
    with pytest.raises(BadHeader):
        check(of(__due_ms="9223372036855"))


NOT_OBJECTS = [
    b"",
    b" ",
    b"[]",
    b'["a"]',
    b"null",
    b"1",
    b'"a"',
    b"{",
    b'{"a"}',
    b"{'a':'b'}",
    b'{"a":"b"}x',
    b'{"a":"b",}',
]
UNREADABLE = [
    b'{"a":"\xff"}',
    b'{"\xff":"a"}',
    b'{"a":["\xff"]}',
    b'{"a":"\n"}',
    b'{"a":NaN}',
    b'{"a":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
]


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("sent", NOT_OBJECTS + UNREADABLE)
def test_what_is_not_a_json_object_is_never_taken(sent: bytes, lenient: bool) -> None:
    with pytest.raises(BadHeader) as caught:
        check(sent, lenient)
    assert not isinstance(caught.value, BadTrace)
    assert members_of(sent) is None


def test_nsq_case_57_a_number_as_tag_and_a_name_with_a_space_are_refused_unless_lenient() -> None:
    number, spaced = of(__client_dispatch_tag=5), of(**{"a b": "c"})
    with pytest.raises(BadHeader, match="'##client_dispatch_tag' is not a string"):
        check(number)
    with pytest.raises(BadHeader, match="header name 'a b'"):
        check(spaced)
    assert check(number, lenient=True) == Parsed(number)
    assert check(spaced, lenient=True) == Parsed(spaced)
    with pytest.raises(BadHeader):
        check(b"[]", lenient=True)


@pytest.mark.parametrize("name", ["", " ", "a\n", "ä", "a/b", "a:b", '"'])
def test_a_name_of_other_characters_is_refused(name: str) -> None:
    with pytest.raises(BadHeader, match="header name"):
        check(of(**{"good": "1", name: "2"}))


def test_an_error_shows_only_the_start_of_a_long_name() -> None:
    with pytest.raises(BadHeader) as caught:
        check(of(**{" " * 10_000: "x"}))
    assert len(str(caught.value)) < 200


def test_lenient_reads_only_strings() -> None:
    sent = of(__trace_id=5, __due_ms=7, __traffic_types=None, __key=["k"], __client_dispatch_tag="t", zan_test=True)
    assert check(sent, lenient=True) == Parsed(sent, tag="t")
    assert members_of(sent) == {"##client_dispatch_tag": "t"}


def test_a_header_longer_than_its_length_field_can_say_is_refused() -> None:
    longest = b'{"a":"' + b"x" * (HEADER_BYTES_MAX - 8) + b'"}'
    assert check(longest).headers == longest
    with pytest.raises(BadHeader, match="at most 65534"):
        check(longest + b" ")


def test_only_reserved_names_can_be_dropped_where_headers_are_not_kept() -> None:
    assert only_reserved(b"{}")
    assert only_reserved(of(__trace_id="1", __client_dispatch_tag="t"))
    assert not only_reserved(of(__trace_id="1", custom="x"))
    assert not only_reserved(b'{"a":1}')


def test_what_is_remembered_is_bounded_in_number_and_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_module, "REMEMBERED_MAX", 10)
    reader = HeaderReader()
    for n in range(100):
        reader.check(of(a=str(n)))
        reader.check(of(a="x" * 1000 + str(n)))
        assert len(reader._remembered) <= 10
        assert all(len(header) <= 512 for header in reader._remembered)


class TestColumns:
    def test_only_columns_in_use_are_returned(self) -> None:
        reader = HeaderReader()
        assert reader.columns([]) == {}
        assert reader.columns([None, b""]) == {}
        assert reader.columns([None] * 50) == {}
        assert reader.columns([b""] * 50) == {}
        assert reader.columns([b"{}", None]) == {"headers": [b"{}", None]}
        tagged = of(__client_dispatch_tag="t")
        assert reader.columns([tagged, b""]) == {"headers": [tagged, None], "tag": ["t", None]}

    @pytest.mark.parametrize("count", [4, 40])
    def test_the_first_bad_header_is_raised_with_its_row(self, count: int) -> None:
        headers: list[bytes | None] = [b"{}", None, *[b"{}"] * count]
        headers[3:5] = [b"[]", of(__trace_id=1)]
        with pytest.raises(BadHeader) as caught:
            HeaderReader().columns(headers)
        assert caught.value.row == 3
        assert not isinstance(caught.value, BadTrace)

    @given(st.data())
    def test_a_batch_gets_the_columns_its_rows_get_one_by_one(self, data: st.DataObject) -> None:
        good = st.one_of(
            st.none(),
            st.just(b""),
            st.fixed_dictionaries(
                {},
                optional={
                    "##client_dispatch_tag": st.sampled_from(["", "a", "b"]),
                    "##trace_id": st.one_of(st.just(""), st.integers(0, 2**64 - 1).map(str)),
                    "##key": st.text(max_size=2),
                    "##due_ms": st.integers(0, 9_223_372_036_854).map(str),
                    "##traffic_types": st.integers(0, 2**64 - 1).map(str),
                    "##event_ms": st.just("7"),
                    "##dedup": st.text(max_size=2),
                    "x": st.text(max_size=2),
                },
            ).map(lambda members: json.dumps(members).encode()),
        )
        pool = data.draw(st.lists(good, min_size=1, max_size=6))
        headers = data.draw(st.lists(st.sampled_from(pool), max_size=40))
        columns = HeaderReader().columns(headers)
        from_arrow = HeaderReader().columns(pa.array(headers, pa.binary()))
        for name in FILLED:
            one_by_one = [getattr(check(header), name) if header else None for header in headers]
            assert (name in columns) == any(value is not None for value in one_by_one)
            for found in (columns, from_arrow):
                column = found.get(name)
                if column is None:
                    continue
                assert isinstance(column, list) == (len(headers) <= SMALL)
                if isinstance(column, pa.Array):
                    assert column.type == COLUMNS[name]
                    column = column.to_pylist()
                assert column == one_by_one


@given(
    st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.none() | st.text() | st.integers() | st.floats(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        ).map(lambda value: json.dumps(value).encode()),
    ),
    st.booleans(),
)
def test_arbitrary_bytes_are_taken_or_refused_and_what_is_taken_is_an_object(sent: bytes, lenient: bool) -> None:
    try:
        parsed = check(sent, lenient)
    except BadHeader:
        return
    assert isinstance(json.loads(parsed.headers), dict)
    assert members_of(sent) is not None


def test_the_rules_need_nothing_of_the_node() -> None:
    assert loaded_by("penstock.filters.header") == [
        "penstock",
        "penstock.columns",
        "penstock.errors",
        "penstock.filters",
        "penstock.filters.header",
    ]
