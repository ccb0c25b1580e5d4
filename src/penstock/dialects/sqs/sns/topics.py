"""Topics of SNS and their subscriptions. A topic is a fan-out; what only Amazon knows of it is kept beside that.

A queue that another dialect let into the fan-out gets messages as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from uuid import uuid4

import msgspec

from penstock.callers import Action, Caller
from penstock.dialects.sqs.codec.shapes import Nothing
from penstock.dialects.sqs.faults import Fault
from penstock.dialects.sqs.names import FIFO
from penstock.dialects.sqs.queues import Queues
from penstock.dialects.sqs.sns import policy, shapes
from penstock.registry.answer import Answer
from penstock.registry.attempt import Draft
from penstock.registry.records import decoded, encoded

KEYS = "sns/"
PAGE = 100

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


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription."""

    queue: str
    attributes: dict[str, str] = {}

    @property
    def is_raw(self) -> bool:
        """Whether the queue gets the message and not an envelope around it."""
        return self.attributes.get("RawMessageDelivery", "false").lower() == "true"

    @property
    def of_body(self) -> bool:
        """Whether its filter looks at the body."""
        return self.attributes.get("FilterPolicyScope") == "MessageBody"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What the registry has of a topic."""

    attributes: dict[str, str] = {}
    tags: dict[str, str] = {}
    #: By the last part of their ARNs.
    members: dict[str, Member] = {}


class Topics:
    """The topics of one node."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues
        self.node = queues.node
        self._catalog = queues.node.catalog

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
        """Return what is kept of a topic."""
        entry = self._catalog.registry.get(KEYS + name)
        return decoded(entry.value, Record, KEYS + name) if entry is not None else Record()

    def member(self, caller: Caller, action: Action, arn: str) -> tuple[str, str, Member]:
        """Return a subscription that must exist: its topic, its own name and what it is."""
        topic, _, id_ = arn.rpartition(":")
        name, record = self.find(caller, action, topic) if topic else ("", Record())
        if id_ not in record.members:
            raise Fault("NotFound", "Subscription does not exist")
        return name, id_, record.members[id_]

    def _change(self, name: str, change: Callable[[Record], Record]) -> Answer[Record]:
        key = KEYS + name

        def compose() -> Draft[Record]:
            entry = self._catalog.registry.get(key)
            record = change(decoded(entry.value, Record, key) if entry is not None else Record())
            return Draft(record, {key: encoded(record)}, (), {key: entry.revision if entry is not None else 0})

        return self._catalog.attempt(compose)

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
        if self.node.fanouts.get(name) is not None:
            caller.check("see", name)
            return Answer.of(told)
        caller.check("create", name, "fan-out")
        tags = {tag.key: tag.value for tag in asked.tags}
        # First what is kept beside it: a topic without it would be another one.
        noted = self._change(name, lambda _: Record(attributes=asked.attributes, tags=tags))
        return noted.then_ask(lambda _: self.node.fanouts.create(name)).then_make(lambda _: told)

    def delete(self, caller: Caller, asked: shapes.ByTopic) -> Answer[Nothing]:
        """Delete a topic with its subscriptions; one that is not there is deleted already."""
        try:
            name, _ = self.find(caller, "delete", asked.topic_arn)
        except Fault as fault:
            if fault.name != "NotFound":
                raise
            return Answer.of(Nothing())
        gone = self.node.fanouts.delete(name).then_ask(lambda _: self._catalog.remove([KEYS + name]))
        return gone.then_make(lambda _: Nothing())

    def list_all(self, caller: Caller, asked: shapes.Page) -> shapes.Topics:
        """List topics."""
        names = [name for name in self.node.fanouts.names() if is_name(name) and caller.may("see", name)]
        some, token = _page(names, asked.next_token)
        return shapes.Topics(topics=[shapes.TopicArn(topic_arn=self.arn(name)) for name in some], next_token=token)

    def attributes(self, caller: Caller, asked: shapes.ByTopic) -> shapes.Attributes:
        """Tell attributes of a topic."""
        name, record = self.find(caller, "see", asked.topic_arn)
        told = {
            "TopicArn": self.arn(name),
            "Owner": self.queues.names.account_id,
            "SubscriptionsConfirmed": str(len(record.members)),
            "SubscriptionsPending": "0",
            "SubscriptionsDeleted": "0",
            "DisplayName": "",
            "EffectiveDeliveryPolicy": "{}",
            "Policy": self._policy(name),
        }
        if name.endswith(FIFO):
            told["ContentBasedDeduplication"] = "false"
        return shapes.Attributes(attributes={**told, **record.attributes})

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
        changed = self._change(
            name, lambda record: msgspec.structs.replace(record, attributes={**record.attributes, key: value})
        )
        return changed.then_make(lambda _: Nothing())

    # --- subscriptions --------------------------------------------------------------------------------------------

    def subscribe(self, caller: Caller, asked: shapes.Subscribe) -> Answer[shapes.SubscriptionArn]:
        """Let a queue get copies; asked again for the same one, it answers with the same ARN."""
        name, record = self.find(caller, "change", asked.topic_arn)
        if asked.protocol != "sqs":
            text = f"Invalid parameter: Does not support this protocol string: {asked.protocol[:50]}"
            raise Fault("InvalidParameter", text)
        queue = self.queues.names.of_arn(asked.endpoint)
        if queue is None:
            raise Fault("InvalidParameter", "Invalid parameter: SQS endpoint ARN")
        caller.check("change", queue, f"fan-out from {name}")
        found = self.queues.known(queue)
        if found is None:
            raise Fault("InvalidParameter", "Invalid parameter: Endpoint: there is no such queue")
        if queue.endswith(FIFO) and not name.endswith(FIFO):
            raise Fault("InvalidParameter", "Invalid parameter: Endpoint: a FIFO queue takes messages of FIFO topics")
        _check(asked.attributes)
        known = next((id_ for id_, member in record.members.items() if member.queue == queue), None)
        if known is not None and asked.attributes and record.members[known].attributes != asked.attributes:
            text = "Invalid parameter: Attributes Reason: Subscription already exists with different attributes"
            raise Fault("InvalidParameter", text)
        id_ = known or str(uuid4())
        member = Member(queue=queue, attributes=asked.attributes)
        noted = self._change(name, lambda now: msgspec.structs.replace(now, members={id_: member, **now.members}))
        added = noted.then_ask(lambda _: self.node.fanouts.add(name, found.topic))
        return added.then_make(lambda _: shapes.SubscriptionArn(subscription_arn=f"{self.arn(name)}:{id_}"))

    def unsubscribe(self, caller: Caller, asked: shapes.BySubscription) -> Answer[Nothing]:
        """Let a queue get no more copies."""
        try:
            name, id_, member = self.member(caller, "change", asked.subscription_arn)
        except Fault as fault:
            if fault.name != "NotFound":
                raise
            return Answer.of(Nothing())

        def without(record: Record) -> Record:
            members = {key: each for key, each in record.members.items() if key != id_}
            return msgspec.structs.replace(record, members=members)

        gone = self.node.fanouts.remove(name, member.queue).then_ask(lambda _: self._change(name, without))
        return gone.then_make(lambda _: Nothing())

    def subscriptions(self, caller: Caller, asked: shapes.Page) -> shapes.Subscriptions:
        """List all subscriptions."""
        names = [name for name in self.node.fanouts.names() if caller.may("see", name)]
        return _listed([each for name in names for each in self._members(name)], asked.next_token)

    def subscriptions_of(self, caller: Caller, asked: shapes.ByTopicPage) -> shapes.Subscriptions:
        """List the subscriptions of a topic."""
        name, _ = self.find(caller, "see", asked.topic_arn)
        return _listed(self._members(name), asked.next_token)

    def _members(self, name: str) -> list[shapes.Subscription]:
        names = self.queues.names
        return [
            shapes.Subscription(
                subscription_arn=f"{self.arn(name)}:{id_}",
                owner=names.account_id,
                protocol="sqs",
                endpoint=names.arn(member.queue),
                topic_arn=self.arn(name),
            )
            for id_, member in sorted(self.record(name).members.items())
        ]

    def member_attributes(self, caller: Caller, asked: shapes.BySubscription) -> shapes.Attributes:
        """Tell attributes of a subscription."""
        name, id_, member = self.member(caller, "see", asked.subscription_arn)
        told = {
            "SubscriptionArn": f"{self.arn(name)}:{id_}",
            "TopicArn": self.arn(name),
            "Protocol": "sqs",
            "Endpoint": self.queues.names.arn(member.queue),
            "Owner": self.queues.names.account_id,
            "ConfirmationWasAuthenticated": "true",
            "PendingConfirmation": "false",
            "RawMessageDelivery": "false",
            "SubscriptionPrincipal": f"arn:aws:iam::{self.queues.names.account_id}:root",
        }
        if "FilterPolicy" in member.attributes:
            told["FilterPolicyScope"] = "MessageAttributes"
        return shapes.Attributes(attributes={**told, **member.attributes})

    def set_member_attribute(self, caller: Caller, asked: shapes.SetSubscriptionAttributes) -> Answer[Nothing]:
        """Change an attribute of a subscription."""
        name, id_, member = self.member(caller, "change", asked.subscription_arn)
        attributes = {**member.attributes, asked.attribute_name: asked.attribute_value}
        if not asked.attribute_value:
            del attributes[asked.attribute_name]
        _check(attributes)
        changed = msgspec.structs.replace(member, attributes=attributes)
        noted = self._change(
            name, lambda record: msgspec.structs.replace(record, members={**record.members, id_: changed})
        )
        return noted.then_make(lambda _: Nothing())

    # --- tags -----------------------------------------------------------------------------------------------------

    def tags(self, caller: Caller, asked: shapes.ByResource) -> shapes.Tags:
        """Tell tags."""
        _, record = self.find(caller, "see", asked.resource_arn)
        return shapes.Tags(tags=[shapes.Tag(key=key, value=value) for key, value in record.tags.items()])

    def tag(self, caller: Caller, asked: shapes.TagResource) -> Answer[Nothing]:
        """Set tags."""
        name, _ = self.find(caller, "change", asked.resource_arn)
        new = {tag.key: tag.value for tag in asked.tags}
        changed = self._change(name, lambda record: msgspec.structs.replace(record, tags={**record.tags, **new}))
        return changed.then_make(lambda _: Nothing())

    def untag(self, caller: Caller, asked: shapes.UntagResource) -> Answer[Nothing]:
        """Take tags away."""
        name, _ = self.find(caller, "change", asked.resource_arn)

        def without(record: Record) -> Record:
            left = {key: value for key, value in record.tags.items() if key not in asked.tag_keys}
            return msgspec.structs.replace(record, tags=left)

        return self._change(name, without).then_make(lambda _: Nothing())


