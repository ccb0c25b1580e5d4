"""The node beside a lookup service: what its topics are like, and what the service may ask it for."""

from __future__ import annotations

import msgspec

from penstock.callers import Caller
from penstock.dialects.nsq.choices import NsqChoices
from penstock.dialects.nsq.lookup.directory import EPHEMERAL, Meta
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
