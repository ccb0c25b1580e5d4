"""What there is in a whole cluster, by its records: for lists of names, and for what must only exist somewhere.

Where there is no cluster, this is what the node has itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from penstock.dialect import C, Chosen
from penstock.errors import Refusal
from penstock.registry.catalog import TOPICS
from penstock.registry.records import TopicRecord
from penstock.settings import SubscriptionSettings

if TYPE_CHECKING:
    from penstock.node.node import Node


class Places(Protocol):
    """Knows where the topics of a cluster are, as far as they are not here, and says so to the node."""

    def refusal(self, name: str) -> Refusal | None:
        """Return why a topic that is not open here cannot be had here; None if the cluster does not know it."""

    def address(self, node: str) -> str | None:
        """Return HOST:PORT where other nodes reach this one, None if it is not there."""

    def listeners(self, node: str) -> Mapping[str, str]:
        """Return HOST:PORT where clients reach a node, by the keys of its endpoints."""


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
