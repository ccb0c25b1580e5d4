"""Messages of a queue: sent, received, deleted, made visible again.

A receive is a look of the holder `sqs`: what it finds is on lease under that name, written down before the answer, and
answered for by receipt, after a restart too. Batches are one `Rows` in, and one array of receipts back.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from hashlib import md5, sha256
from typing import NamedTuple, Protocol, TypeVar

from penstock.callers import Caller
from penstock.clock import MILLISECOND, SECOND
from penstock.columns import HEADERS_BYTES_MAX, Column
from penstock.delivery import receipts
from penstock.delivery.source import Delivery
from penstock.dialects.sqs import values
from penstock.dialects.sqs.attributes import VISIBILITY_S_MAX
from penstock.dialects.sqs.choices import MESSAGE_BYTES_MAX, SqsChoices
from penstock.dialects.sqs.codec import shapes
from penstock.dialects.sqs.codec.shapes import SendEntry, Sending, SendMessage, Value
from penstock.dialects.sqs.faults import Fault, invalid, missing, no_queue, within
from penstock.dialects.sqs.ids import message_id, message_ids
from penstock.dialects.sqs.queues import Queue, Queues
from penstock.http import Request
from penstock.intake.receipt import Receipt
from penstock.message import Batch, Rows
from penstock.moves.letters import PREFIX as DEAD
from penstock.node.admission import publish
from penstock.node.polls import Polls
from penstock.registry.answer import Answer

SOURCE = "sqs"
HOLDER = "sqs"
BATCH_MAX = 10
ID_LETTERS_MAX = 80
#: More on lease is refused, as Amazon does.
IN_FLIGHT_MAX = 120_000

_UNSPEAKABLE = (
    "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | "
    "#x10000 to #x10FFFF"
)
_ID = re.compile(r"[A-Za-z0-9_-]+").fullmatch
_PLAIN = re.compile(r"""[A-Za-z0-9!"#$%&'()*+,./:;<=>?@\[\\\]^_`{|}~-]{1,128}""").fullmatch

R = TypeVar("R", shapes.DeleteEntry, shapes.ChangeEntry)
T = TypeVar("T")


class Entry(Protocol):
    """One of several."""

    @property
    def id(self) -> str:
        """What its sender calls it."""


class Draft(NamedTuple):
    """A message that may be stored, and what its sender is told of it."""

    body: bytes
    due_ns: int | None
    key: bytes | None
    tag: str | None
    traffic: int | None
    headers: bytes | None
    dedup: bytes | None
    body_md5: str
    values_md5: str | None
    system_md5: str | None
    size: int


