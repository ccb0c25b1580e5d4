"""Placements: the vector and what a real etcd holds are read, in any order, and written back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.m3 import placement
from penstock.m3.placement import Instance, Placement, Shard
from penstock.m3.wire import BadMessage, bytes_field, number_field

VECTOR = bytes.fromhex(
    "0a 34 0a 02 69 31 12 2e 0a 02 69 31 12 02 72 31 1a 08 65 6d 62 65 64 64 65 64 20 01 2a 0e 31 32 37 2e 30 2e 30 2e"
    "31 3a 39 30 30 30 32 02 10 01 32 04 08 01 10 01 10 01 18 02 20 01"
)
INSTANCE = Instance(
    id="i1",
    isolation_group="r1",
    zone="embedded",
    weight=1,
    endpoint="127.0.0.1:9000",
    shards=(Shard(0, "available"), Shard(1, "available")),
)
SAID = Placement(instances={"i1": INSTANCE}, replica_factor=1, shards=2, is_sharded=True)

small = st.integers(0, 2**32 - 1)
times = st.integers(-(2**63), 2**63 - 1)
texts = st.text(max_size=5)
shards = st.builds(
    Shard, small, st.sampled_from(["initializing", "available", "leaving"]), texts, times, times, st.none() | small
)
instances = st.builds(
    Instance,
    id=texts,
    isolation_group=texts,
    zone=texts,
    weight=small,
    endpoint=texts,
    shards=st.lists(shards, max_size=3).map(tuple),
    shard_set_id=small,
    hostname=texts,
    port=small,
    debug_port=small,
    subcluster_id=small,
)
placements = st.builds(
    Placement,
    instances=st.dictionaries(texts, instances, max_size=3),
    replica_factor=small,
    shards=small,
    is_sharded=st.booleans(),
    cutover_ns=times,
    is_mirrored=st.booleans(),
    max_shard_set_id=small,
    is_subclustered=st.booleans(),
    instances_per_subcluster=small,
)


def test_the_vector_is_read_and_written() -> None:
    assert placement.decode(VECTOR) == SAID
    assert placement.encode(SAID, metadata=False) == VECTOR


def test_an_instance_as_upstream_writes_it_is_read_as_well() -> None:
    assert placement.decode(placement.encode(SAID)) == SAID
    assert bytes.fromhex("5200") in placement.encode(SAID)


def test_the_order_of_instances_makes_no_difference() -> None:
    second = placement.encode(Placement(instances={"i2": Instance(id="i2")}))
    first = placement.encode(Placement(instances={"i1": INSTANCE}))
    assert placement.decode(first + second) == placement.decode(second + first)


@given(placements)
def test_what_is_written_is_read_back(said: Placement) -> None:
    assert placement.decode(placement.encode(said)) == said


def test_a_shard_in_a_state_that_there_is_not_is_refused() -> None:
    shard = bytes_field(6, number_field(1, 3) + number_field(2, 3))
    with pytest.raises(BadMessage, match="shard 3 is in state 3"):
        placement.decode(bytes_field(1, bytes_field(2, shard)))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_placement_or_refused(value: bytes) -> None:
    try:
        placement.decode(value)
    except BadMessage:
        pass
