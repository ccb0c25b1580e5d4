"""What is published to a topic of SNS goes to its subscribers: as it is, or in an envelope, as far as filters take it.

Every queue, and the outbox of every endpoint, gets its copy in one piece, whatever the number of messages. If one of
them cannot be reached, nothing is stored; if one refuses, the publisher is told so and may publish again: copies may be
repeated, none is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from penstock.callers import Caller
from penstock.columns import HEADERS_BYTES_MAX, Column
from penstock.dialects.sqs import values
from penstock.dialects.sqs.batch import check_batch, failed
from penstock.dialects.sqs.choices import SqsChoices
from penstock.dialects.sqs.codec.shapes import Values
from penstock.dialects.sqs.drafts import SOURCE, is_id
from penstock.dialects.sqs.faults import Fault
from penstock.dialects.sqs.names import FIFO
from penstock.dialects.sqs.sns import envelope, policy, shapes
from penstock.dialects.sqs.sns.conditions import Effort
from penstock.dialects.sqs.sns.couriers import NOTIFICATION, TYPE
from penstock.dialects.sqs.sns.record import OUTBOX, Member, Record
from penstock.dialects.sqs.sns.seals import Sealed, Seals
from penstock.dialects.sqs.sns.subscriptions import HTTP
from penstock.dialects.sqs.sns.topics import Topics, dead_letters
from penstock.intake.receipt import Receipt
from penstock.message import Rows
from penstock.node.admission import admit
from penstock.peers.far import Reached, Unreached, reached
from penstock.registry.answer import Answer

MESSAGE_BYTES_MAX = 262_144
SUBJECT_MAX = 100

_RAW = Member(attributes={"RawMessageDelivery": "true"})


class Draft(NamedTuple):
    """A message on its way."""

    id: str
    #: What Amazon's limits count: text and attributes.
    size: int
    text: str
    #: What it says to subscribers of other protocols than this.
    forms: dict[str, str]
    subject: str | None
    values: Values
    key: bytes | None
    dedup: bytes | None

    def said_to(self, member: Member) -> str:
        """Return what a subscriber gets to read."""
        return self.forms.get(member.protocol, self.text)


class Recipient(NamedTuple):
    """Who gets copies, and where they are stored."""

    topic: Reached
    id: str
    member: Member


#: Envelopes by message and what it says, signed, without what tells subscribers apart.
Envelopes = dict[tuple[str, str], envelope.Document]


class Publisher:
    """Publishes to topics."""

    def __init__(self, topics: Topics, seals: Seals) -> None:
        self._topics = topics
        self._node = topics.node
        self._seals = seals
        #: The last number that a message of a FIFO topic got.
        self._number = 0

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
        published = shapes.Published(message_id=draft.id, sequence_number=self._next_number(name))
        return sent.then_make(lambda _: published)

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
                number = self._next_number(name)
                told.successful.append(
                    shapes.PublishedEntry(id=entry.id, message_id=drafts[-1].id, sequence_number=number)
                )
            except Fault as fault:
                told.failed.append(failed(entry.id, fault))
        if sum(draft.size for draft in drafts) > MESSAGE_BYTES_MAX:
            raise Fault("BatchRequestTooLong", f"The length of all messages is above {MESSAGE_BYTES_MAX} bytes.")
        if not drafts:
            return Answer.of(told)
        return self._send(caller, name, record, drafts, base_url, publisher).then_make(lambda _: told)

    def _next_number(self, name: str) -> str | None:
        """Return the number of a FIFO topic's next message: greater than those before, also over a restart."""
        if not name.endswith(FIFO):
            return None
        self._number = max(self._number + 1, self._node.clock.now())
        return f"{self._number:020d}"

    def _send(
        self, caller: Caller, name: str, record: Record, drafts: Sequence[Draft], base_url: str, publisher: object
    ) -> Answer[None]:
        """Store the copies; the answer is there when all are, or one is refused."""
        recipients = self._recipients(name, record)

        sieve = Sieve(len(drafts))
        passed = [(each, [draft for draft in drafts if sieve.takes(each.member, draft)]) for each in recipients]
        for each, some in passed:
            if some and isinstance(each.topic, Unreached):
                raise each.topic.refusal

        def store(envelopes: Envelopes) -> Answer[None]:
            copies = [
                (each.topic, self._rows(name, each, some, envelopes, base_url, self._keys(name, record, each, some)))
                for each, some in passed
                if some
            ]
            return self._store(caller, copies, publisher)

        # All of them, whatever filters take: else one message would overtake another that has to be signed.
        wrapped = [each.member for each in recipients if not each.member.is_raw]
        if not wrapped:
            return store({})
        version = record.attributes.get("SignatureVersion", "1")
        return self._signed(name, wrapped, drafts, version, base_url).then_ask(store)

    def _recipients(self, name: str, record: Record) -> list[Recipient]:
        """Return who is subscribed, also who cannot be reached now."""
        queues, fanouts = self._topics.queues, self._node.fanouts
        by_queue = {member.queue: (id_, member) for id_, member in record.members.items() if member.queue}
        found = [Recipient(topic, *by_queue.pop(topic.name, ("", _RAW))) for topic in fanouts.topics(name)]
        for queue, (id_, member) in by_queue.items():
            again = queues.reach(queue)
            if again is not None and not isinstance(again, Unreached):
                fanouts.add(name, again)  # it was deleted and made again: it gets messages again, from whomever
            elif again is None:
                letters = dead_letters(member.attributes, queues.names)
                again = queues.reach(letters) if letters is not None else None
            if again is not None:
                found.append(Recipient(again, id_, member))
        for id_, member in record.members.items():
            outbox = reached(self._node, OUTBOX + id_) if member.endpoint else None
            if outbox is not None and member.state == "confirmed":
                found.append(Recipient(outbox, id_, member))
        return found

    def _signed(
        self, name: str, members: Sequence[Member], drafts: Sequence[Draft], version: str, base_url: str
    ) -> Answer[Envelopes]:
        """Answer with the envelopes that are needed; one message says the same to most, and is signed once then."""
        arn, now_ns = self._topics.arn(name), self._node.clock.now()
        subjects = {(draft.id, draft.said_to(member)): draft.subject for draft in drafts for member in members}
        documents = {
            (id_, text): envelope.notification(arn, id_, text, subject, now_ns)
            for (id_, text), subject in subjects.items()
        }

        def seal(sealed: Sealed) -> Envelopes:
            return {
                key: envelope.sealed(document, version, signature, base_url + sealed.path)
                for (key, document), signature in zip(documents.items(), sealed.signatures, strict=True)
            }

        return self._seals.sign([envelope.signed_text(each) for each in documents.values()], version).then_make(seal)

    def _store(self, caller: Caller, copies: Sequence[tuple[Reached, Rows]], publisher: object) -> Answer[None]:
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
            elif "key" in rows.columns and topic.name in self._node.topics:
                queue = self._topics.queues.known(topic.name)
                if queue is not None:
                    self._topics.queues.share(queue)
            topic.publish(rows, publisher, done)
        return stored

    def _keys(self, name: str, record: Record, to: Recipient, drafts: Sequence[Draft]) -> list[bytes | None]:
        """Return by what a queue knows what was published before: its own ids, or where it has none the topic's."""
        by_group = record.attributes.get("FifoThroughputScope", "").lower() == "messagegroup"
        before = b""
        if to.topic.name.endswith(FIFO):
            choices = self._node.known.chosen(to.topic.name, SqsChoices)
            by_group = by_group and choices is not None and choices.dedup_scope == "messageGroup"
        else:
            before = b"sns\0" + name.encode() + b"\0"
        return [
            before + (draft.key + b"\0" if by_group and draft.key else b"") + draft.dedup
            if draft.dedup is not None
            else None
            for draft in drafts
        ]

    def _rows(
        self,
        name: str,
        to: Recipient,
        drafts: Sequence[Draft],
        envelopes: Envelopes,
        base_url: str,
        keys: list[bytes | None],
    ) -> Rows:
        member, arn = to.member, self._topics.arn(name)
        headers: list[bytes | None] = [None] * len(drafts)
        if member.is_raw:
            bodies = [draft.said_to(member).encode() for draft in drafts]
            headers = [values.kept(draft.values, {}) for draft in drafts]
        else:
            bodies = [
                envelope.addressed(envelopes[draft.id, draft.said_to(member)], base_url, f"{arn}:{to.id}", draft.values)
                for draft in drafts
            ]
        if member.endpoint:
            headers = [_request_headers(draft.id, arn, to.id, is_raw=member.is_raw) for draft in drafts]
        given: dict[str, Column] = {
            "headers": headers,
            "key": [draft.key for draft in drafts],
            "tag": [values.tag(draft.values) for draft in drafts],
            "traffic": [values.traffic(draft.values) for draft in drafts],
            "dedup": keys,
        }
        columns = {column: held for column, held in given.items() if any(value is not None for value in held)}
        return Rows.of(bodies, SOURCE, columns)


