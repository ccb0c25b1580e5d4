from __future__ import annotations

import pytest

from penstock.delivery.source import Delivery
from tests.nsq.caller import Caller
from tests.served import Served

ORDERS = "topics/orders/subscriptions"


@pytest.fixture
def orders(served: Served) -> Served:
    served.publish("orders", "a", "b", "c", "d")
    assert served.post(ORDERS, {"name": "audit"}).status == 201
    return served


def test_subscription_is_made_shown_listed_changed_and_dropped(served: Served) -> None:
    served.post("topics", {"name": "orders"})
    settings = {
        "lease": "30s",
        "max_attempts": 3,
        "ttl": "1h",
        "traffic": {"allowed": ["web"], "is_default": True, "upstream_filter": False},
    }
    made = served.post(ORDERS, {"name": "audit", "settings": settings})
    assert made.status == 201
    assert {key: made.json["settings"][key] for key in settings} == settings
    assert served.get(f"{ORDERS}/audit").json == made.json
    assert served.get(ORDERS).json == {"subscriptions": [made.json]}
    changed = served.ask("PATCH", f"{ORDERS}/audit", {"settings": {"traffic": None, "max_attempts": 0}})
    assert changed.json["settings"] == {**made.json["settings"], "traffic": None, "max_attempts": 0}
    assert served.ask("DELETE", f"{ORDERS}/audit").status == 204
    assert served.get(ORDERS).json == {"subscriptions": []}
    assert served.get(f"{ORDERS}/audit").code == "not_found"


def test_subscription_tells_where_its_messages_are(orders: Served) -> None:
    orders.publish("orders", "later", due="1h")
    leased = orders.lease("orders", "audit", max=2)
    orders.post(f"{ORDERS}/audit/ack", {"receipts": [leased[0]["receipt"]]})
    orders.lease("orders", "audit", max=2)
    orders.lease("orders", "audit")  # passes the one that is due later
    shown = orders.get(f"{ORDERS}/audit").json
    assert (shown["depth"], shown["in_flight"], shown["waiting"]) == (0, 3, 1)
    counts = shown["counts"]
    assert counts["acked"] == 1
    assert counts["held"] == 4
    assert counts["passed"] == sum(count for name, count in counts.items() if name != "passed")
    (holder,) = shown["holders"]
    assert (holder["name"], holder["in_flight"], holder["acked"]) == ("api", 3, 1)


def test_consumers_are_shown_with_what_they_hold(orders: Served) -> None:
    got: list[Delivery] = []

    def join() -> None:
        topic = orders.node.topic("orders")
        subscription = topic.subscription("audit")
        topic.attach(subscription, got.extend, name="c1").set_credit(2)

    orders.do(join)
    expected = {
        "topic": "orders",
        "subscription": "audit",
        "name": "c1",
        "credit": 2,
        "in_flight": 2,
        "acked": 0,
        "released": 0,
        "expired": 0,
    }
    assert orders.get(f"{ORDERS}/audit").json["consumers"] == [expected]
    assert orders.get("consumers").json == {"consumers": [expected]}
    assert orders.get("consumers?topic=orders&subscription=audit").json == {"consumers": [expected]}
    assert orders.get("consumers?subscription=other").json == {"consumers": []}
    assert orders.get("consumers?topic=other").code == "not_found"


def test_paused_subscription_hands_out_nothing(orders: Served) -> None:
    assert orders.post(f"{ORDERS}/audit/pause").json["settings"]["paused"] is True
    assert orders.lease("orders", "audit") == []
    assert orders.post(f"{ORDERS}/audit/resume").json["settings"]["paused"] is False
    assert len(orders.lease("orders", "audit", wait="20s")) == 4


def test_empty_finishes_everything(orders: Served) -> None:
    emptied = orders.post(f"{ORDERS}/audit/empty").json
    assert (emptied["depth"], emptied["counts"]["removed"]) == (0, 4)
    assert orders.lease("orders", "audit") == []


def bodies(orders: Served) -> list[str]:
    return [message["body"] for message in orders.lease("orders", "audit", wait="20s")]


def test_seek_goes_to_the_ends_and_to_an_offset(orders: Served) -> None:
    assert bodies(orders) == ["a", "b", "c", "d"]
    assert orders.post(f"{ORDERS}/audit/seek", {"to": "earliest"}).json["depth"] == 4
    assert bodies(orders) == ["a", "b", "c", "d"]
    assert orders.post(f"{ORDERS}/audit/seek", {"to": 2, "shard": 0}).status == 200
    assert bodies(orders) == ["c", "d"]
    assert orders.post(f"{ORDERS}/audit/seek", {"to": "3"}).status == 200
    assert bodies(orders) == ["d"]
    assert orders.post(f"{ORDERS}/audit/seek", {"to": "latest"}).json["depth"] == 0


