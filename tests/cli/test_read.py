from __future__ import annotations

from tests.cli.program import Node


def test_peek_shows_place_time_and_columns_and_takes_nothing(node: Node, topic: str) -> None:
    node.ok("pub", topic, "one", "two", "--key", "k")
    first, second = node.ok("peek", topic).out.splitlines()
    assert first.startswith("0/0  2")
    assert first.endswith("Z  key=k  one")
    assert second.startswith("0/1  ")
    assert node.ok("sub", topic, "audit").out == "one\ntwo\n"


def test_peek_begins_at_an_offset_or_a_time(node: Node, topic: str) -> None:
    node.ok("pub", topic, *map(str, range(30)))
    assert len(node.ok("peek", topic).out.splitlines()) == 10
    bodies = [message["body"] for message in node.ok("peek", topic, "--offset", "27", "--json").json_lines]
    assert bodies == ["27", "28", "29"]
    assert len(node.ok("peek", topic, "--time", "1h", "-n", "1000").out.splitlines()) == 30
    assert node.ok("peek", topic, "--offset", "latest").out == ""
    beyond = node.call("peek", topic, "--offset", "99")
    assert (beyond.code, "choose one from 0 to 30" in beyond.error) == (1, True)
    negative = node.call("peek", topic, "--offset=-1")
    assert (negative.code, "choose one from 0 to 30" in negative.error) == (1, True)
    both = node.call("peek", topic, "--offset", "1", "--time", "1h")
    assert (both.code, "choose one" in both.error) == (2, True)


def test_tail_prints_the_end_and_then_what_comes(node: Node, topic: str) -> None:
    node.ok("pub", topic, *map(str, range(20)))
    assert node.ok("tail", topic, "--no-follow", "-n", "2").out == "18\n19\n"
    with node.follow("tail", topic, "-n", "1", "--max", "3") as tail:
        assert tail.line() == b"19"
        node.ok("pub", topic, "new")
        assert tail.line() == b"new"
        node.ok("pub", topic, "newer")
        assert tail.line() == b"newer"
        assert tail.process.wait(60) == 0


def test_messages_are_printed_as_a_format_says(node: Node, topic: str) -> None:
    node.ok("pub", topic, "one", "--key", "k", "-H", "a=b")
    node.ok("pub", topic, stdin=b"\xff\n")
    wanted = ("--format", r"{offset}\t{key}\t{headers}\t{body}{{}}")
    printed = b'0\tk\t{"a":"b"}\tone{}\n1\t\t\t\xff{}\n'
    assert node.ok("peek", topic, *wanted).raw == printed
    assert node.ok("tail", topic, "--no-follow", *wanted).raw == printed
    assert node.ok("tail", topic, "--no-follow", "-v").raw == node.ok("peek", topic).raw
    assert node.ok("sub", topic, "looks", "--no-ack", "-v").raw == node.ok("peek", topic).raw
    assert node.ok("sub", topic, "looks", "--wait", "30s", *wanted).raw == printed
    typo = node.call("peek", topic, "--format", "{offest}")
    assert (typo.code, typo.error) == (2, "penstock: --format '{offest}': there is no {offest}; did you mean offset?\n")
    half = node.call("peek", topic, "--format", "{body")
    assert (half.code, "is not understood" in half.error) == (2, True)


def test_tail_follows_every_shard(node: Node, topic: str) -> None:
    node.ok("topic", "create", topic, "--shards", "3")
    with node.follow("tail", topic, "--max", "3", "--json") as tail:
        for shard in ("2", "0", "1"):
            node.ok("pub", topic, f"to {shard}", "--shard", shard)
            assert f"to {shard}".encode() in tail.line()
        assert tail.process.wait(60) == 0


def test_tail_of_a_topic_that_is_not_there_is_refused(node: Node) -> None:
    done = node.call("tail", "nowhere")
    assert (done.code, done.error) == (1, "penstock: there is no topic 'nowhere'\n")