class Messages:
    """What is done with messages."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._node = queues.node
        self.polls = Polls(queues.node)

    # --- in -------------------------------------------------------------------------------------------------------

    def send(self, caller: Caller, asked: SendMessage, publisher: object) -> Answer[shapes.Sent]:
        """Store one message."""
        queue = self._queues.find(caller, "publish", asked.queue_url)
        incarnation, choices = queue.topic.record.incarnation, queue.choices
        bodies = _plain(choices, [asked])
        if bodies is not None:
            return self._publish(
                caller,
                queue,
                Rows(1, [0, len(bodies[0])], bodies[0], SOURCE),
                publisher,
                lambda receipt: shapes.Sent(
                    message_id=message_id(incarnation, receipt.first_id), md5_of_message_body=_md5(bodies[0])
                ),
            )
        draft, is_fifo = self._draft(queue, asked), choices.fifo

        def sent(receipt: Receipt) -> shapes.Sent:
            id_ = receipt.ids()[0]
            return shapes.Sent(
                message_id=message_id(incarnation, id_),
                md5_of_message_body=draft.body_md5,
                md5_of_message_attributes=draft.values_md5,
                md5_of_message_system_attributes=draft.system_md5,
                sequence_number=sequence(id_) if is_fifo else None,
            )

        return self._publish(caller, queue, _rows([draft]), publisher, sent)

    def send_batch(self, caller: Caller, asked: shapes.SendMessageBatch, publisher: object) -> Answer[shapes.SentBatch]:
        """Store several messages together; what is wrong with one is told of that one alone."""
        queue = self._queues.find(caller, "publish", asked.queue_url)
        check_batch(asked.entries)
        bodies = _plain(queue.choices, asked.entries)
        if bodies is not None and sum(map(len, bodies)) <= MESSAGE_BYTES_MAX:
            return self._send_plain(caller, queue, asked.entries, bodies, publisher)
        told = shapes.SentBatch(successful=[], failed=[])
        drafts: list[Draft] = []
        entries: list[SendEntry] = []
        for entry in asked.entries:
            try:
                drafts.append(self._draft(queue, entry))
                entries.append(entry)
            except Fault as fault:
                told.failed.append(failed(entry.id, fault))
        if sum([draft.size for draft in drafts]) > MESSAGE_BYTES_MAX:
            text = f"Batch requests cannot be longer than {MESSAGE_BYTES_MAX} bytes."
            raise Fault("BatchRequestTooLong", text)
        if not drafts:
            return Answer.of(told)
        incarnation, is_fifo = queue.topic.record.incarnation, queue.choices.fifo

        def sent(receipt: Receipt) -> shapes.SentBatch:
            for entry, draft, id_ in zip(entries, drafts, receipt.ids(), strict=True):
                told.successful.append(
                    shapes.SentEntry(
                        id=entry.id,
                        message_id=message_id(incarnation, id_),
                        md5_of_message_body=draft.body_md5,
                        md5_of_message_attributes=draft.values_md5,
                        md5_of_message_system_attributes=draft.system_md5,
                        sequence_number=sequence(id_) if is_fifo else None,
                    )
                )
            return told

        return self._publish(caller, queue, _rows(drafts), publisher, sent)

    def _send_plain(
        self, caller: Caller, queue: Queue, entries: Sequence[SendEntry], bodies: list[bytes], publisher: object
    ) -> Answer[shapes.SentBatch]:
        """Store several messages that are nothing but their bodies."""
        incarnation = queue.topic.record.incarnation

        def sent(receipt: Receipt) -> shapes.SentBatch:
            return shapes.SentBatch(
                successful=[
                    shapes.SentEntry(id=entry.id, message_id=id_, md5_of_message_body=_md5(body))
                    for entry, body, id_ in zip(entries, bodies, message_ids(incarnation, receipt.ids()), strict=True)
                ]
            )

        return self._publish(caller, queue, Rows.of(bodies, SOURCE), publisher, sent)

    def _draft(self, queue: Queue, asked: Sending) -> Draft:
        """Return a message as it will be stored; refuse what Amazon would."""
        choices, text = queue.choices, asked.message_body
        if not text:
            raise missing("MessageBody")
        if not text.isprintable() and values.unspeakable(text):
            raise Fault("InvalidMessageContents", _UNSPEAKABLE)
        body = text.encode()
        size = len(body) + (values.check(asked.message_attributes) if asked.message_attributes else 0)
        if size > choices.message_bytes:
            reason = f"Message must be shorter than {choices.message_bytes} bytes."
            raise Fault("InvalidParameterValue", f"One or more parameters are invalid. Reason: {reason}")
        system = asked.message_system_attributes
        for name in system:
            if name != "AWSTraceHeader":
                raise Fault("InvalidParameterValue", f"Message system attribute name '{name[:100]}' is invalid.")
        headers = values.kept(asked.message_attributes, system)
        if headers is not None and len(headers) > HEADERS_BYTES_MAX:
            text = f"Message attributes take more than {HEADERS_BYTES_MAX} bytes as they are stored."
            raise Fault("InvalidParameterValue", text)
        return Draft(
            body,
            self._due_ns(asked.delay_seconds, choices.delay_s, is_fifo=choices.fifo),
            _group(asked.message_group_id, is_fifo=choices.fifo),
            values.tag(asked.message_attributes),
            values.traffic(asked.message_attributes),
            headers,
            _dedup(queue, asked, body),
            _md5(body),
            values.digest(asked.message_attributes),
            values.digest(system),
            size,
        )

    def _due_ns(self, asked_s: int | None, queue_s: int, *, is_fifo: bool) -> int | None:
        within("DelaySeconds", asked_s, 0, 900)
        if is_fifo and asked_s:
            reason = "The request include parameter that is not valid for this queue type."
            raise invalid("DelaySeconds", asked_s, reason)
        delay_s = queue_s if asked_s is None else asked_s
        return self._node.clock.now() + delay_s * SECOND if delay_s else None

    def _publish(
        self, caller: Caller, queue: Queue, rows: Rows, publisher: object, make: Callable[[Receipt], T]
    ) -> Answer[T]:
        """Store rows; the answer is what is made of their receipt."""
        answer: Answer[T] = Answer()

        def done(receipt: Receipt | None, error: BaseException | None) -> None:
            if receipt is None:
                answer.refuse(error if isinstance(error, Exception) else no_queue())
                return
            try:
                made = make(receipt)
            except Exception as failure:
                answer.refuse(failure)
            else:
                answer.give(made)

        if "dedup" in rows.columns:
            queue.topic.intake.pass_time()
        elif "key" in rows.columns:
            self._queues.share(queue)
        publish(queue.topic, caller, rows, publisher, done)
        return answer

    # --- out ------------------------------------------------------------------------------------------------------

    def receive(self, caller: Caller, asked: shapes.ReceiveMessage, request: Request) -> Answer[shapes.Received]:
        """Lease messages, waiting for the first if told to."""
        queue, limit, lease_ns, wait_ns = self._wanted(caller, asked)
        poll = self.polls.begin(queue.topic, queue.subscription, HOLDER, limit, lease_ns, wait_ns)
        if not poll.answer.is_given:
            request.on_gone(poll.give_up)
        return poll.answer.then_make(lambda found: shapes.Received(messages=self.shown(queue, asked, found)))

    def receive_now(self, caller: Caller, asked: shapes.ReceiveMessage) -> shapes.Received | None:
        """Lease messages that are there; None if there are none at this moment."""
        queue, limit, lease_ns, _ = self._wanted(caller, asked)
        subscription = queue.subscription
        subscription.expire(self._node.now())
        if subscription.is_busy() or not subscription.dealer.can_give():
            return None
        found: list[shapes.Message] = []
        look = subscription.holder(HOLDER).look(
            limit, lease_ns, lambda deliveries: found.extend(self.shown(queue, asked, deliveries))
        )
        if not found:
            look.close()
            return None
        return shapes.Received(messages=found)

    def _wanted(self, caller: Caller, asked: shapes.ReceiveMessage) -> tuple[Queue, int, int, int]:
        """Return the queue that a receive is about, how many it wants, for how long, and how long it would wait."""
        queue = self._queues.find(caller, "receive", asked.queue_url)
        limit = asked.max_number_of_messages
        if limit is not None and not 1 <= limit <= BATCH_MAX:
            raise invalid("MaxNumberOfMessages", limit, "Must be between 1 and 10, if provided.")
        wait_s = within("WaitTimeSeconds", asked.wait_time_seconds, 0, 20)
        hidden_s = within("VisibilityTimeout", asked.visibility_timeout, 0, VISIBILITY_S_MAX)
        if queue.subscription.in_flight() >= IN_FLIGHT_MAX:
            raise Fault(
                "OverLimit", f"Too many messages in flight: at most {IN_FLIGHT_MAX} are received and not deleted."
            )
        wait_ns = (queue.choices.wait_s if wait_s is None else wait_s) * SECOND
        lease_ns = queue.subscription.settings.lease_ns if hidden_s is None else max(hidden_s * SECOND, 1)
        return queue, limit or 1, lease_ns, wait_ns

    def shown(self, queue: Queue, asked: shapes.ReceiveMessage, deliveries: Sequence[Delivery]) -> list[shapes.Message]:
        """Return leased rows as messages with their receipts."""
        out: list[shapes.Message] = []
        system = {*asked.attribute_names, *asked.message_system_attribute_names}
        incarnation = queue.topic.record.incarnation
        for delivery in deliveries:
            assert delivery.versions is not None
            ids = delivery.ids()
            handles = receipts.written_all(ids, delivery.versions, incarnation)
            plain = None if system else _plain_texts(delivery)
            if plain is not None:
                columns = zip(message_ids(incarnation, ids), handles, *plain, strict=True)
                out += [
                    shapes.Message(message_id=id_, receipt_handle=handle, md5_of_body=digest, body=text)
                    for id_, handle, digest, text in columns
                ]
                continue
            for (id_, attempts, row), handle in zip(delivery.each(), handles, strict=True):
                message = self._message(queue, delivery.batch, row, id_, attempts, system, asked)
                message.receipt_handle = handle
                out.append(message)
        return out

    def _message(
        self,
        queue: Queue,
        batch: Batch,
        row: int,
        id_: int,
        attempts: int,
        system: set[str],
        asked: shapes.ReceiveMessage,
    ) -> shapes.Message:
        raw = batch.row_value("headers", row)
        held, told = values.shown(raw) if isinstance(raw, bytes) else ({}, {})
        body = batch.row_body(row)
        text = _speakable(body)
        if text is None:  # another dialect's: no text that Amazon's clients could be sent
            text = b64encode(body).decode("ascii")
            held[values.ENCODING] = Value(data_type="String", string_value="base64")
            body = text.encode()
        picked = values.wanted(held, asked.message_attribute_names)
        message = shapes.Message(
            message_id=message_id(queue.topic.record.incarnation, id_),
            receipt_handle="",
            md5_of_body=_md5(body),
            body=text,
            md5_of_message_attributes=values.digest(picked),
            message_attributes=picked,
        )
        if system:
            known = self._system(queue, batch, row, id_, attempts, told)
            message.attributes = known if "All" in system else {k: v for k, v in known.items() if k in system}
        return message

    def _system(
        self, queue: Queue, batch: Batch, row: int, id_: int, attempts: int, told: dict[str, str]
    ) -> dict[str, str]:
        sent_ms = batch.row_time(row) // MILLISECOND
        known = {
            "SenderId": self._queues.names.account_id,
            "SentTimestamp": str(sent_ms),
            "ApproximateReceiveCount": str(attempts),
            # When the first of several was is not kept.
            "ApproximateFirstReceiveTimestamp": str(
                self._node.clock.now() // MILLISECOND if attempts == 1 else sent_ms
            ),
        }
        key, dedup = batch.row_value("key", row), batch.row_value("dedup", row)
        if isinstance(key, bytes):
            known["MessageGroupId"] = key.decode("utf-8", "replace")
        if queue.choices.fifo:
            known["SequenceNumber"] = sequence(id_)
            if isinstance(dedup, bytes):
                known["MessageDeduplicationId"] = dedup.rpartition(b"\0")[2].decode("utf-8", "replace")
        if "AWSTraceHeader" in told:
            known["AWSTraceHeader"] = told["AWSTraceHeader"]
        if source := told.get(f"{DEAD}topic"):
            known["DeadLetterQueueSourceArn"] = self._queues.names.arn(source)
        return known

    # --- back -----------------------------------------------------------------------------------------------------

    def delete(self, caller: Caller, asked: shapes.DeleteMessage) -> shapes.Nothing:
        """Delete a message that was received; a handle that is stale deletes nothing, and is no fault."""
        queue = self._queues.find(caller, "receive", asked.queue_url)
        (outcome,) = self._finish(queue, [_receipt(queue, asked.receipt_handle)])
        if outcome == "late":
            raise _expired(asked.receipt_handle)
        return shapes.Nothing()

    def delete_batch(self, caller: Caller, asked: shapes.DeleteMessageBatch) -> shapes.DoneBatch:
        """Delete several."""
        queue = self._queues.find(caller, "receive", asked.queue_url)
        check_batch(asked.entries)
        told = shapes.DoneBatch(successful=[], failed=[])
        read = self._read(queue, asked.entries, told)
        outcomes = self._finish(queue, [receipt for _, receipt in read])
        for (entry, _), outcome in zip(read, outcomes, strict=True):
            if outcome == "late":
                told.failed.append(failed(entry.id, _expired(entry.receipt_handle)))
            else:
                told.successful.append(shapes.Done(id=entry.id))
        return told

    def _finish(self, queue: Queue, given: Sequence[receipts.Receipt]) -> list[receipts.Outcome]:
        """Delete messages; in FIFO queues none whose time is over: the next of its group may be out already."""
        return receipts.finish(queue.subscription.holder(HOLDER), given, late=not queue.choices.fifo)

    def change(self, caller: Caller, asked: shapes.ChangeMessageVisibility) -> shapes.Nothing:
        """Let a message be invisible for so long from now on."""
        queue = self._queues.find(caller, "receive", asked.queue_url)
        _check_visibility(asked.visibility_timeout)
        seat, receipt = queue.subscription.holder(HOLDER), _receipt(queue, asked.receipt_handle)
        if not all(receipts.extend(seat, [receipt], [asked.visibility_timeout * SECOND])):
            raise _not_in_flight()
        return shapes.Nothing()

    def change_batch(self, caller: Caller, asked: shapes.ChangeMessageVisibilityBatch) -> shapes.DoneBatch:
        """Do so with several."""
        queue = self._queues.find(caller, "receive", asked.queue_url)
        check_batch(asked.entries)
        told = shapes.DoneBatch(successful=[], failed=[])
        read: list[tuple[shapes.ChangeEntry, tuple[int, int]]] = []
        for entry, receipt in self._read(queue, asked.entries, told):
            try:
                _check_visibility(entry.visibility_timeout)
                read.append((entry, receipt))
            except Fault as fault:
                told.failed.append(failed(entry.id, fault))
        times_ns = [(entry.visibility_timeout or 0) * SECOND for entry, _ in read]
        held = receipts.extend(queue.subscription.holder(HOLDER), [receipt for _, receipt in read], times_ns)
        for (entry, _), holds in zip(read, held, strict=True):
            if holds:
                told.successful.append(shapes.Done(id=entry.id))
            else:
                told.failed.append(failed(entry.id, _not_in_flight()))
        return told

    def _read(self, queue: Queue, entries: Sequence[R], told: shapes.DoneBatch) -> list[tuple[R, tuple[int, int]]]:
        """Return the entries with their receipts; those that have none are told of."""
        handles = [entry.receipt_handle for entry in entries]
        found = receipts.read_all(handles, queue.topic.record.incarnation)
        read = []
        for entry, receipt in zip(entries, found, strict=True):
            if receipt is not None:
                read.append((entry, receipt))
            else:
                told.failed.append(failed(entry.id, _no_receipt(entry.receipt_handle)))
        return read


def sequence(id_: int) -> str:
    """Return the sequence number of a message of a FIFO queue: it grows within a queue."""
    return f"{id_:020d}"


def failed(id_: str, fault: Fault) -> shapes.Failed:
    """Return what is told of one entry that was refused."""
    return shapes.Failed(id=id_, sender_fault=fault.kind.is_sender, code=fault.kind.code, message=str(fault))


def check_batch(entries: Sequence[Entry]) -> None:
    """Refuse what is no batch."""
    if not entries:
        raise Fault("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(entries) > BATCH_MAX:
        text = f"Maximum number of entries per request are {BATCH_MAX}. You have sent {len(entries)}."
        raise Fault("TooManyEntriesInBatchRequest", text)
    ids = [entry.id for entry in entries]
    if not all(ids) or max(map(len, ids)) > ID_LETTERS_MAX or _ID("".join(ids)) is None:
        raise Fault(
            "InvalidBatchEntryId",
            "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most "
            f"{ID_LETTERS_MAX} letters long.",
        )
    if len(set(ids)) < len(ids):
        again = next(id_ for id_ in ids if ids.count(id_) > 1)
        raise Fault("BatchEntryIdsNotDistinct", f"Id {again} repeated.")


def _check_visibility(seconds: int | None) -> None:
    if seconds is None:
        raise missing("VisibilityTimeout")
    if not 0 <= seconds <= VISIBILITY_S_MAX:
        reason = f"Must be between 0 and {VISIBILITY_S_MAX}."
        raise invalid("VisibilityTimeout", seconds, reason)


def _receipt(queue: Queue, text: str) -> receipts.Receipt:
    receipt = receipts.read(text, queue.topic.record.incarnation)
    if receipt is None:
        raise _no_receipt(text)
    return receipt


def _no_receipt(text: str) -> Fault:
    return Fault("ReceiptHandleIsInvalid", f'The input receipt handle "{text[:200]}" is not a valid receipt handle.')


def _not_in_flight() -> Fault:
    return Fault("MessageNotInflight", "The message referred to is not in flight.")


def _expired(handle: str) -> Fault:
    return invalid("ReceiptHandle", handle, "The receipt handle has expired.")


def _group(group: str | None, *, is_fifo: bool) -> bytes | None:
    if group is None or not group:
        if is_fifo:
            raise missing("MessageGroupId")
        return None
    if _PLAIN(group) is None:
        reason = "MessageGroupId can only include alphanumeric and punctuation characters. 1 to 128 in length."
        raise invalid("MessageGroupId", group[:128], reason)
    return group.encode()


def _dedup(queue: Queue, asked: Sending, body: bytes) -> bytes | None:
    choices, given = queue.choices, asked.message_deduplication_id
    if not choices.fifo:
        if given:
            reason = "The request include parameter that is not valid for this queue type."
            raise invalid("MessageDeduplicationId", given[:128], reason)
        return None
    if given is not None and _PLAIN(given) is None:
        reason = "MessageDeduplicationId can only include alphanumeric and punctuation characters. 1 to 128 in length."
        raise invalid("MessageDeduplicationId", given[:128], reason)
    if given is None:
        if not choices.content_dedup:
            raise Fault(
                "InvalidParameterValue",
                "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
                "explicitly",
            )
        given = sha256(body).hexdigest()
    if choices.dedup_scope == "messageGroup":
        return (asked.message_group_id or "").encode() + b"\0" + given.encode()
    return given.encode()


def _speakable(body: bytes) -> str | None:
    """Return the text of a body, None if it is none that may be sent."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() or not values.unspeakable(text) else None


