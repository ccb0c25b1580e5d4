from __future__ import annotations

import os
import pty
import re
import subprocess

import pytest

from tests.cli.program import COMMAND, Node, environment


def fields(node: Node, topic: str) -> dict[str, str]:
    """Return what `topic show` says for people, by name: two blanks or more stand between."""
    return dict(re.split(r"  +", line, maxsplit=1) for line in node.ok("topic", "show", topic).out.splitlines())


def test_a_topic_is_made_shown_changed_and_dropped(node: Node, topic: str) -> None:
    made = node.ok("topic", "create", topic, "--shards", "2", "--durability", "fsync", "--retention-age", "1h")
    assert made.out == f"topic {topic} made: 2 shards, fsync\n"
    shown = fields(node, topic)
    assert shown["retention_age"] == "1h"
    assert shown["shard 1"] == "empty, next offset 0"
    changed = node.ok("topic", "set", topic, "--rate", "100", "--retention-bytes", "64MiB", "--json").json
    assert changed["settings"]["rate"] == 100
    node.ok("topic", "set", topic, "--quota-bytes", "1GiB", "--quota-full", "drop", "--max-due", "30d")
    limited = fields(node, topic)
    assert limited["stored"] == "0 B of 1.0 GiB"
    assert (limited["quota_full"], limited["max_due"]) == ("drop", "30d")
    assert changed["settings"]["retention_bytes"] == 64 << 20
    assert node.ok("topic", "delete", topic, "--yes").out == f"topic {topic} is gone, with everything inside\n"
    gone = node.call("topic", "show", topic)
    assert (gone.code, gone.error) == (1, f"penstock: there is no topic '{topic}'\n")


def test_every_setting_of_a_topic_can_be_chosen_and_those_for_good_only_once(node: Node, topic: str) -> None:
    offered = [
        "--dedup-window",
        "1m",
        "--ordered",
        "--nsq-header-rules",
        "lenient",
        "--no-retention-hard",
        "--ephemeral",
    ]
    settings = node.ok("topic", "create", topic, *offered, "--json").json["settings"]
    assert (settings["dedup_window"], settings["ordered"]) == ("1m", True)
    assert settings["dialects"] == {"nsq": {"extend": "auto", "header_rules": "lenient", "replicas": 1}}
    assert (settings["retention_hard"], settings["ephemeral"]) == (False, True)
    assert "--compression none|lz4|zstd" in " ".join(node.ok("topic", "set", "--help").out.split())
    assert "No such option" in node.call("topic", "set", topic, "--durability", "fsync").error


def test_topic_gets_more_shards_and_never_fewer(node: Node, topic: str) -> None:
    node.ok("topic", "create", topic)
    assert node.ok("topic", "set", topic, "--shards", "3").out == f"topic {topic}: shards = 3\n"
    shown = node.ok("topic", "show", topic).out
    assert all(f"shard {number}" in shown for number in range(3))
    refused = node.call("topic", "set", topic, "--shards", "2")
    assert (refused.code, "has 3 shards and cannot have 2" in refused.error) == (1, True)


def test_settings_of_a_dialect_are_chosen_under_its_name_and_checked_by_it(node: Node, topic: str) -> None:
    node.ok("topic", "create", topic, "--nsq-extend", "off")
    assert node.ok("topic", "set", topic, "--nsq-extend", "on").out == f"topic {topic}: nsq.extend = on\n"
    assert fields(node, topic)["nsq.extend"] == "on"
    refused = node.call("topic", "set", topic, "--nsq-extend", "off")
    assert (refused.code, "for good" in refused.error) == (1, True)
    refused = node.call("topic", "set", topic, "--nsq-extend", "maybe")
    assert "settings of nsq cannot be used: Invalid enum value 'maybe'" in refused.error


def test_settings_of_a_dialect_have_units_and_are_shown_where_somebody_chose_one(node: Node, topic: str) -> None:
    node.ok("topic", "create", topic)
    assert not [name for name in fields(node, topic) if "." in name]
    node.ok("topic", "set", topic, "--dynamiq-visibility", "90s")
    shown = fields(node, topic)
    assert (shown["dynamiq.visibility"], shown["dynamiq.max_partitions"]) == ("1m30s", "10")
    assert not [name for name in shown if name.startswith("sqs.")]
    dialects = node.ok("topic", "show", topic, "--json").json["settings"]["dialects"]
    assert dialects["dynamiq"]["visibility"] == "1m30s"
    refused = node.call("topic", "set", topic, "--dynamiq-visibility", "soon")
    assert (refused.code, "visibility: " in refused.error) == (1, True)


def test_topics_are_listed_with_what_they_hold(node: Node, topic: str) -> None:
    node.ok("pub", topic, "one", "two")
    node.ok("subscription", "create", topic, "audit")
    header, row = node.ok("topic", "list", topic).out.splitlines()
    assert header.split() == ["topic", "rows", "bytes", "unclaimed", "subscriptions"]
    assert row.split()[:2] == [topic, "2"]
    assert row.endswith("audit")
    [listed] = node.ok("topic", "list", topic, "--json").json
    assert (listed["name"], listed["rows"], listed["subscriptions"]) == (topic, 2, ["audit"])
    assert node.ok("topic", "list", "no-such-prefix").out == "there is no topic yet\n"
    assert node.ok("topic", "list", "no-such-prefix", "--json").json == []


def test_messages_that_no_subscription_has_are_explained(node: Node, topic: str) -> None:
    node.ok("pub", topic, "one", "two")
    legend = "with no subscription yet, because there was none or the topic is paused"
    _, row, last = node.ok("topic", "list", topic).out.splitlines()
    assert (row.split()[-2:], last) == (["2", "-"], f"unclaimed: {legend}")
    assert f"2 ({legend})" in node.ok("topic", "show", topic).out


