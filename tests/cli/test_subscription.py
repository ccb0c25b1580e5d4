from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import Node


def test_a_subscription_is_made_shown_changed_and_dropped(node: Node, topic: str) -> None:
    node.ok("pub", topic, "one", "two")
    made = node.ok("subscription", "create", topic, "audit", "--max-attempts", "3", "--ttl", "1h", "--lease", "5s")
    assert made.out == f"subscription audit of topic {topic} made: 2 messages to come\n"
    shown = node.ok("subscription", "show", topic, "audit").out
    assert f"max attempts    3, then to {topic}.dead" in shown
    assert "ttl             1h" in shown
    changed = node.ok("subscription", "set", topic, "audit", "--dead-letter", "lost", "--ttl", "0", "--json").json
    assert (changed["settings"]["dead_letter"], changed["settings"]["ttl"]) == ("lost", "0")
    assert changed["settings"]["max_attempts"] == 3
    node.ok("subscription", "delete", topic, "audit")
    gone = node.call("subscription", "show", topic, "audit")
    assert (gone.code, gone.error) == (1, f"penstock: topic {topic} has no subscription 'audit'\n")


def test_subscriptions_are_listed_with_their_counts(node: Node, topic: str) -> None:
    node.ok("pub", topic, "one", "two", "three")
    assert node.ok("sub", topic, "audit", "--max", "1").out == "one\n"
    header, row, legend = node.ok("subscription", "list", topic).out.splitlines()
    assert legend == "ready: to be handed out; leased: with a consumer; waiting: for its time"
    assert header.split() == ["subscription", "ready", "leased", "waiting", "acked", "consumers"]
    assert row.split() == ["audit", "2", "0", "0", "1", "0"]
    [listed] = node.ok("subscription", "list", topic, "--json").json
    assert (listed["depth"], listed["counts"]["acked"]) == (2, 1)


def test_a_paused_subscription_hands_out_nothing_until_it_is_resumed(node: Node, topic: str) -> None:
    node.ok("pub", topic, "one")
    node.ok("subscription", "create", topic, "audit")
    assert "is paused" in node.ok("subscription", "pause", topic, "audit").out
    assert node.ok("sub", topic, "audit").out == ""
    node.ok("subscription", "resume", topic, "audit")
    assert node.ok("sub", topic, "audit").out == "one\n"


def test_seek_begins_anew_at_an_offset_a_time_or_an_end(node: Node, topic: str) -> None:
    node.ok("pub", topic, "one", "two", "three")
    assert node.ok("sub", topic, "audit").out == "one\ntwo\nthree\n"
    assert "begins anew: 2 messages to come" in node.ok("subscription", "seek", topic, "audit", "1").out
    assert node.ok("sub", topic, "audit").out == "two\nthree\n"
    node.ok("subscription", "seek", topic, "audit", "1h")
    assert node.ok("sub", topic, "audit", "--max", "1").out == "one\n"
    node.ok("subscription", "seek", topic, "audit", "latest")
    assert node.ok("sub", topic, "audit").out == ""
    beyond = node.call("subscription", "seek", topic, "audit", "99")
    assert (beyond.code, "choose one from 0 to 3" in beyond.error) == (1, True)
    nowhere = node.call("subscription", "seek", topic, "audit", "somewhere")
    assert (nowhere.code, "earliest, latest" in nowhere.error) == (1, True)


def test_an_emptied_subscription_has_nothing_left(node: Node, topic: str) -> None:
    node.ok("pub", topic, "one")
    node.ok("subscription", "create", topic, "audit")
    node.ok("subscription", "empty", topic, "audit")
    assert node.ok("sub", topic, "audit").out == ""


def test_a_later_subscription_begins_where_it_is_told_to(node: Node, topic: str) -> None:
    node.ok("pub", topic, "one")
    node.ok("subscription", "create", topic, "first")
    node.ok("subscription", "create", topic, "second")
    node.ok("subscription", "create", topic, "third", "--from", "earliest")
    assert node.ok("sub", topic, "second").out == ""
    assert node.ok("sub", topic, "third").out == "one\n"


