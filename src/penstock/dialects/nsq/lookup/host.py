"""The node beside a lookup service: what its topics are like, and what the service may ask it for."""

from __future__ import annotations

import msgspec

from penstock.callers import Caller
from penstock.config import host_and_port
from penstock.dialects.nsq.choices import NsqChoices
from penstock.dialects.nsq.codec import is_name
from penstock.dialects.nsq.lookup.directory import EPHEMERAL, Far, Meta, Peer
from penstock.dialects.nsq.tcp.identify import VERSION
from penstock.dialects.nsq.topics import is_listed
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.registry.answer import Answer


def meta_of(topic: Topic) -> Meta:
    """Return what a topic of a node is like."""
    # A topic for both kinds of clients counts as extended: those with headers learn it here, the others do not ask.
    chosen = topic.chosen.of(NsqChoices)
    return Meta(
        partition_num=topic.settings.shards,
        replica=chosen.replicas,
        extend_support=chosen.extend != "off",
        ordered=topic.settings.ordered,
    )


class NodeHost:
    """A node as the lookup service in its process sees it."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def meta(self, topic: str) -> Meta | None:
        """Return what a topic of the node is like, None if it has none of this name."""
        found = self._node.topics.get(topic)
        return meta_of(found) if found is not None else None

    def elsewhere(self, topic: str) -> Far | None:
        """Return what is to be told of a topic that another node of the cluster has, None if none has it."""
        owner, places = self._node.elsewhere(topic), self._node.places
        record = self._node.known.record(topic)
        if owner is None or places is None or record is None:
            return None
        listeners = places.listeners(owner)
        tcp, http = (listeners.get(key, "") for key in ("nsq.tcp_port", "nsq.http_port"))
        if not tcp:
            return None
        host, port = host_and_port(tcp)
        http_port = host_and_port(http)[1] if http else 0
        peer = Peer(
            id=f"node {owner}",
            remote_address=tcp,
            hostname=owner,
            broadcast_address=host,
            tcp_port=port,
            http_port=http_port,
            version=VERSION,
            distributed_id=tcp,
        )
        channels = [each.name for each in self._node.catalog.subscriptions(record)]
        return Far(peer, channels, record.settings.shards)

    def names(self) -> list[str]:
        """Return the topics of other nodes, as far as NSQ can spell them."""
        node = self._node
        if node.places is None:
            return []
        return [
            name
            for name in node.known.names()
            if name not in node.topics and is_listed(name) and is_name(name.encode())
        ]

    def create(self, caller: Caller, topic: str, meta: Meta) -> Answer[None]:
        """Make a topic unless it exists."""
        if topic in self._node.topics:
            return Answer.of(None)
        settings = msgspec.structs.replace(
            self._node.config.topic.settings(), shards=meta.partition_num, ordered=meta.ordered
        )
        settings = NsqChoices(extend="on" if meta.extend_support else "off", replicas=meta.replica).put(settings)
        if topic.endswith(EPHEMERAL):
            settings = msgspec.structs.replace(settings, durability="memory", ephemeral=True)
        return self._node.make_for(caller, topic, settings).then_make(lambda _: None)

    def upgrade(self, topic: str) -> Answer[None]:
        """Let a topic of the node carry headers from now on."""
        found = self._node.topics.get(topic)
        if found is not None and (chosen := found.chosen.of(NsqChoices)).extend == "off":
            return found.update(msgspec.structs.replace(chosen, extend="on").put(found.settings))
        return Answer.of(None)

    def replicate(self, topic: str, replicas: int) -> Answer[None]:
        """Remember how many copies of a topic were asked for."""
        found = self._node.topics.get(topic)
        if found is not None:
            chosen = found.chosen.of(NsqChoices)
            return found.update(msgspec.structs.replace(chosen, replicas=replicas).put(found.settings))
        return Answer.of(None)

    def delete(self, topic: str) -> Answer[None]:
        """Drop a topic of the node, if it has it."""
        if topic in self._node.topics:
            return self._node.delete_topic(topic)
        return Answer.of(None)
