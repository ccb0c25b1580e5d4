from __future__ import annotations

import http.client
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.api.endpoint import Call
from tests.api.waiting import Waiting
from tests.served import API, Served

AUDIT = "topics/orders/subscriptions/audit"


def set_up(served: Served) -> Served:
    served.post("topics", {"name": "orders"})
    served.post("topics/orders/subscriptions", {"name": "audit"})
    return served


@pytest.fixture
def orders(served: Served) -> Served:
    return set_up(served)


def receipts(messages: list[dict[str, Any]]) -> list[str]:
    return [message["receipt"] for message in messages]


def statuses(answer: Any) -> list[str]:
    assert answer.status == 200, answer
    found = [result["status"] for result in answer.json["results"]]
    assert answer.json["ok"] == found.count("ok")
    return found


def test_leased_message_has_all_its_columns_and_a_receipt(orders: Served) -> None:
    ids = orders.publish("orders", "hello", key="k", headers={"a": 1})
    message = orders.lease("orders", "audit")[0]
    assert message.pop("timestamp").endswith("Z")
    assert message.pop("receipt").startswith(f"{ids[0]}-")
    assert message == {
        "id": ids[0],
        "shard": 0,
        "offset": 0,
        "source": "api",
        "body": "hello",
        "key": "k",
        "headers": {"a": 1},
        "attempts": 1,
    }


def test_lease_hands_out_at_most_what_was_asked_and_nothing_twice(orders: Served) -> None:
    orders.publish("orders", *"abcde")
    assert [m["body"] for m in orders.lease("orders", "audit", max=2)] == ["a", "b"]
    assert [m["body"] for m in orders.lease("orders", "audit", max=10)] == ["c", "d", "e"]
    assert orders.lease("orders", "audit") == []


def test_one_message_is_leased_by_default(orders: Served) -> None:
    orders.publish("orders", *"ab")
    assert len(orders.post(f"{AUDIT}/lease").json["messages"]) == 1


def test_acked_message_does_not_come_again(orders: Served) -> None:
    orders.publish("orders", *"ab")
    leased = orders.lease("orders", "audit")
    assert statuses(orders.post(f"{AUDIT}/ack", {"receipts": receipts(leased)})) == ["ok", "ok"]
    orders.advance(3600)
    assert orders.lease("orders", "audit", wait="50ms") == []
    assert statuses(orders.post(f"{AUDIT}/ack", {"receipts": receipts(leased)})) == ["not_leased"] * 2


def test_expired_lease_is_delivered_again_and_its_receipt_is_stale(orders: Served) -> None:
    orders.publish("orders", "a")
    first = orders.lease("orders", "audit", lease="30s")
    orders.advance(31)
    second = orders.lease("orders", "audit", wait="20s")
    assert [(m["body"], m["attempts"]) for m in second] == [("a", 2)]
    both = receipts(first) + receipts(second)
    assert statuses(orders.post(f"{AUDIT}/ack", {"receipts": both})) == ["not_leased", "ok"]


def test_extended_lease_lives_on_with_the_same_receipt(orders: Served) -> None:
    orders.publish("orders", "a")
    leased = receipts(orders.lease("orders", "audit", lease="30s"))
    orders.advance(20)
    assert statuses(orders.post(f"{AUDIT}/extend", {"receipts": leased, "lease": "60s"})) == ["ok"]
    orders.advance(40)
    assert orders.lease("orders", "audit", wait="50ms") == []
    assert statuses(orders.post(f"{AUDIT}/ack", {"receipts": leased})) == ["ok"]


def test_extend_uses_the_subscriptions_own_lease_by_default(orders: Served) -> None:
    orders.publish("orders", "a")
    leased = receipts(orders.lease("orders", "audit", lease="10s"))
    assert statuses(orders.post(f"{AUDIT}/extend", {"receipts": leased})) == ["ok"]
    orders.advance(50)
    assert statuses(orders.post(f"{AUDIT}/extend", {"receipts": leased})) == ["ok"]


def test_released_message_goes_out_again_at_once(orders: Served) -> None:
    orders.publish("orders", "a")
    leased = receipts(orders.lease("orders", "audit"))
    assert statuses(orders.post(f"{AUDIT}/release", {"receipts": leased})) == ["ok"]
    assert orders.lease("orders", "audit", wait="20s")[0]["attempts"] == 2
    assert statuses(orders.post(f"{AUDIT}/release", {"receipts": leased})) == ["not_leased"]