def _request_headers(id_: str, arn: str, member: str, *, is_raw: bool) -> bytes:
    """Return the headers of a request to an endpoint, as its outbox keeps them."""
    told = {
        TYPE: NOTIFICATION,
        "x-amz-sns-message-id": id_,
        "x-amz-sns-topic-arn": arn,
        "x-amz-sns-subscription-arn": f"{arn}:{member}",
    }
    return msgspec.json.encode({**told, "x-amz-sns-rawdelivery": "true"} if is_raw else told)


class Sieve:
    """The filters of subscribers, for the messages of one request: each is read once, and all of it is bounded."""

    def __init__(self, messages: int) -> None:
        self._effort = Effort(messages)
        self._policies: dict[tuple[str, bool], policy.Policy] = {}
        #: What policies look at, by message: its attributes, or what it says to some.
        self._documents: dict[tuple[str, str | None], Any] = {}

    def takes(self, member: Member, draft: Draft) -> bool:
        """Tell whether a subscriber gets a message."""
        text = member.attributes.get("FilterPolicy")
        if not text:
            return True
        wanted = self._policies.get((text, member.of_body))
        if wanted is None:
            wanted = self._policies[text, member.of_body] = policy.read(text, of_body=member.of_body)
        document = self._document(draft, draft.said_to(member) if member.of_body else None)
        return isinstance(document, dict) and policy.takes(wanted, document, self._effort)

    def _document(self, draft: Draft, text: str | None) -> Any:
        key = (draft.id, text)
        if key not in self._documents:
            try:
                found = policy.of_attributes(draft.values) if text is None else msgspec.json.decode(text)
            except (msgspec.MsgspecError, RecursionError):
                found = None
            self._documents[key] = found
        return self._documents[key]


