"""Subscriptions of topics: asked for, confirmed, listed, changed, cancelled.

A queue is subscribed at once: whoever does so may change it. An HTTP endpoint is asked first, by a message that holds a
token; so nobody has a node send to whom did not want it. What it is sent goes through its outbox (`couriers`).
"""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest
from secrets import token_hex
from uuid import uuid4

import msgspec

from penstock.callers import Caller
from penstock.clock import SECOND
from penstock.dialects.sqs.codec.shapes import Attributes, Nothing
from penstock.dialects.sqs.drafts import SOURCE
from penstock.dialects.sqs.faults import Fault
from penstock.dialects.sqs.names import FIFO
from penstock.dialects.sqs.sns import envelope, policy, retries, shapes
from penstock.dialects.sqs.sns.couriers import TYPE, Couriers
from penstock.dialects.sqs.sns.record import Member, Record
from penstock.dialects.sqs.sns.seals import Seals
from penstock.dialects.sqs.sns.topics import Topics, dead_letters, page
from penstock.intake.receipt import Receipt
from penstock.message import Rows
from penstock.node.topic import Topic
from penstock.registry.answer import Answer

HTTP = ("http", "https")
PENDING = "pending confirmation"
#: A subscription that is not confirmed, or was cancelled, is forgotten after this; as long a token holds.
TOKEN_NS = 48 * 3600 * SECOND
#: Subscriptions of a topic that may filter.
POLICIES_MAX = 200

#: What only the node says.
_READ_ONLY = frozenset(
    (
        "SubscriptionArn",
        "TopicArn",
        "Protocol",
        "Endpoint",
        "Owner",
        "ConfirmationWasAuthenticated",
        "PendingConfirmation",
        "SubscriptionPrincipal",
        "EffectiveDeliveryPolicy",
    )
)


