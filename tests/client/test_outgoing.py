"""What a program may publish, and what it hears of the rest before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from inspect import signature
from typing import Any

import pyarrow as pa
import pytest

from penstock.client import AsyncClient, AsyncTimeline, Client, Outgoing, Properties, Timeline
from penstock.client.outgoing import BATCH_ROWS_MAX, batches_of
from penstock.settings import TopicSettings


def sent(messages: Any, **properties: Any) -> list[dict[str, Any]]:
    """Return the rows that would be sent."""
    rows: list[dict[str, Any]] = []
    for batch in batches_of(messages, Properties(**properties)):
        rows += batch.to_pylist()
    return rows


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ({"a": 1}, "messages is a dict, {'a': 1}; a message is bytes or str, or a list of those; json.dumps"),
        (5, "messages is an int, 5; a message is bytes or str"),
        (None, "messages is None; a message is bytes or str"),
        ([b"a", 3], "the body of row 1 is an int, 3; a message is bytes or str; json.dumps"),
        ([b"a", None], "the body of row 1 is None; a message is bytes or str"),
        ([{"a": 1}], "the body of row 0 is a dict, {'a': 1}; a message is bytes or str; json.dumps"),
        (Outgoing(7), "the body is an int, 7"),  # type: ignore[arg-type]
        ([b"a", Outgoing(b"b", Properties(key=5))], "key of row 1 is an int, 5; it takes bytes or str"),  # type: ignore[arg-type]
    ],
)
def test_message_of_the_wrong_type_is_named_with_its_row(messages: Any, text: str) -> None:
    with pytest.raises(TypeError) as error:
        batches_of(messages, Properties())
    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("key", 5, "key is an int, 5; it takes bytes or str"),
        ("key", ["k"], "key is a list, ['k']; it takes bytes or str"),
        ("tag", b"blue", "tag is a bytes, b'blue'; it takes a str"),
        ("tag", 1, "tag is an int, 1; it takes a str"),
        ("traffic", "blue", "traffic is a str, 'blue'; it takes an int"),
        ("traffic", True, "traffic is a bool, True; it takes an int"),
        ("bucket", 1.5, "bucket is a float, 1.5; it takes an int"),
        ("due", 2.5, "due is a float, 2.5; it takes a str like"),
        ("due", True, "due is a bool, True; it takes a str like"),
        ("headers", [("a", "b")], "headers is a list, [('a', 'b')]; it takes a mapping, or JSON as bytes or str"),
        ("headers", {1: "b"}, "headers has a name that is an int, 1; names are str"),
        ("headers", {"a": b"b"}, "headers is no JSON: Object of type bytes is not JSON serializable"),
        ("headers", {"a": math.nan}, "headers is no JSON: Out of range float values are not JSON compliant"),
    ],
)
def test_keyword_of_the_wrong_type_is_named(name: str, value: Any, text: str) -> None:
    with pytest.raises(TypeError) as error:
        batches_of(b"a", Properties(**{name: value}))
    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("bucket", 65_536, "bucket is 65536; it goes from 0 to 65535"),
        ("traffic", 1 << 64, f"traffic is {1 << 64}; it goes from"),
        ("due", "soon", "due 'soon' is no time: write ISO"),
        ("due", datetime(2026, 1, 1), "due 2026-01-01 00:00:00 has no time zone"),
    ],
)
def test_value_that_does_not_fit_is_named(name: str, value: Any, text: str) -> None:
    with pytest.raises(ValueError, match="^" + text.replace("(", r"\(")):
        batches_of(b"a", Properties(**{name: value}))


@pytest.mark.parametrize(
    ("messages", "properties", "text"),
    [
        ("a\ud800", {}, "the body holds '\\ud800' at 1, half a character, which UTF-8 does not have; pass bytes"),
        ([b"a", "\ud800"], {}, "the body of row 1 holds '\\ud800' at 0"),
        ("a", {"key": "\ud800"}, "key holds"),
        ("a", {"tag": "\ud800"}, "tag holds"),
        ("a", {"headers": {"a": "\ud800"}}, "headers holds"),
    ],
)
def test_text_that_is_no_unicode_is_named_with_its_row(messages: Any, properties: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match="half a character") as error:
        sent(messages, **properties)
    assert text in str(error.value)


def test_every_type_that_is_right_is_taken() -> None:
    assert sent("a") == sent(b"a") == sent(bytearray(b"a")) == sent(memoryview(b"a")) == [{"body": b"a"}]
    assert sent(("a", b"b")) == [{"body": b"a"}, {"body": b"b"}]
    assert sent([]) == []
    (row,) = sent(b"a", key="k", headers='{"a":1}', due=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), traffic=1 << 63)
    assert row == {"body": b"a", "key": b"k", "headers": b'{"a":1}', "due": 10**9, "traffic": -(1 << 63)}
    (first, second) = sent([b"a", Outgoing(b"b", Properties(due=timedelta(seconds=9)))], due="1s")
    assert 7 * 10**9 < second["due"] - first["due"] < 9 * 10**9


def test_keywords_beside_a_table_are_refused_because_it_has_columns() -> None:
    with pytest.raises(TypeError, match="key= goes with single messages; give the table a column 'key'"):
        batches_of(pa.table({"body": ["a"]}), Properties(key="k"))


def test_rows_of_a_list_are_all_looked_at_first_and_those_of_an_iterator_as_they_come() -> None:
    bad: list[Any] = [*[b"a"] * BATCH_ROWS_MAX, 3]

    def endless() -> Iterator[Any]:
        yield from bad

    with pytest.raises(TypeError, match=f"row {BATCH_ROWS_MAX} "):
        batches_of(bad, Properties())
    pieces = batches_of(endless(), Properties())
    assert next(pieces).num_rows == BATCH_ROWS_MAX
    with pytest.raises(TypeError, match=f"row {BATCH_ROWS_MAX} "):
        next(pieces)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.publish("t", b"a", kye="k"), "publish() has no 'kye'; did you mean 'key'?"),
        (lambda c: c.publish("t", b"a", header={}), "publish() has no 'header'; did you mean 'headers'?"),
        (lambda c: c.subscribe("t", "s", erliest=True), "subscribe() has no 'erliest'; did you mean 'earliest'?"),
        (lambda c: c.read("t", begin=3), "read() has no 'begin'; there are topic, shard, start"),
        (lambda c: c.create_topic("t", shard=3), "create_topic() has no 'shard'; did you mean 'shards'?"),
        (
            lambda c: c.create_topic("t", durabilty="os"),
            "create_topic() has no 'durabilty'; did you mean 'durability'?",
        ),
        (lambda c: c.publish(5, b"a"), "topic is 5; it takes a str"),
        (lambda c: c.read("t", columns="body"), "columns is 'body'; it takes a list of str: ['body']"),
        (lambda c: c.subscribe("t", "s", lease=[30]), 'a time span is seconds, a timedelta or a str like "30s"'),
    ],
)
def test_keyword_that_is_not_there_offers_the_nearest(call: Any, text: str) -> None:
    with Client("grpc://127.0.0.1:1", patience=0) as client, pytest.raises(TypeError) as error:
        call(client)
    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda t: t.create(bucket_cuont=3), "create() has no 'bucket_cuont'; did you mean 'bucket_count'?"),
        (
            lambda t: t.producer("g", batch_message=3),
            "producer() has no 'batch_message'; did you mean 'batch_messages'?",
        ),
        (
            lambda t: t.consumer("c", lease="2s", stop_afer=1),
            "consumer() has no 'stop_afer'; did you mean 'stop_after'?",
        ),
    ],
)
@pytest.mark.parametrize("kind", [Timeline, AsyncTimeline])
def test_keyword_of_a_timeline_that_is_not_there_offers_the_nearest(call: Any, text: str, kind: Any) -> None:
    with pytest.raises(TypeError) as error:
        call(kind("t", "grpc://127.0.0.1:1", patience=0))
    assert str(error.value) == text


@pytest.mark.parametrize("name", ["create", "producer", "consumer"])
def test_a_timeline_for_asyncio_takes_what_the_other_does(name: str) -> None:
    assert parameters(AsyncTimeline, name) == parameters(Timeline, name)


@pytest.mark.parametrize("name", ["create_topic", "publish", "subscribe", "read"])
def test_a_client_for_asyncio_takes_what_the_other_does(name: str) -> None:
    assert parameters(AsyncClient, name) == parameters(Client, name)


def test_a_topic_is_made_with_every_setting_that_there_is() -> None:
    settings = [name for name in TopicSettings.__struct_fields__ if name != "paused"]
    assert [name for name, _ in parameters(Client, "create_topic")] == ["self", "name", *settings]


def parameters(kind: type, name: str) -> list[tuple[str, Any]]:
    """Return the names and defaults of what a method takes."""
    return [(each.name, each.default) for each in signature(getattr(kind, name)).parameters.values()]