def test_seek_goes_to_a_time_and_back_by_a_duration(orders: Served) -> None:
    orders.advance(3600)
    orders.publish("orders", "new")
    orders.post(f"{ORDERS}/audit/seek", {"to": "30m"})
    assert bodies(orders) == ["new"]
    timestamp = orders.get("topics/orders/messages?offset=4").json["messages"][0]["timestamp"]
    orders.post(f"{ORDERS}/audit/seek", {"to": timestamp})
    assert bodies(orders) == ["new"]
    orders.post(f"{ORDERS}/audit/seek", {"to": "2h"})
    assert bodies(orders) == ["a", "b", "c", "d", "new"]


def test_seek_of_a_topic_with_shards_moves_all_of_them_or_the_named_one(served: Served) -> None:
    served.post("topics", {"name": "orders", "settings": {"shards": 2}})
    served.post(ORDERS, {"name": "audit"})
    for shard in (0, 1):
        served.post(f"topics/orders/messages?shard={shard}", raw='{"body":"x"}')
    assert len(served.lease("orders", "audit")) == 2
    assert served.post(f"{ORDERS}/audit/seek", {"to": "earliest"}).json["depth"] == 2
    assert len(served.lease("orders", "audit")) == 2
    assert served.post(f"{ORDERS}/audit/seek", {"to": "0", "shard": 1}).json["depth"] == 1
    answer = served.post(f"{ORDERS}/audit/seek", {"to": 0})
    assert (answer.status, answer.code) == (400, "bad_request")
    assert "name it, 0 to 1" in answer.message


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        ({"to": 99}, "bad_offset", "choose one from 0 to 4"),
        ({"to": -1}, "bad_offset", "offset -1"),
        ({"to": "-1"}, "bad_offset", "offset -1"),
        ({"to": "earliest", "shard": 7}, "bad_offset", "no shard 7"),
        ({"to": "sometime"}, "bad_request", "earliest, latest, an offset"),
        ({}, "bad_request", "to"),
        ({"too": 1}, "bad_request", "did you mean 'to'?"),
        ({"to": 1.5}, "bad_request", "float"),
    ],
)
def test_bad_seek_is_refused_and_moves_nothing(orders: Served, body: object, code: str, text: str) -> None:
    answer = orders.post(f"{ORDERS}/audit/seek", body)
    assert (answer.status, answer.code) == (400, code)
    assert text in answer.message
    assert orders.get(f"{ORDERS}/audit").json["depth"] == 4


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_atempts": 3}, "did you mean 'max_attempts'?"),
        ({"lease": "0"}, "lease_ns is 0"),
        ({"lease": "1h"}, "above lease_max"),
        ({"traffic": {"alowed": []}}, "alowed"),
        ({"policy": "random"}, "random"),
        ({"dead_letter": "a\x00b"}, "control characters"),
    ],
)
def test_bad_subscription_settings_are_refused(served: Served, settings: object, text: str) -> None:
    served.post("topics", {"name": "orders"})
    answer = served.post(ORDERS, {"name": "audit", "settings": settings})
    assert answer.status == 400
    assert text in answer.message
    assert served.get(ORDERS).json == {"subscriptions": []}


def test_subscription_of_a_missing_topic_or_a_second_of_its_name_is_refused(served: Served) -> None:
    assert served.post(ORDERS, {"name": "audit"}).code == "not_found"
    served.post("topics", {"name": "orders"})
    served.post(ORDERS, {"name": "audit"})
    assert served.post(ORDERS, {"name": "audit"}).code == "conflict"


@pytest.mark.parametrize("action", ["pause", "resume", "empty", "seek", "lease", "ack", "extend", "release"])
def test_action_on_an_unknown_subscription_is_not_found(served: Served, action: str) -> None:
    served.post("topics", {"name": "orders"})
    body = {"seek": {"to": "latest"}, "ack": {"receipts": ["x"]}, "extend": {"receipts": ["x"]}}.get(action)
    body = {"receipts": ["x"]} if action == "release" else body
    answer = served.post(f"{ORDERS}/none/{action}", body)
    assert (answer.status, answer.code) == (404, "not_found")


def test_an_order_by_key_without_a_single_message_out_is_refused(served: Served) -> None:
    served.publish("orders", "a")
    assert served.post("topics/orders/subscriptions", {"name": "audit"}).status == 201
    for answer in (
        served.ask("PATCH", "topics/orders/subscriptions/audit", {"settings": {"order": "key", "key_run": 0}}),
        served.post("topics/orders/subscriptions", {"name": "other", "settings": {"key_run": 0}}),
    ):
        assert (answer.status, answer.code) == (400, "bad_request")
        assert "key_run is 0; it must be at least 1" in answer.message


def test_tags_are_shown_as_what_is_in_force_once_a_consumer_asks_for_one(served: Served) -> None:
    served.post("topics", {"name": "orders", "settings": {"dialects": {"nsq": {"extend": "on"}}}})
    served.post("topics/orders/subscriptions", {"name": "audit"})
    assert served.get("topics/orders/subscriptions/audit").json["policy"] == "shared"
    with Caller(served.tcp_port) as consumer:
        consumer.identify(extend_support=True, desired_tag="blue")
        consumer.send(b"SUB orders audit\n")
        assert consumer.told() == "OK"
        assert served.get("topics/orders/subscriptions/audit").json["policy"] == "tagged"
