"""The table of SNS's operations."""

from __future__ import annotations

from penstock.dialects.sqs.operation import Asked, Operation
from penstock.dialects.sqs.queues import Queues
from penstock.dialects.sqs.sns import shapes
from penstock.dialects.sqs.sns.publisher import Publisher
from penstock.dialects.sqs.sns.topics import Topics

NAMESPACE = "http://sns.amazonaws.com/doc/2010-03-31/"


def operations(queues: Queues) -> dict[str, Operation]:
    """Return the table."""
    topics = Topics(queues)
    publisher = Publisher(topics)

    def publish(a: Asked) -> object:
        return publisher.publish(a.caller, a.params, a.base_url, a.request.connection)

    def publish_batch(a: Asked) -> object:
        return publisher.publish_batch(a.caller, a.params, a.base_url, a.request.connection)

    rows = (
        ("CreateTopic", shapes.CreateTopic, topics.create),
        ("DeleteTopic", shapes.ByTopic, topics.delete),
        ("ListTopics", shapes.Page, topics.list_all),
        ("GetTopicAttributes", shapes.ByTopic, topics.attributes),
        ("SetTopicAttributes", shapes.SetTopicAttributes, topics.set_attribute),
        ("Subscribe", shapes.Subscribe, topics.subscribe),
        ("Unsubscribe", shapes.BySubscription, topics.unsubscribe),
        ("ListSubscriptions", shapes.Page, topics.subscriptions),
        ("ListSubscriptionsByTopic", shapes.ByTopicPage, topics.subscriptions_of),
        ("GetSubscriptionAttributes", shapes.BySubscription, topics.member_attributes),
        ("SetSubscriptionAttributes", shapes.SetSubscriptionAttributes, topics.set_member_attribute),
        ("ListTagsForResource", shapes.ByResource, topics.tags),
        ("TagResource", shapes.TagResource, topics.tag),
        ("UntagResource", shapes.UntagResource, topics.untag),
    )
    table = {
        name: Operation(kind, lambda a, carry=carry: carry(a.caller, a.params), NAMESPACE)  # type: ignore[misc]
        for name, kind, carry in rows
    }
    table["Publish"] = Operation(shapes.Publish, publish, NAMESPACE)  # type: ignore[arg-type]
    table["PublishBatch"] = Operation(shapes.PublishBatch, publish_batch, NAMESPACE)  # type: ignore[arg-type]
    return table
