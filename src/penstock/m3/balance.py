"""Placements made and changed: each shard has as many owners as there are replicas, instances about as many shards.

Pure. Invariant: a change moves no more shards than it must; an instance has a shard once.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.errors import Refusal
from penstock.m3.placement import Instance, Placement, Shard


def made(endpoints: Mapping[str, str], shards: int, replicas: int) -> Placement:
    """Return a new placement of these instances, by id; without shards every instance has all there is."""
    empty = {name: Instance(id=name, endpoint=endpoint, weight=1) for name, endpoint in endpoints.items()}
    whole = Placement(instances=empty, replica_factor=replicas, shards=shards, is_sharded=shards > 0)
    return _dealt(whole)


def added(placement: Placement, name: str, endpoint: str) -> Placement:
    """Return the placement with one more instance, which takes its share from the others."""
    if name in placement.instances:
        raise Refusal("conflict", f"there is an instance {name} already, at {placement.instances[name].endpoint}")
    new = Instance(id=name, endpoint=endpoint, weight=1)
    return _dealt(msgspec.structs.replace(placement, instances={**placement.instances, name: new}))


def removed(placement: Placement, name: str) -> Placement:
    """Return the placement without an instance; the others share what it had."""
    if name not in placement.instances:
        names = ", ".join(sorted(placement.instances)) or "none"
        raise Refusal("not_found", f"there is no instance {name}; there are: {names}")
    rest = {key: each for key, each in placement.instances.items() if key != name}
    return _dealt(msgspec.structs.replace(placement, instances=rest))


def _dealt(placement: Placement) -> Placement:
    """Return it with every shard owned as often as it should be, and nobody with two more shards than another."""
    if not placement.is_sharded:
        return placement
    owned = {name: {shard.id: shard for shard in each.shards} for name, each in sorted(placement.instances.items())}
    if len(owned) < placement.replica_factor:
        raise Refusal(
            "bad_request",
            f"{placement.replica_factor} replicas need as many instances, and there are {len(owned)}; add some first",
        )
    for shard in range(placement.shards):
        missing = placement.replica_factor - sum(shard in each for each in owned.values())
        for _ in range(missing):
            least = min((name for name in owned if shard not in owned[name]), key=lambda name: len(owned[name]))
            owned[least][shard] = Shard(shard, "available")
    while owned:
        most = max(owned, key=lambda name: len(owned[name]))
        least = min(owned, key=lambda name: len(owned[name]))
        movable = [shard for shard in owned[most] if shard not in owned[least]]
        if len(owned[most]) - len(owned[least]) < 2 or not movable:
            break
        del owned[most][movable[0]]
        owned[least][movable[0]] = Shard(movable[0], "available")
    instances = {
        name: msgspec.structs.replace(each, shards=tuple(shard for _, shard in sorted(owned[name].items())))
        for name, each in placement.instances.items()
    }
    return msgspec.structs.replace(placement, instances=instances)
