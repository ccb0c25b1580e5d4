"""The filters as their documentation says them, one message at a time: what broker and Spark are held against."""

from __future__ import annotations

import json
from typing import NamedTuple

import mmh3

from penstock.m3.policies import storage_policy
from penstock.m3.shardset import ranges
from penstock.settings import SubscriptionSettings


class Row(NamedTuple):
    """What filters look at; None where a message lacks it."""

    id: int
    traffic: int | None = None
    headers: bytes | None = None
    route: int | None = None


def takes(row: Row, settings: SubscriptionSettings, mapping: dict[str, int]) -> bool:
    """Tell whether a subscription gets a message."""
    listed = settings.shard_set and row.route is not None
    if listed and not any(first <= (row.route or 0) <= last for first, last in ranges(settings.shard_set)):
        return False
    text = json.loads(row.headers).get("m3-storage-policy") if row.headers else None
    if settings.storage_policies and text is not None and not _listed(text, settings.storage_policies):
        return False
    if (mmh3.hash(row.id.to_bytes(8, "little"), 42) & 0xFFFFFF) >= int(settings.percentage * (1 << 24)):
        return False
    return settings.traffic is None or _routed(row.traffic or 0, settings, mapping)


def _routed(bits: int, settings: SubscriptionSettings, mapping: dict[str, int]) -> bool:
    """The policy as its numbered steps say it."""
    rule = settings.traffic
    assert rule is not None
    if bits == 0 or (not mapping and not rule.upstream_filter):
        return rule.is_default
    mask = 0
    for name in rule.allowed:
        if name not in mapping and not rule.upstream_filter:
            return rule.is_default
        mask |= 1 << mapping[name] if name in mapping else 0
    return (bits & mask) != 0


def _listed(text: str, policies: tuple[str, ...]) -> bool:
    found = [(one.window_ns, one.retention_ns) for one in map(storage_policy, (text, *policies))]
    return found[0] in found[1:]
