"""What is published to a topic of SNS goes to its queues: as it is, or in an envelope, as far as filters take it.

Every queue gets its copy in one piece, whatever the number of messages. If one of them refuses, the publisher is told
so and may publish again: copies may be repeated, none is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import uuid4

import msgspec

from penstock.callers import Caller
from penstock.clock import MILLISECOND
from penstock.columns import HEADERS_BYTES_MAX, Column
from penstock.dialects.sqs import values
from penstock.dialects.sqs.codec.shapes import Values
from penstock.dialects.sqs.faults import Fault
from penstock.dialects.sqs.messages import SOURCE, check_batch, failed
from penstock.dialects.sqs.names import FIFO
from penstock.dialects.sqs.sns import policy, shapes
from penstock.dialects.sqs.sns.topics import Member, Record, Topics
from penstock.intake.receipt import Receipt
from penstock.message import Rows
from penstock.node.admission import admit
from penstock.node.topic import Topic
from penstock.registry.answer import Answer
from penstock.units import times

MESSAGE_BYTES_MAX = 262_144
SUBJECT_MAX = 100

_RAW = Member(queue="", attributes={"RawMessageDelivery": "true"})


class Draft(NamedTuple):
    """A message on its way."""

    id: str
    text: str
    subject: str | None
    values: Values
    key: bytes | None
    dedup: bytes | None


class Publisher:
    """Publishes to topics."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._node = topics.node

    def publish(
        self, caller: Caller, asked: shapes.Publish, base_url: str, publisher: object
    ) -> Answer[shapes.Published]:
        """Publish one message."""
        arn = asked.topic_arn or asked.target_arn
        if not arn:
            raise Fault(
                "InvalidParameter", "Invalid parameter: TopicArn or TargetArn Reason: no value for required parameter"
            )
        name, record = self._topics.find(caller, "publish", arn)
        draft = _draft(asked, name, record)
        sent = self._send(caller, name, record, [draft], base_url, publisher)
        return sent.then_make(lambda _: shapes.Published(message_id=draft.id))

    def publish_batch(
        self, caller: Caller, asked: shapes.PublishBatch, base_url: str, publisher: object
    ) -> Answer[shapes.PublishedBatch]:
        """Publish several."""
        name, record = self._topics.find(caller, "publish", asked.topic_arn)
        entries = asked.publish_batch_request_entries
        check_batch(entries)
        told = shapes.PublishedBatch(successful=[], failed=[])
        drafts = []
        for entry in entries:
            try:
                drafts.append(_draft(entry, name, record))
                told.successful.append(shapes.PublishedEntry(id=entry.id, message_id=drafts[-1].id))
            except Fault as fault:
                told.failed.append(failed(entry.id, fault))
        if sum(len(draft.text.encode()) for draft in drafts) > MESSAGE_BYTES_MAX:
            raise Fault("BatchRequestTooLong", f"The length of all messages is above {MESSAGE_BYTES_MAX} bytes.")
        if not drafts:
            return Answer.of(told)
        return self._send(caller, name, record, drafts, base_url, publisher).then_make(lambda _: told)

    def _send(
        self, caller: Caller, name: str, record: Record, drafts: Sequence[Draft], base_url: str, publisher: object
    ) -> Answer[None]:
        """Store the copies; the answer is there when all are, or one is refused."""
        by_queue = {member.queue: (id_, member) for id_, member in record.members.items()}
        copies: list[tuple[Topic, Rows]] = []
        for topic in self._node.fanouts.topics(name):
            id_, member = by_queue.get(topic.name, ("", _RAW))
            rows = self._rows(name, id_, member, [draft for draft in drafts if _takes(member, draft)], base_url)
            if rows is not None:
                copies.append((topic, rows))
        clock = self._node.clock
        wait_ns = admit(clock, caller, [rows for _, rows in copies])
        until_ns = clock.monotonic() + wait_ns
        stored: Answer[None] = Answer()
        left = len(copies)
        failure: BaseException | None = None

        def done(receipt: Receipt | None, error: BaseException | None) -> None:
            nonlocal left, failure
            left -= 1
            failure = failure or error
            if left:
                return
            if failure is None and wait_ns:
                clock.call_at(until_ns, partial(stored.give, None))
            elif failure is None:
                stored.give(None)
            else:
                stored.refuse(failure if isinstance(failure, Exception) else Fault("InternalFailure", str(failure)))

        if not copies:
            stored.give(None)
        for topic, rows in copies:
            if "dedup" in rows.columns:
                topic.intake.pass_time()
            topic.publish(rows, publisher, done)
        return stored

    def _rows(self, name: str, id_: str, member: Member, drafts: Sequence[Draft], base_url: str) -> Rows | None:
        if not drafts:
            return None
        headers: list[bytes | None] = [None] * len(drafts)
        if member.is_raw:
            bodies = [draft.text.encode() for draft in drafts]
            headers = [values.kept(draft.values, {}) for draft in drafts]
        else:
            bodies = [self._envelope(name, id_, draft, base_url) for draft in drafts]
        given: dict[str, Column] = {
            "headers": headers,
            "key": [draft.key for draft in drafts],
            "dedup": [draft.dedup if member.queue.endswith(FIFO) else None for draft in drafts],
        }
        columns = {column: held for column, held in given.items() if any(value is not None for value in held)}
        return Rows.of(bodies, SOURCE, columns)

    def _envelope(self, name: str, id_: str, draft: Draft, base_url: str) -> bytes:
        arn = self._topics.arn(name)
        told: dict[str, Any] = {"Type": "Notification", "MessageId": draft.id, "TopicArn": arn}
        if draft.subject is not None:
            told["Subject"] = draft.subject
        now_ns = self._node.clock.now() // MILLISECOND * MILLISECOND
        told |= {
            "Message": draft.text,
            "Timestamp": times.shown(now_ns),
            # Not signed: whoever verifies it is told so by an empty signature.
            "SignatureVersion": "1",
            "Signature": "",
            "SigningCertURL": "",
            "UnsubscribeURL": f"{base_url}/?Action=Unsubscribe&SubscriptionArn={quote(f'{arn}:{id_}')}",
        }
        if draft.values:
            told["MessageAttributes"] = {
                key: {"Type": held["type"], "Value": held["value"]}
                for key, held in msgspec.json.decode(values.kept(draft.values, {}) or b"{}").items()
            }
        return msgspec.json.encode(told)


