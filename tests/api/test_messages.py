from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.api.config import ApiConfig
from penstock.api.messages import PEEK_ROWS_MAX
from penstock.config import NodeConfig
from penstock.rest.record import Line
from penstock.units import times
from tests.api.waiting import Waiting
from tests.served import Served

MESSAGES = "topics/orders/messages"


@pytest.fixture
def orders(served: Served) -> Served:
    served.post("topics", {"name": "orders"})
    return served


def peek(served: Served, query: str = "limit=1000") -> list[dict[str, Any]]:
    answer = served.get(f"{MESSAGES}?{query}")
    assert answer.status == 200, answer
    messages: list[dict[str, Any]] = answer.json["messages"]
    return messages


def test_every_column_goes_in_and_comes_out(orders: Served) -> None:
    orders.ask("PUT", "routing", {"traffic_types": {"web": 0, "bulk": 63}})
    orders.ask("PATCH", "topics/orders", {"settings": {"max_due": "0"}})
    line = {
        "body": "hällo",
        "key": "k",
        "tag": "t",
        "headers": {"a": 1, "b": ["c"]},
        "traffic": ["web", "bulk"],
        "due": "2100-01-01T00:00:00.123456789Z",
        "expires": "2100-01-02T00:00:00Z",
        "event_time": 1_700_000_000_123,
        "bucket": 7,
        "route": -5,
        "message_id": "m",
        "dedup": "d",
        "trace": (1 << 64) - 1,
        "group": "g",
    }
    answer = orders.post(MESSAGES, line)
    assert answer.json == {"count": 1, "duplicates": 0, "ids": ["0000000000000001"]}
    shown = peek(orders)[0]
    assert shown.pop("timestamp").endswith("Z")
    assert shown == {
        **line,
        "id": "0000000000000001",
        "shard": 0,
        "offset": 0,
        "source": "api",
        "traffic": (1 << 63) + 1,
        "traffic_types": ["web", "bulk"],
        "expires": "2100-01-02T00:00:00.000000000Z",
        "event_time": "2023-11-14T22:13:20.123000000Z",
    }


def test_bytes_that_are_no_text_travel_as_base64(orders: Served) -> None:
    coded = base64.b64encode(b"\xff\x00").decode()
    columns = {f"{name}_base64": coded for name in ("body", "key", "message_id", "dedup", "group")}
    orders.post(MESSAGES, columns)
    assert {key: value for key, value in peek(orders)[0].items() if key.endswith("_base64")} == columns


def test_lines_may_differ_in_columns_and_empty_lines_do_not_count(orders: Served) -> None:
    raw = '{"body":"a"}\n\n{"body":"b","key":"k"}\r\n   \n{"body":"c","tag":"t"}\n{"body":""}\n'
    assert orders.post(MESSAGES, raw=raw).json["count"] == 4
    assert [(m["body"], m.get("key"), m.get("tag")) for m in peek(orders)] == [
        ("a", None, None),
        ("b", "k", None),
        ("c", None, "t"),
        ("", None, None),
    ]


def test_large_batch_keeps_its_order_and_its_ids(orders: Served) -> None:
    count = 5000
    lines = [f'{{"body":"{n}"' + (f',"key":"{n}"' if n % 3 else "") + "}" for n in range(count)]
    answer = orders.post(MESSAGES, raw="\n".join(lines))
    assert answer.json["ids"] == [f"{n + 1:016x}" for n in range(count)]
    found: list[tuple[str, str | None]] = []
    at = 0
    while at < count:
        page = orders.get(f"{MESSAGES}?offset={at}&limit=1000").json
        found += [(message["body"], message.get("key")) for message in page["messages"]]
        at = page["next"]
    assert found == [(str(n), str(n) if n % 3 else None) for n in range(count)]


def test_repeated_dedup_key_answers_with_the_first_id(orders: Served) -> None:
    first = orders.publish("orders", "a", dedup="once")
    again = orders.post(MESSAGES, raw='{"body":"b","dedup":"once"}\n{"body":"c"}').json
    assert again == {"count": 2, "duplicates": 1, "ids": [*first, "0000000000000002"]}
    assert [message["body"] for message in peek(orders)] == ["a", "c"]


