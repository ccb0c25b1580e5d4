"""An m3aggregator's file as ours, and a node that runs from it with a real etcd."""

from __future__ import annotations

import json
import tomllib
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from penstock.cli.import_m3 import imported
from penstock.errors import ConfigError
from penstock.m3 import routing
from tests.cli.program import Node, inside
from tests.etcd.servers import Cluster, wait_for
from tests.m3msg.producer import Producer, metric
from tests.m3msg.receiver import Receiver

COMPLETE = Path(__file__).parents[1] / "fixtures" / "m3aggregator.yaml"
SERVICES = ("m3coordinator", "m3coordinator-staging", "m3coordinator-debug", "m3coordinator-catchall")
TYPES = {"production": 0, "staging": 1, "experimental": 2, "canary": 3, "debug": 4}
TOPIC = "aggregated_metrics"
#: Before the names that services have as subscriptions of the relay.
PREFIX = "m3msg.embedded.default_env."


def test_m3msg_case_50_the_complete_example_becomes_a_file_that_is_clean(tmp_path: Path) -> None:
    made = inside("config", "import", COMPLETE, cwd=tmp_path)
    assert made.code == 0, made.error
    tree = tomllib.loads(made.out)
    assert tree["etcd"] == {"zones": {"embedded": {"endpoints": ["127.0.0.1:2379"]}}}
    assert tree["m3msg_relay"] == {
        "topics": [TOPIC], "zone": "embedded", "environment": "default_env", "dial_timeout": "5s",
    }  # fmt: skip
    filters = tree["routing"].pop("filters")
    assert tree["routing"] == {
        "key": "routing-policy", "zone": "embedded", "environment": "default_env", "namespace": "/_kv",
    }  # fmt: skip
    assert [(each["topic"], each["subscription"]) for each in filters] == [
        (TOPIC, f"{PREFIX}{name}") for name in SERVICES
    ]
    assert [(each["is_default"], each["allowed_traffic_types"]) for each in filters] == [
        (False, ["production"]),
        (False, ["staging", "experimental"]),
        (False, ["debug"]),
        (True, ["production", "staging"]),
    ]
    told = [line.split(": ")[1] for line in made.error.splitlines()]
    assert told == [
        "producer.buffer.maxBufferSize", "name", "hashType", "the endpoints of zone embedded",
    ]  # fmt: skip
    (tmp_path / "penstock.toml").write_text(made.out)
    checked = inside("config", "check", "--config", "penstock.toml", cwd=tmp_path)
    assert (checked.code, checked.error) == (0, "")


def test_m3msg_case_50_each_service_gets_exactly_what_its_filter_says(tmp_path: Path) -> None:
    with closing(Cluster(tmp_path / "etcd")) as cluster, ExitStack() as stack:
        (tmp_path / "penstock.toml").write_text(inside("config", "import", COMPLETE, cwd=tmp_path).out)
        chosen = ("--config", "penstock.toml", f"--set=etcd.zones.embedded.endpoints={','.join(cluster.endpoints)}")

        def m3(*words: str) -> None:
            done = inside("m3", *words, *chosen, cwd=tmp_path)
            assert done.code == 0, done

        receivers = {name: stack.enter_context(Receiver()) for name in SERVICES}
        m3("topic", "init", TOPIC, "--shards", "8")
        for name, receiver in receivers.items():
            m3("topic", "add", TOPIC, name)
            m3("placement", "init", name, f"one={receiver.endpoint}", "--shards", "8")
        with Node(tmp_path, *chosen) as node:
            assert "there is no _kv/default_env/routing-policy" in node.ok("routing", "show").out
            cluster.ctl("put", "_kv/default_env/routing-policy", stdin=routing.encode(TYPES))
            wait_for(lambda: node.ok("routing", "show", "--json").json["traffic_types"] == TYPES, "the policy")
            assert "_kv/default_env/routing-policy (in force, revision" in node.ok("routing", "show").out
            kinds = {metric(b"metric of %d" % bits, bits): bits for bits in (0, 1, 2, 3, 4, 8, 16, 17, 18)}
            with Producer(node.port("m3msg.port")) as producer:
                producer.send(*kinds)
                producer.until_acked(len(kinds))
            expected = {
                "m3coordinator": [1, 3, 17],
                "m3coordinator-staging": [2, 3, 4, 18],
                "m3coordinator-debug": [16, 17, 18],
                "m3coordinator-catchall": [0, 1, 2, 3, 17, 18],
            }
            wait_for(lambda: _depth(node) == 0, "all of it")
            got = {name: sorted(kinds[body] for body in receiver.got) for name, receiver in receivers.items()}
            assert got == expected
            which = node.ok("routing", "test", "experimental", "--json").json["subscriptions"]
            assert [one["subscription"] for one in which if one["accepted"]] == [f"{PREFIX}m3coordinator-staging"]
            moved = node.call("routing", "set", "debug=9")
            assert (moved.code, "debug moves from bit 4 to 9" in moved.error) == (1, True)
            node.ok("routing", "set", "debug=9", "--force")
            assert "debug" in cluster.ctl("get", "--print-value-only", "_kv/default_env/routing-policy")
            assert node.ok("routing", "show", "--json").json["traffic_types"]["debug"] == 9


