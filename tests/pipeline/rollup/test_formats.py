"""Bodies become samples or dead letters, whatever is in them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.jobs.rollup.samples import expanded, samples
from tests.pipeline.rollup import reference

NOW = datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)
NOW_US = int(NOW.timestamp()) * 1_000_000
MINUTE_US = 60_000_000
SCHEMA = "topic string, shard int, offset bigint, timestamp timestamp, headers string, body binary, traffic bigint"
KINDS = ("counter", "gauge", "timer")


def frame(spark: SparkSession, bodies: list[bytes | None]) -> DataFrame:
    rows = [("t", 0, offset, NOW, None, body, 5) for offset, body in enumerate(bodies)]
    return spark.createDataFrame(rows, SCHEMA)


def read(spark: SparkSession, format: str, *bodies: bytes | None) -> list[dict[str, Any]]:
    """Return the samples of bodies, and the lines that are none, in their order."""
    lines = samples(frame(spark, list(bodies)), format, MINUTE_US).cache()
    bad = [row.asDict() for row in lines.where("reason IS NOT NULL").collect()]
    good = [row.asDict() for row in expanded(lines.where("reason IS NULL"), format).collect()]
    lines.unpersist()
    return sorted(good + bad, key=lambda row: (row["offset"], row["line"], row["position"]))


def said(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a sample says, or why it says nothing."""
    if row["reason"] is not None:
        return (row["reason"],)
    value = row["whole"] if row["kind"] == 0 else row["value"]
    return row["id"], KINDS[row["kind"]], value, row["event_us"] - NOW_US


def test_prometheus_text_is_read_as_gauges_with_escapes_and_times(spark: SparkSession) -> None:
    body = b"""# HELP up a comment
up 1
up{} 2 1767225604500
up{job="a",path="C:\\\\n\\"x\\n=,+",} NaN
 m { b="2" , a = "1" }\t1e3\t1767225605000\r

x:y{a="}"} +Inf
up{a="1" b="2"} 3
up{a="\\q"} 1
up 0x10
up 1d
up 1e999
up-5
up 1 2 3
up 1 99999999999999999999
{a="1"} 1
# EOF"""
    line = "not a line of Prometheus text"
    number = "the value is not a number"
    found = [said(row) for row in read(spark, "prometheus", body)]
    assert str(found[2][2]) == "nan"
    del found[2]
    assert found == [
        ("up", "gauge", 1.0, 0),
        ("up", "gauge", 2.0, -500_000),
        ("m3+m+a=1,b=2", "gauge", 1000.0, 0),
        ("m3+x:y+a=}", "gauge", float("inf"), 0),
        (line,),
        (line,),
        (number,),
        (number,),
        (number,),
        (line,),
        (line,),
        ("the time is not a time",),
        (line,),
    ]


def test_an_id_tells_label_values_apart_that_look_alike(spark: SparkSession) -> None:
    bodies = [b'a{x="1,y=2"} 1', b'a{x="1",y="2"} 1', b'a{y="2",x="1"} 1', b'a{x="C:\\\\n\\"\\n+"} 1']
    found = [row["id"] for row in read(spark, "prometheus", *bodies)]
    assert found == [r"m3+a+x=1\,y\=2", "m3+a+x=1,y=2", "m3+a+x=1,y=2", 'm3+a+x=C:\\\\n"\n\\+']


