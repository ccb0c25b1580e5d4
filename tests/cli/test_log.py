from __future__ import annotations

from pathlib import Path

from tests.cli.program import Node, inside


def test_verify_reads_every_row_beside_the_running_node(node: Node, topic: str) -> None:
    node.ok("pub", topic, "one", "two")
    data = node.cwd / "data"
    [found] = node.ok("log", "verify", topic, "--data", data, "--json").json
    assert (found["topic"], found["shard"], found["good"]) == (topic, 0, True)
    assert sum(segment["rows"] for segment in found["report"]["segments"]) == 2
    row = node.ok("log", "verify", "--data", data, topic).out.splitlines()[1]
    assert row.split()[:2] == [topic, "0"]
    assert row.endswith("good")


def test_cat_prints_bodies_and_dump_every_column(node: Node, topic: str) -> None:
    node.ok("topic", "create", topic, "--shards", "2")
    node.ok("pub", topic, "one", "two", "--key", "k", "--header", "a=b", "--shard", "1")
    node.ok("pub", topic, "--shard", "1", stdin=b"\xff")
    data = (topic, "--data", node.cwd / "data")
    assert node.ok("log", "cat", *data).raw == b"one\ntwo\n\xff\n"
    assert node.ok("log", "cat", *data, "--shard", "1", "--from", "1", "--to", "2").out == "two\n"
    assert node.ok("log", "cat", *data, "--shard", "0").out == ""
    assert node.ok("log", "cat", *data, "--from", "1", "--json").json_lines == [
        {"shard": 1, "body": "two"},
        {"shard": 1, "body_base64": "/w=="},
    ]
    assert node.ok("log", "dump", *data, "--json").raw == node.ok("log", "dump", *data).raw
    first, _, third = node.ok("log", "dump", *data).json_lines
    assert (first["topic"], first["shard"], first["offset"], first["body"]) == (topic, 1, 0, "one")
    assert (first["headers"], first["key"], first["source"]) == ({"a": "b"}, "k", "api")
    assert third["body_base64"] == "/w=="
    missing = node.call("log", "cat", *data, "--shard", "2")
    assert (missing.code, missing.error) == (1, f"penstock: there is no shard 2 of {topic}; there are: 0, 1\n")


def test_damage_is_named_and_the_rest_is_still_read(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        for text in ("first", "second", "third"):
            node.ok("pub", "orders", text)
        assert node.end() == 0
    assert inside("log", "cat", "--data", "data/topics/1/0", cwd=tmp_path).out == "first\nsecond\nthird\n"
    [segment] = (tmp_path / "data" / "topics").rglob("*.arrows")
    content = segment.read_bytes()
    segment.write_bytes(content.replace(b"second", b"sEcond"))
    done = inside("log", "verify", "--data", "data", cwd=tmp_path)
    assert done.code == 1
    assert "DAMAGED" in done.out
    assert "orders/0: " in done.out
    assert "offsets 1 to 1 cannot be read" in done.out
    assert inside("log", "cat", "orders", "--data", "data", cwd=tmp_path).out == "first\nthird\n"


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, code, text in (
        (["verify"], 2, "there is no data directory ./penstock-data"),
        (["verify", "--data", "empty"], 2, "empty holds no log"),
        (["cat", "orders", "--data", "empty"], 2, "empty is no data directory of a node"),
        (["dump", "--data", "nowhere"], 2, "there is no data directory nowhere"),
    ):
        done = inside("log", *arguments, cwd=tmp_path)
        assert (done.code, done.error.count("\n")) == (code, 1), done
        assert text in done.error


def test_a_topic_that_is_not_there_is_answered_with_those_that_are(node: Node, topic: str) -> None:
    done = node.call("log", "cat", topic, "--data", node.cwd / "data")
    assert done.code == 1
    assert f"there is no topic '{topic}' in" in done.error