def test_due_as_duration_milliseconds_and_time(orders: Served) -> None:
    now_ns = orders.do(orders.clock.now)
    for due in ("30s", now_ns // 1_000_000 + 30_000, times.shown(now_ns + 30_000_000_000)):
        orders.post(MESSAGES, {"body": "x", "due": due})
    for message in peek(orders):
        assert abs(times.instant(message["due"], "due") - now_ns - 30_000_000_000) < 20_000_000_000


def test_publish_to_a_missing_topic_makes_it_only_if_told(served: Served) -> None:
    assert served.post("topics/none/messages", {"body": "x"}).code == "not_found"
    assert served.post("topics/none/messages?create=true", {"body": "x"}).status == 200


@pytest.mark.parametrize("raw", ['{"bod":1}', "", '{"body":"a"}\nnonsense'])
def test_publish_that_is_refused_makes_no_topic(served: Served, raw: str) -> None:
    assert served.post("topics/x/messages?create=true", raw=raw).status == 400
    assert served.get("topics/x").status == 404


def test_shard_is_named_or_follows_the_key_or_the_connection(served: Served) -> None:
    served.post("topics", {"name": "orders", "settings": {"shards": 4}})
    assert served.post(f"{MESSAGES}?shard=3", {"body": "x"}).json["ids"] == [f"{(3 << 48) + 1:016x}"]
    alone = {served.publish("orders", "x")[0][:4] for _ in range(5)}
    assert len(alone) == 1
    keyed = served.post(MESSAGES, raw="\n".join(f'{{"body":"{n}","key":"{n % 8}"}}' for n in range(40))).json["ids"]
    homes = [{id_[:4] for id_ in keyed[key::8]} for key in range(8)]
    assert all(len(home) == 1 for home in homes)
    assert len(set.union(*homes)) > 1
    assert served.post(f"{MESSAGES}?shard=4", {"body": "x"}).code == "bad_offset"
    assert served.get(f"{MESSAGES}?shard=4").code == "bad_offset"
    assert served.get(f"{MESSAGES}?shard=-1").code == "bad_request"


def test_fsync_topic_answers_and_is_readable(served: Served) -> None:
    served.post("topics", {"name": "orders", "settings": {"durability": "fsync"}})
    served.publish("orders", "x")
    assert [message["body"] for message in peek(served)] == ["x"]


BAD_LINES = [
    ("not json", "bad_request", "not a JSON object"),
    ("[1]", "bad_column", "Expected `object`"),
    ("{}", "bad_request", 'needs "body"'),
    ('{"body":1}', "bad_column", "`body`"),
    ('{"body":"a","body_base64":"YQ=="}', "bad_column", "both set"),
    ('{"body_base64":"?"}', "bad_column", "not base64"),
    ('{"body":"a","kee":"k"}', "bad_column", "did you mean 'key'?"),
    ('{"body":"a","offset":7}', "bad_column", "'offset' is no column"),
    ('{"body":"a","headers":[]}', "bad_column", "headers must be an object"),
    ('{"body":"a","headers":{"a":"\\ud800"}}', "bad_request", "not a JSON object"),
    ('{"body":"a","headers":{"a":"' + "x" * 65534 + '"}}', "bad_column", "at most 65534"),
    ('{"body":"a","key":"' + "x" * 4097 + '"}', "bad_column", "key has 4097 bytes"),
    ('{"body":"a","tag":"' + "x" * 4097 + '"}', "bad_column", "tag has 4097 bytes"),
    ('{"body":"a","due":"tomorrow"}', "bad_column", "due 'tomorrow' is no time"),
    ('{"body":"a","due":-1}', "bad_column", "1970 to 2262"),
    ('{"body":"a","due":1e300}', "bad_column", "1970 to 2262"),
    ('{"body":"a","due":1.7e308}', "bad_column", "is no time"),
    ('{"body":"a","due":"2263-01-01T00:00:00Z"}', "bad_column", "1970 to 2262"),
    ('{"body":"a","due":"2026-13-01T00:00:00Z"}', "bad_column", "is no time"),
    ('{"body":"a","event_time":"30s"}', "bad_column", "event_time '30s' is no time"),
    ('{"body":"a","bucket":65536}', "bad_column", "bucket 65536"),
    ('{"body":"a","route":9223372036854775808}', "bad_column", "route"),
    ('{"body":"a","traffic":18446744073709551616}', "bad_column", "64 bits"),
    ('{"body":"a","traffic":-1}', "bad_column", "64 bits"),
    ('{"body":"a","traffic":["web"]}', "bad_column", "no routing mapping is set"),
    ('{"body":"a","trace":18446744073709551616}', "bad_column", "64 bits"),
    ('{"body":"a"', "bad_request", "truncated"),
    ('{"a":' + "[" * 100_000, "bad_request", "not a JSON object"),
]


@pytest.mark.parametrize(("line", "code", "text"), BAD_LINES, ids=[line[:40] for line, _, _ in BAD_LINES])
def test_bad_line_refuses_the_whole_batch_and_is_named(orders: Served, line: str, code: str, text: str) -> None:
    answer = orders.post(MESSAGES, raw=f'{{"body":"good"}}\n\n{line}\n{{"body":"good"}}')
    assert (answer.status, answer.code) == (400, code)
    assert answer.message.startswith("line 3: ")
    assert text in answer.message
    assert peek(orders) == []
    assert orders.get(f"ledger?reason=api:{code}").json["total"] == 1


def test_bytes_that_are_no_utf8_are_refused(orders: Served) -> None:
    assert orders.post(MESSAGES, raw=b'{"body":"\xff"}').code == "bad_request"
    assert orders.post(MESSAGES, raw=b'{"body":"x","headers":{"a":"\xff"}}').code == "bad_column"


def test_unknown_traffic_type_names_the_nearest(orders: Served) -> None:
    orders.ask("PUT", "routing", {"traffic_types": {"streaming": 0}})
    answer = orders.post(MESSAGES, {"body": "a", "traffic": ["streeming"]})
    assert (answer.code, "did you mean 'streaming'?" in answer.message) == ("bad_column", True)


def test_body_without_messages_is_refused(orders: Served) -> None:
    for raw in (b"", b"\n\n"):
        answer = orders.post(MESSAGES, raw=raw)
        assert (answer.status, answer.code) == (400, "bad_request")


def test_oversized_message_and_oversized_body_are_refused(tmp_path: Path) -> None:
    with Served(tmp_path, node=NodeConfig(message_bytes=100)) as served:
        served.post("topics", {"name": "orders"})
        assert served.publish("orders", "x" * 100)
        answer = served.post(MESSAGES, {"body": "x" * 101})
        assert (answer.status, answer.code) == (413, "message_too_big")
        assert answer.message == "line 1: a message of 101 bytes is over the limit of 100 (node.message_bytes)"
        answer = served.post(MESSAGES, raw=b"\n" * ((16 << 20) + 1))
        assert (answer.status, answer.code) == (413, "message_too_big")
        assert served.publish("orders", "still here")


def test_refusals_of_the_topic_itself_come_through(served: Served) -> None:
    served.post("topics", {"name": "orders", "settings": {"rate": 1}})
    assert served.post(MESSAGES, {"body": "x"}).status == 200
    codes = {served.post(MESSAGES, {"body": "x"}).status for _ in range(50)}
    assert 429 in codes
    assert served.get("ledger?reason=rate_limited&topic=orders").json["total"] >= 1


def test_stopping_node_takes_nothing(orders: Served) -> None:
    orders.do(orders.node.stop)
    answer = orders.post(MESSAGES, {"body": "x"})
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "stopping", "1")
    orders.do(lambda: setattr(orders.node, "stopping", False))


