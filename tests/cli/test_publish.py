from __future__ import annotations

from pathlib import Path

from tests.cli.program import Node


def test_arguments_are_messages(node: Node, topic: str) -> None:
    assert node.ok("pub", topic, "one", "two").out == f"2 messages published to {topic}\n"
    alone = node.ok("pub", topic, "three").out
    assert alone == f"1 message published to {topic}, id 0000000000000003\n"
    assert node.ok("sub", topic, "audit").out == "one\ntwo\nthree\n"


def test_lines_of_standard_input_are_messages_whatever_they_hold(node: Node, topic: str) -> None:
    lines = b"one\n\n\xff\xfe\nlast without an end"
    node.ok("pub", topic, stdin=lines)
    assert node.ok("sub", topic, "audit").raw == lines + b"\n"


def test_standard_input_can_be_one_message(node: Node, topic: str) -> None:
    node.ok("pub", topic, "--whole", stdin=b"one\ntwo\n")
    [message] = node.ok("peek", topic, "--json").json_lines
    assert message["body"] == "one\ntwo\n"


def test_files_are_published_line_by_line_in_batches(node: Node, topic: str, tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(2500)]
    (tmp_path / "many").write_text("\n".join(lines))
    (tmp_path / "few").write_text("a\nb\n")
    done = node.ok("pub", topic, "-f", tmp_path / "many", "-f", tmp_path / "few", "--batch", "1000", "--json")
    assert [answer["count"] for answer in done.json_lines] == [1000, 1000, 500, 2]
    assert node.ok("sub", topic, "audit", "--batch", "1000").out.splitlines() == [*lines, "a", "b"]


def test_json_lines_say_key_headers_tag_and_due_for_each_message(node: Node, topic: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text(
        '{"body": "one", "key": "k", "headers": {"a": 1}, "tag": "own", "due": "1h"}\n{"body": {"n": [1, 2]}}\n'
    )
    assert (
        node.ok("pub", topic, "--jsonl", "--file", lines, "--tag", "common").out == f"2 messages published to {topic}\n"
    )
    first, second = node.ok("peek", topic, "--json").json_lines
    assert (first["body"], first["key"], first["headers"], first["tag"]) == ("one", "k", {"a": 1}, "own")
    assert first["due"] > first["timestamp"]
    assert (second["body"], second["tag"]) == ('{"n":[1,2]}', "common")


def test_what_peek_shows_can_be_published_again(node: Node, topic: str) -> None:
    node.ok("pub", topic, "--key", "k", "-H", "a=b", stdin=b"one\n\xff\n")
    shown = node.ok("peek", topic, "--json").raw
    node.ok("pub", f"{topic}.copy", "--jsonl", stdin=shown)
    copied = node.ok("peek", f"{topic}.copy", "--json").json_lines
    own = {"id", "timestamp", "offset"}
    assert [{k: v for k, v in message.items() if k not in own} for message in copied] == [
        {"shard": 0, "source": "api", "key": "k", "headers": {"a": "b"}, "body": "one"},
        {"shard": 0, "source": "api", "key": "k", "headers": {"a": "b"}, "body_base64": "/w=="},
    ]


def test_a_line_that_is_no_json_object_is_named_and_nothing_of_its_request_is_published(node: Node, topic: str) -> None:
    done = node.call("pub", topic, "--jsonl", stdin=b'{"body": "one"}\n[1]\n')
    assert (done.code, "message 2 is no JSON object: it is '[1]' (0 messages before" in done.error) == (2, True)
    assert node.call("topic", "show", topic).code == 1
    typo = node.call("pub", topic, "--jsonl", '{"bodi": "one"}')
    assert (typo.code, "body" in typo.error) == (1, True)


def test_every_column_that_an_option_names_arrives(node: Node, topic: str) -> None:
    node.ok("routing", "set", "pub-a=40", "pub-b=41")
    node.ok("topic", "create", topic, "--max-due", "0")
    node.ok(
        *("pub", topic, "hello", "--key", "k", "--tag", "t", "--header", "a=b=c", "-H", "d="),
        *("--traffic", "pub-a", "--traffic", "pub-b", "--due", "2100-01-31T12:00:00Z", "--expires", "4130000000000"),
    )
    node.ok("pub", topic, "bits", "--traffic", "0b101")
    named, numbered = node.ok("peek", topic, "--json").json_lines
    assert (named["key"], named["tag"], named["headers"]) == ("k", "t", {"a": "b=c", "d": ""})
    assert named["traffic"] == (1 << 40) | (1 << 41)
    assert sorted(named["traffic_types"]) == ["pub-a", "pub-b"]
    assert named["due"] == "2100-01-31T12:00:00.000000000Z"
    assert named["expires"].startswith("2100-11-15")
    assert numbered["traffic"] == 5


def test_a_message_that_is_not_due_is_not_handed_out(node: Node, topic: str) -> None:
    node.ok("pub", topic, "later", "--due", "1h")
    node.ok("pub", topic, "now")
    assert node.ok("sub", topic, "audit").out == "now\n"
    assert node.ok("subscription", "show", topic, "audit", "--json").json["waiting"] == 1


def test_a_dedup_key_makes_the_second_message_the_first(node: Node, topic: str) -> None:
    first = node.ok("pub", topic, "once", "--dedup", "order-1", "--json").json
    again = node.ok("pub", topic, "once", "--dedup", "order-1", "--json").json
    assert again["ids"] == first["ids"]
    assert node.ok("sub", topic, "audit").out == "once\n"


def test_what_cannot_be_published_says_why(node: Node, topic: str, tmp_path: Path) -> None:
    for arguments, code, text in (
        (["x", "--traffic", "nobody-knows"], 1, "nobody-knows"),
        (["x", "--traffic", "1", "--traffic", "2"], 2, "one number that holds all bits"),
        (["x", "--header", "nonsense"], 2, "--header NAME=VALUE"),
        (["x", "--due", "soon"], 1, "due 'soon' is no time"),
        (["x", "--shard", "7"], 1, "there is no shard 7"),
        (["-f", "missing"], 2, "missing cannot be read"),
        (["x", "-f", "missing"], 2, "not from both"),
        (["x", "--no-create"], 1, f"there is no topic '{topic}.new'"),
    ):
        name = f"{topic}.new" if "--no-create" in arguments else topic
        done = node.call("pub", name, *arguments)
        assert (done.code, done.error.count("\n")) == (code, 1), done
        assert text in done.error


def test_a_failure_in_the_middle_tells_how_much_was_published(node: Node, topic: str) -> None:
    too_big = b"x" * ((1 << 20) + 1)
    done = node.call("pub", topic, "--batch", "2", stdin=b"one\ntwo\nthree\n" + too_big + b"\n")
    assert done.code == 1
    assert "over the limit of 1048576" in done.error
    assert "(2 messages before that were published)" in done.error
    assert node.ok("sub", topic, "audit").out == "one\ntwo\n"
