"""SNS put together, and the table of its operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from penstock.dialects.sqs.operation import Asked, Carry, Operation
from penstock.dialects.sqs.queues import Queues
from penstock.dialects.sqs.sns import shapes
from penstock.dialects.sqs.sns.couriers import Couriers
from penstock.dialects.sqs.sns.endpoints import Allowed
from penstock.dialects.sqs.sns.publisher import Publisher
from penstock.dialects.sqs.sns.seals import Seals
from penstock.dialects.sqs.sns.subscriptions import Subscriptions
from penstock.dialects.sqs.sns.topics import Topics
from penstock.registry.answer import Answer

NAMESPACE = "http://sns.amazonaws.com/doc/2010-03-31/"

Row = tuple[str, type[msgspec.Struct], Callable[[Any, Any], Any]]
Other = tuple[str, type[msgspec.Struct], Carry, Callable[[Any], bool] | None]


class Sns:
    """SNS on one node."""

    def __init__(self, queues: Queues, allowed: Allowed) -> None:
        self.seals = Seals(queues.node)
        self._topics = Topics(queues)
        self.couriers = Couriers(self._topics, allowed)
        self._subscriptions = Subscriptions(self._topics, self.couriers, self.seals)
        self._publisher = Publisher(self._topics, self.seals)

    def operations(self) -> dict[str, Operation]:
        """Return the table."""
        topics, subscriptions = self._topics, self._subscriptions
        rows = (
            ("CreateTopic", shapes.CreateTopic, topics.create),
            ("DeleteTopic", shapes.ByTopic, subscriptions.delete_topic),
            ("ListTopics", shapes.Page, topics.list_all),
            ("GetTopicAttributes", shapes.ByTopic, topics.attributes),
            ("SetTopicAttributes", shapes.SetTopicAttributes, topics.set_attribute),
            ("ListSubscriptions", shapes.Page, subscriptions.list_all),
            ("ListSubscriptionsByTopic", shapes.ByTopicPage, subscriptions.of_topic),
            ("GetSubscriptionAttributes", shapes.BySubscription, subscriptions.attributes),
            ("SetSubscriptionAttributes", shapes.SetSubscriptionAttributes, subscriptions.set_attribute),
            ("ListTagsForResource", shapes.ByResource, topics.tags),
            ("TagResource", shapes.TagResource, topics.tag),
            ("UntagResource", shapes.UntagResource, topics.untag),
        )
        table = _table(rows)
        for name, kind, carry, is_open in self._others():
            table[name] = Operation(kind, carry, NAMESPACE, is_open)
        return table

    def of_topics(self) -> dict[str, Operation]:
        """Return the table of what both services call the same, for requests that name a topic."""
        topics = self._topics
        return _table(
            (
                ("AddPermission", shapes.AddPermission, topics.add_permission),
                ("RemovePermission", shapes.RemovePermission, topics.drop_permission),
            )
        )

    def _others(self) -> tuple[Other, ...]:
        """Return the operations that need to know more than who asks for what."""
        subscriptions, publisher = self._subscriptions, self._publisher

        def publish(a: Asked) -> Answer[Any]:
            return publisher.publish(a.caller, a.params, a.base_url, a.request.connection)

        def publish_batch(a: Asked) -> Answer[Any]:
            return publisher.publish_batch(a.caller, a.params, a.base_url, a.request.connection)

        def subscribe(a: Asked) -> Answer[Any]:
            return subscriptions.subscribe(a.caller, a.params, a.base_url)

        def confirm(a: Asked) -> Answer[Any]:
            return subscriptions.confirm(a.params)

        def unsubscribe(a: Asked) -> Answer[Any]:
            return subscriptions.unsubscribe(a.caller, a.params)

        return (
            ("Publish", shapes.Publish, publish, None),
            ("PublishBatch", shapes.PublishBatch, publish_batch, None),
            ("Subscribe", shapes.Subscribe, subscribe, None),
            # Both are links in what endpoints are sent: what they hold is known to nobody else.
            ("ConfirmSubscription", shapes.ConfirmSubscription, confirm, lambda _: True),
            ("Unsubscribe", shapes.BySubscription, unsubscribe, subscriptions.is_open),
        )


def _table(rows: Iterable[Row]) -> dict[str, Operation]:
    return {
        name: Operation(kind, lambda a, carry=carry: carry(a.caller, a.params), NAMESPACE)  # type: ignore[misc]
        for name, kind, carry in rows
    }
