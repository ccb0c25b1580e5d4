"""Terraform's AWS provider, call by call: after `apply`, `plan` is empty.

The provider itself is no package of npm, PyPI or apt (and a quarter of an hour of compiling in Go), so these are the
calls that it makes for `aws_sqs_queue`, `aws_sns_topic` and `aws_sns_topic_subscription`, in its order: create with the
attributes it writes by itself, wait until they are read as they were written, read attributes and tags, change what
changed, delete, and wait until it is gone. What it compares is compared here in its way: policies and other JSON by
their meaning, everything else by its text.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sqs.boto import REGION, Boto

ACCOUNT = "000000000000"
#: What it writes for a queue where the configuration says nothing.
DEFAULTS = {
    "DelaySeconds": "0",
    "MaximumMessageSize": "262144",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "VisibilityTimeout": "30",
}
#: Its numbers without a default, which it writes as zeros.
SAMPLED = [f"{kind}SuccessFeedbackSampleRate" for kind in ("Application", "Firehose", "HTTP", "Lambda", "SQS")]
JSON = ("Policy", "RedrivePolicy", "RedriveAllowPolicy", "FilterPolicy", "DeliveryPolicy")
TAGS = {"team": "shop", "managed by": "terraform"}


def arn(service: str, name: str) -> str:
    return f"arn:aws:{service}:{REGION}:{ACCOUNT}:{name}"


def policy(service: str, name: str, *actions: str) -> str:
    """Return a policy as `jsonencode` writes it."""
    statement = {
        "Action": list(actions),
        "Condition": {"ArnEquals": {"aws:SourceArn": arn("sns", "tf-<all>&")}},
        "Effect": "Allow",
        "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:root"},
        "Resource": arn(service, name),
        "Sid": "in",
    }
    return json.dumps({"Statement": [statement], "Version": "2012-10-17"}, separators=(",", ":"))


def same(wanted: dict[str, str], found: dict[str, str]) -> None:
    """Refuse attributes that a plan would want to change."""
    for name, text in wanted.items():
        if not text:
            assert found.get(name, "") in ("", "{}"), name
        elif name in JSON:
            assert json.loads(found[name]) == json.loads(text), name
        else:
            assert found[name] == text, name


class Queue:
    """The resource `aws_sqs_queue`."""

    def __init__(self, boto: Boto, name: str, **attributes: str) -> None:
        self._boto = boto
        self.state = {**DEFAULTS, **attributes}
        self.tags = dict(TAGS)
        made = boto("create_queue", QueueName=name, Attributes=self.state, tags=self.tags)
        self.id = made["QueueUrl"]
        # It takes the name out of the address again.
        assert self.id.split("://")[1].split("/")[2:] == [name]
        self.refresh()

    def update(self, **attributes: str) -> None:
        self._boto("set_queue_attributes", QueueUrl=self.id, Attributes=attributes)
        self.state.update(attributes)
        self.refresh()

    def retag(self, **tags: str) -> None:
        self._boto("untag_queue", QueueUrl=self.id, TagKeys=list(set(self.tags) - set(tags)))
        self._boto("tag_queue", QueueUrl=self.id, Tags=tags)
        self.tags = tags
        self.refresh()

    def refresh(self) -> None:
        same(self.state, self._boto.attributes(self.id))
        assert self._boto("list_queue_tags", QueueUrl=self.id).get("Tags", {}) == self.tags

    def destroy(self) -> None:
        self._boto("delete_queue", QueueUrl=self.id)
        error = self._boto.refused("get_queue_attributes", QueueUrl=self.id, AttributeNames=["All"])
        assert error.code == "AWS.SimpleQueueService.NonExistentQueue"


class Topic:
    """The resource `aws_sns_topic`."""

    def __init__(self, boto: Boto, name: str, **attributes: str) -> None:
        self._boto = boto
        own: dict[str, str] = {
            key: attributes.pop(key) for key in ("FifoTopic", "FifoThroughputScope") if key in attributes
        }
        self.tags = dict(TAGS)
        asked: dict[str, Any] = {"Attributes": own} if own else {}
        made = boto("create_topic", "sns", Name=name, Tags=listed(self.tags), **asked)
        self.id = made["TopicArn"]
        self.state = own
        self.update(**dict.fromkeys(SAMPLED, "0"), **attributes)

    def update(self, **attributes: str) -> None:
        for name, text in attributes.items():
            self._boto("set_topic_attributes", "sns", TopicArn=self.id, AttributeName=name, AttributeValue=text)
        self.state.update(attributes)
        self.refresh()

    def retag(self, **tags: str) -> None:
        self._boto("untag_resource", "sns", ResourceArn=self.id, TagKeys=list(set(self.tags) - set(tags)))
        self._boto("tag_resource", "sns", ResourceArn=self.id, Tags=listed(tags))
        self.tags = tags
        self.refresh()

    def refresh(self) -> None:
        found = self._boto("get_topic_attributes", "sns", TopicArn=self.id)["Attributes"]
        # It reads the policy of every topic and gives up where there is none.
        principals = [each["Principal"]["AWS"] for each in json.loads(found["Policy"])["Statement"]]
        assert all(each == "*" or each.startswith("arn:aws:iam::") for each in principals)
        assert (found["TopicArn"], found["Owner"]) == (self.id, ACCOUNT)
        same(self.state, found)
        tags = self._boto("list_tags_for_resource", "sns", ResourceArn=self.id)["Tags"]
        assert {each["Key"]: each["Value"] for each in tags} == self.tags

    def destroy(self) -> None:
        self._boto("delete_topic", "sns", TopicArn=self.id)
        error = self._boto.refused("get_topic_attributes", "sns", TopicArn=self.id)
        assert (error.type, error.code) == ("NotFoundException", "NotFound")


class Subscription:
    """The resource `aws_sns_topic_subscription`."""

    def __init__(self, boto: Boto, topic: str, endpoint: str, **attributes: str) -> None:
        self._boto = boto
        self.state = attributes
        asked: dict[str, Any] = {"TopicArn": topic, "Protocol": "sqs", "Endpoint": endpoint}
        self._fixed = dict(asked)
        made = boto("subscribe", "sns", Attributes=attributes, ReturnSubscriptionArn=True, **asked)
        self.id = made["SubscriptionArn"]
        self.refresh()

    def update(self, **attributes: str) -> None:
        """Change attributes; of a filter's scope, the wider before the policy and the narrower after it."""
        order = sorted(attributes, key=lambda name: (attributes[name] != "MessageBody", name == "FilterPolicyScope"))
        for name in order:
            text = attributes[name] or ("{}" if name == "FilterPolicy" else "")
            value = {"AttributeValue": text} if text else {}
            self._boto("set_subscription_attributes", "sns", SubscriptionArn=self.id, AttributeName=name, **value)
        self.state.update(attributes)
        self.refresh()

    def refresh(self) -> None:
        found = self._boto("get_subscription_attributes", "sns", SubscriptionArn=self.id)["Attributes"]
        fixed = {"SubscriptionArn": self.id, "Owner": ACCOUNT, "PendingConfirmation": "false"}
        same({**fixed, **self._fixed, "ConfirmationWasAuthenticated": "true", **self.state}, found)
        if "RawMessageDelivery" not in self.state:
            assert found.get("RawMessageDelivery", "false") == "false"

    def destroy(self) -> None:
        self._boto("unsubscribe", "sns", SubscriptionArn=self.id)
        error = self._boto.refused("get_subscription_attributes", "sns", SubscriptionArn=self.id)
        assert error.code == "NotFound"


