from __future__ import annotations

import base64

from tests.served import Served


def test_ledger_tells_what_was_refused_by_reason_and_topic(served: Served) -> None:
    assert served.get("ledger").json == {"total": 0, "entries": []}
    served.publish("orders", "x", dedup="d")
    served.publish("orders", "x", dedup="d")
    served.post("topics/orders/messages", raw="nonsense")
    assert served.get("ledger").json["total"] == 2
    found = served.get("ledger?reason=duplicate&topic=orders").json
    assert found["total"] == 1
    entry = found["entries"][0]
    assert (entry["reason"], entry["topic"], entry["count"]) == ("duplicate", "orders", 1)
    assert entry["first"] <= entry["last"]
    sample = served.get("ledger?reason=api:bad_request").json["entries"][0]["samples"][0]
    assert "not a JSON object" in sample["text"]
    assert served.get("ledger?topic=none").json["total"] == 0


def test_ledger_can_be_asked_since_a_time_and_in_part(served: Served) -> None:
    def fill() -> None:
        for number in range(5):
            served.node.ledger.add(f"reason{number}", "t", 1, served.clock.now(), b"\xff\x00", "me:1")

    served.do(fill)
    served.advance(3600)
    assert served.get("ledger?since=30m").json["total"] == 0
    assert served.get("ledger?since=2h").json["total"] == 5
    part = served.get("ledger?limit=2").json
    assert (part["total"], len(part["entries"])) == (5, 2)
    sample = part["entries"][0]["samples"][0]
    assert (sample["base64"], sample["peer"]) == (base64.b64encode(b"\xff\x00").decode(), "me:1")
    assert served.get("ledger?since=whenever").status == 400
    assert served.get("ledger?limit=0").status == 400