def _plain_texts(delivery: Delivery) -> tuple[list[str], list[str]] | None:
    """Return digests and texts of bodies that are all their messages are, and may be sent as they are; else None."""
    if "headers" in delivery.batch.columns:
        return None
    bodies = delivery.batch.bodies(delivery.rows)
    try:
        texts = [body.decode() for body in bodies]
    except UnicodeDecodeError:
        return None
    if not "".join(texts).isprintable():  # of the rest somebody has to look
        return None
    return [md5(body, usedforsecurity=False).hexdigest() for body in bodies], texts


def _plain(choices: SqsChoices, asked: Sequence[SendMessage | SendEntry]) -> list[bytes] | None:
    """Return the bodies of messages that are nothing else, and that nothing is wrong with; else None."""
    if choices.fifo or choices.delay_s:
        return None
    bodies = []
    for each in asked:
        text = each.message_body
        if (
            not text
            or not text.isprintable()  # what is printable may be sent; of the rest somebody has to look
            or each.message_attributes
            or each.delay_seconds is not None
            or each.message_system_attributes
            or each.message_group_id is not None
            or each.message_deduplication_id is not None
        ):
            return None
        body = text.encode()
        if len(body) > choices.message_bytes:
            return None
        bodies.append(body)
    return bodies


def _rows(drafts: Sequence[Draft]) -> Rows:
    """Return messages as they are stored."""
    given: dict[str, Column] = {
        "due": [draft.due_ns for draft in drafts],
        "key": [draft.key for draft in drafts],
        "tag": [draft.tag for draft in drafts],
        "traffic": [draft.traffic for draft in drafts],
        "headers": [draft.headers for draft in drafts],
        "dedup": [draft.dedup for draft in drafts],
    }
    columns = {name: column for name, column in given.items() if any(value is not None for value in column)}
    return Rows.of([draft.body for draft in drafts], SOURCE, columns)


def _md5(body: bytes) -> str:
    return md5(body, usedforsecurity=False).hexdigest()
