from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import Node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Return a node of its own: the mapping is one for all topics."""
    with Node(tmp_path_factory.mktemp("routing")) as running:
        yield running


def test_traffic_types_are_added_shown_and_retired(node: Node) -> None:
    assert "no routing mapping is set" in node.ok("routing", "show").out
    assert node.ok("routing", "set", "production=0", "test=1").out == "2 traffic types known: production=0, test=1\n"
    node.ok("routing", "set", "replay=5")
    assert node.ok("routing", "show", "--json").json["traffic_types"] == {"production": 0, "test": 1, "replay": 5}
    node.ok("routing", "set", "production=0", "test=1", "--replace")
    shown = node.ok("routing", "show").out.splitlines()
    assert [line.split() for line in shown] == [
        ["bit", "traffic", "type"],
        ["0", "production"],
        ["1", "test"],
        ["5", "replay", "retired"],
    ]


def test_moving_a_bit_needs_force(node: Node) -> None:
    node.ok("routing", "set", "moved=10")
    refused = node.call("routing", "set", "moved=11")
    assert (refused.code, "moved moves from bit 10 to 11" in refused.error) == (1, True)
    node.ok("routing", "set", "moved=11", "--force")
    assert node.ok("routing", "show", "--json").json["traffic_types"]["moved"] == 11


def test_a_filter_is_tried_and_its_verdict_is_the_exit_code(node: Node) -> None:
    node.ok("routing", "set", "tried=20", "other=21")
    taken = node.call("routing", "test", "tried", "--allow", "tried")
    assert (taken.code, taken.out) == (0, "taken: the message carries tried\n")
    passed = node.call("routing", "test", "other", "--allow", "tried")
    assert (passed.code, passed.out) == (1, "passed over: the message carries no allowed traffic type\n")
    assert node.call("routing", "test", "--allow", "tried", "--default", "--json").json["accepted"] is True
    assert node.call("routing", "test", "0x100000", "--allow", "tried").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["a=64"], 1, "bits are 0 to 63"),
        (["a=b"], 2, "is no bit"),
        (["a"], 2, "NAME=VALUE"),
        (["a=30", "b=30"], 1, "bit 30 is given to a and b"),
    ],
)
def test_a_mapping_that_cannot_be_used_says_why(node: Node, arguments: list[str], code: int, text: str) -> None:
    done = node.call("routing", "set", *arguments)
    assert (done.code, done.error.count("\n")) == (code, 1)
    assert text in done.error


def test_a_filter_set_on_a_subscription_decides_what_it_gets(node: Node, topic: str) -> None:
    node.ok("routing", "set", "wanted=50", "unwanted=51")
    node.ok("topic", "create", topic)
    node.ok("subscription", "create", topic, "audit", "--traffic", "wanted")
    for types in (["--traffic", "wanted"], ["--traffic", "unwanted"], []):
        node.ok("pub", topic, types[-1] if types else "none", *types)
    assert node.ok("sub", topic, "audit").out == "wanted\n"
    node.ok("subscription", "set", topic, "audit", "--traffic-default")
    assert "wanted; without bits: taken" in node.ok("subscription", "show", topic, "audit").out
    node.ok("pub", topic, "none")
    assert node.ok("sub", topic, "audit").out == "none\n"
    node.ok("subscription", "set", topic, "audit", "--no-traffic")
    node.ok("pub", topic, "other", "--traffic", "unwanted")
    assert node.ok("sub", topic, "audit").out == "other\n"


def test_the_ledger_tells_what_was_refused(node: Node, topic: str) -> None:
    node.ok("topic", "create", topic, "--rate", "1")
    refused = node.call("pub", topic, "--batch", "1", *map(str, range(10)))
    assert (refused.code, "messages a second" in refused.error) == (1, True)
    header, row = node.ok("ledger", "--topic", topic).out.splitlines()
    assert header.split() == ["reason", "topic", "count", "last", "last", "sample"]
    assert row.split()[:3] == ["rate_limited", topic, "1"]
    assert node.ok("ledger", "--topic", topic, "--json").json["total"] == 1
    assert node.ok("ledger", "--reason", "no-such-reason").out == "nothing was refused or dropped\n"


def seed(node: Node, topic: str, mapping: list[str], services: dict[str, list[str]]) -> None:
    """Set a mapping, and a subscription with a filter for each service."""
    node.ok("routing", "set", *mapping)
    node.ok("topic", "create", topic)
    for name, filters in services.items():
        node.ok("subscription", "create", topic, name)
        node.ok("routing", "set", "--topic", topic, "--subscription", name, *filters)


def takers(node: Node, topic: str, *types: str) -> list[str]:
    answer = node.call("routing", "test", "--topic", topic, *types, "--json").json
    return [one["subscription"] for one in answer["subscriptions"] if one["accepted"]]


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Node]:
    """Return a node whose mapping nobody has touched."""
    with Node(tmp_path) as running:
        yield running


def test_the_documented_split_of_production_and_staging(fresh: Node) -> None:
    services = {"prod": ["--allow", "production"], "staging": ["--allow", "staging", "--default"]}
    seed(fresh, "m", ["production=0", "staging=1"], services)
    assert takers(fresh, "m", "1") == ["prod"]
    assert takers(fresh, "m", "2") == ["staging"]
    assert takers(fresh, "m", "0") == ["staging"]
    assert takers(fresh, "m", "3") == ["prod", "staging"]
    assert takers(fresh, "m", "production", "staging") == ["prod", "staging"]
    told = fresh.call("routing", "test", "4")
    assert (told.code, [line.split()[:3] for line in told.out.splitlines()[1:]]) == (
        1, [["m", "prod", "no"], ["m", "staging", "no"]],
    )  # fmt: skip
    assert "the message carries no allowed traffic type" in told.out


def test_the_documented_tenants_with_debug(fresh: Node) -> None:
    services = {
        "tenant-a": ["--allow", "tenant_a", "--allow", "debug"],
        "tenant-b": ["--allow", "tenant_b"],
        "watch": ["--allow", "debug"],
    }
    seed(fresh, "m", ["tenant_a=0", "tenant_b=1", "tenant_c=2", "debug=10"], services)
    assert takers(fresh, "m", "tenant_a") == ["tenant-a"]
    assert takers(fresh, "m", "tenant_b", "debug") == ["tenant-a", "tenant-b", "watch"]
    assert takers(fresh, "m", "tenant_c") == []
    assert takers(fresh, "m", "1024") == ["tenant-a", "watch"]
    assert takers(fresh, "m") == []


def test_other_filters_have_their_say_in_who_gets_a_message(node: Node, topic: str) -> None:
    node.ok("topic", "create", topic)
    node.ok("subscription", "create", topic, "low", "--shard-set", "0..9", "--storage-policy", "10s:2d")
    test = ("routing", "test", "--topic", topic)
    assert node.call(*test, "--shard", "9", "--storage-policy", "10s@1ms:48h").code == 0
    refused = node.call(*test, "--shard", "10")
    assert (refused.code, "shard 10 is not in 0..9" in refused.out) == (1, True)
    assert "1m:40d is none of 10s:2d" in node.call(*test, "--storage-policy", "1m:40d").out
    assert node.call(*test, "--allow", "x", "--shard", "1").code == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "nothing was named"),
        (["--topic", "t"], "--subscription"),
        (["a=1", "--allow", "a"], "a filter needs --topic"),
    ],
)
def test_a_filter_that_is_not_whole_is_refused(node: Node, arguments: list[str], told: str) -> None:
    done = node.call("routing", "set", *arguments)
    assert (done.code, told in done.error) == (2, True)
