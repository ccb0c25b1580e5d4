"""The routing mapping over HTTP: which bit each traffic type is, and what a filter would say."""

from __future__ import annotations

import msgspec

from penstock.api.endpoint import PREFIX, Call, Endpoint, Nothing
from penstock.errors import Refusal
from penstock.filters.acceptance import Acceptance, Carried, explain_traffic
from penstock.filters.traffic import TrafficFilter
from penstock.node.node import Node
from penstock.rest.record import bits_of


class PolicyInfo(msgspec.Struct):
    """The routing policy in etcd: where it is, and what was last heard of it."""

    zone: str
    #: The keys; the first is the one that is written. What was put last under any of them counts.
    keys: list[str]
    #: The key and the revision of what is in force; empty and 0 where that is older than this process.
    key: str
    revision: int
    #: Whether etcd answers.
    current: bool
    problems: list[str]
    #: What happened since the start, by kind.
    counts: dict[str, int]


class Mapping(msgspec.Struct, omit_defaults=True):
    """The traffic types by name; retired ones keep their bit reserved, because old messages carry it."""

    traffic_types: dict[str, int]
    retired: dict[str, int]
    #: Where the mapping is in etcd.
    policy: PolicyInfo | None = None


class MappingBody(msgspec.Struct):
    """The whole new mapping: the bit, 0 to 63, of each traffic type."""

    traffic_types: dict[str, int]
    #: The mapping that it was made of; if there is another one by now, nothing changes.
    before: dict[str, int] | None = None


class ForceQuery(msgspec.Struct):
    """`force` also moves a type to another bit, or reuses a bit; producers and consumers must then agree anew."""

    force: bool = False


class WhichBody(msgspec.Struct):
    """What a message carries: traffic as a number or as names, and what other filters look at."""

    traffic: int | list[str] = 0
    #: Subscriptions of this topic only.
    topic: str | None = None
    storage_policy: str | None = None
    #: The number that chooses its shard elsewhere: its route.
    shard: int | None = None


class Taker(msgspec.Struct):
    """Whether one subscription takes the message, and why."""

    topic: str
    subscription: str
    accepted: bool
    reason: str


class Which(msgspec.Struct):
    """What every subscription says to the message."""

    traffic: int
    subscriptions: list[Taker]


class TestBody(msgspec.Struct):
    """A message's traffic, as a number or as names, and a subscription's filter."""

    traffic: int | list[str] = 0
    allowed: list[str] = []
    is_default: bool = False
    upstream_filter: bool = False


class Verdict(msgspec.Struct):
    """Whether the filter takes the message, and why."""

    accepted: bool
    traffic: int
    #: The allowed bits, null where the filter falls back to `is_default`.
    mask: int | None
    reason: str


async def show_mapping(call: Call[Nothing, None]) -> Mapping:
    """Show the mapping."""
    return _shown(call.node)


async def set_mapping(call: Call[ForceQuery, MappingBody]) -> Mapping:
    """Replace the mapping; it applies at once, without a restart."""
    node, types, before = call.node, call.body.traffic_types, call.body.before
    policy = node.routing.policy
    if policy is None:
        await node.catalog.set_mapping(types, force=call.query.force, before=before)
    elif policy.write is None:
        raise Refusal("unavailable", f"the routing mapping is in etcd, zone {policy.zone}: not connected yet")
    else:
        if before is not None and before != node.routing.in_force().traffic_types:
            text = "somebody else changed the routing mapping at the same time; look at it and try again"
            raise Refusal("conflict", text)
        seen = policy.revision if before is not None and policy.key == policy.keys[0] else None
        await policy.write(types, force=call.query.force, seen=seen)
    return _shown(node)


def _shown(node: Node) -> Mapping:
    policy, mapping = node.routing.policy, node.routing.in_force()
    if policy is None:
        return Mapping(mapping.traffic_types, mapping.retired)
    counts = {str(name): count for name, count in policy.counts.items()}
    info = PolicyInfo(
        policy.zone, list(policy.keys), policy.key, policy.revision, policy.is_current, policy.problems, counts
    )
    return Mapping(mapping.traffic_types, mapping.retired, info)


async def which(call: Call[Nothing, WhichBody]) -> Which:
    """Say which subscriptions would get a message, and why, of the topics that the caller may see."""
    body, node = call.body, call.node
    topics = [node.reach(call.caller, "see", body.topic)] if body.topic is not None else list(node.topics.values())
    bits = bits_of(body.traffic, node.routing.mapping)
    carried = Carried(bits, body.storage_policy, body.shard)
    found = [
        Taker(topic.name, name, *Acceptance.of(subscription.settings).explain(carried, node.routing.mapping))
        for topic in sorted(topics, key=lambda topic: topic.name)
        if call.caller.may("see", topic.name)
        for name, subscription in sorted(topic.subscriptions.items())
    ]
    return Which(bits, found)


async def test_filter(call: Call[Nothing, TestBody]) -> Verdict:
    """Say what a filter would say, and why."""
    body, mapping = call.body, call.node.routing.mapping
    bits = bits_of(body.traffic, mapping)
    rule = TrafficFilter(tuple(body.allowed), body.is_default, body.upstream_filter)
    accepted, reason = explain_traffic(rule, bits, mapping)
    return Verdict(accepted, bits, rule.mask(mapping), reason)


_PATH = f"{PREFIX}/routing"
ENDPOINTS = (
    Endpoint("GET", _PATH, show_mapping, "Show the routing mapping", Mapping),
    Endpoint(
        "PUT", _PATH, set_mapping, "Replace the routing mapping", Mapping, ForceQuery, MappingBody, on_node="admin"
    ),
    Endpoint("POST", f"{_PATH}/test", test_filter, "Say what a filter would say", Verdict, body=TestBody),
    Endpoint("POST", f"{_PATH}/which", which, "Say which subscriptions would get a message", Which, body=WhichBody),
)
