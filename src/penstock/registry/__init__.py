"""What a node must remember besides messages: topics, subscriptions and the routing mapping."""

from penstock.registry.catalog import Catalog
from penstock.registry.embedded import EmbeddedRegistry
from penstock.registry.records import RoutingMapping, SubscriptionRecord, TopicRecord
from penstock.registry.registry import Entry, Event, Registry

__all__ = [
    "Catalog",
    "EmbeddedRegistry",
    "Entry",
    "Event",
    "Registry",
    "RoutingMapping",
    "SubscriptionRecord",
    "TopicRecord",
]
