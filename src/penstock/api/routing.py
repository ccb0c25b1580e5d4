"""The routing mapping over HTTP: which bit each traffic type is, and what a filter would say."""

from __future__ import annotations

import msgspec

from penstock.api.endpoint import PREFIX, Call, Endpoint, Nothing
from penstock.filters.traffic import TrafficFilter, unknown, verdict
from penstock.rest.record import bits_of


class Mapping(msgspec.Struct):
    """The traffic types by name; retired ones keep their bit reserved, because old messages carry it."""

    traffic_types: dict[str, int]
    retired: dict[str, int] = {}


class MappingBody(msgspec.Struct):
    """The whole new mapping: the bit, 0 to 63, of each traffic type."""

    traffic_types: dict[str, int]


class ForceQuery(msgspec.Struct):
    """`force` also moves a type to another bit, or reuses a bit; producers and consumers must then agree anew."""

    force: bool = False


class TestBody(msgspec.Struct):
    """A message's traffic, as a number or as names, and a subscription's filter."""

    traffic: int | list[str] = 0
    allowed: list[str] = []
    is_default: bool = False


class Verdict(msgspec.Struct):
    """Whether the filter takes the message, and why."""

    accepted: bool
    traffic: int
    #: The allowed bits, null where the filter falls back to `is_default`.
    mask: int | None
    reason: str


async def show_mapping(call: Call[Nothing, None]) -> Mapping:
    """Show the mapping."""
    mapping = call.node.catalog.mapping()
    return Mapping(mapping.traffic_types, mapping.retired)


async def set_mapping(call: Call[ForceQuery, MappingBody]) -> Mapping:
    """Replace the mapping; it applies at once, without a restart."""
    mapping = await call.node.catalog.set_mapping(call.body.traffic_types, force=call.query.force)
    return Mapping(mapping.traffic_types, mapping.retired)


async def test_filter(call: Call[Nothing, TestBody]) -> Verdict:
    """Say what a filter would say, and why."""
    body = call.body
    mapping = call.node.catalog.mapping().traffic_types
    bits = bits_of(body.traffic, mapping)
    mask = TrafficFilter(tuple(body.allowed), body.is_default).mask(mapping)
    missing = unknown(body.allowed, mapping)
    if not bits:
        reason = "the message carries no traffic type: is_default decides"
    elif not mapping:
        reason = "no routing mapping is set: is_default decides"
    elif missing:
        reason = f"the mapping does not know {', '.join(missing)}: is_default decides"
    else:
        shared = [name for name in body.allowed if bits >> mapping[name] & 1]
        reason = f"the message carries {', '.join(shared)}" if shared else "the message carries no allowed traffic type"
    return Verdict(verdict(bits, mask, body.is_default), bits, mask, reason)


_PATH = f"{PREFIX}/routing"
ENDPOINTS = (
    Endpoint("GET", _PATH, show_mapping, "Show the routing mapping", Mapping),
    Endpoint(
        "PUT", _PATH, set_mapping, "Replace the routing mapping", Mapping, ForceQuery, MappingBody, on_node="admin"
    ),
    Endpoint("POST", f"{_PATH}/test", test_filter, "Say what a filter would say", Verdict, body=TestBody),
)
