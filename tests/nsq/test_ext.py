from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.dialects.nsq.choices import NsqChoices
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.http.ext import header_of
from penstock.dialects.nsq.http.words import Fault
from penstock.filters.header import HEADER_BYTES_MAX
from tests.nsq.asking import ask, done, post, refused
from tests.served import Answer, Served

NSQ = NsqConfig(tcp_port=0, http_port=0, max_msg_size=100)
NUMBER = quote('{"a":1}')
TAG = '{"##client_dispatch_tag":"tagA"}'


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", nsq=NSQ) as node:
        yield node
        assert node.do(lambda: node.node.bugs) == 0


def pub_ext(
    served: Served, ext: str | None = None, body: bytes = b"x", *, headers: dict[str, str] | None = None
) -> Answer:
    query = "" if ext is None else f"&ext={quote(ext)}"
    return post(served, f"/pub_ext?topic=t{query}", body, headers)


def columns(served: Served, row: int = 0, topic: str = "t") -> dict[str, Any]:
    """Return what is stored of a row beside its body, offset and time."""
    batch = served.do(lambda: served.node.topics[topic].shards[0].read(row))
    assert batch is not None
    return {name: batch.row_value(name, row - batch.first) for name in batch.columns}


def count(served: Served, topic: str = "t") -> int:
    return served.node.topics[topic].published if topic in served.node.topics else 0


def test_nsq_case_51_request_header_becomes_a_member(served: Served) -> None:
    answer = pub_ext(served, '{"a":"b"}', headers={"X-NSQEXT-Key-Test": "val-http"})
    assert (answer.status, answer.content) == (200, b"OK")
    assert msgspec.json.decode(columns(served)["headers"]) == {"a": "b", "key-test": "val-http"}


@pytest.mark.parametrize("ext", ["", " ", "{", "[]", "null", '"x"', "1", '{"a":1}', '{"a b":"c"}', '{"":"c"}'])
@pytest.mark.parametrize("headers", [{}, {"X-NSQEXT-Key": "v"}])
def test_nsq_case_51_empty_or_bad_ext_is_refused(served: Served, ext: str, headers: dict[str, str]) -> None:
    assert refused(pub_ext(served, ext, headers=headers)) == (400, "E_INVALID_JSON_HEADER")
    assert count(served) == 0


def test_nsq_case_51_ext_may_be_left_out_where_a_request_header_stands_in(served: Served) -> None:
    assert refused(pub_ext(served)) == (400, "E_INVALID_JSON_HEADER")
    assert pub_ext(served, headers={"X-NSQEXT-Key": "v"}).content == b"OK"
    assert columns(served)["headers"] == b'{"key":"v"}'


def test_single_quotes_are_refused_with_a_way_out(served: Served) -> None:
    for ext in ("{'a':'b'}", " { 'a' : 'b' }", """{"a":'b'}""", """{"a":"b",'c':"d"}""", """'{"a":"b"}'"""):
        for headers in ({}, {"X-NSQEXT-Key": "v"}):
            answer = pub_ext(served, ext, headers=headers)
            assert refused(answer) == (400, "E_INVALID_JSON_HEADER")
            assert "double quotes" in answer.json["reason"]


@pytest.mark.parametrize("of_the_node", ["strict", "lenient"])
def test_a_topic_may_have_header_rules_of_its_own(tmp_path: Path, of_the_node: Literal["strict", "lenient"]) -> None:
    with Served(tmp_path / "rules", nsq=msgspec.structs.replace(NSQ, header_rules=of_the_node)) as served:
        for rules in ("node", "strict", "lenient"):
            served.post(
                "topics", {"name": rules, "settings": {"dialects": {"nsq": {"extend": "on", "header_rules": rules}}}}
            )
            answer = post(served, f"/pub_ext?topic={rules}&ext={NUMBER}", b"x")
            assert answer.status == (200 if "lenient" in (rules, of_the_node if rules == "node" else "") else 400)
        assert post(served, f"/pub_ext?topic=new&ext={NUMBER}", b"x").status == (
            200 if of_the_node == "lenient" else 400
        )
        assert ("new" in served.node.topics) == (of_the_node == "lenient")


def test_single_quotes_inside_a_string_are_text(served: Served) -> None:
    assert pub_ext(served, """{"a":"b,'c:'d"}""").content == b"OK"


def test_request_header_wins_over_ext(served: Served) -> None:
    pub_ext(served, '{"key":"from ext","b":"c"}', headers={"x-nsqext-KEY": "from header"})
    assert msgspec.json.decode(columns(served)["headers"]) == {"key": "from header", "b": "c"}


