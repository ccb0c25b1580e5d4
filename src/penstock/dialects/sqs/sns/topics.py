"""Topics of SNS. A topic is a fan-out; what only Amazon knows of it, subscriptions too, is kept in its record.

A queue that another dialect let into the fan-out gets messages as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from penstock.callers import Action, Caller
from penstock.dialects.sqs import permissions
from penstock.dialects.sqs.attributes import is_object
from penstock.dialects.sqs.codec.shapes import Attributes, Nothing
from penstock.dialects.sqs.faults import Fault
from penstock.dialects.sqs.names import FIFO, Names
from penstock.dialects.sqs.queues import Queues
from penstock.dialects.sqs.sns import retries, shapes
from penstock.dialects.sqs.sns.record import SNS, Member, Record
from penstock.fanout import FanoutRecord
from penstock.registry.answer import Answer

PAGE = 100
NAME_LETTERS_MAX = 256
DISPLAY_NAME_LETTERS_MAX = 100
TAGS_MAX = 50

#: What only the node says.
_READ_ONLY = frozenset(
    (
        "TopicArn",
        "Owner",
        "SubscriptionsConfirmed",
        "SubscriptionsPending",
        "SubscriptionsDeleted",
        "EffectiveDeliveryPolicy",
        "BeginningArchiveTime",
    )
)
#: Of FIFO topics alone.
_FIFO_ONLY = frozenset(("FifoTopic", "ContentBasedDeduplication", "FifoThroughputScope", "ArchivePolicy"))
#: What may be one of some words.
_WORDS = {
    "FifoTopic": ("true", "false"),
    "ContentBasedDeduplication": ("true", "false"),
    "FifoThroughputScope": ("topic", "messagegroup"),
    "SignatureVersion": ("1", "2"),
    "TracingConfig": ("passthrough", "active"),
}

_NAME = re.compile(r"[A-Za-z0-9_-]{1,256}").fullmatch
#: What the owner of a topic may do with it, unless a policy says otherwise.
_OWNERS_ACTIONS = (
    "GetTopicAttributes",
    "SetTopicAttributes",
    "AddPermission",
    "RemovePermission",
    "DeleteTopic",
    "Subscribe",
    "ListSubscriptionsByTopic",
    "Publish",
)


class Topics:
    """The topics of one node."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues
        self.node = queues.node

    # --- finding --------------------------------------------------------------------------------------------------

    def arn(self, name: str) -> str:
        """Return the ARN of a topic."""
        return self.queues.names.arn(name, "sns")

    def find(self, caller: Caller, action: Action, arn: str) -> tuple[str, Record]:
        """Return a topic that must exist to somebody who may do this with it."""
        head = self.arn("")
        name = arn.removeprefix(head)
        if not arn.startswith(head) or not is_name(name):
            raise Fault("InvalidParameter", "Invalid parameter: TopicArn")
        caller.check(action, name)
        if self.node.fanouts.get(name) is None:
            raise Fault("NotFound", "Topic does not exist")
        return name, self.record(name)

    def record(self, name: str) -> Record:
        """Return what is kept of a topic; of one that is not there, nothing."""
        found = self.node.fanouts.get(name)
        return of(found) if found is not None else Record()

    def member(self, caller: Caller, action: Action, arn: str) -> tuple[str, str, Member]:
        """Return a subscription that must exist: its topic, its own name and what it is."""
        topic, _, id_ = arn.rpartition(":")
        name, record = self.find(caller, action, topic) if topic else ("", Record())
        found = record.shown().get(id_)
        if found is None:
            raise Fault("NotFound", "Subscription does not exist")
        return name, id_, found

    def change(self, name: str, change: Callable[[Record], Record]) -> Answer[Record]:
        """Make something else of what is kept of a topic."""

        def changed(record: FanoutRecord) -> FanoutRecord:
            return msgspec.structs.replace(record, dialects={**record.dialects, SNS: kept(change(of(record)))})

        return self.node.fanouts.change(name, changed).then_make(of)

    # --- topics ---------------------------------------------------------------------------------------------------

    def create(self, caller: Caller, asked: shapes.CreateTopic) -> Answer[shapes.TopicArn]:
        """Make a topic, or find it."""
        name, told = asked.name, shapes.TopicArn(topic_arn=self.arn(asked.name))
        if not is_name(name):
            raise Fault("InvalidParameter", "Invalid parameter: Topic Name")
        is_fifo = asked.attributes.get("FifoTopic", "false").lower() == "true"
        if is_fifo != name.endswith(FIFO):
            raise Fault(
                "InvalidParameter", "Invalid parameter: the name of a FIFO topic, and no other, ends with .fifo"
            )
        tags = {tag.key: tag.value for tag in asked.tags}
        _check_tags(tags, tags)
        if self.node.fanouts.get(name) is not None:
            caller.check("see", name)
            _check_same(self.record(name), asked.attributes, tags)
            return Answer.of(told)
        caller.check("create", name, "fan-out")
        _check(name, asked.attributes)
        record = Record(attributes=asked.attributes, tags=tags)
        return self.node.fanouts.create(name, {SNS: kept(record)}).then_make(lambda _: told)

    def delete(self, caller: Caller, asked: shapes.ByTopic) -> Answer[Record]:
        """Delete a topic with its subscriptions, and answer with those; one that is not there is deleted already."""
        try:
            name, _ = self.find(caller, "delete", asked.topic_arn)
        except Fault as fault:
            if fault.name != "NotFound":
                raise
            return Answer.of(Record())
        return self.node.fanouts.delete(name).then_make(of)

    def list_all(self, caller: Caller, asked: shapes.Page) -> shapes.Topics:
        """List topics."""
        names = [name for name in self.node.fanouts.names() if is_name(name) and caller.may("see", name)]
        some, token = page(names, asked.next_token)
        return shapes.Topics(topics=[shapes.TopicArn(topic_arn=self.arn(name)) for name in some], next_token=token)

    def attributes(self, caller: Caller, asked: shapes.ByTopic) -> Attributes:
        """Tell attributes of a topic."""
        name, record = self.find(caller, "see", asked.topic_arn)
        states = [member.state for member in record.members.values()]
        http = retries.of_topic(record.attributes.get("DeliveryPolicy", "")).http
        effective = {
            "http": {
                "defaultHealthyRetryPolicy": http.default_healthy_retry_policy or retries.Retries(),
                "disableSubscriptionOverrides": http.disable_subscription_overrides,
                "defaultRequestPolicy": http.default_request_policy or retries.Request(),
            }
        }
        told = {
            "TopicArn": self.arn(name),
            "Owner": self.queues.names.account_id,
            "SubscriptionsConfirmed": str(states.count("confirmed")),
            "SubscriptionsPending": str(states.count("pending")),
            "SubscriptionsDeleted": str(states.count("left")),
            "DisplayName": "",
            "EffectiveDeliveryPolicy": msgspec.json.encode(effective).decode(),
            "Policy": self._policy(name),
        }
        if name.endswith(FIFO):
            told["ContentBasedDeduplication"] = "false"
        return Attributes(attributes={**told, **record.attributes})

    def _policy(self, name: str) -> str:
        """Return the policy of Amazon's topics while nobody set another: Terraform cannot read a topic without one."""
        statement = {
            "Sid": "__default_statement_ID",
            "Effect": "Allow",
            "Principal": {"AWS": "*"},
            "Action": [f"SNS:{action}" for action in _OWNERS_ACTIONS],
            "Resource": self.arn(name),
            "Condition": {"StringEquals": {"AWS:SourceOwner": self.queues.names.account_id}},
        }
        policy = {"Version": "2008-10-17", "Id": "__default_policy_ID", "Statement": [statement]}
        return msgspec.json.encode(policy).decode()

    def set_attribute(self, caller: Caller, asked: shapes.SetTopicAttributes) -> Answer[Nothing]:
        """Change an attribute of a topic."""
        name, _ = self.find(caller, "change", asked.topic_arn)
        key, value = asked.attribute_name, asked.attribute_value
        if key == "FifoTopic":
            raise Fault("InvalidParameter", "Invalid parameter: AttributeName")
        if value or key in _READ_ONLY:
            _check(name, {key: value})
        return self._put(name, key, value)

    def _put(self, name: str, key: str, value: str) -> Answer[Nothing]:
        """Keep an attribute of a topic; an empty one is as good as none."""

        def put(record: Record) -> Record:
            attributes = {**record.attributes, key: value}
            if not value:
                del attributes[key]
            return msgspec.structs.replace(record, attributes=attributes)

        return self.change(name, put).then_make(lambda _: Nothing())

    # --- permissions ----------------------------------------------------------------------------------------------

    def add_permission(self, caller: Caller, asked: shapes.AddPermission) -> Answer[Nothing]:
        """Add a statement to a topic's policy."""
        name, record = self.find(caller, "change", asked.topic_arn)
        policy = record.attributes.get("Policy") or self._policy(name)
        try:
            changed = permissions.added(
                policy, self.arn(name), asked.label, asked.accounts, asked.actions, permissions.SNS
            )
        except Fault as fault:
            raise Fault("InvalidParameter", f"Invalid parameter: {fault}") from None
        return self._put(name, "Policy", changed)

    def drop_permission(self, caller: Caller, asked: shapes.RemovePermission) -> Answer[Nothing]:
        """Take a statement out of it."""
        name, record = self.find(caller, "change", asked.topic_arn)
        policy = record.attributes.get("Policy") or self._policy(name)
        try:
            return self._put(name, "Policy", permissions.removed(policy, asked.label))
        except Fault as fault:
            raise Fault("InvalidParameter", f"Invalid parameter: {fault}") from None

    # --- tags -----------------------------------------------------------------------------------------------------

    def tags(self, caller: Caller, asked: shapes.ByResource) -> shapes.Tags:
        """Tell tags."""
        _, record = self._resource(caller, "see", asked.resource_arn)
        return shapes.Tags(tags=[shapes.Tag(key=key, value=value) for key, value in record.tags.items()])

    def tag(self, caller: Caller, asked: shapes.TagResource) -> Answer[Nothing]:
        """Set tags."""
        name, record = self._resource(caller, "change", asked.resource_arn)
        new = {tag.key: tag.value for tag in asked.tags}
        _check_tags(new, {**record.tags, **new})
        changed = self.change(name, lambda record: msgspec.structs.replace(record, tags={**record.tags, **new}))
        return changed.then_make(lambda _: Nothing())

    def untag(self, caller: Caller, asked: shapes.UntagResource) -> Answer[Nothing]:
        """Take tags away."""
        name, _ = self._resource(caller, "change", asked.resource_arn)

        def without(record: Record) -> Record:
            left = {key: value for key, value in record.tags.items() if key not in asked.tag_keys}
            return msgspec.structs.replace(record, tags=left)

        return self.change(name, without).then_make(lambda _: Nothing())

    def _resource(self, caller: Caller, action: Action, arn: str) -> tuple[str, Record]:
        """Return a topic that must exist; one that does not is called otherwise where it is about tags."""
        try:
            return self.find(caller, action, arn)
        except Fault as fault:
            if fault.name == "NotFound":
                raise Fault("ResourceNotFoundException", "Resource does not exist") from None
            raise