def _depth(node: Node) -> int:
    """Return how much is not acked yet; what has no subscription counts, too."""
    found = node.ok("subscription", "list", TOPIC, "--json").json
    assert len(found) == len(SERVICES)
    return sum(one["depth"] + one["in_flight"] for one in found)


def test_all_kinds_of_filters_of_a_service_come_together_and_endpoints_are_found() -> None:
    settings, left = imported(
        """
kvClient:
  etcd:
    etcdClusters:
      - zone: west
        endpoints: [http://one:2379, "two:2379"]
      - zone: a
        endpoints: ["three:2379"]
aggregator:
  hostID: x
  flush:
    handlers:
      - staticBackend: {}
      - dynamicBackend:
          routingPolicyConfig:
            kvConfig: {}
            kvKey: p
          filters:
            - serviceID: {}
""".replace("kvConfig: {}", "kvConfig:\n              zone: west\n              namespace: rp").replace(
            "- serviceID: {}", "- serviceID:\n                name: s\n              shardSet: [0..3, 7]"
        )
        + """
          percentageFilters:
            - serviceID:
                name: s
              percentage: 0.5
          storagePolicyFilters:
            - serviceID:
                name: s
              storagePolicies:
                - 10s:2d
            - serviceID:
                name: t
                zone: a
              storagePolicies: [1m:40d]
            - serviceID:
                name: t
                zone: b
              storagePolicies: [1m:40d]
          producer:
            writer:
              topicName: metrics
"""
    )
    assert settings == {
        "routing.key": "p",
        "routing.zone": "west",
        "routing.namespace": "rp",
        "m3msg_relay.topics": ["metrics"],
        "etcd.zones.west.endpoints": ["one:2379", "two:2379"],
        "etcd.zones.a.endpoints": ["three:2379"],
        "routing.filters": [
            {
                "topic": "metrics",
                "subscription": "m3msg.s",
                "shard_set": "0..3,7",
                "percentage": 0.5,
                "storage_policies": ["10s:2d"],
            },
            {"topic": "metrics", "subscription": "m3msg.a.t", "storage_policies": ["1m:40d"]},
            {"topic": "metrics", "subscription": "m3msg.b.t", "storage_policies": ["1m:40d"]},
        ],
    }
    assert set(left) == {"aggregator.hostID", "aggregator.flush.handlers[].staticBackend"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no aggregator.flush.handlers"),
        ("- 1", "the file is not a map"),
        ("aggregator:\n  flush:\n    handlers: 5", "handlers is not a list"),
        ("aggregator: [", "it is no YAML that can be read"),
        (
            "aggregator:\n  flush:\n    handlers:\n      - dynamicBackend:\n          percentageFilters:\n"
            "            - serviceID:\n                name: s\n              percentage: 1",
            "topicName is missing",
        ),
        (
            "aggregator:\n  flush:\n    handlers:\n      - dynamicBackend:\n          percentageFilters:\n"
            "            - percentage: 1",
            "without serviceID.name",
        ),
    ],
)
def test_what_cannot_be_taken_over_is_refused_with_the_reason(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        imported(text)
    assert told in str(refused.value)


def test_both_kinds_of_pauses_between_retries_are_refused_as_upstream_does() -> None:
    both = {"messageRetry": {"initialBackoff": "1s"}, "staticMessageRetry": {"backoff": ["60s", "10s"]}}
    backend = {"dynamicBackend": {"name": "n", "producer": {"writer": {"topicName": TOPIC, **both}}}}
    with pytest.raises(ConfigError, match="messageRetry and staticMessageRetry"):
        imported(json.dumps({"aggregator": {"flush": {"handlers": [backend]}}}))


def test_that_cutover_and_cutoff_are_ignored_and_pauses_that_are_listed_are_taken_over() -> None:
    writer = {"topicName": TOPIC, "ignoreCutoffCutover": True, "staticMessageRetry": {"backoff": ["60s", "10s"]}}
    backend = {"dynamicBackend": {"name": "n", "producer": {"writer": writer}}}
    settings, _ = imported(json.dumps({"aggregator": {"flush": {"handlers": [backend]}}}))
    assert settings["m3msg_relay.ignore_cutover_cutoff"] is True
    assert settings["m3msg_relay.retry_pauses"] == ["60s", "10s"]