def test_of_a_repeated_request_header_the_first_counts() -> None:
    header = header_of(None, [(b"x-nsqext-a", b"1"), (b"X-NSQEXT-A", b"2"), (b"accept", b"*")])
    assert header == b'{"a":"1"}'


def test_ext_alone_is_stored_as_sent(served: Served) -> None:
    pub_ext(served, '{ "a" : "b%25c+d" }')
    assert columns(served)["headers"] == b'{ "a" : "b%25c+d" }'


def test_reserved_names_fill_their_columns(served: Served) -> None:
    assert (
        pub_ext(served, '{"##client_dispatch_tag":"A","##key":"k","##traffic_types":"5","##due_ms":"1"}').status == 200
    )
    stored = columns(served)
    assert (stored["tag"], stored["key"], stored["traffic"], stored["due"]) == ("A", b"k", 5, 1_000_000)


def test_due_time_beyond_the_limit_is_refused(served: Served) -> None:
    far_ms = (served.clock.now() + 366 * 86_400 * 1_000_000_000) // 1_000_000
    assert refused(pub_ext(served, f'{{"##due_ms":"{far_ms}"}}')) == (400, "DUE_TOO_FAR")


def test_nsq_case_57_header_rules_hold_over_http(served: Served, tmp_path: Path) -> None:
    for ext in ('{"##client_dispatch_tag":5}', '{"a b":"c"}', "[]"):
        assert refused(pub_ext(served, ext)) == (400, "E_INVALID_JSON_HEADER")
    assert refused(pub_ext(served, headers={"X-NSQEXT-a!b": "c"})) == (400, "E_INVALID_JSON_HEADER")
    lenient = msgspec.structs.replace(NSQ, header_rules="lenient")
    with Served(tmp_path / "lenient", nsq=lenient) as other:
        assert pub_ext(other, '{"##client_dispatch_tag":5}').content == b"OK"
        assert pub_ext(other, '{"a b":1.5}', headers={"X-NSQEXT-Key": "v"}).content == b"OK"
        assert columns(other) == {"headers": b'{"##client_dispatch_tag":5}'}
        assert columns(other, 1)["headers"] == b'{"a b":1.5,"key":"v"}'
        assert refused(pub_ext(other, "[]")) == (400, "E_INVALID_JSON_HEADER")


def test_trace_in_the_header_is_answered_with_the_place(served: Served) -> None:
    assert pub_ext(served, TAG, b"hi").content == b"OK"
    answer = pub_ext(served, '{"##trace_id":"123"}', b"hello")
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.json == {
        "status": "OK",
        "id": 2,
        "trace_id": "123",
        "queue_offset": 33 + len(TAG) + 2,
        "rawsize": 33 + len('{"##trace_id":"123"}') + 5,
    }
    assert columns(served, 1)["trace"] == 123


@pytest.mark.parametrize("trace", ["12", '"x"', '"-1"', f'"{1 << 64}"', "null", '"1.0"'])
def test_bad_trace_is_refused(served: Served, trace: str) -> None:
    assert refused(pub_ext(served, f'{{"##trace_id":{trace}}}')) == (400, "INVALID_TRACE_ID")
    assert count(served) == 0


def test_empty_trace_counts_as_none(served: Served) -> None:
    assert pub_ext(served, '{"##trace_id":"","a":"b"}').content == b"OK"
    assert columns(served)["headers"] == b'{"a":"b"}'


def test_a_publish_with_a_header_makes_an_extend_topic(served: Served) -> None:
    pub_ext(served, TAG)
    assert served.node.topics["t"].chosen.of(NsqChoices).extend == "on"


def test_nsq_case_46_normal_topic_takes_no_header(served: Served) -> None:
    done(served, "/topic/create?topic=t")
    for ext in ('{"##trace_id":"1"}', TAG, "{}", '{"custom":"x"}'):
        assert refused(pub_ext(served, ext)) == (400, "E_EXT_NOT_SUPPORT")
    assert count(served) == 0


def test_nsq_case_46_compatible_node_drops_reserved_names(tmp_path: Path) -> None:
    with Served(tmp_path, nsq=msgspec.structs.replace(NSQ, allow_ext_compatible=True)) as served:
        done(served, "/topic/create?topic=t")
        assert pub_ext(served, '{"##trace_id":"7"}').json["trace_id"] == "7"
        assert pub_ext(served, TAG).content == b"OK"
        assert pub_ext(served, "{}").content == b"OK"
        assert refused(pub_ext(served, '{"custom":"x"}')) == (400, "E_EXT_NOT_SUPPORT")
        stored = [columns(served, row) for row in range(3)]
        assert [{name: value for name, value in row.items() if value is not None} for row in stored] == [
            {"trace": 7},
            {},
            {},
        ]