def is_name(name: str) -> bool:
    """Tell whether a topic may be called so."""
    return _NAME(name.removesuffix(FIFO)) is not None


def _check(attributes: dict[str, str]) -> None:
    """Refuse attributes that no subscription can have."""
    scope = attributes.get("FilterPolicyScope", "MessageAttributes")
    if scope not in ("MessageAttributes", "MessageBody"):
        raise Fault("InvalidParameter", "Invalid parameter: FilterPolicyScope")
    if attributes.get("RawMessageDelivery", "false").lower() not in ("true", "false"):
        raise Fault("InvalidParameter", "Invalid parameter: RawMessageDelivery")
    if attributes.get("FilterPolicy"):
        policy.read(attributes["FilterPolicy"], of_body=scope == "MessageBody")


def _page(names: list[str], token: str) -> tuple[list[str], str | None]:
    rest = [name for name in names if name > token] if token else names
    return rest[:PAGE], rest[PAGE - 1] if len(rest) > PAGE else None


def _listed(found: list[shapes.Subscription], token: str) -> shapes.Subscriptions:
    arns = [each.subscription_arn for each in found]
    some, next_token = _page(arns, token)
    return shapes.Subscriptions(
        subscriptions=[each for each in found if each.subscription_arn in set(some)], next_token=next_token
    )
