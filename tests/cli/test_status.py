from __future__ import annotations

import json
import re
import signal
from pathlib import Path

from tests.cli.program import Node, inside


def test_status_shows_a_node_on_one_screen(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.ok("pub", "orders", "one", "two", "three")
        node.ok("sub", "orders", "billing", "--max", "1")
        node.ok("topic", "create", "idle")
        node.call("pub", "orders", "x", "--due", "3000d")
        screen = node.ok("status", "--every", "10ms").out
        lines = screen.splitlines()
        assert lines[0] == f"Penstock 0.1.0 at {node.url}: ready"
        assert lines[1].split() == ["admin", "API", node.url]
        assert "connections" in [line.split()[0] for line in lines if line]
        (memory,) = [line.split(maxsplit=1)[1] for line in lines if line.startswith("  memory ")]
        assert re.fullmatch(r"[0-9.]+ MiB, cache [0-9.]+ KiB of [0-9.]+ MiB", memory)
        assert ["orders", "0", "3"] in [line.split()[:3] for line in lines]
        assert ["billing", "orders", "2", "2", "0", "0", "0", "0"] in [line.split() for line in lines]
        assert "unclaimed: with no subscription yet, because there was none or the topic is paused" in lines
        legend = (
            "lag: not finished yet, which is ready, leased and waiting together; ready: to be handed out; "
            "leased: with a consumer; waiting: for its time"
        )
        assert lines[lines.index(legend) - 1].startswith("billing")
        assert "due_too_far" in lines[-1]
        found = node.ok("status", "--every", "10ms", "--json").json
        assert (found["ready"], found["problems"], found["topics_total"]) == (True, [], 2)
        assert [(topic["name"], topic["rows"]) for topic in found["topics"]] == [("orders", 3), ("idle", 0)]
        assert [(one["name"], one["depth"]) for one in found["subscriptions"]] == [("billing", 2)]
        assert [part["name"] for part in found["memory"]["parts"]] == ["body", "input", "output", "topic", "cache"]
        assert found["errors"][0]["reason"] == "due_too_far"
        assert len(node.ok("status", "--every", "10ms", "--max", "1", "--json").json["topics"]) == 1
        assert "and 1 more; --max shows more" in node.ok("status", "--every", "10ms", "--max", "1").out


def test_status_of_a_node_that_cannot_work_says_why_and_exits_with_1(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.ok("topic", "create", "orders")
        node.end(signal.SIGTERM)
    (tmp_path / "data" / "topics" / "9").mkdir()
    with Node(tmp_path) as node:
        done = node.call("status", "--every", "1ms")
        assert (done.code, done.out.splitlines()[0]) == (1, f"Penstock 0.1.0 at {node.url}: NOT READY")
        assert "lost/9" in done.out.splitlines()[1]


def test_rates_are_those_between_two_looks(node: Node, topic: str) -> None:
    with node.follow("top", "--every", "500ms", "--json", "--max", "100") as live:
        seen = 0.0
        while not seen:
            node.ok("pub", topic, "one")
            look = json.loads(live.line())
            seen = next((each["in_per_s"] for each in look["topics"] if each["name"] == topic), 0.0)
        assert 0 < seen < 1000
        assert live.end(signal.SIGINT) == 0


def test_top_ends_after_as_many_screens_as_it_was_told(node: Node) -> None:
    assert node.ok("top", "--every", "1ms", "--frames", "2").out.count(f"at {node.url}: ready") == 2


def test_where_no_node_answers_status_exits_with_3(tmp_path: Path) -> None:
    assert inside("--url", "http://127.0.0.1:1", "status", cwd=tmp_path).code == 3
