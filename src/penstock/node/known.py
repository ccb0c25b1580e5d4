"""What there is in a whole cluster, by its records: for lists of names, and for what must only exist somewhere.

Where there is no cluster, this is what the node has itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.dialect import C, Chosen
from penstock.registry.catalog import TOPICS
from penstock.registry.records import TopicRecord
from penstock.settings import SubscriptionSettings

if TYPE_CHECKING:
    from penstock.node.node import Node


class Known:
    """The topics of a cluster."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def names(self) -> list[str]:
        """Return the names of all topics, in order."""
        node = self._node
        if node.places is None:
            return sorted(node.topics)
        return sorted(key[len(TOPICS) :] for key in node.registry.list(TOPICS))

    def record(self, name: str) -> TopicRecord | None:
        """Return what is recorded of a topic, None if there is none or it cannot be read."""
        topic = self._node.topics.get(name)
        if topic is not None:
            return topic.record
        return self._node.catalog.known(name) if self._node.places is not None else None

    def chosen(self, name: str, kind: type[C]) -> C | None:
        """Return what a topic's settings say to a dialect, None if there is no such topic."""
        topic = self._node.topics.get(name)
        if topic is not None:
            return topic.chosen.of(kind)
        record = self.record(name)
        return Chosen(record.settings, self._node.dialects).of(kind) if record is not None else None

    def subscription(self, name: str, subscription: str) -> SubscriptionSettings | None:
        """Return the settings of a topic's subscription, None if it has none of that name."""
        topic = self._node.topics.get(name)
        if topic is not None:
            found = topic.subscriptions.get(subscription)
            return found.settings if found is not None else None
        record = self.record(name)
        kept = self._node.catalog.subscription(record, subscription) if record is not None else None
        return kept.settings if kept is not None else None
