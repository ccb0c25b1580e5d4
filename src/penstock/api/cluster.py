"""The cluster over HTTP: its nodes, who owns which slot, and where an operator wants them."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

import msgspec

from penstock.api.endpoint import PREFIX, Call, Endpoint
from penstock.cluster.orders import Orders
from penstock.cluster.slots import Slots
from penstock.errors import Refusal
from penstock.units import times


class Member(Protocol):
    """What a node has that is not alone."""

    @property
    def slots(self) -> Slots:
        """Its slots."""

    def problems(self) -> list[str]:
        """Return what keeps it from serving what is its own, one sentence each."""

    def unreadable(self) -> list[str]:
        """Return what the registry has of topics that cannot be read, one sentence each."""


class ClusterNode(msgspec.Struct):
    """One node that is alive."""

    name: str
    #: Where other nodes reach it, and clients, by listener.
    address: str
    listeners: dict[str, str]
    version: str
    weight: int
    since: str
    #: How many slots it owns.
    slots: int
    #: It is stopping; or it gets no slots because an operator said so.
    leaving: bool
    drained: bool


class ClusterSlot(msgspec.Struct):
    """One slot: who owns it, since which epoch, and the node an operator wants it on; empty = nobody, or any."""

    slot: int
    node: str
    epoch: int
    pinned: str


class ClusterInfo(msgspec.Struct):
    """The cluster, as the node that is asked sees it."""

    name: str
    #: The node that is asked.
    node: str
    nodes: list[ClusterNode]
    slots: list[ClusterSlot]
    #: Nodes that are to be drained, also those that are not there.
    drains: list[str]
    problems: list[str]


class MoveBody(msgspec.Struct):
    """A slot, and the node that shall have it while it lives; empty = wherever it is dealt to."""

    slot: int
    node: str = ""


class NodeBody(msgspec.Struct):
    """The node that is meant."""

    node: str


async def show_cluster(call: Call[None, None]) -> ClusterInfo:
    """Show the cluster."""
    return _info(_share(call))


async def move_slot(call: Call[None, MoveBody]) -> ClusterInfo:
    """Say where a slot shall be; it moves within seconds, once its topics are closed where it is."""
    share = _share(call)
    await Orders(share.slots).move(call.body.slot, call.body.node)
    return _info(share)


async def drain_node(call: Call[None, NodeBody]) -> ClusterInfo:
    """Say that a node shall own nothing; what it has moves to the others, a few at a time."""
    share = _share(call)
    await Orders(share.slots).drain(call.body.node)
    return _info(share)


async def undrain_node(call: Call[None, NodeBody]) -> ClusterInfo:
    """Let a node have its share again."""
    share = _share(call)
    await Orders(share.slots).undrain(call.body.node)
    return _info(share)


def _share(call: Call[None, None] | Call[None, MoveBody] | Call[None, NodeBody]) -> Member:
    share: Member | None = call.node.share
    if share is None:
        raise Refusal("not_found", "there is no cluster: this node is alone, because cluster.name is not set")
    return share


def _info(share: Member) -> ClusterInfo:
    slots = share.slots
    places, problems = slots.places, share.problems() + share.unreadable()
    if places.unreadable:
        problems.append(f"{places.unreadable} keys below cluster/ in the registry say nothing that can be read")
    owners = {slot: owner for slot in range(slots.count) if (owner := slots.owner(slot)) is not None}
    counts = Counter(owner.name for owner in owners.values())
    nodes = [
        ClusterNode(
            node.name,
            node.address,
            node.listeners,
            node.version,
            node.weight,
            times.shown(node.since_ms * times.MILLISECOND_NS),
            counts[node.name],
            node.is_leaving,
            node.name in places.drains,
        )
        for node in slots.nodes()
    ]
    shown = [
        ClusterSlot(
            slot,
            owners[slot].name if slot in owners else "",
            places.owners[slot].entry.revision if slot in owners else 0,
            places.pins.get(slot, ""),
        )
        for slot in range(slots.count)
    ]
    return ClusterInfo(slots.cluster, slots.name, nodes, shown, sorted(places.drains), problems)


ENDPOINTS = (
    Endpoint(
        "GET",
        f"{PREFIX}/cluster",
        show_cluster,
        "Show the cluster that this node is of",
        ClusterInfo,
        None,
        on_node="see",
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/cluster/move",
        move_slot,
        "Have a slot on a certain node, or on any again",
        ClusterInfo,
        None,
        MoveBody,
        on_node="admin",
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/cluster/drain",
        drain_node,
        "Have no slots on a node",
        ClusterInfo,
        None,
        NodeBody,
        on_node="admin",
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/cluster/undrain",
        undrain_node,
        "Let a node have slots again",
        ClusterInfo,
        None,
        NodeBody,
        on_node="admin",
    ),
)
