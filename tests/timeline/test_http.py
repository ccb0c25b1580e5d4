"""Timelines with curl: whole requests and answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.client.timeline.wire import Kind
from tests.http.line import Line
from tests.timeline.desk import SECOND, Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_message_goes_its_whole_way_over_http(desk: Desk) -> None:
    assert desk.ask("PUT", "/v1/topics/a%20b", {"bucket_count": 4, "prefetch_max_ms": 0}) == (200, {})
    _, told = desk.ask("POST", "/v1/producer-handshake", _producer("a b"))
    messages = [
        {"id": "now", "body": "hello"},
        {"delay_ms": 60_000, "body_base64": "/w=="},
        {"id": "now", "body": "again"},
    ]
    status, made = desk.ask("POST", "/v1/messages", {"session_id": told["session_id"], "messages": messages})
    assert status == 200
    first, second, third = made["messages"]
    assert (first, third["error"]["kind"]) == ({"id": "now", "version": 1}, Kind.DUPLICATE_ID)
    assert len(second["id"]) == 32
    _, greeted = desk.ask("POST", "/v1/consumer-handshake", {"topic_id": "a b", "consumer_id": "c"})
    session = greeted["session_id"]
    _, found = desk.ask("POST", "/v1/lease", {"session_id": session, "limit": 5})
    (lease,) = found["messages"]
    assert (lease["message_id"], lease["body"], lease["version"]) == ("now", "hello", 2)
    assert (lease["consumer_id"], lease["producer_group_id"]) == ("c", "g")
    _, again = desk.ask("POST", "/v1/lease", {"session_id": session})
    assert again["messages"] == [lease]
    assert desk.ask("POST", "/v1/lease", {"session_id": session, "fresh": True}) == (200, {"messages": []})
    changes = {"session_id": session, "messages": [{"id": "now", "version": 2, "delay_ms": 90_000}]}
    _, extended = desk.ask("POST", "/v1/messages/extend-lease", changes)
    (longer,) = extended["messages"]
    assert (longer["version"], longer["expiration_ts_ms"] - desk.now_ms) == (3, 90_000)
    changes["messages"] = [{"id": "now", "version": 3}, {"id": "none", "version": 1}]
    _, gone = desk.ask("POST", "/v1/messages/delete", changes)
    assert [each.get("error", {}).get("kind") for each in gone["messages"]] == [None, Kind.MESSAGE_NOT_FOUND]
    assert desk.ask("GET", "/v1/topics/a%20b/count?status=waiting") == (200, {"n": 1})
    desk.advance(60)
    _, late = desk.ask("POST", "/v1/lease", {"session_id": session, "wait_ms": 1000})
    assert late["messages"][0]["body_base64"] == "/w=="
    assert desk.ask("POST", "/v1/unsubscribe", {"session_id": session}) == (200, {})
    assert desk.ask("DELETE", "/v1/topics/a%20b") == (200, {})
    status, told = desk.ask("GET", "/v1/topics/a%20b")
    assert (status, told["error"]["kind"]) == (404, Kind.TOPIC_NOT_FOUND)
    assert desk.node.bugs == 0


def test_a_question_waits_for_a_message_to_be_due(desk: Desk) -> None:
    desk.topic()
    session = desk.greet()
    head = f'{{"session_id":"{session}","wait_ms":30000}}'.encode()
    desk.line.send(b"POST /v1/lease HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(head) + head)
    desk.made(desk.producer(), ("a", 5000))
    desk.advance(4.9)
    assert desk.line.out == b""
    desk.advance(0.1)
    assert b'"message_id":"a"' in desk.line.out


def poll(desk: Desk, session: str, wait_ms: int = 30_000, line: Line | None = None) -> Line:
    """Begin to ask for messages, on a connection of its own."""
    line = line or Line(desk.running.listener)
    raw = msgspec.json.encode({"session_id": session, "wait_ms": wait_ms, "limit": 10})
    line.send(b"POST /v1/lease HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw)
    desk.settle()
    return line


def answered(line: Line) -> list[str]:
    """Return the ids of the messages that were answered with; nothing was answered yet where it raises."""
    status, _, content = line.answer()
    assert status == 200, content
    return [each["message_id"] for each in msgspec.json.decode(content)["messages"]]


def test_poll_whose_client_goes_leaves_nothing_that_is_answered_before_it_is_due(desk: Desk) -> None:
    desk.topic(prefetch_max_ms=1200)
    session = desk.greet()
    desk.made(desk.producer(), ("a", 1150))
    first = poll(desk, session)
    desk.advance(0.15)
    assert first.out == b""
    first.close()
    desk.advance(0.1)
    second = poll(desk, session)
    desk.advance(0.8)
    assert second.out == b""
    desk.advance(0.1)
    assert answered(second) == ["a"]


def test_poll_whose_client_goes_is_no_failure(desk: Desk) -> None:
    desk.topic()
    poll(desk, desk.greet()).close()
    desk.settle()
    figures = desk.service.membership.figures
    assert figures.commands["consume", "t"] == 1
    assert (figures.command_errors.total(), figures.lease_errors.total()) == (0, 0)


def test_poll_is_answered_at_once_with_what_is_due_of_a_topic_that_prefetches(desk: Desk) -> None:
    desk.topic(prefetch_max_ms=1200)
    desk.made(desk.producer(), ("now", 0), ("soon", 500), ("later", 1100))
    session = desk.greet()
    assert answered(poll(desk, session, wait_ms=0)) == ["now"]
    desk.kinds("delete", session, ("now", 2))
    line = poll(desk, session)
    desk.advance(0.499)
    assert line.out == b""
    desk.advance(0.002)
    assert answered(line) == ["soon"]


def test_lease_of_a_poll_is_as_long_as_asked_for_where_it_is_shorter_than_the_prefetch(desk: Desk) -> None:
    desk.topic(prefetch_max_ms=1200)
    desk.made(desk.producer(), ("soon", 100), ("later", 1100))
    first, second = desk.greet("first", lease_ms=300), desk.greet("second", lease_ms=300)
    lines = poll(desk, first), poll(desk, second)
    desk.advance(0.101)
    assert answered(lines[0]) == ["soon"]
    assert desk.kinds("delete", first, ("soon", 2)) == [0]
    desk.advance(1)
    assert answered(lines[1]) == ["later"]
    desk.advance(0.25)
    assert desk.kinds("delete", second, ("later", 2)) == [0]


def test_what_a_stream_was_pushed_ahead_is_answered_to_a_poll_under_its_name_when_it_is_due(desk: Desk) -> None:
    desk.topic(prefetch_max_ms=1200)
    consumer = desk.consumer()
    producer = desk.producer()
    desk.made(producer, ("late", 1000), ("soon", 600))
    assert consumer.ids() == ["soon", "late"]
    consumer.close()
    line = poll(desk, consumer.session, wait_ms=100)
    desk.advance(0.1)
    assert answered(line) == []
    poll(desk, consumer.session, line=line)
    desk.advance(0.4)
    assert line.out == b""
    desk.advance(0.1)
    assert answered(line) == ["soon"]
    poll(desk, consumer.session, wait_ms=5000, line=line)
    assert answered(line) == ["soon"]
    assert desk.kinds("delete", consumer.session, ("soon", 2)) == [0]
    poll(desk, consumer.session, wait_ms=5000, line=line)
    desk.made(producer, ("now", 0))
    assert answered(line) == ["now"], "what is held back holds nothing else back"
    assert desk.kinds("delete", consumer.session, ("now", 2)) == [0]
    poll(desk, consumer.session, wait_ms=5000, line=line)
    desk.advance(0.5)
    assert answered(line) == ["late"]


def test_topics_are_described(desk: Desk) -> None:
    desk.topic(dealer="rack")
    desk.made(desk.producer(), ("a", 0), ("b", 99_000))
    status, told = desk.ask("GET", "/v1/topics/t")
    assert (status, told["id"], told["state"], told["settings"]["dealer"]) == (200, "t", "live", "rack")
    assert (told["approx_available"], told["waiting"], told["processing"]) == (1, 1, 0)
    status, told = desk.ask("GET", "/v1/info")
    assert (status, told["cluster"]) == (200, "penstock")
    assert [each["id"] for each in told["topics"]] == ["t"]


BAD: list[tuple[str, str, Any, int, int]] = [
    ("POST", "/v1/nothing", {}, 404, Kind.UNKNOWN_COMMAND),
    ("GET", "/v1/lease", None, 405, Kind.UNKNOWN_COMMAND),
    ("POST", "/v1/lease", b"{", 400, Kind.PROTOCOL),
    ("POST", "/v1/lease", b'{"wait\xdfms": 1}', 400, Kind.PROTOCOL),
    ("POST", "/v1/lease", {"session_id": "x", "limt": 1}, 400, Kind.PROTOCOL),
    ("POST", "/v1/lease", {"session_id": "x"}, 401, Kind.UNKNOWN_SESSION),
    ("POST", "/v1/messages", {"session_id": "x", "messages": []}, 401, Kind.UNKNOWN_SESSION),
    ("POST", "/v1/messages/delete", {"session_id": 7, "messages": []}, 400, Kind.PROTOCOL),
    ("POST", "/v1/unsubscribe", {"session_id": "x"}, 401, Kind.UNKNOWN_SESSION),
    ("POST", "/v1/consumer-handshake", {"topic_id": "none", "consumer_id": "c"}, 404, Kind.TOPIC_NOT_FOUND),
    ("POST", "/v1/consumer-handshake", {"topic_id": "t"}, 400, Kind.PROTOCOL),
    ("POST", "/v1/ping", {"local_ts_ms": "soon"}, 400, Kind.PROTOCOL),
    ("PUT", "/v1/topics/t", {"bucket_count": 5}, 409, Kind.TOPIC_EXISTS),
    ("PUT", "/v1/topics/u", {"bucket_count": 65536}, 400, Kind.PROTOCOL),
    ("PUT", "/v1/topics/u", {"dealer": "lucky"}, 400, Kind.PROTOCOL),
    ("PUT", "/v1/topics/u", {"checksum_bodies": True}, 501, Kind.UNSUPPORTED),
    ("PUT", "/v1/topics/%09", {}, 400, Kind.PROTOCOL),
    ("DELETE", "/v1/topics/none", None, 404, Kind.TOPIC_NOT_FOUND),
    ("GET", "/v1/topics/t/count?status=lost", None, 400, Kind.PROTOCOL),
    ("GET", "/v1/topics/none/count", None, 404, Kind.TOPIC_NOT_FOUND),
    ("GET", "/v1/topics/none/count?topic_id=t", None, 404, Kind.TOPIC_NOT_FOUND),
    ("GET", "/v1/topics/t/count?from_ms=" + "9" * 5000, None, 400, Kind.PROTOCOL),
    ("GET", "/v1/topics/t/count?from_ms=soon", None, 400, Kind.PROTOCOL),
    ("GET", "/v1/topics/t/count?status=7", None, 400, Kind.PROTOCOL),
    ("POST", "/v1/ping", b'{"local_ts_ms": %s}' % (b"9" * 5000), 400, Kind.PROTOCOL),
    ("POST", "/v1/lease", b'{"session_id": "x", "limit": %s}' % (b"9" * 5000), 400, Kind.PROTOCOL),
    ("PUT", "/v1/topics/u", b'{"bucket_count": %s}' % (b"9" * 5000), 400, Kind.PROTOCOL),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "kind"), BAD, ids=lambda each: str(each)[:40])
def test_what_is_wrong_is_told_by_its_kind(
    desk: Desk, method: str, path: str, body: object, status: int, kind: int
) -> None:
    desk.topic()
    told = desk.ask(method, path, body)
    assert (told[0], told[1]["error"]["kind"]) == (status, kind), told
    assert told[1]["error"]["message"]
    assert desk.node.bugs == 0


def test_a_count_beyond_all_times_counts_nothing_or_is_refused(desk: Desk) -> None:
    desk.topic()
    desk.made(desk.producer(), ("a", 0))
    for digits, status in ((13, 200), (18, 200), (19, 400), (40, 400)):
        assert desk.ask("GET", "/v1/topics/t/count?from_ms=" + "9" * digits)[0] == status
        found, told = desk.ask("GET", "/v1/topics/t/count?to_ms=" + "9" * digits)
        assert (found, told.get("n")) == (status, 1 if status == 200 else None)
    assert desk.node.bugs == 0


def test_a_body_of_which_nothing_more_comes_is_answered_with_a_timeout(desk: Desk) -> None:
    desk.topic()
    desk.line.send(b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    desk.advance(desk.config.limits.body_timeout_ns / SECOND + 1)
    status, _, content = desk.line.answer()
    assert (status, msgspec.json.decode(content)["error"]["kind"]) == (408, Kind.BROKER_TIMEOUT)


def test_messages_that_say_a_thing_twice_are_refused(desk: Desk) -> None:
    desk.topic()
    session = desk.producer()
    for message in ({"due_ms": 1, "delay_ms": 1}, {"body": "a", "body_base64": "YQ=="}, {"body_base64": "?"}):
        status, told = desk.ask("POST", "/v1/messages", {"session_id": session, "messages": [message]})
        assert (status, told["error"]["kind"]) == (400, Kind.PROTOCOL), message
    status, told = desk.ask("POST", "/v1/messages", {"session_id": session, "messages": [{"due_ms": -1}]})
    assert (status, told["error"]["kind"]) == (400, Kind.TIME_OUT_OF_RANGE)


def _producer(topic: str) -> dict[str, str]:
    return {"topic_id": topic, "producer_group_id": "g", "producer_id": "p"}
