"""What cannot work of the section `routing`: where the policy is kept, traffic types, and filters of subscriptions."""

from __future__ import annotations

from penstock.config.tree import Config, FilterConfig
from penstock.errors import ConfigError, hint
from penstock.m3 import routing
from penstock.m3.policies import storage_policy
from penstock.m3.shardset import BadShardSet, ranges


def check_routing(config: Config) -> None:
    """Refuse what no message could be routed by."""
    section = config.routing
    if section.key:
        zones = list(config.etcd.zones)
        if section.zone not in zones:
            way_out = f"add it with its endpoints, or name another: {hint(section.zone, zones)}"
            raise ConfigError(f'routing.zone = "{section.zone}": there is no [etcd.zones.{section.zone}]; {way_out}')
        if not section.environment:
            raise ConfigError("routing.environment is empty; it is a part of the policy's key, like default_env")
        bare = section.namespace.removeprefix("/")
        if section.namespace == "/" or (bare.startswith("_") and bare != routing.DEFAULT_NAMESPACE):
            raise ConfigError(
                f'routing.namespace = "{section.namespace}": M3 keeps names that begin with _ to itself; '
                f"choose another, or leave it out for {routing.DEFAULT_NAMESPACE}"
            )
        if section.traffic_types:
            raise ConfigError(
                "routing.traffic_types and routing.key are both set: the types are in etcd then; "
                "put them there with `penstock routing set`"
            )
    if found := routing.problems(section.traffic_types):
        raise ConfigError(f"routing.traffic_types cannot be used: {'; '.join(found)}")
    seen = set()
    for each in section.filters:
        where = f"routing.filters of {each.topic}/{each.subscription}"
        if not each.topic or not each.subscription:
            raise ConfigError("routing.filters: each needs the name of a topic and of a subscription")
        if (each.topic, each.subscription) in seen:
            raise ConfigError(f"{where} are there twice; put all filters of a subscription into one")
        seen.add((each.topic, each.subscription))
        _check_filter(each, where)


def _check_filter(each: FilterConfig, where: str) -> None:
    if not 0 <= each.percentage <= 1:
        raise ConfigError(f"{where}: percentage is {each.percentage:g}; it is a fraction from 0 to 1")
    for text in each.storage_policies:
        storage_policy(text, f"{where}: storage_policies")
    try:
        if each.shard_set:
            ranges(each.shard_set)
    except BadShardSet as error:
        raise ConfigError(f"{where}: {error}") from None
