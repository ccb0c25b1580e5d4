"""Messages out of a queue.

A receive is a look of the holder `sqs`: what it finds is on lease under that name, written down before the answer, and
answered for by receipt, after a restart too.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import md5

from penstock.callers import Caller
from penstock.clock import MILLISECOND, SECOND
from penstock.delivery import receipts
from penstock.delivery.source import Delivery
from penstock.dialects.sqs import values
from penstock.dialects.sqs.attributes import VISIBILITY_S_MAX
from penstock.dialects.sqs.batch import BATCH_MAX
from penstock.dialects.sqs.codec import shapes
from penstock.dialects.sqs.codec.shapes import Value
from penstock.dialects.sqs.drafts import md5_of
from penstock.dialects.sqs.faults import Fault, invalid, within
from penstock.dialects.sqs.ids import message_id, message_ids, sequence
from penstock.dialects.sqs.queues import Queue, Queues
from penstock.http import Request
from penstock.message import Batch
from penstock.moves.letters import PREFIX as DEAD
from penstock.node.polls import Polls
from penstock.registry.answer import Answer

HOLDER = "sqs"
#: No more are on lease, as at Amazon's.
IN_FLIGHT_MAX = 120_000


class Receiver:
    """Leases messages to clients."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._node = queues.node
        self.polls = Polls(queues.node)

    def receive(self, caller: Caller, asked: shapes.ReceiveMessage, request: Request) -> Answer[shapes.Received]:
        """Lease messages, waiting for the first if told to."""
        queue, limit, lease_ns, wait_ns = self._wanted(caller, asked)
        if _is_full(queue):
            return Answer.of(shapes.Received(messages=[]))
        poll = self.polls.begin(queue.topic, queue.subscription, HOLDER, limit, lease_ns, wait_ns)
        if not poll.answer.is_given:
            request.on_gone(poll.give_up)
        return poll.answer.then_make(lambda found: shapes.Received(messages=self._shown(queue, asked, found)))

    def receive_now(self, caller: Caller, asked: shapes.ReceiveMessage) -> shapes.Received | None:
        """Lease messages that are there; None if there are none at this moment."""
        queue, limit, lease_ns, _ = self._wanted(caller, asked)
        if _is_full(queue):
            return shapes.Received(messages=[])
        subscription = queue.subscription
        subscription.expire(self._node.now())
        if subscription.keeping.is_late or subscription.is_busy() or not subscription.dealer.can_give():
            return None
        found: list[shapes.Message] = []
        look = subscription.holder(HOLDER).look(
            limit, lease_ns, lambda deliveries: found.extend(self._shown(queue, asked, deliveries))
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
        wait_ns = (queue.choices.wait_s if wait_s is None else wait_s) * SECOND
        lease_ns = queue.subscription.settings.lease_ns if hidden_s is None else max(hidden_s * SECOND, 1)
        return queue, limit or 1, lease_ns, wait_ns

    def _shown(
        self, queue: Queue, asked: shapes.ReceiveMessage, deliveries: Sequence[Delivery]
    ) -> list[shapes.Message]:
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
            md5_of_body=md5_of(body),
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


def _is_full(queue: Queue) -> bool:
    """Tell whether a FIFO queue gives no more at this moment; refuse to go on with a standard queue that does not."""
    if queue.subscription.in_flight() < IN_FLIGHT_MAX:
        return False
    if queue.choices.fifo:  # of these Amazon says that no error is returned
        return True
    raise Fault("OverLimit", f"Too many messages in flight: at most {IN_FLIGHT_MAX} are received and not deleted.")


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
