"""What the configuration declares of routing: traffic types, and subscriptions with their filters, at each start.

Nothing is ever taken away: what the file does not name stays as it is.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

import msgspec

from penstock.config import FilterConfig
from penstock.delivery.subscription import Subscription
from penstock.registry.answer import Answer
from penstock.settings import SubscriptionSettings, TrafficSettings

if TYPE_CHECKING:
    from penstock.node.node import Node
    from penstock.node.topic import Topic

T = TypeVar("T")

_log = logging.getLogger("penstock.routing")


def declare(node: Node) -> list[Answer[None]]:
    """Put into force what the file says, and return what to wait for; what is refused is logged and counted."""
    asked: list[Answer[None]] = []
    if node.config.routing.traffic_types and node.routing.policy is None:
        types = {**node.catalog.mapping_or_none().traffic_types, **node.config.routing.traffic_types}
        asked.append(_settled(node, node.catalog.set_mapping(types), "routing.traffic_types"))
    for each in node.config.routing.filters:
        where = f"routing.filters of {each.topic}/{each.subscription}"
        asked.append(_settled(node, _filtered(node, each), where))
    return asked


def declared(node: Node, topic: str, subscription: str) -> FilterConfig | None:
    """Return the filters that the file has for a subscription."""
    wanted = (each for each in node.config.routing.filters if (each.topic, each.subscription) == (topic, subscription))
    return next(wanted, None)


def with_filters(settings: SubscriptionSettings, each: FilterConfig) -> SubscriptionSettings:
    """Return settings with these filters, and no others."""
    traffic = None
    if each.allowed_traffic_types is not None or each.is_default is not None:
        traffic = TrafficSettings(each.allowed_traffic_types or (), bool(each.is_default), each.upstream_filter)
    return msgspec.structs.replace(
        settings,
        traffic=traffic,
        storage_policies=each.storage_policies,
        percentage=each.percentage,
        shard_set=each.shard_set,
    )


def _filtered(node: Node, each: FilterConfig) -> Answer[Subscription]:
    """Answer with a subscription that has these filters."""

    def subscribed(topic: Topic) -> Answer[Subscription]:
        there = topic.subscriptions.get(each.subscription)
        if there is None:
            return topic.subscribe(each.subscription, with_filters(SubscriptionSettings(), each))
        settings = with_filters(there.settings, each)
        return Answer.of(there) if settings == there.settings else topic.update_subscription(there.name, settings)

    return node.obtain(each.topic).then_ask(subscribed)


def _settled(node: Node, asked: Answer[T], where: str) -> Answer[None]:
    """Answer when it is known what became of it."""
    settled: Answer[None] = Answer()

    def told(_: T | None, error: Exception | None) -> None:
        if error is not None:
            _log.error("%s: %s; it stays as it was", where, error)
            node.ledger.add("routing", "", 1, node.clock.now(), f"{where}: {error}")
        settled.give(None)

    asked.then(told)
    return settled
