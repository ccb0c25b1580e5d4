"""Messages into a queue: one, or several as one `Rows`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.callers import Caller
from penstock.dialects.sqs.batch import check_batch, failed
from penstock.dialects.sqs.choices import MESSAGE_BYTES_MAX
from penstock.dialects.sqs.codec import shapes
from penstock.dialects.sqs.codec.shapes import SendEntry, SendMessage
from penstock.dialects.sqs.drafts import SOURCE, Draft, drafted, md5_of, plain_bodies, rows_of
from penstock.dialects.sqs.faults import Fault, no_queue
from penstock.dialects.sqs.ids import message_id, message_ids, sequence
from penstock.dialects.sqs.queues import Queue, Queues
from penstock.intake.receipt import Receipt
from penstock.message import Rows
from penstock.node.admission import publish
from penstock.registry.answer import Answer

T = TypeVar("T")


class Sender:
    """Stores what clients send."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._clock = queues.node.clock

    def send(self, caller: Caller, asked: SendMessage, publisher: object) -> Answer[shapes.Sent]:
        """Store one message."""
        queue = self._queues.find(caller, "publish", asked.queue_url)
        incarnation, choices = queue.topic.record.incarnation, queue.choices
        bodies = plain_bodies(choices, [asked])
        if bodies is not None:
            return self._publish(
                caller,
                queue,
                Rows(1, [0, len(bodies[0])], bodies[0], SOURCE),
                publisher,
                lambda receipt: shapes.Sent(
                    message_id=message_id(incarnation, receipt.first_id), md5_of_message_body=md5_of(bodies[0])
                ),
            )
        draft, is_fifo = drafted(queue, asked, self._clock.now()), choices.fifo

        def sent(receipt: Receipt) -> shapes.Sent:
            id_ = receipt.ids()[0]
            return shapes.Sent(
                message_id=message_id(incarnation, id_),
                md5_of_message_body=draft.body_md5,
                md5_of_message_attributes=draft.values_md5,
                md5_of_message_system_attributes=draft.system_md5,
                sequence_number=sequence(id_) if is_fifo else None,
            )

        return self._publish(caller, queue, rows_of([draft]), publisher, sent)

    def send_batch(self, caller: Caller, asked: shapes.SendMessageBatch, publisher: object) -> Answer[shapes.SentBatch]:
        """Store several messages together; what is wrong with one is told of that one alone."""
        queue = self._queues.find(caller, "publish", asked.queue_url)
        check_batch(asked.entries)
        bodies = plain_bodies(queue.choices, asked.entries)
        if bodies is not None and sum(map(len, bodies)) <= MESSAGE_BYTES_MAX:
            return self._send_plain(caller, queue, asked.entries, bodies, publisher)
        told = shapes.SentBatch(successful=[], failed=[])
        drafts: list[Draft] = []
        entries: list[SendEntry] = []
        now_ns = self._clock.now()
        for entry in asked.entries:
            try:
                drafts.append(drafted(queue, entry, now_ns))
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

        return self._publish(caller, queue, rows_of(drafts), publisher, sent)

    def _send_plain(
        self, caller: Caller, queue: Queue, entries: Sequence[SendEntry], bodies: list[bytes], publisher: object
    ) -> Answer[shapes.SentBatch]:
        """Store several messages that are nothing but their bodies."""
        incarnation = queue.topic.record.incarnation

        def sent(receipt: Receipt) -> shapes.SentBatch:
            return shapes.SentBatch(
                successful=[
                    shapes.SentEntry(id=entry.id, message_id=id_, md5_of_message_body=md5_of(body))
                    for entry, body, id_ in zip(entries, bodies, message_ids(incarnation, receipt.ids()), strict=True)
                ]
            )

        return self._publish(caller, queue, Rows.of(bodies, SOURCE), publisher, sent)

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
