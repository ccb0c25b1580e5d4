"""M3's placement, the value in etcd that says which instance of a service has which shards.

| Message | Fields |
|---|---|
| Placement | 1 instances, map by id; 2 replica_factor; 3 num_shards; 4 is_sharded; 5 cutover_time; 6 is_mirrored; 7 max_shard_set_id; 8 is_subclustered; 9 instances_per_subcluster |
| Instance | 1 id; 2 isolation_group; 3 zone; 4 weight; 5 endpoint; 6 shards, repeated; 7 shard_set_id; 8 hostname; 9 port; 10 metadata {1 debug_port}; 11 subcluster_id |
| Shard | 1 id; 2 state; 3 source_id; 4 cutover_nanos; 5 cutoff_nanos; 6 redirect_to_shard_id {1 value} |

Invariant: the order in which instances were written makes no difference.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from penstock.m3.wire import BadMessage, Field, bytes_field, fields, number_field, text_field

State = Literal["initializing", "available", "leaving"]
_STATES: tuple[State, ...] = ("initializing", "available", "leaving")


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shard that an instance has."""

    id: int
    #: On its way to the instance, there, or on its way to another one.
    state: State = "initializing"
    #: The instance it comes from.
    source: str = ""
    #: From when on it is served there, 0 = always; and until when, 0 = for ever.
    cutover_ns: int = 0
    cutoff_ns: int = 0
    redirect: int | None = None


class Instance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One process of a service."""

    id: str
    isolation_group: str = ""
    zone: str = ""
    weight: int = 0
    #: host:port.
    endpoint: str = ""
    shards: tuple[Shard, ...] = ()
    shard_set_id: int = 0
    hostname: str = ""
    port: int = 0
    debug_port: int = 0
    subcluster_id: int = 0


class Placement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All instances of a service."""

    instances: Mapping[str, Instance] = {}
    replica_factor: int = 0
    shards: int = 0
    is_sharded: bool = False
    cutover_ns: int = 0
    is_mirrored: bool = False
    max_shard_set_id: int = 0
    is_subclustered: bool = False
    instances_per_subcluster: int = 0


def decode(value: bytes) -> Placement:
    """Return the placement that a value holds; raises BadMessage."""
    instances: dict[str, Instance] = {}
    said: dict[int, Field] = {}
    for field in fields(value):
        if field.number == 1:
            key, instance = _entry(field.data())
            instances[key] = instance
        else:
            said[field.number] = field
    return Placement(
        instances=instances,
        replica_factor=_small(said.get(2)),
        shards=_small(said.get(3)),
        is_sharded=bool(_small(said.get(4))),
        cutover_ns=_time(said.get(5)),
        is_mirrored=bool(_small(said.get(6))),
        max_shard_set_id=_small(said.get(7)),
        is_subclustered=bool(_small(said.get(8))),
        instances_per_subcluster=_small(said.get(9)),
    )


def encode(placement: Placement, *, metadata: bool = True) -> bytes:
    """Return the value of a placement; `metadata` = each instance has the message of that name, as upstream does."""
    entries = (
        bytes_field(1, text_field(1, key) + bytes_field(2, _instance_bytes(instance, metadata)))
        for key, instance in sorted(placement.instances.items())
    )
    numbers = (
        placement.replica_factor,
        placement.shards,
        placement.is_sharded,
        placement.cutover_ns,
        placement.is_mirrored,
        placement.max_shard_set_id,
        placement.is_subclustered,
        placement.instances_per_subcluster,
    )
    return b"".join(entries) + b"".join(number_field(no, value) for no, value in enumerate(numbers, 2))


def _entry(data: bytes) -> tuple[str, Instance]:
    key, instance = "", Instance(id="")
    for field in fields(data):
        if field.number == 1:
            key = field.text()
        elif field.number == 2:
            instance = _instance(field.data())
    return key, instance


def _instance(data: bytes) -> Instance:
    said: dict[int, Field] = {}
    shards: list[Shard] = []
    for field in fields(data):
        if field.number == 6:
            shards.append(_shard(field.data()))
        else:
            said[field.number] = field
    metadata = fields(said[10].data()) if 10 in said else ()
    return Instance(
        id=_text(said.get(1)),
        isolation_group=_text(said.get(2)),
        zone=_text(said.get(3)),
        weight=_small(said.get(4)),
        endpoint=_text(said.get(5)),
        shards=tuple(shards),
        shard_set_id=_small(said.get(7)),
        hostname=_text(said.get(8)),
        port=_small(said.get(9)),
        debug_port=_small({field.number: field for field in metadata}.get(1)),
        subcluster_id=_small(said.get(11)),
    )


def _shard(data: bytes) -> Shard:
    said = {field.number: field for field in fields(data)}
    number, state = _small(said.get(1)), _small(said.get(2))
    if state >= len(_STATES):
        raise BadMessage(f"shard {number} is in state {state}; states are 0 to {len(_STATES) - 1}")
    redirect: int | None = None
    if 6 in said:
        redirect = _small({field.number: field for field in fields(said[6].data())}.get(1))
    return Shard(number, _STATES[state], _text(said.get(3)), _time(said.get(4)), _time(said.get(5)), redirect)


def _instance_bytes(instance: Instance, metadata: bool) -> bytes:
    out = text_field(1, instance.id) + text_field(2, instance.isolation_group) + text_field(3, instance.zone)
    out += number_field(4, instance.weight) + text_field(5, instance.endpoint)
    out += b"".join(bytes_field(6, _shard_bytes(shard)) for shard in instance.shards)
    out += number_field(7, instance.shard_set_id) + text_field(8, instance.hostname) + number_field(9, instance.port)
    if metadata or instance.debug_port:
        out += bytes_field(10, number_field(1, instance.debug_port))
    return out + number_field(11, instance.subcluster_id)


def _shard_bytes(shard: Shard) -> bytes:
    out = number_field(1, shard.id) + number_field(2, _STATES.index(shard.state)) + text_field(3, shard.source)
    out += number_field(4, shard.cutover_ns) + number_field(5, shard.cutoff_ns)
    return out if shard.redirect is None else out + bytes_field(6, number_field(1, shard.redirect))


def _small(field: Field | None) -> int:
    """Return a number of 32 bits; what is above them is cut off, as protobuf does."""
    return field.whole() & 0xFFFFFFFF if field is not None else 0


def _time(field: Field | None) -> int:
    return field.signed() if field is not None else 0


def _text(field: Field | None) -> str:
    return field.text() if field is not None else ""