def _takes(member: Member, draft: Draft) -> bool:
    text = member.attributes.get("FilterPolicy")
    if not text:
        return True
    wanted = policy.read(text, of_body=member.of_body)
    if not member.of_body:
        return policy.takes(wanted, policy.of_attributes(draft.values))
    try:
        document = msgspec.json.decode(draft.text)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return isinstance(document, dict) and policy.takes(wanted, document)


def _draft(asked: shapes.Publish | shapes.PublishEntry, name: str, record: Record) -> Draft:
    """Return a message as queues get it; refuse what Amazon would."""
    text = _for_queues(asked.message) if asked.message_structure == "json" else asked.message
    if not text:
        raise Fault("InvalidParameter", "Invalid parameter: Empty message")
    if values.unspeakable(text):
        raise Fault("InvalidParameter", "Invalid parameter: Message Reason: characters that are not allowed")
    try:
        size = len(text.encode()) + values.check(asked.message_attributes)
    except Fault as fault:
        raise Fault("ParameterValueInvalid", str(fault)) from None
    if size > MESSAGE_BYTES_MAX:
        raise Fault("InvalidParameter", "Invalid parameter: Message too long")
    if len(values.kept(asked.message_attributes, {}) or b"") > HEADERS_BYTES_MAX:
        raise Fault(
            "InvalidParameter", f"Invalid parameter: MessageAttributes take more than {HEADERS_BYTES_MAX} bytes"
        )
    if asked.subject is not None and not (0 < len(asked.subject) <= SUBJECT_MAX and "\n" not in asked.subject):
        raise Fault("InvalidParameter", "Invalid parameter: Subject")
    group, dedup = asked.message_group_id, asked.message_deduplication_id
    if name.endswith(FIFO):
        if not group:
            raise Fault(
                "InvalidParameter", "Invalid parameter: The MessageGroupId parameter is required for FIFO topics"
            )
        if dedup is None:
            if record.attributes.get("ContentBasedDeduplication", "").lower() != "true":
                why = (
                    "The topic should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided"
                )
                raise Fault("InvalidParameter", f"Invalid parameter: {why} explicitly")
            dedup = sha256(text.encode()).hexdigest()
    elif dedup is not None:
        raise Fault("InvalidParameter", "Invalid parameter: MessageDeduplicationId Reason: only for FIFO topics")
    return Draft(
        str(uuid4()),
        text,
        asked.subject,
        asked.message_attributes,
        group.encode() if group else None,
        dedup.encode() if dedup is not None else None,
    )


def _for_queues(text: str) -> str:
    """Return what a message of several forms has for queues."""
    try:
        forms = msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.MsgspecError, RecursionError):
        raise Fault(
            "InvalidParameter", "Invalid parameter: Message Structure - JSON message body failed to parse"
        ) from None
    if "default" not in forms:
        raise Fault("InvalidParameter", "Invalid parameter: Message Structure - No default entry in JSON message body")
    return forms.get("sqs", forms["default"])
