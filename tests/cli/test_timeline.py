"""`penstock timeline` against a real node."""

from __future__ import annotations

import time

import pytest

from tests.cli.program import Node


def test_messages_are_put_counted_and_consumed_when_they_are_due(node: Node, topic: str) -> None:
    assert node.ok("timeline", "create", topic, "--buckets", "8").out == f"timeline {topic} is there\n"
    began = time.time()
    assert node.ok("timeline", "put", topic, "soon", "--due", "+1s").out == f"1 message on {topic}, due +1s\n"
    assert node.ok("timeline", "put", topic, stdin=b"now 1\nnow 2\n").out == f"2 messages on {topic}, due at once\n"
    [made] = node.ok("timeline", "put", topic, "next year", "--due", "90d", "--id", "ny", "--json").json_lines
    assert made == {"ids": ["ny"]}
    assert node.ok("timeline", "count", topic).out == "4\n"
    lines = node.ok("timeline", "consume", topic, "--max", "3", "--wait", "60s").out.splitlines()
    assert time.time() - began >= 1
    assert (sorted(lines[:2]), lines[2:]) == (["now 1", "now 2"], ["soon"])
    assert node.ok("timeline", "count", topic, "--status", "waiting").out == "1\n"
    assert node.ok("timeline", "count", topic, "--from", "+1d", "--json").json == {"count": 1}
    assert node.ok("timeline", "count", topic, "--from", "+1d", "--to", "+80d").out == "0\n"
    shown = node.ok("timeline", "info", topic).out
    assert "bucket count          8\n" in shown
    table = node.ok("timeline", "info").out.splitlines()
    assert table[0].split() == ["topic", "state", "available", "waiting", "processing", "consumers"]
    assert [topic, "live", "0", "1", "0", "0"] in [line.split() for line in table]
    assert node.ok("timeline", "redeal", topic).out == f"{topic} has no consumers to deal buckets to\n"
    assert node.ok("timeline", "delete", topic).out == f"timeline {topic} is deleted\n"


def test_what_was_only_looked_at_comes_again(node: Node, topic: str) -> None:
    node.ok("timeline", "create", topic)
    node.ok("timeline", "put", topic, "one", "--id", "m1")
    me = ("timeline", "consume", topic, "--as", "me", "-n", "1", "--wait", "60s")
    [kept] = node.ok(*me, "--keep", "--json").json_lines
    assert (kept["id"], kept["body"], kept["version"]) == ("m1", "one", 2)
    line = node.ok(*me, "-v").out
    assert line.endswith("Z m1 one\n")
    assert node.ok("timeline", "count", topic).out == "0\n"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["put", "nowhere", "x"], 1, "there is no topic"),
        (["put", "nowhere", "x", "--due", "soon"], 1, "there is no topic"),
        (["create", "t", "--window", "soon"], 2, "soon"),
        (["create", "t", "--dealer", "poker"], 1, "dealer"),
        (["consume", "nowhere"], 1, "there is no topic"),
        (["count", "nowhere", "--from", "soon"], 2, "start 'soon' is no time"),
        (["put", "t", "a", "b", "--id", "x"], 2, "--id names one message"),
        (["info", "nowhere"], 1, "there is no topic"),
    ],
)
def test_what_cannot_be_is_one_line(node: Node, arguments: list[str], code: int, text: str) -> None:
    done = node.call("timeline", *arguments)
    assert done.code == code, done
    assert text in done.error, done
    assert done.error.count("\n") == 1
