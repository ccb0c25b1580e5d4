from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.served import Served


def test_topic_is_made_shown_listed_changed_and_dropped(served: Served) -> None:
    made = served.post("topics", {"name": "orders", "settings": {"retention_age": "2h", "retention_bytes": "1MiB"}})
    assert made.status == 201
    assert made.json["settings"]["retention_age"] == "2h"
    assert made.json["settings"]["retention_bytes"] == 1 << 20
    assert made.json["settings"]["retention_hard"] is True
    shown = served.get("topics/orders").json
    assert shown == made.json
    assert int(shown["incarnation"]) > 0
    assert shown["number"] > 0
    assert shown["shards"] == [
        {"number": 0, "start": 0, "end": 0, "readable_end": 0, "rows": 0, "bytes": 0, "damaged": []}
    ]
    changed = served.ask("PATCH", "topics/orders", {"settings": {"rate": 5}})
    assert changed.status == 200
    assert changed.json["settings"] == {**shown["settings"], "rate": 5}
    assert [topic["name"] for topic in served.get("topics").json["topics"]] == ["orders"]
    assert served.ask("DELETE", "topics/orders").status == 204
    assert served.get("topics").json == {"topics": [], "next": None}
    assert served.get("topics/orders").code == "not_found"


def test_settings_that_were_shown_can_be_given_back(served: Served) -> None:
    shown = served.post("topics", {"name": "orders"}).json["settings"]
    assert served.ask("PATCH", "topics/orders", {"settings": shown}).status == 200
    assert served.post("topics", {"name": "again", "settings": shown}).json["settings"] == shown


def test_topic_counts_what_it_holds(served: Served) -> None:
    served.publish("orders", "a", "bc")
    shown = served.get("topics/orders").json
    assert (shown["published"], shown["published_bytes"], shown["depth"]) == (2, 3, 2)
    shard = shown["shards"][0]
    assert (shard["start"], shard["end"], shard["rows"]) == (0, 2, 2)
    assert shard["bytes"] > 0
    summary = served.get("topics").json["topics"][0]
    assert (summary["rows"], summary["depth"], summary["subscriptions"]) == (2, 2, [])


def test_topic_name_with_a_slash_and_beyond_ascii_works(served: Served) -> None:
    assert served.post("topics", {"name": "a/b é"}).status == 201
    assert served.get("topics/a%2Fb%20%C3%A9").json["name"] == "a/b é"
    assert served.post("topics/a%2Fb%20%C3%A9/messages", raw='{"body":"x"}').json["count"] == 1
    assert served.ask("DELETE", "topics/a%2Fb%20%C3%A9").status == 204


def test_list_goes_page_by_page(served: Served) -> None:
    for name in ("b", "a", "c", "ab"):
        served.post("topics", {"name": name})
    first = served.get("topics?limit=3").json
    assert [topic["name"] for topic in first["topics"]] == ["a", "ab", "b"]
    assert first["next"] == "b"
    rest = served.get("topics?limit=3&after=b").json
    assert ([topic["name"] for topic in rest["topics"]], rest["next"]) == (["c"], None)
    assert [topic["name"] for topic in served.get("topics?prefix=a").json["topics"]] == ["a", "ab"]


def test_paused_topic_keeps_what_comes(served: Served) -> None:
    served.post("topics", {"name": "orders"})
    served.post("topics/orders/subscriptions", {"name": "audit"})
    paused = served.post("topics/orders/pause")
    assert paused.json["settings"]["paused"] is True
    served.publish("orders", "x")
    assert served.lease("orders", "audit") == []
    assert served.get("topics/orders").json["depth"] == 1
    assert served.post("topics/orders/resume").json["depth"] == 0
    assert [message["body"] for message in served.lease("orders", "audit", wait="20s")] == ["x"]


def test_pause_is_a_setting_too(served: Served) -> None:
    assert served.post("topics", {"name": "orders", "settings": {"paused": True}}).json["settings"]["paused"]
    served.publish("orders", "x")
    served.post("topics/orders/subscriptions", {"name": "audit"})
    assert served.lease("orders", "audit") == []
    served.ask("PATCH", "topics/orders", {"settings": {"paused": False}})
    assert len(served.lease("orders", "audit", wait="20s")) == 1