def test_message_released_with_a_delay_waits_for_it(orders: Served) -> None:
    orders.publish("orders", "a")
    leased = receipts(orders.lease("orders", "audit"))
    orders.post(f"{AUDIT}/release", {"receipts": leased, "delay": "10m"})
    assert orders.get(AUDIT).json["waiting"] == 1
    assert orders.lease("orders", "audit", wait="50ms") == []
    orders.advance(601)
    assert len(orders.lease("orders", "audit", wait="20s")) == 1


def test_delay_beyond_what_the_topic_allows_is_refused(orders: Served) -> None:
    orders.ask("PATCH", "topics/orders", {"settings": {"max_due": "5m"}})
    orders.publish("orders", "a")
    leased = receipts(orders.lease("orders", "audit"))
    answer = orders.post(f"{AUDIT}/release", {"receipts": leased, "delay": "10m"})
    assert (answer.status, answer.code) == (400, "due_too_far")
    assert statuses(orders.post(f"{AUDIT}/release", {"receipts": leased, "delay": "5m"})) == ["ok"]


def test_waiting_lease_gets_what_is_published_meanwhile(orders: Served) -> None:
    waiting = Waiting(orders, "POST", f"{AUDIT}/lease", {"wait": "50s"})
    subscription = orders.node.topics["orders"].subscriptions["audit"]
    orders.until(lambda: len(subscription.looks) == 1)
    assert orders.get(AUDIT).json["polls"] == 1
    orders.publish("orders", "a")
    assert [m["body"] for m in waiting.get().json["messages"]] == ["a"]


def test_waiting_leases_are_served_in_turn(orders: Served) -> None:
    subscription = orders.node.topics["orders"].subscriptions["audit"]
    waiting = []
    for number in range(3):
        waiting.append(Waiting(orders, "POST", f"{AUDIT}/lease", {"wait": "50s"}))
        orders.until(lambda number=number: len(subscription.looks) == number + 1)  # type: ignore[misc]
    orders.publish("orders", *"abc")
    assert [[m["body"] for m in one.get().json["messages"]] for one in waiting] == [["a"], ["b"], ["c"]]


