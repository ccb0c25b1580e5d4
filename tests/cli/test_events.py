"""The delivery history of a real node: an NSQ client reads it, and NSQ's lists do not show it."""

from __future__ import annotations

import struct
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from penstock.node.events import TOPIC
from penstock.tally import TOPIC as COUNTS
from tests.cli.program import Node
from tests.nsq.caller import Caller

BODIES = [b"message %d" % number for number in range(300)]
QUICK = ("--set=events.mode=full", "--set=events.flush_interval=20ms")


def sent(topic: str, bodies: list[bytes]) -> bytes:
    items = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    items = struct.pack(">I", len(bodies)) + items
    return f"MPUB {topic}\n".encode() + struct.pack(">I", len(items)) + items


def received(caller: Caller) -> bytes:
    """Take the next message and finish it."""
    kind, data = caller.frame()
    assert kind == 2, data
    caller.send(b"FIN " + data[10:26] + b"\n")
    return data[26:]


def asked(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return msgspec.json.decode(answer.read())


def test_nsq_client_reads_what_became_of_every_message_and_no_list_of_nsq_shows_the_topic(tmp_path: Path) -> None:
    with Node(tmp_path, *QUICK) as node:
        port = node.port("nsq.tcp_port")
        with Caller(port) as reader, Caller(port) as worker:
            reader.send(f"SUB {TOPIC} report\nRDY 10\n".encode())
            assert reader.told() == "OK"
            worker.send(b"SUB orders audit\nRDY 100\n")
            assert worker.told() == "OK"
            worker.send(sent("orders", BODIES))
            got: list[bytes] = []
            answers: list[bytes] = []
            while len(got) < len(BODIES):
                kind, data = worker.frame()
                if kind == 2:
                    got.append(data[26:])
                    worker.send(b"FIN " + data[10:26] + b"\n")
                else:
                    answers.append(data)
            assert (sorted(got), answers) == (sorted(BODIES), [b"OK"])
            told: Counter[str] = Counter()
            places: dict[str, list[int]] = {}
            while told["acked"] < len(BODIES):
                event = msgspec.json.decode(received(reader))
                assert (event["topic"], event["one_in"]) == ("orders", 1)
                assert event.get("source") == ("nsq" if event["event"] == "published" else None)
                told[event["event"]] += event["count"]
                places.setdefault(event["event"], []).extend(event["offset"])
            assert told == {"published": 300, "delivered": 300, "acked": 300}
            assert all(sorted(offsets) == list(range(300)) for offsets in places.values())
            lookup, http = node.port("nsq.lookup_http_port"), node.port("nsq.http_port")
            assert asked(lookup, "/topics")["topics"] == ["orders"]
            (producer,) = asked(lookup, "/nodes")["producers"]
            assert producer["topics"] == ["orders"]
            assert [topic["topic_name"] for topic in asked(http, "/stats?format=json")["topics"]] == ["orders"]
            (asked_for,) = asked(http, f"/stats?format=json&topic={TOPIC}")["topics"]
            assert [channel["channel_name"] for channel in asked_for["channels"]] == ["report"]
        # What was counted has a topic, too, from a second after the first message on.
        listed = {topic["name"] for topic in node.ok("topic", "list", "--json").json}
        assert listed - {COUNTS} == {TOPIC, "orders"}
        shown = node.ok("topic", "show", TOPIC, "--json").json["settings"]
        assert (shown["retention_hard"], shown["durability"]) == (True, "os")


def test_last_events_survive_the_end_of_the_process(tmp_path: Path) -> None:
    with Node(tmp_path, "--set=events.mode=full", "--set=events.flush_interval=1m") as node:
        node.ok("pub", "orders", "one", "two")
        assert node.ok("sub", "orders", "audit", "--max", "1").out == "one\n"
        assert node.end() == 0
    with Node(tmp_path, "--set=events.mode=off") as node:
        events = [msgspec.json.decode(line) for line in node.ok("sub", TOPIC, "report").out.splitlines()]
        counts = Counter({event["event"]: event["count"] for event in events})
        assert counts == {"published": 2, "delivered": 1, "acked": 1}
