"""A cluster over HTTP: here one node in it, with real slots over its own registry."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.cluster.member import joined
from tests.served import PATIENCE_S, Served


def until(served: Served, holds: Callable[[Any], bool]) -> Any:
    ends = time.monotonic() + PATIENCE_S
    while not holds(seen := served.get("cluster").json):
        assert time.monotonic() < ends, seen
        time.sleep(0.02)
    return seen


def test_a_node_that_is_alone_has_no_cluster(served: Served) -> None:
    for method, path, body in (
        ("GET", "cluster", None),
        ("POST", "cluster/move", {"slot": 1, "node": "n1"}),
        ("POST", "cluster/drain", {"node": "n1"}),
        ("POST", "cluster/undrain", {"node": "n1"}),
    ):
        answer = served.ask(method, path, body)
        assert (answer.status, answer.code) == (404, "not_found")
        assert "there is no cluster: this node is alone, because cluster.name is not set" in answer.message


def test_nodes_and_slots_are_shown_and_orders_given(served: Served) -> None:
    with joined(served):
        seen = until(served, lambda seen: seen["nodes"][0]["slots"] == 4)
        assert (seen["name"], seen["node"], seen["problems"]) == ("blue", "n1", ["slot 3: Kafka is away"])
        node = seen["nodes"][0]
        assert (node["name"], node["address"], node["weight"]) == ("n1", "10.0.0.1:7075", 1)
        assert [slot["node"] for slot in seen["slots"]] == ["n1"] * 4
        assert all(slot["epoch"] > 0 for slot in seen["slots"])
        metrics = served.ask("GET", "/metrics").content.decode()
        for line in ("member 1", "nodes 1", "slots 4", "slots_owned 4", "slots_taken_total 4", "unreadable_keys 0"):
            assert f"\npenstock_cluster_{line}\n" in metrics
        served.post("cluster/move", {"slot": 2, "node": "n1"})
        served.post("cluster/drain", {"node": "n1"})
        seen = until(served, lambda seen: seen["nodes"][0]["drained"] and seen["slots"][2]["pinned"] == "n1")
        assert seen["drains"] == ["n1"]
        served.post("cluster/undrain", {"node": "n1"})
        served.post("cluster/move", {"slot": 2})
        until(served, lambda seen: not seen["drains"] and not seen["slots"][2]["pinned"])
        refused = served.ask("POST", "cluster/move", {"slot": 4, "node": "n1"})
        assert (refused.status, refused.message) == (404, "there is no slot 4; the cluster has slots 0 to 3")
        refused = served.ask("POST", "cluster/drain", {"node": "n2"})
        assert refused.status == 404
        assert "there is no node n2 in the cluster" in refused.message
        assert served.ask("POST", "cluster/move", {"slot": "x"}).status == 400
