"""What is asked of SNS and answered, by Amazon's names."""

from __future__ import annotations

from msgspec import field

from penstock.dialects.sqs.codec.shapes import Failed, Shape, Values


class Tag(Shape, kw_only=True):
    """A tag."""

    key: str
    value: str = ""


class CreateTopic(Shape, kw_only=True):
    """Make a topic."""

    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    tags: list[Tag] = field(default_factory=list)


class ByTopic(Shape, kw_only=True):
    """Something about one topic."""

    topic_arn: str


class Page(Shape, kw_only=True):
    """The next of a list."""

    next_token: str = ""


class ByTopicPage(ByTopic, kw_only=True):
    """The next of a list of one topic's."""

    next_token: str = ""


class SetTopicAttributes(ByTopic, kw_only=True):
    """Change one."""

    attribute_name: str
    attribute_value: str = ""


class AddPermission(ByTopic, kw_only=True):
    """Add a statement to the policy."""

    label: str
    accounts: list[str] = field(name="AWSAccountId", default_factory=list)
    actions: list[str] = field(name="ActionName", default_factory=list)


class RemovePermission(ByTopic, kw_only=True):
    """Take one away."""

    label: str


class Subscribe(ByTopic, kw_only=True):
    """Let a queue get copies."""

    protocol: str
    endpoint: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    return_subscription_arn: bool = False


class ConfirmSubscription(ByTopic, kw_only=True):
    """Begin what an endpoint was asked for."""

    token: str
    authenticate_on_unsubscribe: str = ""


class BySubscription(Shape, kw_only=True):
    """Something about one subscription."""

    subscription_arn: str


class SetSubscriptionAttributes(BySubscription, kw_only=True):
    """Change one."""

    attribute_name: str
    attribute_value: str = ""


class Publishing(Shape, kw_only=True):
    """A message to publish."""

    message: str
    subject: str | None = None
    message_structure: str = ""
    message_attributes: Values = field(default_factory=dict)
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class Publish(Publishing, kw_only=True):
    """Publish one message."""

    topic_arn: str = ""
    target_arn: str = ""


class PublishEntry(Publishing, kw_only=True):
    """One of several."""

    id: str


class PublishBatch(ByTopic, kw_only=True):
    """Publish several."""

    publish_batch_request_entries: list[PublishEntry] = field(default_factory=list)


class ByResource(Shape, kw_only=True):
    """Something about a topic's tags."""

    resource_arn: str


class TagResource(ByResource, kw_only=True):
    """Set tags."""

    tags: list[Tag]


class UntagResource(ByResource, kw_only=True):
    """Take tags away."""

    tag_keys: list[str]


# --- answered -----------------------------------------------------------------------------------------------------


class TopicArn(Shape, kw_only=True):
    """A topic."""

    topic_arn: str


class Topics(Shape, kw_only=True):
    """Topics."""

    topics: list[TopicArn]
    next_token: str | None = None


class SubscriptionArn(Shape, kw_only=True):
    """A subscription."""

    subscription_arn: str


class Subscription(Shape, kw_only=True):
    """A subscription, as lists show it."""

    subscription_arn: str
    owner: str
    protocol: str
    endpoint: str
    topic_arn: str


class Subscriptions(Shape, kw_only=True):
    """Subscriptions."""

    subscriptions: list[Subscription]
    next_token: str | None = None


class Published(Shape, kw_only=True):
    """A message was published."""

    message_id: str
    sequence_number: str | None = None


class PublishedEntry(Published, kw_only=True):
    """One of several was published."""

    id: str


class PublishedBatch(Shape, kw_only=True):
    """What became of each."""

    successful: list[PublishedEntry]
    failed: list[Failed]


class Tags(Shape, kw_only=True):
    """Tags."""

    tags: list[Tag]
