"""boto3's resources and paginators, one after another; prints what each of them saw. (SQS and SNS have no waiters.)"""

from __future__ import annotations

import json
import sys
from typing import Any

import boto3


def queues(prefix: str) -> dict[str, Any]:
    """Queues and messages as objects."""
    sqs = boto3.resource("sqs")
    letters = sqs.create_queue(QueueName=f"{prefix}-letters")
    policy = {"deadLetterTargetArn": letters.attributes["QueueArn"], "maxReceiveCount": "3"}
    queue = sqs.create_queue(
        QueueName=f"{prefix}-jobs",
        Attributes={"VisibilityTimeout": "60", "RedrivePolicy": json.dumps(policy)},
        tags={"team": "shop"},
    )
    queue.send_message(MessageBody="one", MessageAttributes={"colour": {"DataType": "String", "StringValue": "blue"}})
    sent = queue.send_messages(Entries=[{"Id": str(at), "MessageBody": f"many {at}"} for at in range(5)])
    names = {"MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"], "MessageSystemAttributeNames": ["All"]}
    first, *others = queue.receive_messages(**names)
    told = {
        "url": queue.url == sqs.get_queue_by_name(QueueName=f"{prefix}-jobs").url,
        "sent": sorted(each["Id"] for each in sent["Successful"]),
        "first": [first.body, first.message_attributes, first.attributes["ApproximateReceiveCount"]],
        "others": sorted(each.body for each in others),
        "sources": [each.url for each in letters.dead_letter_source_queues.all()] == [queue.url],
        "filtered": [each.url.rpartition("/")[2] for each in sqs.queues.filter(QueueNamePrefix=f"{prefix}-l")],
    }
    first.change_visibility(VisibilityTimeout=0)
    (again,) = queue.receive_messages(**names)
    told["again"] = [again.body, again.message_id == first.message_id, again.attributes["ApproximateReceiveCount"]]
    again.delete()
    gone = queue.delete_messages(
        Entries=[{"Id": str(at), "ReceiptHandle": each.receipt_handle} for at, each in enumerate(others)]
    )
    told["deleted"] = len(gone["Successful"])
    queue.set_attributes(Attributes={"DelaySeconds": "7"})
    queue.reload()
    told["attributes"] = {name: queue.attributes[name] for name in ("DelaySeconds", "VisibilityTimeout")}
    told["left"] = queue.attributes["ApproximateNumberOfMessagesNotVisible"]
    letters.send_message(MessageBody="lost")
    letters.purge()
    letters.load()
    told["purged"] = letters.attributes["ApproximateNumberOfMessages"]
    letters.delete()
    try:
        letters.load()
    except sqs.meta.client.exceptions.QueueDoesNotExist as error:
        told["gone"] = error.response["Error"]["Code"]
    return told


def topics(prefix: str) -> dict[str, Any]:
    """Topics and subscriptions as objects."""
    sns, sqs = boto3.resource("sns"), boto3.resource("sqs")
    queue = sqs.create_queue(QueueName=f"{prefix}-copies")
    topic = sns.create_topic(Name=f"{prefix}-sales")
    subscription = topic.subscribe(Protocol="sqs", Endpoint=queue.attributes["QueueArn"], ReturnSubscriptionArn=True)
    subscription.set_attributes(AttributeName="RawMessageDelivery", AttributeValue="true")
    topic.set_attributes(AttributeName="DisplayName", AttributeValue="Sales")
    topic.publish(Message="a shirt", MessageAttributes={"size": {"DataType": "String", "StringValue": "L"}})
    (copy,) = queue.receive_messages(WaitTimeSeconds=20, MessageAttributeNames=["All"])
    topic.reload()
    subscription.reload()
    told = {
        "copy": [copy.body, copy.message_attributes],
        "display": topic.attributes["DisplayName"],
        "confirmed": topic.attributes["SubscriptionsConfirmed"],
        "raw": subscription.attributes["RawMessageDelivery"],
        "listed": [each.arn for each in topic.subscriptions.all()] == [subscription.arn],
        "everywhere": subscription.arn in [each.arn for each in sns.subscriptions.all()],
        "topic": topic.arn in [each.arn for each in sns.topics.all()],
    }
    subscription.delete()
    told["after"] = len(list(topic.subscriptions.all()))
    topic.delete()
    told["topic after"] = topic.arn in [each.arn for each in sns.topics.all()]
    return told


def pages(prefix: str) -> dict[str, Any]:
    """Paginators; the node has pages of three where nobody can ask for a size."""
    sqs, sns = boto3.client("sqs"), boto3.client("sns")
    target = sqs.create_queue(QueueName=f"{prefix}-target")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=target, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2})
    made = [
        sqs.create_queue(QueueName=f"{prefix}-page-{at:02}", Attributes={"RedrivePolicy": policy})["QueueUrl"]
        for at in range(7)
    ]
    by_three = {"PaginationConfig": {"PageSize": 3}}
    listed = list(sqs.get_paginator("list_queues").paginate(QueueNamePrefix=f"{prefix}-page-", **by_three))
    sources = list(sqs.get_paginator("list_dead_letter_source_queues").paginate(QueueUrl=target, **by_three))
    arns = [sns.create_topic(Name=f"{prefix}-{at:02}")["TopicArn"] for at in range(7)]
    topics = list(sns.get_paginator("list_topics").paginate())
    found = [each["TopicArn"] for page in topics for each in page["Topics"]]
    copies = [sqs.create_queue(QueueName=f"{prefix}-copy-{at:02}")["QueueUrl"] for at in range(5)]
    for url in copies:
        sns.subscribe(TopicArn=arns[0], Protocol="sqs", Endpoint=arn.replace(f"{prefix}-target", url.split("/")[-1]))
    by_topic = list(sns.get_paginator("list_subscriptions_by_topic").paginate(TopicArn=arns[0]))
    members = [each["SubscriptionArn"] for page in by_topic for each in page["Subscriptions"]]
    return {
        "queues": [len(page["QueueUrls"]) for page in listed],
        "same": [url for page in listed for url in page["QueueUrls"]] == made,
        "sources": [len(page["queueUrls"]) for page in sources],
        "topics": [len(topics) >= 3, set(arns) <= set(found), len(found) == len(set(found))],
        "members": [len(by_topic), len(members), len(set(members))],
    }


if __name__ == "__main__":
    told = {each.__name__: each(sys.argv[1]) for each in (queues, topics, pages)}
    print(json.dumps(told))