def test_empty_lets_go_of_what_nobody_has(served: Served) -> None:
    served.publish("orders", "x")
    assert served.post("topics/orders/empty").json["depth"] == 0
    served.post("topics/orders/subscriptions", {"name": "audit"})
    assert served.lease("orders", "audit") == []


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        ({"name": ""}, "bad_name", "1 to 1024 bytes"),
        ({"name": "a\nb"}, "bad_name", "control characters"),
        ({"name": "x" * 1025}, "bad_name", "1025"),
        ({"name": "t", "settings": {"retension_age": "1h"}}, "bad_request", "did you mean 'retention_age'?"),
        ({"name": "t", "settings": {"zzzz": 1}}, "bad_request", "known are compression"),
        ({"name": "t", "settings": {"retention_age": 5}}, "bad_request", "retention_age: 5 is not a duration"),
        ({"name": "t", "settings": {"retention_age": "5 parsecs"}}, "bad_request", "retention_age"),
        ({"name": "t", "settings": {"segment_bytes": "1 furlong"}}, "bad_request", "segment_bytes"),
        ({"name": "t", "settings": {"dialects": {"nsk": {}}}}, "bad_request", "did you mean nsq?"),
        ({"name": "t", "settings": {"dialects": {"nsq": {"extent": "on"}}}}, "bad_request", "unknown field `extent`"),
        ({"name": "t", "settings": {"dialects": {"nsq": 1}}}, "bad_request", "Expected `object`"),
        ({"name": "t", "settings": {"shards": 0}}, "bad_request", "shards is 0"),
        ({"name": "t", "settings": {"shards": "two"}}, "bad_request", "Expected `int`"),
        ({"name": "t", "settings": {"durability": "paper"}}, "bad_request", "paper"),
        ({"nam": "t"}, "bad_request", "did you mean 'name'?"),
        ({}, "bad_request", "name"),
        ([], "bad_request", "must be a JSON object"),
    ],
)
def test_bad_topic_is_refused_with_the_reason(served: Served, body: object, code: str, text: str) -> None:
    answer = served.post("topics", body)
    assert (answer.status, answer.code) == (400, code)
    assert text in answer.message
    assert served.get("topics").json["topics"] == []


def test_a_second_topic_of_a_name_is_a_conflict(served: Served) -> None:
    served.post("topics", {"name": "orders"})
    answer = served.post("topics", {"name": "orders"})
    assert (answer.status, answer.code) == (409, "conflict")


@pytest.mark.parametrize("settings", [{"shards": 1}, {"durability": "fsync"}])
def test_what_is_for_good_cannot_be_changed(served: Served, settings: dict[str, object]) -> None:
    served.post("topics", {"name": "orders", "settings": {"shards": 2}})
    answer = served.ask("PATCH", "topics/orders", {"settings": settings})
    assert (answer.status, answer.code) == (400, "bad_request")


def test_topic_can_be_given_more_shards(served: Served) -> None:
    served.post("topics", {"name": "orders"})
    answer = served.ask("PATCH", "topics/orders", {"settings": {"shards": 3}})
    assert (answer.status, answer.json["settings"]["shards"]) == (200, 3)
    assert [shard["number"] for shard in answer.json["shards"]] == [0, 1, 2]


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
def test_unknown_topic_is_not_found(served: Served, method: str) -> None:
    answer = served.ask(method, "topics/none", {"settings": {}} if method == "PATCH" else None)
    assert (answer.status, answer.code) == (404, "not_found")
    assert "'none'" in answer.message


def test_topics_survive_a_restart(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.publish("orders", "x")
        before = served.get("topics/orders").json
    with Served(tmp_path) as served:
        after = served.get("topics/orders").json
        assert {**before, "published": 0, "published_bytes": 0} == {**after, "shards": before["shards"]}
        assert after["shards"][0]["rows"] == 1


def test_quota_is_shown_with_what_is_stored_and_refuses_what_does_not_fit(served: Served) -> None:
    served.post("topics", {"name": "t", "settings": {"quota_bytes": "100kB", "quota_full": "refuse"}})
    served.publish("t", "x" * 90_000)
    answer = served.post("topics/t/messages", raw=b'{"body": "%b"}' % (b"x" * 90_000))
    assert (answer.status, answer.code) == (507, "quota_full")
    shown = served.get("topics/t").json
    assert shown["settings"]["quota_bytes"] == 100_000
    assert 90_000 < shown["bytes"] <= 100_000
    served.ask("PATCH", "topics/t", {"settings": {"quota_bytes": "1MB"}})
    served.publish("t", "x" * 90_000)


@pytest.mark.parametrize("settings", [{"quota_full": "maybe"}, {"quota_bytes": -1}, {"max_due": "soon"}])
def test_limits_that_make_no_sense_are_refused(served: Served, settings: dict[str, Any]) -> None:
    assert served.post("topics", {"name": "t", "settings": settings}).status == 400