def test_topic_of_another_dialect_takes_headers(served: Served) -> None:
    served.post("topics", {"name": "t"})
    assert pub_ext(served, TAG).content == b"OK"
    assert columns(served)["tag"] == "tagA"


def test_pubtrace_tells_where_the_message_went(served: Served) -> None:
    big = (1 << 64) - 1
    answer = post(served, f"/pubtrace?topic=t&trace_id={big}", b"hello")
    assert answer.json == {"status": "OK", "id": 1, "trace_id": str(big), "queue_offset": 0, "rawsize": 35}
    assert columns(served) == {"trace": -1}
    assert post(served, "/pubtrace?topic=t&trace_id=0", b"hello").json["queue_offset"] == 35


@pytest.mark.parametrize("trace", ["", "&trace_id=", "&trace_id=x", "&trace_id=-1", f"&trace_id={1 << 64}"])
def test_pubtrace_needs_a_trace(served: Served, trace: str) -> None:
    assert refused(post(served, f"/pubtrace?topic=t{trace}", b"x")) == (400, "INVALID_TRACE_ID")
    assert count(served) == 0


@pytest.mark.parametrize("path", ["/pub_ext?ext={}", "/pubtrace?trace_id=1"])
def test_extended_publish_keeps_the_rules_of_pub(served: Served, path: str) -> None:
    assert refused(post(served, f"{path}&topic=t", b"")) == (400, "MSG_EMPTY")
    assert refused(post(served, f"{path}&topic=t", b"x" * 101)) == (413, "MSG_TOO_BIG")
    assert refused(post(served, path, b"x")) == (400, "MISSING_ARG_TOPIC")
    assert refused(post(served, f"{path}&topic=a%20b", b"x")) == (400, "INVALID_TOPIC")
    assert refused(ask(served, "GET", f"{path}&topic=t")) == (405, "METHOD_NOT_ALLOWED")
    served.post("topics", {"name": "slow", "settings": {"rate": 1}})
    answers = [post(served, f"{path}&topic=slow", b"x") for _ in range(30)]
    assert (429, "E_PUB_TOO_MUCH_WAITING") in [refused(answer) for answer in answers if answer.status != 200]


@pytest.mark.parametrize("path", ["/pub?a=b", "/mpub?a=b", "/pub_ext?ext={}", "/pubtrace?trace_id=1"])
def test_partition_may_be_named(served: Served, path: str) -> None:
    served.post("topics", {"name": "t", "settings": {"shards": 3}})
    assert post(served, f"{path}&topic=t&partition=2", b"x").status == 200
    assert [served.node.topics["t"].shards[number].end for number in range(3)] == [0, 0, 1]
    assert post(served, f"{path}&topic=t&partition=-1", b"x").status == 200
    assert refused(post(served, f"{path}&topic=t&partition=3", b"x")) == (404, "E_TOPIC_NOT_EXIST")
    assert refused(post(served, f"{path}&topic=t&partition=x", b"x")) == (400, "INVALID_ARG_TOPIC_PARTITION")


def test_header_beyond_the_limit_is_refused() -> None:
    from penstock.dialects.nsq.http.ext import checked
    from penstock.filters.header import HeaderReader

    header = header_of(None, [(b"x-nsqext-a", b"v" * HEADER_BYTES_MAX)])
    with pytest.raises(Fault) as refusal:
        checked(header, HeaderReader())
    assert (refusal.value.status, refusal.value.code) == (400, "E_INVALID_JSON_HEADER")


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ext=st.none()
    | st.text(max_size=20)
    | st.dictionaries(st.text(max_size=4), st.text(max_size=4) | st.integers() | st.none()).map(
        lambda members: msgspec.json.encode(members).decode()
    ),
    headers=st.lists(st.tuples(st.sampled_from([b"x-nsqext-a", b"x-nsqext-", b"accept"]), st.binary(max_size=4))),
)
def test_a_merged_header_is_always_an_object_or_a_refusal(ext: str | None, headers: list[tuple[bytes, bytes]]) -> None:
    added = {name: value for name, value in reversed(headers) if name.startswith(b"x-nsqext-")}
    try:
        header = header_of(ext, headers)
    except Fault as fault:
        assert (fault.status, fault.code) == (400, "E_INVALID_JSON_HEADER")
        return
    if added:
        members = msgspec.json.decode(header, type=dict[str, object])
        for name, value in added.items():
            assert members[name.removeprefix(b"x-nsqext-").decode()] == value.decode("utf-8", "replace")