# --- reading --------------------------------------------------------------------------------------------------------


def test_peek_reads_from_an_offset_and_tells_where_to_go_on(orders: Served) -> None:
    orders.publish("orders", *"abcdef")
    page = orders.get(f"{MESSAGES}?offset=1&limit=2").json
    assert [message["body"] for message in page["messages"]] == ["b", "c"]
    assert (page["next"], page["start"], page["end"]) == (3, 0, 6)
    assert peek(orders, "offset=6") == []
    assert peek(orders, "offset=latest") == []
    assert len(peek(orders, "offset=earliest")) == 6
    assert orders.get("topics/orders").json["depth"] == 6


def test_peek_reads_from_a_time(orders: Served) -> None:
    orders.publish("orders", "old")
    orders.advance(3600)
    orders.publish("orders", "new")
    assert [message["body"] for message in peek(orders, "time=30m")] == ["new"]
    assert [message["body"] for message in peek(orders, "time=2h")] == ["old", "new"]
    assert peek(orders, "time=2100-01-01T00:00:00Z") == []


def test_peek_reads_back_from_disk(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        for n in range(30):
            served.publish("orders", *(f"{n}-{m}" for m in range(100)))
    with Served(tmp_path) as served:
        page = served.get(f"{MESSAGES}?offset=1500&limit=1000").json
        assert [message["body"] for message in page["messages"]] == [
            f"{n}-{m}" for n in range(15, 25) for m in range(100)
        ]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("offset=7", "bad_offset"),
        ("offset=-1", "bad_offset"),
        ("offset=soon", "bad_offset"),
        ("offset=99999999999999999999", "bad_offset"),
        ("limit=0", "bad_request"),
        (f"limit={PEEK_ROWS_MAX + 1}", "bad_request"),
        ("limit=many", "bad_request"),
        ("wait=61s", "bad_request"),
        ("wait=soon", "bad_request"),
        ("time=yesterday", "bad_column"),
        ("offst=1", "bad_request"),
        ("offset=%FF", "bad_request"),
    ],
)
def test_bad_place_to_read_is_refused(orders: Served, query: str, code: str) -> None:
    answer = orders.get(f"{MESSAGES}?{query}")
    assert (answer.status, answer.code) == (400, code)