def _draft(asked: shapes.Publishing, name: str, record: Record) -> Draft:
    """Return a message as queues get it; refuse what Amazon would."""
    forms = _forms(asked.message) if asked.message_structure == "json" else {}
    text = forms.pop("default") if forms else asked.message
    if not text or not all(forms.values()):
        raise Fault("InvalidParameter", "Invalid parameter: Empty message")
    if any(values.unspeakable(each) for each in (text, *forms.values())):
        raise Fault("InvalidParameter", "Invalid parameter: Message Reason: characters that are not allowed")
    try:
        size = max(len(each.encode()) for each in (text, *forms.values())) + values.check(asked.message_attributes)
        values.traffic(asked.message_attributes)
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
    group, dedup = _id("MessageGroupId", asked.message_group_id or None), asked.message_deduplication_id
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
        _id("MessageDeduplicationId", dedup)
    elif dedup is not None:
        raise Fault("InvalidParameter", "Invalid parameter: MessageDeduplicationId Reason: only for FIFO topics")
    return Draft(
        str(uuid4()),
        size,
        text,
        forms,
        asked.subject,
        asked.message_attributes,
        group.encode() if group is not None else None,
        dedup.encode() if dedup is not None else None,
    )


def _id(name: str, given: str | None) -> str | None:
    """Return the id of a group or of duplicates; refuse one that no queue would take."""
    if given is not None and is_id(given) is None:
        reason = f"{name} can only include alphanumeric and punctuation characters. 1 to 128 in length"
        raise Fault("InvalidParameter", f"Invalid parameter: {name} Reason: {reason}")
    return given


def _forms(text: str) -> dict[str, str]:
    """Return what a message says to subscribers by their protocol, and to all others."""
    try:
        forms = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        raise Fault(
            "InvalidParameter", "Invalid parameter: Message Structure - JSON message body failed to parse"
        ) from None
    if not isinstance(forms.get("default"), str):
        raise Fault("InvalidParameter", "Invalid parameter: Message Structure - No default entry in JSON message body")
    # Of protocols that are not spoken here anything may be said.
    return {key: said for key, said in forms.items() if key in ("default", "sqs", *HTTP) and isinstance(said, str)}
