from __future__ import annotations

from tests.cli.program import Node


def test_rates_are_printed_and_no_topic_is_left(node: Node) -> None:
    place = f"127.0.0.1:{node.port('nsq.tcp_port')}"
    rates = node.ok("bench", "--messages", "5000", "--nsq", place, "--json").json
    assert rates["messages"] == 5000
    assert rates["publish_per_second"] > 0
    assert rates["deliver_finish_per_second"] > 0
    assert rates["publish_wait_p50_us"] <= rates["publish_wait_p99_us"]
    lines = node.ok("bench", "--messages", "1000", "--size", "10", "--nsq", place).out.splitlines()
    assert lines[0].startswith("publish, pipelined ")
    assert node.ok("topic", "list", "bench.", "--json").json == []


def test_a_port_that_does_not_speak_nsq_is_refused(node: Node) -> None:
    silent = node.call("bench", "--nsq", "127.0.0.1:1")
    assert (silent.code, "nobody speaks NSQ at 127.0.0.1:1" in silent.error) == (3, True)
    nonsense = node.call("bench", "--nsq", "nonsense")
    assert (nonsense.code, "write HOST:PORT" in nonsense.error) == (2, True)
    http = node.call("bench", "--nsq", f"127.0.0.1:{node.port('nsq.http_port')}")
    assert http.code == 1
    assert http.error.count("\n") == 1
    assert node.ok("topic", "list", "bench.", "--json").json == []
