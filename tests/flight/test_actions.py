"""Actions: JSON in, one JSON result out, and errors that say what to write instead."""

from __future__ import annotations

import json

import pyarrow.flight as flight
import pytest

from penstock.client import Client
from penstock.client.wire import TopicInfo, made
from tests.flight.parts import Flown, ids, many


def test_topics_are_made_described_and_deleted(flown: Flown) -> None:
    made_info = flown.act("create-topic", name="t", settings={"shards": 2, "durability": "fsync"})
    assert made(made_info, TopicInfo).durability == "fsync"
    assert flown.act("topic", name="t") == made_info
    flown.act("create-topic", name="a")
    assert [info["name"] for info in flown.act("topics")["topics"]] == ["a", "t"]
    assert flown.act("delete-topic", name="t") == {}
    assert [info["name"] for info in flown.act("topics")["topics"]] == ["a"]
    with pytest.raises(flight.FlightServerError, match="conflict: "):
        flown.act("create-topic", name="a")


def test_memory_topic_has_no_path(flown: Flown) -> None:
    assert flown.act("create-topic", name="m", settings={"durability": "memory"})["path"] is None


def test_all_actions_are_listed(flown: Flown) -> None:
    listed = {action.type: action.description for action in flown.client.list_actions()}
    assert set(listed) == {
        "topics",
        "topic",
        "create-topic",
        "delete-topic",
        "seek",
        "offsets-at",
        "commit",
        "prepare",
        "decide",
        "abort",
        "hold",
        "release-hold",
        "routing",
        "pipeline",
    }
    assert "time_ns" in listed["offsets-at"]


def test_subscription_seeks_by_offset_and_by_time(flown: Flown) -> None:
    flown.put("t", many(5))
    flown.advance(60)
    middle_ns = flown.do(flown.clock.now)
    flown.put("t", many(5, 5))
    with flown.subscribe("t", "s") as held:
        held.order(credit=100)
        held.order(ack=ids(held.rows(10)))
        held.ping()
        assert flown.act("seek", topic="t", subscription="s", offset=8) == {}
        rows = held.rows(2)
        assert [row["offset"] for row in rows] == [8, 9]
        held.order(ack=ids(rows))
        held.ping()
        flown.act("seek", topic="t", subscription="s", time_ns=middle_ns)
        assert [row["offset"] for row in held.rows(5)] == [5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("action", "body", "error"),
    [
        ("topic", {"name": "none"}, "not_found: there is no topic 'none'"),
        ("topic", {"nam": "none"}, "bad_request: a topicname has no 'nam'; did you mean 'name'?"),
        ("topic", {}, "bad_request: a topicname needs 'name'"),
        ("topics-", {}, "bad_request: there is no action 'topics-'; did you mean 'topics'?"),
        ("create-topic", {"name": ""}, "bad_name: a topic name has 1 to 1024 bytes, not 0"),
        ("create-topic", {"name": "a\nb"}, "bad_name: .*control characters"),
        ("create-topic", {"name": "x", "settings": {"shard": 2}}, "did you mean 'shards'"),
        ("create-topic", {"name": "x", "settings": {"shards": 0}}, "bad_request: shards is 0"),
        ("create-topic", {"name": "x", "settings": {"durability": "disk"}}, "bad_request: .*disk"),
        ("seek", {"topic": "t", "subscription": "s"}, "bad_request: a seek needs 'offset' or 'time_ns'"),
        ("seek", {"topic": "t", "subscription": "s", "offset": 9}, "bad_offset: offset 9 of shard 0 is not kept"),
        ("seek", {"topic": "t", "subscription": "s", "offset": 0, "shard": 4}, "bad_offset: there is no shard 4"),
        ("seek", {"topic": "t", "subscription": "x", "offset": 0}, "not_found: topic t has no subscription 'x'"),
        ("seek", {"topic": "wide", "subscription": "x", "offset": 0}, "bad_request: topic wide has 2 shards"),
        ("offsets-at", {"topic": "t", "time_ns": "now"}, "bad_request: 'time_ns' of a offsetsat is a int"),
        ("hold", {"name": "q", "topic": "t", "incarnation": 1, "offsets": [0]}, "gone: "),
        ("hold", {"name": "q", "topic": "t", "incarnation": 0, "offsets": [0, 1]}, "bad_offset: "),
        ("commit", {"query": "q", "batch": 0, "attempts": ["a1"]}, "not_found: attempt a1 of batch 0 of query q"),
        ("commit", {"query": "q", "batch": 0, "attempts": ["../a"]}, "bad_request: '../a' is no name of an attempt"),
        ("abort", {"query": "q", "batch": -1, "attempts": ["a"]}, "bad_request: the number of a batch"),
    ],
)
def test_what_cannot_be_done_is_refused(flown: Flown, action: str, body: dict[str, object], error: str) -> None:
    flown.put("t", many(3))
    flown.act("create-topic", name="wide", settings={"shards": 2})
    flown.do(lambda: flown.node.topics["t"].subscribe("s").now())
    with pytest.raises(flight.FlightServerError, match=error):
        flown.act(action, **body)
    assert flown.bodies("t") == [b"body 0", b"body 1", b"body 2"]


def test_body_that_is_not_json_is_refused(flown: Flown) -> None:
    for body in (b"{", b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000):
        with pytest.raises(flight.FlightServerError, match="bad_request: "):
            list(flown.client.do_action(flight.Action("topics", body)))
    assert flown.faults()["bad_request"] == 5


def test_hold_keeps_what_retention_would_drop(flown: Flown) -> None:
    info = flown.act("create-topic", name="t", settings={"segment_bytes": 65536, "retention_bytes": 1})
    for _ in range(4):
        flown.put("t", many(1000))
        flown.do(lambda: flown.node.topics["t"].shards[0].roll())
    held = {"name": "query", "topic": "t", "incarnation": info["incarnation"], "offsets": [1500]}
    assert flown.act("hold", **held) == {}

    def start_after_retention() -> int:
        topic = flown.node.topics["t"]
        topic.storage.retain()
        return topic.shards[0].start

    flown.until(lambda: start_after_retention() == 1000)
    assert flown.act("release-hold", name="query") == {}
    flown.until(lambda: start_after_retention() > 1000)


def test_action_without_a_body_is_one_with_an_empty_object(flown: Flown) -> None:
    (result,) = flown.client.do_action("topics")
    assert json.loads(result.body.to_pybytes()) == {"topics": []}


def test_routing_mapping_is_told_as_it_is_now(flown: Flown) -> None:
    assert flown.act("routing")["traffic_types"] == {}
    flown.do(lambda: flown.node.catalog.set_mapping({"production": 0, "debug": 63}).now())
    flown.do(lambda: flown.node.catalog.set_mapping({"debug": 63}).now())
    assert flown.act("routing") == {"traffic_types": {"debug": 63}, "retired": {"production": 0}}
    with Client(f"grpc://127.0.0.1:{flown.flight.port}") as client:
        assert client.routing().traffic_types == {"debug": 63}
    with pytest.raises(flight.FlightServerError, match="bad_request: "):
        flown.act("routing", name="t")
