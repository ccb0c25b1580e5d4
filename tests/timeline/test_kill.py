"""A node that is killed: leases, extends and deletes that were answered hold afterwards, and ids stay taken."""

from __future__ import annotations

from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec

from penstock.client.timeline.wire import Kind
from tests.proofs.process import Process

PATIENCE_S = 60


def ask(node: Process, path: str, method: str = "POST", **document: object) -> Any:
    connection = HTTPConnection("127.0.0.1", node.ports["timeline.port"], timeout=PATIENCE_S)
    try:
        connection.request(method, f"/v1/{path}", msgspec.json.encode(document))
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return msgspec.json.decode(content)
    finally:
        connection.close()


def greet(node: Process) -> tuple[str, str]:
    producer = ask(node, "producer-handshake", topic_id="t", producer_group_id="g", producer_id="p")
    consumer = ask(node, "consumer-handshake", topic_id="t", consumer_id="c", lease_timeout_ms=300_000)
    return producer["session_id"], consumer["session_id"]


def test_what_was_answered_before_kill_9_holds_after_it(tmp_path: Path) -> None:
    node = Process(tmp_path / "data")
    node.start()
    try:
        ask(node, "topics/t", "PUT", prefetch_max_ms=0)
        producer, consumer = greet(node)
        ids = [f"m{number}" for number in range(4)]
        later = {"id": "later", "delay_ms": 3_600_000}
        ask(node, "messages", session_id=producer, messages=[*({"id": each, "due_ms": 1} for each in ids), later])
        leases = ask(node, "lease", session_id=consumer, limit=10, wait_ms=10_000)["messages"]
        assert [each["message_id"] for each in leases] == ids
        change = {"id": "m1", "version": 2, "delay_ms": 200_000}
        (extended,) = ask(node, "messages/extend-lease", session_id=consumer, messages=[change])["messages"]
        ask(node, "messages/delete", session_id=consumer, messages=[{"id": "m0", "version": 2}])
        node.kill()
        node.start()
        producer, consumer = greet(node)
        held = ask(node, "lease", session_id=consumer, limit=10)["messages"]
        assert [each["message_id"] for each in held] == ["m1", "m2", "m3"]
        assert (held[0]["version"], held[0]["expiration_ts_ms"]) == (3, extended["expiration_ts_ms"])
        assert held[1:] == leases[2:]
        again = [{"id": each} for each in ("m0", "m2", "later")]
        made = ask(node, "messages", session_id=producer, messages=again)["messages"]
        taken = Kind.DUPLICATE_ID
        assert [each.get("error", {}).get("kind") for each in made] == [None, taken, taken]
        changes = [{"id": "m1", "version": 3}, {"id": "m2", "version": 2}, {"id": "m3", "version": 3}]
        done = ask(node, "messages/delete", session_id=consumer, messages=changes)["messages"]
        assert [each.get("error", {}).get("kind") for each in done] == [None, None, Kind.VERSION_MISMATCH]
    finally:
        node.stop()