def test_dead_letters_are_driven_back_to_where_they_failed(node: Node, topic: str) -> None:
    dead = f"{topic}.dead"
    node.ok("topic", "create", dead, "--durability", "fsync")
    node.ok("pub", topic, "poison")
    node.ok("subscription", "create", topic, "audit", "--max-attempts", "1")
    assert node.ok("sub", topic, "audit", "--no-ack").out == "poison\n"
    assert node.ok("sub", topic, "audit").out == ""
    [letter] = node.ok("sub", dead, "watch", "--wait", "30s", "--max", "1", "--json").json_lines
    assert letter["body"] == "poison"
    assert letter["headers"]
    moved = node.ok("redrive", dead).out
    assert moved == f"1 dead letter moved: 1 to {topic}; 0 left\n"
    assert node.ok("sub", topic, "audit", "--wait", "30s", "--max", "1").out == "poison\n"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["create", "nowhere", "audit"], 1, "there is no topic 'nowhere'"),
        (["set", "nowhere", "audit", "--ttl", "1h"], 1, "there is no topic 'nowhere'"),
        (["set", "nowhere", "audit"], 2, "no setting was named"),
        (["set", "nowhere", "audit", "--no-traffic", "--traffic", "x"], 2, "--no-traffic"),
        (["create", "nowhere", "audit", "--max-attempts", "-1"], 2, "--max-attempts"),
        (["list"], 2, "Missing argument"),
    ],
)
def test_what_is_refused_says_why(node: Node, arguments: list[str], code: int, text: str) -> None:
    done = node.call("subscription", *arguments)
    assert done.code == code
    assert text in done.error
    assert done.error.count("\n") == 1


def test_redrive_of_what_are_no_dead_letters_says_messages(node: Node, topic: str) -> None:
    node.ok("pub", topic, "a")
    node.ok("topic", "create", f"{topic}-too")
    assert node.ok("redrive", topic, "--to", f"{topic}-too").out == f"1 message moved: 1 to {topic}-too; 0 left\n"


def test_redrive_of_a_topic_that_is_not_there_is_refused(node: Node) -> None:
    done = node.call("redrive", "nowhere.dead")
    assert (done.code, done.error) == (1, "penstock: there is no topic 'nowhere.dead'\n")


def test_holders_are_listed_with_their_receipts_and_the_policy_is_shown(node: Node, topic: str) -> None:
    node.ok("pub", topic, "one", "two")
    node.ok("subscription", "create", topic, "audit")
    assert "policy          shared" in node.ok("subscription", "show", topic, "audit").out
    assert node.ok("subscription", "holders", topic, "audit").out == (
        f"nobody holds messages of subscription audit of topic {topic} under a name\n"
    )
    (receipt,) = lease(node, topic)
    header, row = node.ok("subscription", "holders", topic, "audit").out.splitlines()
    assert header.split() == ["holder", "receipt", "attempts", "ends"]
    assert row.split()[:3] == ["api", receipt, "1"]


def test_leases_of_holders_hold_across_kill_9(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.ok("pub", "t", "one", "two")
        node.ok("subscription", "create", "t", "audit")
        receipts = lease(node, "t", 2)
        before = node.ok("subscription", "holders", "t", "audit", "--json").json
        assert [one["receipt"] for one in before["holders"][0]["leases"]] == receipts
        node.process.kill()
        node.process.wait()
    with Node(tmp_path) as node:
        after = node.ok("subscription", "holders", "t", "audit", "--json").json
        assert [(one["receipt"], one["attempts"]) for one in after["holders"][0]["leases"]] == [
            (receipt, 1) for receipt in receipts
        ]
        assert lease(node, "t") == []
        answer = post(node, "t", "ack", {"receipts": receipts})
        assert (answer["ok"], node.ok("subscription", "show", "t", "audit", "--json").json["counts"]["acked"]) == (2, 2)


def lease(node: Node, topic: str, most: int = 1) -> list[str]:
    """Lease messages over HTTP and return their receipts."""
    found = post(node, topic, "lease", {"max": most, "lease": "10m"})
    return [message["receipt"] for message in found["messages"]]


def post(node: Node, topic: str, action: str, body: dict[str, object]) -> dict[str, Any]:
    url = f"{node.url}/api/v1/topics/{topic}/subscriptions/audit/{action}"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def test_filters_are_set_shown_and_dropped_again(node: Node, topic: str) -> None:
    node.ok("topic", "create", topic)
    filters = [
        "--storage-policy",
        "10s:2d",
        "--storage-policy",
        "1m:40d",
        "--percentage",
        "0.25",
        "--shard-set",
        "0..9",
    ]
    node.ok("subscription", "create", topic, "some", *filters, "--traffic", "web", "--traffic-upstream")
    shown = node.ok("subscription", "show", topic, "some").out
    for text in ("10s:2d, 1m:40d", "0.25 of 1", "0..9", "web; without bits: passed over; as M3's code does"):
        assert text in shown
    node.ok("subscription", "set", topic, "some", "--storage-policy", "", "--percentage", "1", "--shard-set", "")
    settings = node.ok("subscription", "show", topic, "some", "--json").json["settings"]
    assert (settings["storage_policies"], settings["percentage"], settings["shard_set"]) == ([], 1.0, "")
    assert settings["traffic"] == {"allowed": ["web"], "is_default": False, "upstream_filter": True}
    refused = node.call("subscription", "set", topic, "some", "--percentage", "25")
    assert (refused.code, "fraction from 0 to 1" in refused.error) == (1, True)