def test_follower_gets_what_comes(orders: Served) -> None:
    waiting = Waiting(orders, "GET", f"{MESSAGES}?offset=latest&wait=50s")
    topic = orders.node.topics["orders"]
    orders.until(lambda: bool(topic._followers))
    orders.publish("orders", "news")
    answer = waiting.get()
    assert [message["body"] for message in answer.json["messages"]] == ["news"]
    orders.until(lambda: not topic._followers)


def test_follower_of_a_deleted_topic_is_told(orders: Served) -> None:
    waiting = Waiting(orders, "GET", f"{MESSAGES}?wait=50s")
    orders.until(lambda: bool(orders.node.topics["orders"]._followers))
    orders.ask("DELETE", "topics/orders")
    assert waiting.get().code == "gone"


def test_follower_does_not_hold_up_the_end_of_the_node(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.post("topics", {"name": "orders"})
        waiting = Waiting(served, "GET", f"{MESSAGES}?wait=50s")
        served.until(lambda: bool(served.node.topics["orders"]._followers))
    assert waiting.get().json["messages"] == []


def test_follower_waits_no_longer_than_told(orders: Served) -> None:
    assert peek(orders, "wait=10ms") == []


# --- fuzzing --------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
moments = st.sampled_from(["30s", "2026-01-31T12:00:00Z", "2026-01-31 12:00+05:00", "-1", "0", "1e9"]) | st.integers()
lines = st.dictionaries(
    st.sampled_from(Line.__struct_fields__) | st.text(max_size=5), json_values | moments | st.text(), max_size=5
).map(lambda value: msgspec.json.encode(value) if _is_plain(value) else b"{}")
garbage = st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass"))


def _is_plain(value: object) -> bool:
    try:
        msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError):
        return False
    return True


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Served(tmp_path_factory.mktemp("fuzz"), api=ApiConfig(port=0)) as served:
        served.post("topics", {"name": "orders"})
        yield served


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(parts=st.lists(lines | garbage | st.just(b'{"body":"x"}'), max_size=5))
def test_no_input_makes_publish_fail_inside(shared: Served, parts: list[bytes]) -> None:
    before = shared.get("topics/orders").json["published"]
    answer = shared.post(MESSAGES, raw=b"\n".join(parts))
    assert answer.status in (200, 400), answer
    after = shared.get("topics/orders").json["published"]
    if answer.status == 200:
        assert after - before == answer.json["count"] - answer.json["duplicates"]
    else:
        assert after == before


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.text(st.characters(codec="ascii", exclude_characters="\r\n #\x7f", min_codepoint=33), max_size=30))
def test_no_parameters_make_reading_fail_inside(shared: Served, query: str) -> None:
    assert shared.get(f"{MESSAGES}?{query}").status in (200, 400)
