"""Topics that another node of the cluster has: where that node's clients find it.

Owns how such a topic is described without its log. Everything here runs on the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client.wire import TopicInfo
from penstock.cluster.slots import NodeRecord
from penstock.errors import Elsewhere
from penstock.registry.records import TopicRecord

if TYPE_CHECKING:
    from penstock.node.node import Node

#: Under this name a node tells the others where its Flight listener is.
LISTENER = "flight.port"
#: Addresses that nobody can be sent to.
EVERYWHERE = ("", "0.0.0.0", "::", "[::]")


def location_of(node: Node, topic: str) -> str:
    """Return where the node that has a topic serves Flight; empty where nobody has it now, or that is not known."""
    share = node.share
    return _location(node, share.place(topic) if share is not None else None)


def _location(node: Node, owner: NodeRecord | None) -> str:
    place = owner.listeners.get(LISTENER, "") if owner is not None else ""
    if owner is None or not place:
        return ""
    host, _, port = place.rpartition(":")
    if host in EVERYWHERE:  # it listens on every address, and the others reach it at this one
        host = owner.address.rpartition(":")[0]
    return f"{'grpc+tls' if node.config.tls_cert else 'grpc+tcp'}://{host}:{port}"


def told(node: Node, elsewhere: Elsewhere) -> Elsewhere:
    """Return a refusal that says where the other node is, too."""
    share = node.share
    if elsewhere.topic or share is None:
        location = location_of(node, elsewhere.topic)
    else:  # what is there is no topic: a session
        location = _location(node, share.slots.places.nodes.get(elsewhere.node))
    return Elsewhere(elsewhere.topic, elsewhere.node, str(elsewhere), location)


def check_here(node: Node, topic: str) -> None:
    """Refuse what another node is to be asked for; a topic that nobody knows yet may be made here."""
    if topic not in node.topics and node.share is not None and (refusal := node.share.refusal(topic)) is not None:
        raise refusal


def far_records(node: Node, prefix: str = "") -> list[TopicRecord]:
    """Return the topics that other nodes have, by name."""
    if node.share is None:
        return []
    records = node.catalog.topics()
    return [each for each in records if each.name.startswith(prefix) and each.name not in node.topics]


def far_info(node: Node, record: TopicRecord) -> TopicInfo:
    """Return what is known here of a topic that another node has."""
    return TopicInfo(
        name=record.name,
        incarnation=record.incarnation,
        shards=[],
        path=None,
        durability=record.settings.durability,
        location=location_of(node, record.name),
    )