def is_name(name: str) -> bool:
    """Tell whether a topic may be called so."""
    return len(name) <= NAME_LETTERS_MAX and _NAME(name.removesuffix(FIFO)) is not None


def _check_same(record: Record, attributes: dict[str, str], tags: dict[str, str]) -> None:
    """Refuse a topic that is there otherwise than it is asked for."""
    held = {"FifoTopic": "false", "ContentBasedDeduplication": "false", **record.attributes}
    for what, same in (
        ("Attributes", all(held.get(key, "").lower() == text.lower() for key, text in attributes.items())),
        ("Tags", not tags or tags == record.tags),
    ):
        if not same:
            why = f"Topic already exists with different {what.lower()}"
            raise Fault("InvalidParameter", f"Invalid parameter: {what} Reason: {why}")


def of(record: FanoutRecord) -> Record:
    """Return what SNS keeps in the record of a fan-out."""
    return msgspec.convert(record.dialects.get(SNS, {}), Record)


def kept(record: Record) -> dict[str, object]:
    """Return it as the record of a fan-out holds it."""
    found: dict[str, object] = msgspec.to_builtins(record)
    return found


def dead_letters(attributes: dict[str, str], names: Names) -> str | None:
    """Return the queue that a subscription's RedrivePolicy names, None where it has none; refuse what is no policy."""
    text = attributes.get("RedrivePolicy")
    if not text:
        return None
    try:
        arn = msgspec.json.decode(text, type=dict[str, str])["deadLetterTargetArn"]
    except (msgspec.MsgspecError, UnicodeError, RecursionError, KeyError):
        raise Fault("InvalidParameter", "Invalid parameter: RedrivePolicy: it needs deadLetterTargetArn") from None
    queue = names.of_arn(arn)
    if queue is None:
        raise Fault("InvalidParameter", "Invalid parameter: RedrivePolicy: deadLetterTargetArn is no queue's ARN")
    return queue