def test_sizes_are_shown_as_they_are_written(node: Node, topic: str) -> None:
    node.ok("topic", "create", topic, "--retention-bytes", "1GiB")
    shown = fields(node, topic)
    assert shown["retention_bytes"] == "1GiB"
    assert node.ok("topic", "show", topic, "--json").json["settings"]["retention_bytes"] == 1 << 30


def test_topics_are_dropped_by_pattern_and_only_if_somebody_says_yes(node: Node, topic: str) -> None:
    for name in ("a", "b", "other"):
        node.ok("topic", "create", f"{topic}.{name}")
    asked = node.call("topic", "delete", f"{topic}.?")
    assert (asked.code, "would be dropped with everything inside; say so with --yes" in asked.error) == (2, True)
    assert f"2 topics ({topic}.a, {topic}.b)" in asked.error
    deleted = node.ok("topic", "delete", f"{topic}.?", f"{topic}.a", "--yes", "--json").json["deleted"]
    assert deleted == [f"{topic}.a", f"{topic}.b"]
    assert [each["name"] for each in node.ok("topic", "list", topic, "--json").json] == [f"{topic}.other"]
    none = node.call("topic", "delete", f"{topic}.x*", "--yes")
    assert (none.code, f"no topic fits '{topic}.x*'" in none.error) == (1, True)
    # Nothing is dropped if one of several is not there.
    assert node.call("topic", "delete", f"{topic}.other", f"{topic}.none", "--yes").code == 1
    assert node.ok("topic", "show", f"{topic}.other")


def test_a_topic_whose_name_could_be_a_pattern_is_dropped_alone(node: Node, topic: str) -> None:
    for name in (f"{topic}[1]", f"{topic}1", f"{topic}2"):
        node.ok("topic", "create", name)
    assert node.ok("topic", "delete", f"{topic}[1]", "--yes", "--json").json["deleted"] == [f"{topic}[1]"]
    # There is none of that name any more, so that it is a pattern.
    assert node.ok("topic", "delete", f"{topic}[1]", "--yes", "--json").json["deleted"] == [f"{topic}1"]
    assert node.ok("topic", "show", f"{topic}2")


def test_a_person_is_asked_before_a_topic_is_dropped(node: Node, topic: str) -> None:
    node.ok("topic", "create", topic)
    for answer, code, there in ((b"n\n", 1, 0), (b"y\n", 0, 1)):
        terminal, stdin = pty.openpty()
        os.write(terminal, answer)
        command = [*COMMAND, "topic", "delete", topic]
        variables = environment(PENSTOCK_URL=node.url)
        done = subprocess.run(command, stdin=stdin, capture_output=True, env=variables, timeout=60, check=False)
        os.close(terminal)
        os.close(stdin)
        assert f"Drop topic {topic} with everything inside?".encode() in done.stderr
        assert (done.returncode, node.call("topic", "show", topic).code) == (code, there)


@pytest.mark.parametrize("arguments", [("topic", "create"), ("pub",)])
def test_topic_that_clients_of_nsq_cannot_name_is_made_with_a_note(node: Node, arguments: tuple[str, ...]) -> None:
    name = f"no spelling {len(arguments)}"
    done = node.ok(*arguments, name, stdin=b"x\n")
    why = "its names are 1 to 64 letters, digits, '.', '_' and '-'"
    assert done.error == f"penstock: note: no client of NSQ can name topic '{name}': {why}.\n"


def test_a_paused_topic_keeps_what_comes_until_it_is_resumed(node: Node, topic: str) -> None:
    node.ok("topic", "create", topic)
    node.ok("subscription", "create", topic, "audit")
    assert "is paused" in node.ok("topic", "pause", topic).out
    node.ok("pub", topic, "one")
    assert node.ok("sub", topic, "audit").out == ""
    assert node.ok("topic", "list", topic).out.splitlines()[1].endswith("paused")
    node.ok("topic", "resume", topic)
    assert node.ok("sub", topic, "audit").out == "one\n"


def test_an_emptied_topic_gives_its_first_subscription_nothing(node: Node, topic: str) -> None:
    node.ok("pub", topic, "one")
    node.ok("topic", "empty", topic)
    assert node.ok("sub", topic, "audit").out == ""


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["create", "{topic}", "--retention-age", "soon"], 1, '"soon" is not a duration'),
        (["create", "{topic}", "--durability", "stone"], 1, "stone"),
        (["create", "{topic}", "--shards", "0"], 2, "--shards"),
        (["create", ""], 1, "1 to 1024 bytes"),
        (["create"], 2, "Missing argument"),
        (["set", "{topic}"], 2, "no setting was named"),
        (["delete", "{topic}"], 1, "there is no topic"),
        (["nonsense"], 2, "No such command"),
    ],
)
def test_what_is_refused_says_why(node: Node, topic: str, arguments: list[str], code: int, text: str) -> None:
    done = node.call("topic", *[argument.format(topic=topic) for argument in arguments])
    assert done.code == code
    assert text in done.error
    assert done.error.count("\n") == 1


def test_a_topic_that_is_there_cannot_be_made_again(node: Node, topic: str) -> None:
    node.ok("topic", "create", topic)
    again = node.call("topic", "create", topic)
    assert (again.code, again.error) == (1, f"penstock: topic {topic} exists already\n")


def test_names_may_hold_slashes_and_letters_of_any_language(node: Node) -> None:
    name = "заказы/2026 früh"
    node.ok("pub", name, "one")
    assert node.ok("sub", name, "été/1").out == "one\n"
    node.ok("topic", "delete", name, "--yes")