class Subscriptions:
    """The subscriptions of one node's topics."""

    def __init__(self, topics: Topics, couriers: Couriers, seals: Seals) -> None:
        self._topics = topics
        self._couriers = couriers
        self._seals = seals
        self._names = topics.queues.names
        self._clock = topics.node.clock

    # --- asked for ------------------------------------------------------------------------------------------------

    def subscribe(self, caller: Caller, asked: shapes.Subscribe, base_url: str) -> Answer[shapes.SubscriptionArn]:
        """Let somebody get copies; asked again for the same one, it answers with the same ARN."""
        name, record = self._topics.find(caller, "change", asked.topic_arn)
        if asked.protocol == "sqs":
            return self._subscribe_queue(caller, asked, name, record)
        if asked.protocol in HTTP:
            return self._subscribe_endpoint(caller, asked, name, record, base_url)
        text = f"Invalid parameter: Does not support this protocol string: {asked.protocol[:50]}"
        raise Fault("InvalidParameter", text)

    def _subscribe_queue(
        self, caller: Caller, asked: shapes.Subscribe, name: str, record: Record
    ) -> Answer[shapes.SubscriptionArn]:
        queue = self._names.of_arn(asked.endpoint)
        if queue is None:
            raise Fault("InvalidParameter", "Invalid parameter: SQS endpoint ARN")
        caller.check("change", queue, f"fan-out from {name}")
        found = self._topics.queues.known(queue)
        if found is None:
            raise Fault("InvalidParameter", "Invalid parameter: Endpoint: there is no such queue")
        if queue.endswith(FIFO) and not name.endswith(FIFO):
            raise Fault("InvalidParameter", "Invalid parameter: Endpoint: a FIFO queue takes messages of FIFO topics")
        self._check(asked.attributes)
        known = _same(record, asked, lambda member: member.queue == queue)
        if known is None:
            _check_filters(record, asked.attributes)
        id_ = known or str(uuid4())
        member = Member(queue=queue, attributes=asked.attributes)
        noted = self._topics.change(name, lambda now: now if id_ in now.members else now.having(id_, member))
        added = noted.then_ask(lambda _: self._topics.node.fanouts.add(name, found.topic))
        return added.then_make(lambda _: shapes.SubscriptionArn(subscription_arn=self._arn(name, id_)))

    def _subscribe_endpoint(
        self, caller: Caller, asked: shapes.Subscribe, name: str, record: Record, base_url: str
    ) -> Answer[shapes.SubscriptionArn]:
        if name.endswith(FIFO):
            raise Fault("InvalidParameter", "Invalid parameter: Invalid protocol type: FIFO topics have queues only")
        self._couriers.allowed.check(asked.endpoint, asked.protocol, caller.address)
        self._check(asked.attributes)
        known = _same(record, asked, lambda member: member.endpoint == asked.endpoint)
        if known is None:
            _check_filters(record, asked.attributes)
        id_ = known or str(uuid4())
        member = record.members.get(id_) or Member(
            endpoint=asked.endpoint,
            attributes=asked.attributes,
            state="pending",
            token=token_hex(64),
            until_ns=self._clock.now() + TOKEN_NS,
            base_url=base_url,
        )
        arn = self._arn(name, id_)
        if member.state == "confirmed":
            return Answer.of(shapes.SubscriptionArn(subscription_arn=arn))
        made = self._couriers.outbox(id_, caller)
        noted = made.then_ask(lambda _: self._topics.change(name, lambda now: now.having(id_, member)))
        asked_it = noted.then_ask(lambda _: self._ask(name, id_, member, cancelled=False))
        shown = arn if asked.return_subscription_arn else PENDING
        return asked_it.then_make(lambda _: shapes.SubscriptionArn(subscription_arn=shown))

    def _ask(self, name: str, id_: str, member: Member, *, cancelled: bool) -> Answer[None]:
        """Put the question to an endpoint whether it wants a subscription, or wants it back."""
        arn, message_id = self._topics.arn(name), str(uuid4())
        document = envelope.confirmation(
            arn, message_id, member.token, member.base_url, self._clock.now(), cancelled=cancelled
        )
        version = self._topics.record(name).attributes.get("SignatureVersion", "1")
        headers = {TYPE: document["Type"], "x-amz-sns-message-id": message_id, "x-amz-sns-topic-arn": arn}
        if cancelled:
            headers["x-amz-sns-subscription-arn"] = self._arn(name, id_)

        def post(sealed: dict[str, object]) -> Answer[None]:
            kept = self._couriers.outbox(id_)
            rows = Rows.of([msgspec.json.encode(sealed)], SOURCE, {"headers": [msgspec.json.encode(headers)]})
            stored = kept.then_ask(lambda topic: _stored(topic, rows, self))
            return stored.then_make(lambda _: self._couriers.attend(name, id_, member))

        signed = self._seals.sign([envelope.signed_text(document)], version)
        return signed.then_make(
            lambda found: envelope.sealed(document, version, found.signatures[0], member.base_url + found.path)
        ).then_ask(post)

    def confirm(self, asked: shapes.ConfirmSubscription) -> Answer[shapes.SubscriptionArn]:
        """Begin a subscription, or take its end back, for whoever has the token that its endpoint was sent."""
        head = self._topics.arn("")
        name = asked.topic_arn.removeprefix(head)
        if not asked.topic_arn.startswith(head) or self._topics.node.fanouts.get(name) is None:
            raise Fault("NotFound", "Topic does not exist")
        token = asked.token.encode("utf-8", "replace")
        found = [
            (id_, member)
            for id_, member in self._topics.record(name).members.items()
            if member.token and compare_digest(member.token.encode(), token)
        ]
        if not found:
            raise Fault("InvalidParameter", "Invalid parameter: Token")
        id_, member = found[0]
        told = shapes.SubscriptionArn(subscription_arn=self._arn(name, id_))
        if member.state == "confirmed":
            return Answer.of(told)
        if member.until_ns <= self._clock.now():
            raise Fault("InvalidParameter", "Invalid parameter: Token Reason: it is too old; subscribe again")
        wants_caller = asked.authenticate_on_unsubscribe.lower() == "true"
        begun = msgspec.structs.replace(member, state="confirmed", asks_caller=wants_caller)
        made = self._couriers.outbox(id_)
        noted = made.then_ask(lambda _: self._topics.change(name, lambda now: now.having(id_, begun)))
        attended = noted.then_make(lambda _: self._couriers.attend(name, id_, begun))
        return attended.then_make(lambda _: told)

    # --- cancelled ------------------------------------------------------------------------------------------------

    def is_open(self, asked: shapes.BySubscription) -> bool:
        """Tell whether whoever knows a subscription's ARN may cancel it: an endpoint does, from its messages."""
        topic, _, id_ = asked.subscription_arn.rpartition(":")
        head = self._topics.arn("")
        member = self._topics.record(topic.removeprefix(head)).members.get(id_) if topic.startswith(head) else None
        return member is not None and bool(member.endpoint) and not member.asks_caller

    def unsubscribe(self, caller: Caller, asked: shapes.BySubscription) -> Answer[Nothing]:
        """Let somebody get no more copies; one that is not subscribed is not any more."""
        if self.is_open(asked):
            topic, _, id_ = asked.subscription_arn.rpartition(":")
            name = topic.removeprefix(self._topics.arn(""))
            found = self._topics.record(name).shown().get(id_)
            return self._cancel(name, id_, found) if found is not None else Answer.of(Nothing())
        try:
            name, id_, member = self._topics.member(caller, "change", asked.subscription_arn)
        except Fault as fault:
            if fault.name != "NotFound":
                raise
            return Answer.of(Nothing())
        if member.endpoint:
            return self._cancel(name, id_, member)
        gone = self._topics.node.fanouts.remove(name, member.queue)
        noted = gone.then_ask(lambda _: self._topics.change(name, lambda record: record.lacking(id_)))
        return noted.then_make(lambda _: Nothing())

    def _cancel(self, name: str, id_: str, member: Member) -> Answer[Nothing]:
        """End the subscription of an endpoint; one that was confirmed is told so, and may take it back."""
        if member.state == "pending":
            dropped = self._topics.change(name, lambda record: record.lacking(id_))
            dropped.then(lambda _, error: self._couriers.dismiss(id_) if error is None else None)
            return dropped.then_make(lambda _: Nothing())
        left = msgspec.structs.replace(member, state="left", token=token_hex(64), until_ns=self._clock.now() + TOKEN_NS)

        def tell(_: Record) -> Answer[None]:
            self._couriers.empty(id_)
            return self._ask(name, id_, left, cancelled=True)

        # Its outbox first: where that is at another node, so is all of this, and nothing of it was done here.
        found = self._couriers.outbox(id_)
        noted = found.then_ask(lambda _: self._topics.change(name, lambda now: now.having(id_, left)))
        return noted.then_ask(tell).then_make(lambda _: Nothing())

    def delete_topic(self, caller: Caller, asked: shapes.ByTopic) -> Answer[Nothing]:
        """Delete a topic with its subscriptions, and what endpoints did not get yet."""

        def dismiss(record: Record) -> Nothing:
            for id_, member in record.members.items():
                if member.endpoint:
                    self._couriers.dismiss(id_)
            return Nothing()

        return self._topics.delete(caller, asked).then_make(dismiss)

    # --- listed ---------------------------------------------------------------------------------------------------

    def list_all(self, caller: Caller, asked: shapes.Page) -> shapes.Subscriptions:
        """List all subscriptions."""
        names = [name for name in self._topics.node.fanouts.names() if caller.may("see", name)]
        found = {arn: each for name in names for arn, each in self._members(name).items()}
        return _listed(found, asked.next_token)

    def of_topic(self, caller: Caller, asked: shapes.ByTopicPage) -> shapes.Subscriptions:
        """List the subscriptions of a topic."""
        name, _ = self._topics.find(caller, "see", asked.topic_arn)
        return _listed(self._members(name), asked.next_token)

    def _members(self, name: str) -> dict[str, shapes.Subscription]:
        return {
            self._arn(name, id_): shapes.Subscription(
                subscription_arn=self._arn(name, id_) if member.state == "confirmed" else "PendingConfirmation",
                owner=self._names.account_id,
                protocol=member.protocol,
                endpoint=member.endpoint or self._names.arn(member.queue),
                topic_arn=self._topics.arn(name),
            )
            for id_, member in sorted(self._topics.record(name).shown().items())
        }

    def attributes(self, caller: Caller, asked: shapes.BySubscription) -> Attributes:
        """Tell attributes of a subscription."""
        name, id_, member = self._topics.member(caller, "see", asked.subscription_arn)
        told = {
            "SubscriptionArn": self._arn(name, id_),
            "TopicArn": self._topics.arn(name),
            "Protocol": member.protocol,
            "Endpoint": member.endpoint or self._names.arn(member.queue),
            "Owner": self._names.account_id,
            "ConfirmationWasAuthenticated": "false" if member.endpoint and not member.asks_caller else "true",
            "PendingConfirmation": "true" if member.state == "pending" else "false",
            "RawMessageDelivery": "false",
            "SubscriptionPrincipal": f"arn:aws:iam::{self._names.account_id}:root",
        }
        if "FilterPolicy" in member.attributes:
            told["FilterPolicyScope"] = "MessageAttributes"
        if member.endpoint:
            base = self._topics.record(name).attributes.get("DeliveryPolicy", "")
            effective = retries.effective(base, member.attributes.get("DeliveryPolicy", ""))
            told["EffectiveDeliveryPolicy"] = msgspec.json.encode(effective).decode()
        return Attributes(attributes={**told, **member.attributes})

    def set_attribute(self, caller: Caller, asked: shapes.SetSubscriptionAttributes) -> Answer[Nothing]:
        """Change an attribute of a subscription."""
        name, id_, member = self._topics.member(caller, "change", asked.subscription_arn)
        attributes = {**member.attributes, asked.attribute_name: asked.attribute_value}
        if asked.attribute_name in _READ_ONLY:
            raise Fault("InvalidParameter", "Invalid parameter: AttributeName")
        if not asked.attribute_value:
            del attributes[asked.attribute_name]
        self._check(attributes)
        if not member.attributes.get("FilterPolicy"):
            _check_filters(self._topics.record(name), attributes)
        changed = msgspec.structs.replace(member, attributes=attributes)
        return self._topics.change(name, lambda record: record.having(id_, changed)).then_make(lambda _: Nothing())

    # --- inside ---------------------------------------------------------------------------------------------------

    def _arn(self, name: str, id_: str) -> str:
        return f"{self._topics.arn(name)}:{id_}"

    def _check(self, attributes: dict[str, str]) -> None:
        """Refuse attributes that no subscription can have."""
        if wrong := attributes.keys() & _READ_ONLY:
            raise Fault("InvalidParameter", f"Invalid parameter: Attributes Reason: {min(wrong)} cannot be set")
        scope = attributes.get("FilterPolicyScope", "MessageAttributes")
        if scope not in ("MessageAttributes", "MessageBody"):
            raise Fault("InvalidParameter", "Invalid parameter: FilterPolicyScope")
        if attributes.get("RawMessageDelivery", "false").lower() not in ("true", "false"):
            raise Fault("InvalidParameter", "Invalid parameter: RawMessageDelivery")
        if attributes.get("FilterPolicy"):
            policy.read(attributes["FilterPolicy"], of_body=scope == "MessageBody")
        retries.of_subscription(attributes.get("DeliveryPolicy", ""))
        queue = dead_letters(attributes, self._names)
        if queue is not None and not self._topics.queues.is_queue(queue):
            raise Fault("InvalidParameter", "Invalid parameter: RedrivePolicy: there is no such queue")