def listed(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def test_a_plan_for_queues_is_empty_after_each_apply(boto: Boto) -> None:
    letters = Queue(boto, "tf-letters", MessageRetentionPeriod="1209600")
    redrive = {"deadLetterTargetArn": arn("sqs", "tf-letters"), "maxReceiveCount": 4}
    queue = Queue(
        boto,
        "tf-jobs",
        DelaySeconds="90",
        KmsDataKeyReusePeriodSeconds="600",
        KmsMasterKeyId="alias/aws/sqs",
        MaximumMessageSize="2048",
        Policy=policy("sqs", "tf-jobs", "sqs:SendMessage", "sqs:ReceiveMessage"),
        ReceiveMessageWaitTimeSeconds="10",
        RedrivePolicy=json.dumps(redrive),
        VisibilityTimeout="0",
    )
    allowed = {"redrivePermission": "byQueue", "sourceQueueArns": [arn("sqs", "tf-jobs")]}
    letters.update(RedriveAllowPolicy=json.dumps(allowed))
    queue.update(VisibilityTimeout="45", KmsMasterKeyId="", Policy="")
    queue.update(SqsManagedSseEnabled="true", RedrivePolicy="")
    queue.retag(team="warehouse", cost="12")
    # A second apply of the same configuration finds the queue that is there.
    assert boto("create_queue", QueueName="tf-jobs")["QueueUrl"] == queue.id
    queue.destroy()
    letters.destroy()


def test_a_plan_for_a_fifo_queue_is_empty(boto: Boto) -> None:
    queue = Queue(boto, "tf-orders.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    queue.update(DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId")
    queue.update(ContentBasedDeduplication="false")
    queue.destroy()


def test_a_plan_for_topics_and_subscriptions_is_empty_after_each_apply(boto: Boto) -> None:
    queue = Queue(boto, "tf-copies")
    dead = Queue(boto, "tf-copies-dead")
    topic = Topic(boto, "tf-sales", DisplayName="Sales", KmsMasterKeyId="alias/aws/sns")
    topic.update(Policy=policy("sns", "tf-sales", "SNS:Publish"))
    topic.update(DeliveryPolicy=json.dumps({"http": {"defaultHealthyRetryPolicy": {"numRetries": 5}}}))
    topic.update(DisplayName="", KmsMasterKeyId="", SignatureVersion="2", TracingConfig="Active")
    topic.retag(team="warehouse")
    subscription = Subscription(
        boto,
        topic.id,
        arn("sqs", "tf-copies"),
        FilterPolicy=json.dumps({"size": ["L", {"prefix": "X"}]}),
        RawMessageDelivery="true",
        RedrivePolicy=json.dumps({"deadLetterTargetArn": arn("sqs", "tf-copies-dead")}),
    )
    found = boto("get_subscription_attributes", "sns", SubscriptionArn=subscription.id)["Attributes"]
    assert found["FilterPolicyScope"] == "MessageAttributes"
    subscription.update(FilterPolicyScope="MessageBody", FilterPolicy=json.dumps({"order": {"size": ["L"]}}))
    subscription.update(RawMessageDelivery="false", RedrivePolicy="")
    subscription.update(FilterPolicyScope="MessageAttributes", FilterPolicy="")
    subscription.destroy()
    topic.destroy()
    queue.destroy()
    dead.destroy()


@pytest.mark.parametrize("content", ["true", "false"])
def test_a_plan_for_a_fifo_topic_is_empty(boto: Boto, content: str) -> None:
    topic = Topic(boto, f"tf-orders-{content}.fifo", FifoTopic="true")
    # Where nobody chose it, a topic says so, too: else the plan would not know the default from a loss.
    found = boto("get_topic_attributes", "sns", TopicArn=topic.id)["Attributes"]
    assert (found["FifoTopic"], found["ContentBasedDeduplication"]) == ("true", "false")
    topic.update(ContentBasedDeduplication=content)
    topic.destroy()