def test_client_that_hangs_up_gets_nothing_leased(orders: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", orders.api.port)
    connection.request("POST", f"{API}/{AUDIT}/lease", b'{"wait":"50s"}')
    subscription = orders.node.topics["orders"].subscriptions["audit"]
    orders.until(lambda: len(subscription.looks) == 1)
    connection.close()
    orders.until(lambda: not subscription.looks)
    orders.publish("orders", "a")
    assert orders.lease("orders", "audit")[0]["attempts"] == 1


def test_messages_for_a_client_that_hung_up_at_that_moment_are_given_back(
    orders: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.publish("orders", "a")
    wait = Call.wait

    async def wait_and_lose(self: Call[Any, Any], event: Any, seconds: float) -> bool:
        came = await wait(self, event, seconds)
        self.is_gone = True
        return came

    with monkeypatch.context() as patch:
        patch.setattr(Call, "wait", wait_and_lose)
        orders.lease("orders", "audit")
    assert orders.lease("orders", "audit", wait="20s")[0]["attempts"] == 2


def test_waiting_lease_is_told_when_its_subscription_or_topic_goes(orders: Served) -> None:
    subscription = orders.node.topics["orders"].subscriptions["audit"]
    waiting = Waiting(orders, "POST", f"{AUDIT}/lease", {"wait": "50s"})
    orders.until(lambda: len(subscription.looks) == 1)
    orders.ask("DELETE", AUDIT)
    assert waiting.get().code == "gone"
    orders.post("topics/orders/subscriptions", {"name": "audit"})
    fresh = orders.node.topics["orders"].subscriptions["audit"]
    waiting = Waiting(orders, "POST", f"{AUDIT}/lease", {"wait": "50s"})
    orders.until(lambda: len(fresh.looks) == 1)
    orders.ask("DELETE", "topics/orders")
    assert waiting.get().code == "gone"


def test_waiting_lease_does_not_hold_up_the_end_of_the_node(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        set_up(served)
        waiting = Waiting(served, "POST", f"{AUDIT}/lease", {"wait": "50s"})
        subscription = served.node.topics["orders"].subscriptions["audit"]
        served.until(lambda: len(subscription.looks) == 1)
    assert waiting.get().json["messages"] == []


def test_lease_that_wants_no_waiting_is_answered_at_once_while_a_key_is_held(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.post("topics", {"name": "orders"})
    served.post("topics/orders/subscriptions", {"name": "audit", "settings": {"order": "key"}})
    served.publish("orders", "a", "b", key="k")
    assert len(served.lease("orders", "audit", wait="20s", max=10, lease="10m")) == 1
    assert served.node.topics["orders"].subscriptions["audit"].depth() == 1  # it is there, behind its key
    known: list[bool] = []
    wait = Call.wait

    async def wait_and_tell(self: Call[Any, Any], event: Any, seconds: float) -> bool:
        known.append(event.done())
        return await wait(self, event, seconds)

    with monkeypatch.context() as patch:
        patch.setattr(Call, "wait", wait_and_tell)
        assert served.lease("orders", "audit") == []
    assert known == [True]


def test_receipt_holds_across_a_restart(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        set_up(served)
        served.publish("orders", "a", "b")
        leased = receipts(served.lease("orders", "audit", lease="10m"))
    with Served(tmp_path) as served:
        assert served.lease("orders", "audit", wait="50ms") == []
        assert statuses(served.post(f"{AUDIT}/extend", {"receipts": leased})) == ["ok", "ok"]
        assert statuses(served.post(f"{AUDIT}/ack", {"receipts": leased[:1]})) == ["ok"]
        assert statuses(served.post(f"{AUDIT}/release", {"receipts": leased[1:]})) == ["ok"]
        assert [(m["body"], m["attempts"]) for m in served.lease("orders", "audit", wait="20s")] == [("b", 2)]


def test_receipt_and_answered_acks_hold_across_a_kill(tmp_path: Path) -> None:
    with Served(tmp_path / "before") as served:
        set_up(served)
        served.publish("orders", "a", "b", "c")
        leased = receipts(served.lease("orders", "audit", lease="10m"))
        served.post(f"{AUDIT}/ack", {"receipts": leased[:1]})
        served.post(f"{AUDIT}/release", {"receipts": leased[1:2]})
        copy = served.crash_copy(tmp_path / "after")
    with Served(copy) as served:
        assert [(m["body"], m["attempts"]) for m in served.lease("orders", "audit", wait="20s")] == [("b", 2)]
        assert statuses(served.post(f"{AUDIT}/ack", {"receipts": leased})) == ["not_leased", "not_leased", "ok"]


@pytest.mark.parametrize("action", ["ack", "release"])
def test_answer_means_written_down_also_before_the_next_tick(tmp_path: Path, action: str) -> None:
    with Served(tmp_path / "before") as served:
        set_up(served)
        served.publish("orders", "a")
        leased = receipts(served.lease("orders", "audit", lease="10m"))
        served.do(lambda: setattr(served.node, "_tick", lambda: None))
        served.post(f"{AUDIT}/{action}", {"receipts": leased})
        copy = served.crash_copy(tmp_path / "after")
    with Served(copy) as served:
        shown = served.get(AUDIT).json
        assert (shown["in_flight"], shown["depth"]) == ((0, 0) if action == "ack" else (0, 1))


def test_lease_that_ended_while_the_node_was_down_is_delivered_again(tmp_path: Path) -> None:
    with Served(tmp_path / "before") as served:
        set_up(served)
        served.publish("orders", "a")
        leased = receipts(served.lease("orders", "audit", lease="1ms"))
        copy = served.crash_copy(tmp_path / "after")
    with Served(copy) as served:
        assert served.lease("orders", "audit", wait="20s")[0]["attempts"] == 2
        assert statuses(served.post(f"{AUDIT}/ack", {"receipts": leased})) == ["not_leased"]


def test_each_receipt_gets_its_own_result(orders: Served) -> None:
    orders.publish("orders", "a")
    good = receipts(orders.lease("orders", "audit"))[0]
    id_ = good.partition("-")[0]
    odd = [f"{id_}-2", good, good, "", "x-1", f"{id_}-", f"{id_}-99999999999", f"{'f' * 16}-1", f"{'0' * 16}-1", "é-1"]
    answer = orders.post(f"{AUDIT}/ack", {"receipts": odd})
    bad = "bad_receipt"
    assert statuses(answer) == ["not_leased", "ok", "not_leased", bad, bad, bad, bad, "not_leased", "not_leased", bad]
    assert [result["receipt"] for result in answer.json["results"]] == odd


def test_receipt_of_another_subscription_is_not_leased(orders: Served) -> None:
    orders.post("topics/orders/subscriptions", {"name": "other"})
    orders.publish("orders", "a")
    leased = receipts(orders.lease("orders", "audit"))
    answer = orders.post("topics/orders/subscriptions/other/ack", {"receipts": leased})
    assert statuses(answer) == ["not_leased"]


def test_ack_up_to_finishes_everything_before(orders: Served) -> None:
    ids = orders.publish("orders", *"abcd")
    orders.lease("orders", "audit", max=1)
    assert orders.post(f"{AUDIT}/ack-up-to", {"id": ids[2]}).json == {"count": 3}
    assert [m["body"] for m in orders.lease("orders", "audit", wait="20s")] == ["d"]
    assert orders.get(AUDIT).json["counts"]["acked"] == 3


def test_removed_messages_are_not_delivered(orders: Served) -> None:
    ids = orders.publish("orders", *"abcd")
    orders.lease("orders", "audit", max=1)
    assert orders.post(f"{AUDIT}/remove", {"ids": [ids[0], ids[2], ids[2]]}).json == {"count": 2}
    assert [m["body"] for m in orders.lease("orders", "audit", wait="20s")] == ["b", "d"]


@pytest.mark.parametrize("id_", ["0000000000000003", "0001000000000001", "0000000000000000", "ffffffffffffffff"])
def test_message_that_does_not_exist_cannot_be_finished(orders: Served, id_: str) -> None:
    orders.publish("orders", "a", "b")
    for action, body in (("ack-up-to", {"id": id_}), ("remove", {"ids": [id_]})):
        answer = orders.post(f"{AUDIT}/{action}", body)
        assert (answer.status, answer.code) == (400, "bad_offset")
    orders.publish("orders", "c")
    assert len(orders.lease("orders", "audit")) == 3


@pytest.mark.parametrize(
    ("action", "body", "text"),
    [
        ("lease", {"max": 0}, "max"),
        ("lease", {"max": 1001}, "max"),
        ("lease", {"wait": "61s"}, "above the limit of 60s"),
        ("lease", {"wait": 5}, "wait"),
        ("lease", {"lease": "16m"}, "above the limit of 900s"),
        ("lease", {"lease": "0"}, "ended before it begins"),
        ("lease", {"lease": "long"}, "is not a duration"),
        ("lease", {"maxx": 1}, "did you mean 'max'?"),
        ("ack", {"receipts": []}, "receipts"),
        ("ack", {"receipts": "x"}, "receipts"),
        ("ack", {"receipts": ["x"] * 10_001}, "receipts"),
        ("ack", {}, "receipts"),
        ("release", {"receipts": ["x"], "delay": "25h"}, "above the limit"),
        ("extend", {"receipts": ["x"], "lease": "16m"}, "above the limit"),
        ("ack-up-to", {"id": "7"}, "16 hex digits"),
        ("remove", {"ids": ["7"]}, "16 hex digits"),
        ("remove", {"ids": []}, "ids"),
    ],
)
def test_bad_request_is_refused_with_the_reason(orders: Served, action: str, body: object, text: str) -> None:
    answer = orders.post(f"{AUDIT}/{action}", body)
    assert (answer.status, answer.code) == (400, "bad_request")
    assert text in answer.message


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Served(tmp_path_factory.mktemp("fuzz")) as served:
        yield set_up(served)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    action=st.sampled_from(["ack", "extend", "release"]),
    found=st.lists(st.text(max_size=24) | st.from_regex(r"[0-9a-f]{16}-[0-9]{1,5}", fullmatch=True), min_size=1),
)
def test_no_receipt_makes_the_node_fail_inside(shared: Served, action: str, found: list[str]) -> None:
    answer = shared.post(f"{AUDIT}/{action}", {"receipts": found})
    assert {result["status"] for result in answer.json["results"]} <= {"not_leased", "bad_receipt"}


def test_holders_are_listed_with_their_leases(orders: Served) -> None:
    assert orders.get(f"{AUDIT}/holders").json == {"holders": []}
    ids = orders.publish("orders", "a", "b", "c")
    leased = orders.lease("orders", "audit", max=3, lease="10m")
    orders.post(f"{AUDIT}/ack", {"receipts": [leased[1]["receipt"]]})
    (holder,) = orders.get(f"{AUDIT}/holders").json["holders"]
    assert (holder["name"], holder["connected"], holder["in_flight"]) == ("api", False, 2)
    assert [(one["id"], one["receipt"], one["attempts"]) for one in holder["leases"]] == [
        (ids[0], leased[0]["receipt"], 1),
        (ids[2], leased[2]["receipt"], 1),
    ]
    assert leased[0]["timestamp"] < holder["leases"][0]["ends"]
    (holder,) = orders.get(f"{AUDIT}/holders?max=1").json["holders"]
    assert (holder["in_flight"], len(holder["leases"])) == (2, 1)