def _check_filters(record: Record, attributes: dict[str, str]) -> None:
    """Refuse one more subscription with a filter than a topic may have."""
    if attributes.get("FilterPolicy") and (
        sum(bool(member.attributes.get("FilterPolicy")) for member in record.members.values()) >= POLICIES_MAX
    ):
        raise Fault("FilterPolicyLimitExceeded", f"A topic has at most {POLICIES_MAX} filter policies.")


def _same(record: Record, asked: shapes.Subscribe, is_it: Callable[[Member], bool]) -> str | None:
    """Return the subscription that is asked for and there already; refuse one that is there with other attributes."""
    known = next((id_ for id_, member in record.shown().items() if is_it(member)), None)
    if known is not None and asked.attributes and record.members[known].attributes != asked.attributes:
        text = "Invalid parameter: Attributes Reason: Subscription already exists with different attributes"
        raise Fault("InvalidParameter", text)
    return known


def _stored(topic: Topic, rows: Rows, publisher: object) -> Answer[None]:
    answer: Answer[None] = Answer()

    def done(receipt: Receipt | None, error: BaseException | None) -> None:
        if receipt is not None:
            answer.give(None)
        else:
            answer.refuse(error if isinstance(error, Exception) else Fault("InternalFailure", "It was not stored."))

    topic.publish(rows, publisher, done)
    return answer


def _listed(found: dict[str, shapes.Subscription], token: str) -> shapes.Subscriptions:
    some, next_token = page(sorted(found), token)
    return shapes.Subscriptions(subscriptions=[found[arn] for arn in some], next_token=next_token)
