from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.table import load
from penstock.config import FilterConfig, RoutingConfig
from penstock.errors import ConfigError


def loaded(tmp_path: Path, text: str) -> RoutingConfig:
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    return load(str(file), {}, {}).config.routing


def test_filters_are_written_like_those_of_m3(tmp_path: Path) -> None:
    text = """
        [routing.traffic_types]
        production = 0
        debug = 63

        [[routing.filters]]
        topic = "metrics"
        subscription = "live"
        is_default = true
        allowed_traffic_types = ["production"]
        upstream_filter = true

        [[routing.filters]]
        topic = "metrics"
        subscription = "some"
        storage_policies = ["10s:2d"]
        percentage = 0.25
        shard_set = "0..511"
    """
    assert loaded(tmp_path, text) == RoutingConfig(
        traffic_types={"production": 0, "debug": 63},
        filters=(
            FilterConfig(
                topic="metrics",
                subscription="live",
                is_default=True,
                allowed_traffic_types=("production",),
                upstream_filter=True,
            ),
            FilterConfig(
                topic="metrics",
                subscription="some",
                storage_policies=("10s:2d",),
                percentage=0.25,
                shard_set="0..511",
            ),
        ),
    )


def test_tables_are_json_in_the_environment_and_shown_so() -> None:
    environment = {
        "PENSTOCK_ROUTING_TRAFFIC_TYPES": '{"a": 5}',
        "PENSTOCK_ROUTING_FILTERS": '[{"topic": "t", "subscription": "s"}]',
    }
    found = load("/dev/null", {}, environment)
    assert found.config.routing.traffic_types == {"a": 5}
    assert found.config.routing.filters == (FilterConfig(topic="t", subscription="s"),)
    assert ("routing.traffic_types", '{"a":5}', "environment PENSTOCK_ROUTING_TRAFFIC_TYPES") in found.rows()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('key = "p"\nzone = "moon"', "there is no [etcd.zones.moon]"),
        ('key = "p"\nenvironment = ""', "routing.environment is empty"),
        ('key = "p"\nnamespace = "_sd"', 'routing.namespace = "_sd"'),
        ('key = "p"\nnamespace = "/_x"', 'routing.namespace = "/_x"'),
        ('key = "p"\nnamespace = "/"', 'routing.namespace = "/"'),
        ('key = "p"\ntraffic_types = {a = 1}', "both set"),
        ("traffic_types = {a = 64}", "bits are 0 to 63"),
        ("traffic_types = {a = 1, b = 1}", "bit 1 is given to a and b"),
        ('traffic_types = {a = "x"}', "routing.traffic_types is not what it must be"),
        ("traffic_types = 5", "routing.traffic_types is not what it must be"),
        ('filters = [{topic = "t"}]', "missing required field `subscription`"),
        ('filters = [{topic = "t", subscription = "s", isDefault = true}]', "isDefault"),
        ('filters = [{topic = "", subscription = "s"}]', "the name of a topic"),
        ('filters = [{topic = "t", subscription = "s"}, {topic = "t", subscription = "s"}]', "there twice"),
        ('filters = [{topic = "t", subscription = "s", percentage = 50.0}]', "fraction from 0 to 1"),
        ('filters = [{topic = "t", subscription = "s", storage_policies = ["x"]}]', "not a storage policy"),
        ('filters = [{topic = "t", subscription = "s", shard_set = "x"}]', "no shard set"),
    ],
)
def test_what_no_message_could_be_routed_by_is_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, f"[routing]\n{text}\n")
    assert told in str(refused.value)


@pytest.mark.parametrize("namespace", ["", "_kv", "/_kv", "rp", "/rp"])
def test_namespaces_that_can_be_used(tmp_path: Path, namespace: str) -> None:
    assert loaded(tmp_path, f'[routing]\nkey = "p"\nnamespace = "{namespace}"\n').namespace == namespace