def test_json_is_an_object_or_an_array_of_them(spark: SparkSession) -> None:
    gauge = {"name": "g", "type": "gauge", "value": 1.5}
    bodies: list[Any] = [
        {"name": "a", "type": "counter", "value": 9223372036854775807, "traffic": 2**63 + 1},
        [{"id": "own", "type": "timer", "value": [1, 2.5, "3"], "time": NOW_US // 1000 - 1, "tags": {"k": "v"}}, gauge],
        {**gauge, "tags": {"z": "1", "b": 2, "a-b": True, "a": None}, "time": "2026-01-01T01:00:04.25+01:00"},
        {**gauge, "time": "2026-01-01 00:00:05", "more": {"deep": [1]}},
        [],
    ]
    found = read(spark, "json", *(json.dumps(body).encode() for body in bodies))
    assert [said(row) for row in found] == [
        ("a", "counter", 9223372036854775807, 0),
        ("own", "timer", 1.0, -1000),
        ("own", "timer", 2.5, -1000),
        ("own", "timer", 3.0, -1000),
        ("g", "gauge", 1.5, 0),
        ("m3+g+a=,a-b=true,b=2,z=1", "gauge", 1.5, -750_000),
        ("g", "gauge", 1.5, 0),
    ]
    assert found[0]["bits"] == -(2**63) + 1
    assert {row["bits"] for row in found[1:]} == {5}


def test_json_that_is_no_sample_is_told_why(spark: SparkSession) -> None:
    gauge = '{"name":"g","type":"gauge","value":1'
    cases = {
        "nope": "not JSON",
        gauge: "not JSON",
        gauge + "} x": "not JSON",
        gauge + "}," + gauge + "}": "not JSON",
        gauge + "} " + gauge + "}": "not JSON",
        "[" + gauge + "},]": "not JSON",
        "[" * 100_000: "not JSON",
        '{"a":' * 5000: "not JSON",
        "[1]": "not a JSON object",
        "[null]": "not a JSON object",
        "[[]]": "not a JSON object",
        "{}": "neither an id nor a name",
        '{"id":"","type":"gauge","value":1}': "neither an id nor a name",
        '{"name":"a","type":"set","value":1}': "not a type: counter, gauge and timer are",
        '{"name":"a","type":"gauge"}': "the value is not a number",
        '{"name":"a","type":"gauge","value":[]}': "the value is not a number",
        '{"name":"a","type":"gauge","value":[1,null]}': "the value is not a number",
        '{"name":"a","type":"gauge","value":true}': "the value is not a number",
        '{"name":"a","type":"gauge","value":{"a":1}}': "the value is not a number",
        '{"name":"a","type":"gauge","value":1e999}': "the value is not a number",
        gauge + ',"tags":[1]}': "tags is not an object of texts",
        gauge + ',"time":"yesterday"}': "the time is not a time",
        gauge + ',"time":"2026-13-01T00:00:00Z"}': "the time is not a time",
        gauge + ',"time":1e300}': "the time is not a time",
        gauge + ',"time":-1}': "the time is before 1970 or after 2199",
        gauge + f',"time":{NOW_US // 1000 + 60_001}}}': "future",
        gauge + ',"traffic":18446744073709551616}': "traffic is not 64 bits",
        '{"name":"a","type":"counter","value":1.5}': "a counter that is not a 64-bit integer",
        '{"name":"a","type":"counter","value":9223372036854775808}': "a counter that is not a 64-bit integer",
        '{"name":"a","type":"counter","value":NaN}': "a counter that is not a 64-bit integer",
    }
    found = read(spark, "json", *(text.encode() for text in cases), b'{"name":"\xff"}', None)
    assert [row["reason"] for row in found] == [*cases.values(), "not UTF-8", "no body"]


FRAGMENTS = [
    *(":", "|", "|c", "|g", "|ms", "|h", "|s", "|@", "|#", "|T", "\n", "\r\n", " ", ",", "\x00", "\u2028", "\x85"),
    *("a", "b.c", "é", "name:1|c", "1", "-1", "+5", "0.1", "1e3", "5.", ".5", "1e999", "1d", "0x1", "NaN", "-0"),
    *("9223372036854775807", "9223372036854775808", "|@0.1", "|@1", "|@0", "|@2", "|#k:v,a:1", "|#a-b:1,a:2,a:2,+=\\"),
    *("|T1767225600", "|T9223372036854775807", "|c:id", "|e:x", "x:3|ms|@0.5|#q", "y:-2|g", "z:1.5|c|@0.3"),
]
NUMBERS = ["1", "-7", "+5", "0.1", "2.5", "1e3", "5.", ".5", "-0", "9223372036854775807", "1e999", "x"]
SECTIONS = ["|@0.1", "|@0.3", "|@1", "|@0", "|#k:v,a:1", "|#a-b:1,a:2,a:2,+=\\", "|#", "|T1767225600", "|c:id", "|zz"]
lines = st.tuples(
    st.sampled_from(["a", "b.c", "é", "+=,"]),
    st.just(":"),
    st.sampled_from(NUMBERS),
    st.sampled_from(["|c", "|g", "|ms", "|h", "|s"]),
    st.lists(st.sampled_from(SECTIONS), max_size=3).map("".join),
).map("".join)
bodies = st.one_of(
    st.binary(max_size=30),
    st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join).map(str.encode),
    st.lists(lines, max_size=4).map("\n".join).map(str.encode),
)


def gathered() -> list[bytes]:
    """Return many bodies, so that Spark is asked once about all of them."""
    found: dict[bytes, None] = {}

    @settings(max_examples=1500, database=None, suppress_health_check=list(HealthCheck))
    @given(bodies)
    @example(b"a:1|c\n" * 1000)
    @example(b"a:1|c|#" + b",".join(b"k%d:v" % number for number in range(20_000)))
    @example(b"a:" + b"1" * 200_000 + b"|c")
    @example(b"a:1|c" + b"|@1" * 50_000)
    def gather(body: bytes) -> None:
        found[body] = None

    gather()
    return list(found)


def test_statsd_says_what_the_reference_says_of_any_bytes(spark: SparkSession) -> None:
    sent = gathered()
    found: dict[int, list[tuple[Any, ...]]] = {}
    for row in read(spark, "statsd", *sent):
        told = said(row) if row["reason"] is None else ("dead", row["reason"] == "not UTF-8")
        found.setdefault(row["offset"], []).append(told)
    assert sum(told[0] != "dead" for told_of in found.values() for told in told_of) > 1200
    for offset, body in enumerate(sent):
        assert found.get(offset, []) == expected(body), body


def expected(body: bytes) -> list[tuple[Any, ...]]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return [("dead", True)]
    told: list[tuple[Any, ...]] = []
    for line in (line.strip(" \t\r\n") for line in text.split("\n")):
        if not line:
            continue
        parsed = reference.statsd(line)
        event_us = NOW_US if parsed is None or parsed[3] is None else parsed[3]
        if parsed is None or not 0 <= event_us <= reference.LAST_US or event_us > NOW_US + MINUTE_US:
            told.append(("dead", False))
        else:
            told.append((*parsed[:3], event_us - NOW_US))
    return told
