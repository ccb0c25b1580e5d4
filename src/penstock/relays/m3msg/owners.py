"""Who has which shard of a consumer service: a placement, turned into lanes for a policy.

Pure. Of a shared service every owner of a shard may get its messages; of a replicated one each owner gets all of them,
so each place among the owners, a replica, is a subscription of its own.
Invariant: an owner that stays keeps its replica, and one that comes takes over from one that went, with what waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from penstock.config import host_and_port
from penstock.delivery.page import Slots
from penstock.errors import ConfigError
from penstock.m3.placement import Placement

#: The taker of what nobody has, and of what the service does not take.
NOBODY = "nobody"
UNWANTED = "unwanted"


class Owner(NamedTuple):
    """An instance that has a shard, from a time on (0: always) and until another one (0: for ever)."""

    endpoint: str
    cutover_ns: int = 0
    cutoff_ns: int = 0


#: By shard.
Owners: TypeAlias = "Mapping[int, Sequence[Owner]]"


def usable(placement: Placement) -> tuple[Placement, list[str]]:
    """Return a placement without the instances that cannot be dialled, and for each of those why not."""
    found, problems = {}, []
    for name, instance in sorted(placement.instances.items()):
        try:
            host_and_port(instance.endpoint)
        except ConfigError as error:
            problems.append(f"{name}: {error}")
        else:
            found[name] = instance
    return (msgspec.structs.replace(placement, instances=found) if problems else placement), problems


def beyond(placement: Placement, shards: int) -> dict[str, int]:
    """Return how many shards each instance has that the topic does not have."""
    found = {
        name: sum(shard.id >= shards for shard in each.shards) for name, each in sorted(placement.instances.items())
    }
    return {name: number for name, number in found.items() if number and placement.is_sharded}


def shared(placement: Placement, shards: int) -> Owners:
    """Return who may get the messages of each shard; without shards in the placement, everybody of every shard."""
    found: dict[int, list[Owner]] = {}
    for _, instance in sorted(placement.instances.items()):
        owned = [shard.id for shard in instance.shards] if placement.is_sharded else range(shards)
        for shard in owned:
            if shard < shards:
                found.setdefault(shard, []).append(Owner(instance.endpoint))
    return found


def replicas(placement: Placement, shards: int, before: Sequence[Mapping[int, str]]) -> list[dict[int, Owner]]:
    """Return the owner of each shard in each replica; `before` are the endpoints that had them until now."""
    owners: dict[int, list[Owner]] = {}
    for _, instance in sorted(placement.instances.items()):
        for shard in instance.shards:
            if shard.id < shards:
                owners.setdefault(shard.id, []).append(Owner(instance.endpoint, shard.cutover_ns, shard.cutoff_ns))
    found: list[dict[int, Owner]] = []
    for number, each in sorted(owners.items()):
        here = {owner.endpoint: owner for owner in each}
        had = {replica: table[number] for replica, table in enumerate(before) if number in table}
        kept = {replica: here[endpoint] for replica, endpoint in had.items() if endpoint in here}
        stayed = {owner.endpoint for owner in kept.values()}
        # Those that came take the places of those that went, then places that nobody ever had.
        free = iter([*(replica for replica in had if replica not in kept), *_unused(had, len(each))])
        for owner in each:
            if owner.endpoint not in stayed:
                kept[next(free)] = owner
        for replica, owner in kept.items():
            while len(found) <= replica:
                found.append({})
            found[replica][number] = owner
    return found


def _unused(had: Mapping[int, str], count: int) -> list[int]:
    return [replica for replica in range(len(had) + count) if replica not in had]


class Deal(NamedTuple):
    """What a `routed` policy is told: a lane for each shard, and the lanes of each taker."""

    lanes: Slots
    takers: dict[str, list[int]]


def taker(endpoint: str, connection: int) -> str:
    """Return the name under which a connection takes its place."""
    return f"{endpoint}#{connection}"


def dealt(owners: Owners, shards: int, connections: int, wanted: Sequence[bool] | None = None) -> Deal:
    """Return the lanes: shards with the same owners that go over the same connection of each stand in one.

    Of `wanted` shards where that is said; the others stand in one for themselves.
    """
    lanes = np.zeros(shards, np.int32)
    known: dict[tuple[frozenset[str], int], int] = {}
    takers: dict[str, list[int]] = {}
    for shard in range(shards):
        endpoints = frozenset(owner.endpoint for owner in owners.get(shard, ()))
        # M3's own way from a shard to one of the connections: a connection that is stuck delays only its shards.
        kind = endpoints, shard % connections if endpoints else 0
        is_wanted = wanted is None or wanted[shard]
        if not is_wanted:
            kind = frozenset((UNWANTED,)), 0
        if kind not in known:
            known[kind] = len(known)
            names = [taker(endpoint, kind[1]) for endpoint in sorted(endpoints)] or [NOBODY]
            for name in names if is_wanted else [UNWANTED]:
                takers.setdefault(name, []).append(known[kind])
        lanes[shard] = known[kind]
    return Deal(lanes, takers)
