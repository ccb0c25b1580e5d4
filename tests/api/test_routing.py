from __future__ import annotations

from pathlib import Path

import pytest

from tests.served import Served


def test_mapping_is_empty_set_shown_and_remembered(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        assert served.get("routing").json == {"traffic_types": {}, "retired": {}}
        mapping = {"web": 0, "bulk": 63}
        assert served.ask("PUT", "routing", {"traffic_types": mapping}).json["traffic_types"] == mapping
        assert served.get("routing").json["traffic_types"] == mapping
    with Served(tmp_path) as served:
        assert served.get("routing").json["traffic_types"] == mapping


def test_moving_or_reusing_a_bit_needs_force(served: Served) -> None:
    served.ask("PUT", "routing", {"traffic_types": {"web": 0}})
    answer = served.ask("PUT", "routing", {"traffic_types": {"web": 1}})
    assert (answer.status, answer.code) == (409, "conflict")
    assert "web moves from bit 0 to 1" in answer.message
    assert served.ask("PUT", "routing?force=false", {"traffic_types": {"web": 1}}).status == 409
    forced = served.ask("PUT", "routing?force=true", {"traffic_types": {"web": 1}})
    assert forced.json["traffic_types"] == {"web": 1}
    retired = served.ask("PUT", "routing", {"traffic_types": {}})
    assert retired.json == {"traffic_types": {}, "retired": {"web": 1}}


def test_a_mapping_made_of_another_one_than_there_is_by_now_changes_nothing(served: Served) -> None:
    first = {"traffic_types": {"web": 0}, "before": {}}
    assert served.ask("PUT", "routing", first).status == 200
    answer = served.ask("PUT", "routing?force=true", {"traffic_types": {"bulk": 1}, "before": {}})
    assert (answer.status, answer.code) == (409, "conflict")
    assert "somebody else changed the routing mapping" in answer.message
    assert served.get("routing").json["traffic_types"] == {"web": 0}
    second = {"traffic_types": {"web": 0, "bulk": 1}, "before": {"web": 0}}
    assert served.ask("PUT", "routing", second).json["traffic_types"] == {"web": 0, "bulk": 1}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"traffic_types": {"web": 64}}, "bits are 0 to 63"),
        ({"traffic_types": {"web": -1}}, "bits are 0 to 63"),
        ({"traffic_types": {"web": 1, "bulk": 1}}, "bit 1 is given to bulk and web"),
        ({"traffic_types": {"": 1}}, "is no traffic type name"),
        ({"traffic_types": {"web": "one"}}, "Expected `int`"),
        ({"traffic_type": {}}, "did you mean 'traffic_types'?"),
        ({}, "traffic_types"),
    ],
)
def test_bad_mapping_is_refused_with_the_reason(served: Served, body: object, text: str) -> None:
    answer = served.ask("PUT", "routing", body)
    assert (answer.status, answer.code) == (400, "bad_request")
    assert text in answer.message


def test_changed_mapping_applies_to_subscriptions_without_a_restart(served: Served) -> None:
    served.post("topics", {"name": "orders"})
    filtering = {"traffic": {"allowed": ["web"], "is_default": False}}
    served.post("topics/orders/subscriptions", {"name": "web", "settings": filtering})
    served.publish("orders", "before", traffic=1)
    assert served.lease("orders", "web") == []
    served.ask("PUT", "routing", {"traffic_types": {"web": 0, "bulk": 1}})
    served.publish("orders", "web", traffic=["web"])
    served.publish("orders", "bulk", traffic=["bulk"])
    assert [m["body"] for m in served.lease("orders", "web", wait="20s")] == ["web"]
    assert served.lease("orders", "web", wait="50ms") == []
    assert served.get("topics/orders/subscriptions/web").json["counts"]["filtered"] == 2


@pytest.mark.parametrize(
    ("mapping", "body", "accepted", "reason"),
    [
        ({"a": 0, "b": 1}, {"traffic": ["a"], "allowed": ["a"]}, True, "carries a"),
        ({"a": 0, "b": 1}, {"traffic": 2, "allowed": ["a"]}, False, "no allowed"),
        ({"a": 0, "b": 1}, {"traffic": 2, "allowed": [], "is_default": True}, False, "no allowed"),
        ({"a": 0}, {"traffic": 0, "allowed": ["a"], "is_default": True}, True, "no traffic type"),
        ({"a": 0}, {"traffic": 1, "allowed": ["a", "zz"], "is_default": True}, True, "does not know zz"),
        ({}, {"traffic": 1, "allowed": ["a"]}, False, "no routing mapping"),
        ({}, {}, False, "no traffic type"),
    ],
)
def test_filter_can_be_tried(
    served: Served, mapping: dict[str, int], body: object, accepted: bool, reason: str
) -> None:
    served.ask("PUT", "routing", {"traffic_types": mapping})
    answer = served.post("routing/test", body)
    assert (answer.status, answer.json["accepted"]) == (200, accepted)
    assert reason in answer.json["reason"]


def test_trying_an_unknown_type_names_the_nearest(served: Served) -> None:
    served.ask("PUT", "routing", {"traffic_types": {"streaming": 0}})
    answer = served.post("routing/test", {"traffic": ["steaming"]})
    assert (answer.status, "did you mean 'streaming'?" in answer.message) == (400, True)


def test_which_subscriptions_get_a_message_is_told_with_the_reason(served: Served) -> None:
    served.ask("PUT", "routing", {"traffic_types": {"a": 0, "b": 1}})
    for topic in ("one", "two"):
        served.post("topics", {"name": topic})
        for name, traffic in (("all", None), ("some", {"allowed": ["a"]})):
            served.post(f"topics/{topic}/subscriptions", {"name": name, "settings": {"traffic": traffic}})
    everywhere = served.post("routing/which", {"traffic": ["b"]}).json
    assert everywhere["traffic"] == 2
    found = [(one["topic"], one["subscription"], one["accepted"]) for one in everywhere["subscriptions"]]
    assert found == [("one", "all", True), ("one", "some", False), ("two", "all", True), ("two", "some", False)]
    assert everywhere["subscriptions"][1]["reason"] == "the message carries no allowed traffic type"
    here = served.post("routing/which", {"traffic": 1, "topic": "two"}).json["subscriptions"]
    assert [(one["topic"], one["accepted"]) for one in here] == [("two", True), ("two", True)]
    assert served.post("routing/which", {"topic": "nowhere"}).status == 404
    assert served.post("routing/which", {"traffic": ["zz"]}).status == 400
