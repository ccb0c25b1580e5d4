from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.intake.receipt import Published
from penstock.message import Rows
from penstock.moves import redrive
from penstock.node.topic import Topic
from tests.served import Served

LEASE = "topics/orders/subscriptions/audit"


def set_up(served: Served, *bodies: str, attempts: int = 1) -> None:
    """Let messages fail in `orders` until they are in `orders.dead`."""
    served.post("topics", {"name": "orders"})
    served.post("topics/orders/subscriptions", {"name": "audit", "settings": {"max_attempts": attempts}})
    served.publish("orders", *bodies, key="k", headers={"mine": 1})
    fail(served, len(bodies), attempts)


def fail(served: Served, count: int, attempts: int = 1) -> None:
    for _ in range(attempts):
        leased = served.lease("orders", "audit", max=count, wait="20s")
        served.post(f"{LEASE}/release", {"receipts": [message["receipt"] for message in leased]})
    before = served.get(LEASE).json["counts"]["dead_lettered"]
    assert served.lease("orders", "audit", wait="1ms") == []
    subscription = served.node.topics["orders"].subscriptions["audit"]
    served.until(lambda: subscription.counts()["dead_lettered"] == before + count)


def bodies(served: Served, topic: str = "orders", subscription: str = "audit") -> list[str]:
    return [message["body"] for message in served.lease(topic, subscription, max=1000, wait="20s")]