def page(names: list[str], token: str) -> tuple[list[str], str | None]:
    """Return some of the names, and what to ask with for the next ones."""
    rest = [name for name in names if name > token] if token else names
    return rest[:PAGE], rest[PAGE - 1] if len(rest) > PAGE else None


def _check(name: str, attributes: dict[str, str]) -> None:
    """Refuse attributes that this topic cannot have."""
    for key, text in attributes.items():
        if key in _READ_ONLY or (key in _FIFO_ONLY and key != "FifoTopic" and not name.endswith(FIFO)):
            raise Fault("InvalidParameter", f"Invalid parameter: AttributeName: {key}")
        if key in _WORDS and text.lower() not in _WORDS[key]:
            raise Fault("InvalidParameter", f"Invalid parameter: {key}")
        if key == "Policy" and text and not is_object(text):
            raise Fault("InvalidParameter", "Invalid parameter: Policy: it is no JSON object")
    if len(attributes.get("DisplayName", "")) > DISPLAY_NAME_LETTERS_MAX:
        raise Fault(
            "InvalidParameter", f"Invalid parameter: DisplayName: at most {DISPLAY_NAME_LETTERS_MAX} characters"
        )
    retries.of_topic(attributes.get("DeliveryPolicy", ""))


def _check_tags(new: dict[str, str], both: dict[str, str]) -> None:
    """Refuse tags that cannot be, and more of them than a topic may have."""
    for key, value in new.items():
        if not 0 < len(key) <= 128 or len(value) > 256:
            raise Fault("InvalidParameter", "Invalid parameter: Tags: a key has 1 to 128 characters, a value up to 256")
    if len(both) > TAGS_MAX:
        raise Fault("TagLimitExceeded", f"A topic has at most {TAGS_MAX} tags.")
