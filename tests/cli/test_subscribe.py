from __future__ import annotations

import subprocess

from tests.cli.program import COMMAND, Node, environment


def test_messages_that_were_printed_do_not_come_again(node: Node, topic: str) -> None:
    node.ok("pub", topic, "one", "two", "three")
    assert node.ok("sub", topic, "audit", "--max", "2").out == "one\ntwo\n"
    assert node.ok("sub", topic, "audit").out == "three\n"
    assert node.ok("sub", topic, "audit").out == ""


def test_json_has_one_message_a_line_with_its_attempts(node: Node, topic: str) -> None:
    node.ok("pub", topic, "one", "--key", "k")
    [message] = node.ok("sub", topic, "audit", "--json").json_lines
    assert (message["body"], message["key"], message["attempts"], message["offset"]) == ("one", "k", 1, 0)


def test_messages_that_were_only_looked_at_come_again(node: Node, topic: str) -> None:
    node.ok("pub", topic, "one", "two")
    assert node.ok("sub", topic, "audit", "--no-ack", "--batch", "1").out == "one\ntwo\n"
    again = node.ok("sub", topic, "audit", "--json", "--wait", "30s").json_lines
    assert [(message["body"], message["attempts"]) for message in again] == [("one", 2), ("two", 2)]


def test_follow_prints_what_comes_until_it_has_enough(node: Node, topic: str) -> None:
    node.ok("topic", "create", topic)
    with node.follow("sub", topic, "audit", "--follow", "--max", "3") as consumer:
        node.ok("pub", topic, "one")
        assert consumer.line() == b"one"
        node.ok("pub", topic, "two", "three")
        assert (consumer.line(), consumer.line()) == (b"two", b"three")
        assert consumer.process.wait(60) == 0


def test_what_a_reader_did_not_take_is_handed_out_again(node: Node, topic: str) -> None:
    bodies = [f"{number} " + "x" * 1000 for number in range(500)]
    node.ok("pub", topic, stdin="\n".join(bodies).encode())
    with subprocess.Popen(
        [*COMMAND, "sub", topic, "audit", "--batch", "500", "--url", node.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=node.cwd,
        env=environment(),
    ) as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert consumer.stdout.readline().startswith(b"0 ")
        consumer.stdout.close()
        assert b"Traceback" not in consumer.stderr.read()
        assert consumer.wait(60) == 1
    rest = node.ok("sub", topic, "audit", "--batch", "500", "--wait", "30s").out.splitlines()
    assert rest[-1] == bodies[-1]
    assert 400 < len(rest) < 500


def test_a_subscription_is_not_made_when_told_not_to(node: Node, topic: str) -> None:
    node.ok("pub", topic, "one")
    done = node.call("sub", topic, "audit", "--no-create")
    assert (done.code, done.error) == (1, f"penstock: topic {topic} has no subscription 'audit'\n")
    nowhere = node.call("sub", f"{topic}.nowhere", "audit")
    assert (nowhere.code, nowhere.error) == (1, f"penstock: there is no topic '{topic}.nowhere'\n")