def stored(served: Served, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = served.get(f"topics/{topic}/messages?limit=1000").json["messages"]
    return found


def test_dead_letters_go_back_as_they_were(served: Served) -> None:
    set_up(served, "a", "b", attempts=2)
    dead = stored(served, "orders.dead")
    assert [letter["body"] for letter in dead] == ["a", "b"]
    headers = dead[0]["headers"]
    assert headers["penstock.dead.topic"] == "orders"
    assert headers["penstock.dead.subscription"] == "audit"
    assert headers["penstock.dead.attempts"] == "2"
    assert served.post("topics/orders.dead/redrive").json == {
        "moved": 2,
        "topics": {"orders": 2},
        "left": 0,
        "problem": None,
    }
    again = served.lease("orders", "audit", wait="20s")
    assert [(m["body"], m["key"], m["headers"], m["attempts"]) for m in again] == [
        ("a", "k", {"mine": 1}, 1),
        ("b", "k", {"mine": 1}, 1),
    ]
    assert served.post("topics/orders.dead/redrive").json["moved"] == 0


def test_letter_that_fails_again_can_be_redriven_again(served: Served) -> None:
    set_up(served, "a")
    assert served.post("topics/orders.dead/redrive").json["moved"] == 1
    fail(served, 1)
    assert served.post("topics/orders.dead/redrive").json["moved"] == 1
    assert bodies(served) == ["a"]


def test_redrive_moves_at_most_what_was_asked(served: Served) -> None:
    set_up(served, *"abcde")
    result = served.post("topics/orders.dead/redrive", {"max": 2}).json
    assert (result["moved"], result["left"]) == (2, 3)
    assert served.post("topics/orders.dead/redrive", {"to": None, "max": 100}).json["moved"] == 3
    assert sorted(bodies(served)) == list("abcde")


def test_redrive_goes_to_another_topic_if_told(served: Served) -> None:
    set_up(served, "a")
    served.post("topics", {"name": "other"})
    assert served.post("topics/orders.dead/redrive", {"to": "other"}).json["topics"] == {"other": 1}
    assert [message["body"] for message in stored(served, "other")] == ["a"]


def test_redrive_finds_letters_that_were_there_before_its_subscription(served: Served) -> None:
    set_up(served, "a")
    served.post("topics/orders.dead/subscriptions", {"name": "watch"})
    assert served.post("topics/orders.dead/redrive").json["moved"] == 1


def test_many_letters_from_many_batches_all_go_back_once(served: Served) -> None:
    count = 2500
    set_up(served, "first")
    for start in range(0, count, 500):
        served.publish("orders", *(str(n) for n in range(start, start + 500)))
        fail(served, 500)
    assert served.post("topics/orders.dead/redrive").json["moved"] == count + 1
    found: list[str] = []
    while len(found) < count + 1:
        found += bodies(served)
    assert sorted(found) == sorted(["first", *map(str, range(count))])


def test_letter_whose_topic_is_gone_stays_and_can_go_elsewhere(served: Served) -> None:
    set_up(served, "a")
    served.ask("DELETE", "topics/orders")
    result = served.post("topics/orders.dead/redrive").json
    assert (result["moved"], result["left"]) == (0, 1)
    assert "orders does not exist any more" in result["problem"]
    served.post("topics", {"name": "other"})
    assert served.post("topics/orders.dead/redrive", {"to": "other"}).json["moved"] == 1


def subscriptions(served: Served, topic: str) -> list[str]:
    return [each["name"] for each in served.get(f"topics/{topic}/subscriptions").json["subscriptions"]]


def test_topic_without_dead_letters_is_refused_before_anything_is_made(served: Served) -> None:
    served.publish("plain", "x", headers={"mine": 1})
    answer = served.post("topics/plain/redrive")
    assert (answer.status, answer.code) == (409, "conflict")
    assert answer.message == (
        "topic plain holds no dead letters, only messages of its own; name a topic to move those to"
    )
    assert subscriptions(served, "plain") == []
    served.post("topics/plain/subscriptions", {"name": "first"})
    assert bodies(served, "plain", "first") == ["x"]


def test_empty_topic_has_nothing_to_redrive(served: Served) -> None:
    served.post("topics", {"name": "plain"})
    assert "topic plain is empty" in served.post("topics/plain/redrive").message
    assert subscriptions(served, "plain") == []


def test_letter_behind_other_messages_is_found(served: Served) -> None:
    set_up(served, "a")
    served.publish("mixed", "x", "y")
    served.publish("mixed", "z", headers={"penstock.dead.topic": "orders"})
    result = served.post("topics/mixed/redrive").json
    assert (result["moved"], result["left"]) == (1, 2)
    assert "no dead letters" in result["problem"]


def test_messages_that_are_no_letters_go_where_they_are_told(served: Served) -> None:
    served.publish("plain", "x")
    served.post("topics", {"name": "other"})
    assert served.post("topics/plain/redrive", {"to": "other"}).json["topics"] == {"other": 1}


def test_redrive_that_moved_nothing_leaves_nothing_behind(served: Served) -> None:
    set_up(served, "a")
    served.ask("DELETE", "topics/orders")
    assert served.post("topics/orders.dead/redrive").json["moved"] == 0
    assert subscriptions(served, "orders.dead") == []
    served.post("topics/orders.dead/subscriptions", {"name": "watch"})
    assert bodies(served, "orders.dead", "watch") == ["a"]


def test_first_subscription_gets_the_letters_that_were_redriven_too(served: Served) -> None:
    set_up(served, "a")
    assert served.post("topics/orders.dead/redrive").json["moved"] == 1
    served.post("topics/orders.dead/subscriptions", {"name": "watch"})
    assert bodies(served, "orders.dead", "watch") == ["a"]


@pytest.mark.parametrize("subscribed", [False, True])
def test_kill_before_anything_was_moved_leaves_nothing_behind(tmp_path: Path, *, subscribed: bool) -> None:
    with Served(tmp_path / "before") as served:
        set_up(served, "a")
        topic = served.node.topics["orders.dead"]
        intent = msgspec.msgpack.encode(redrive.Intent(None, made=True))
        served.do(lambda: served.node.catalog.put(f"{redrive.KEYS}{topic.record.number}", intent))
        if subscribed:
            served.do(lambda: topic.create_subscription(redrive.NAME, earliest=True))
        copy = served.crash_copy(tmp_path / "after")
    with Served(copy) as served:
        served.until(lambda: not served.node.redrives)
        assert subscriptions(served, "orders.dead") == []
        assert served.node.catalog.registry.list(redrive.KEYS) == {}
        served.post("topics/orders.dead/subscriptions", {"name": "watch"})
        assert bodies(served, "orders.dead", "watch") == ["a"]


def test_redrive_keeps_a_subscription_that_others_made(served: Served) -> None:
    set_up(served, "a")
    served.ask("DELETE", "topics/orders")
    served.post("topics/orders.dead/subscriptions", {"name": "redrive"})
    assert served.post("topics/orders.dead/redrive").json["moved"] == 0
    assert subscriptions(served, "orders.dead") == ["redrive"]


def test_letters_a_topic_refuses_stay(served: Served) -> None:
    set_up(served, "a", "b")
    served.ask("PATCH", "topics/orders", {"settings": {"rate": 1}})
    served.do(lambda: served.node.topics["orders"].intake._rate.allow(1000, served.clock.monotonic()))  # type: ignore[union-attr]
    result = served.post("topics/orders.dead/redrive").json
    assert (result["moved"], result["left"]) == (0, 2)
    assert "messages a second" in result["problem"]
    served.ask("PATCH", "topics/orders", {"settings": {"rate": 0}})
    assert served.post("topics/orders.dead/redrive").json["moved"] == 2


@pytest.mark.parametrize(
    ("topic", "body", "status", "code"),
    [
        ("none", {}, 404, "not_found"),
        ("orders.dead", {"to": "none"}, 404, "not_found"),
        ("orders.dead", {"to": "orders.dead"}, 400, "bad_request"),
        ("orders.dead", {"max": 0}, 400, "bad_request"),
        ("orders.dead", {"too": "x"}, 400, "bad_request"),
    ],
)
def test_bad_redrive_is_refused(served: Served, topic: str, body: object, status: int, code: str) -> None:
    set_up(served, "a")
    answer = served.post(f"topics/{topic}/redrive", body)
    assert (answer.status, answer.code) == (status, code)


def test_paused_dead_letter_topic_refuses_a_redrive(served: Served) -> None:
    set_up(served, "a")
    served.post("topics/orders.dead/pause")
    assert served.post("topics/orders.dead/redrive").code == "conflict"
    served.post("topics/orders.dead/resume")
    assert served.post("topics/orders.dead/redrive").json["moved"] == 1


class Held:
    """Publishes to a topic are stored, and nobody hears of it until the test says so."""

    def __init__(self, served: Served, topic: Topic) -> None:
        self.heard: list[Any] = []
        self._publish = topic.publish
        self._topic = topic
        served.do(lambda: setattr(topic, "publish", self.publish))

    def publish(self, rows: Rows, publisher: object, done: Published, shard: int | None = None) -> None:
        self._publish(rows, publisher, lambda receipt, error: self.heard.append((done, receipt, error)), shard)

    def tell(self) -> None:
        for done, receipt, error in self.heard:
            done(receipt, error)


def start(served: Served, limit: int = 1000, to: str | None = None) -> list[redrive.Redriven]:
    results: list[redrive.Redriven] = []
    served.do(lambda: redrive.redrive(served.node, served.node.topic("orders.dead"), to, limit, results.append))
    return results


def test_second_redrive_waits_for_the_first(served: Served) -> None:
    set_up(served, "a")
    held = Held(served, served.node.topics["orders"])
    results = start(served)
    served.until(lambda: bool(held.heard))
    answer = served.post("topics/orders.dead/redrive")
    assert (answer.status, answer.code) == (409, "conflict")
    served.do(held.tell)
    served.until(lambda: bool(results))
    assert results[0].moved == 1


def test_kill_between_publish_and_ack_repeats_nothing(tmp_path: Path) -> None:
    with Served(tmp_path / "before") as served:
        set_up(served, "a", "b", "c")
        held = Held(served, served.node.topics["orders"])
        start(served, limit=2)
        served.until(lambda: bool(held.heard))
        copy = served.crash_copy(tmp_path / "after")
        served.do(held.tell)
    with Served(copy) as served:
        served.until(lambda: not served.node.redrives)
        assert [message["body"] for message in stored(served, "orders")] == ["a", "b", "c", "a", "b"]
        assert served.get("topics/orders.dead/subscriptions/redrive").json["counts"]["acked"] == 2
        assert served.post("topics/orders.dead/redrive").json["moved"] == 1
        assert [message["body"] for message in stored(served, "orders")] == ["a", "b", "c", "a", "b", "c"]


def test_kill_before_publish_loses_nothing_and_goes_on_to_the_same_place(tmp_path: Path) -> None:
    with Served(tmp_path / "before") as served:
        set_up(served, "a", "b")
        served.post("topics", {"name": "other"})
        called: list[Published] = []
        served.do(lambda: setattr(served.node.topics["other"], "publish", lambda *args: called.append(args[2])))
        start(served, to="other")
        served.until(lambda: bool(called))
        copy = served.crash_copy(tmp_path / "after")
        served.do(lambda: called[0](None, OSError("the test ends here")))
    with Served(copy) as served:
        served.until(lambda: not served.node.redrives)
        assert [message["body"] for message in stored(served, "other")] == ["a", "b"]
        assert served.post("topics/orders.dead/redrive").json["moved"] == 0


def test_node_that_was_down_for_long_still_repeats_nothing(tmp_path: Path) -> None:
    with Served(tmp_path / "before", ahead_s=-3600) as served:
        set_up(served, "a")
        held = Held(served, served.node.topics["orders"])
        start(served)
        served.until(lambda: bool(held.heard))
        copy = served.crash_copy(tmp_path / "after")
        served.do(held.tell)
    with Served(copy) as served:
        served.until(lambda: not served.node.redrives)
        assert [message["body"] for message in stored(served, "orders")] == ["a", "a"]


def test_redrive_of_a_deleted_topic_ends(served: Served) -> None:
    set_up(served, "a")
    held = Held(served, served.node.topics["orders"])
    results = start(served)
    served.until(lambda: bool(held.heard))
    served.ask("DELETE", "topics/orders.dead")
    served.do(held.tell)
    served.until(lambda: bool(results))
    assert results[0].problem == "topic orders.dead went away"
    assert not served.node.redrives
    assert served.node.catalog.registry.list(redrive.KEYS) == {}
