"""What becomes of messages that were received: deleted, or visible again at another time.

A request is one array of receipts, whatever the number of its entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from penstock.callers import Caller
from penstock.clock import SECOND
from penstock.delivery import receipts
from penstock.dialects.sqs.attributes import VISIBILITY_S_MAX
from penstock.dialects.sqs.batch import check_batch, failed
from penstock.dialects.sqs.codec import shapes
from penstock.dialects.sqs.faults import Fault, invalid, missing
from penstock.dialects.sqs.queues import Queue, Queues
from penstock.dialects.sqs.receiver import HOLDER
from penstock.registry.answer import Answer

R = TypeVar("R", shapes.DeleteEntry, shapes.ChangeEntry)


class Handles:
    """Takes receipt handles back."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    def delete(self, caller: Caller, asked: shapes.DeleteMessage) -> shapes.Nothing | Answer[shapes.Nothing]:
        """Delete a message that was received; a handle that is stale deletes nothing, and is no fault."""
        queue = self._queues.find(caller, "receive", asked.queue_url)
        (outcome,) = self._finish(queue, [_receipt(queue, asked.receipt_handle)])
        if outcome == "late":
            raise _expired(asked.receipt_handle)
        return queue.subscription.keeping.kept(shapes.Nothing())

    def delete_batch(
        self, caller: Caller, asked: shapes.DeleteMessageBatch
    ) -> shapes.DoneBatch | Answer[shapes.DoneBatch]:
        """Delete several."""
        queue = self._queues.find(caller, "receive", asked.queue_url)
        check_batch(asked.entries)
        found = receipts.read_all([entry.receipt_handle for entry in asked.entries], queue.topic.record.incarnation)
        good = [receipt for receipt in found if receipt is not None]
        outcomes = self._finish(queue, good)
        if len(good) == len(found) and "late" not in outcomes:
            done = shapes.DoneBatch(successful=[shapes.Done(id=entry.id) for entry in asked.entries])
            return queue.subscription.keeping.kept(done)
        told = shapes.DoneBatch(successful=[], failed=[])
        read = _held(asked.entries, found, told)
        for (entry, _), outcome in zip(read, outcomes, strict=True):
            if outcome == "late":
                told.failed.append(failed(entry.id, _expired(entry.receipt_handle)))
            else:
                told.successful.append(shapes.Done(id=entry.id))
        return queue.subscription.keeping.kept(told)

    def _finish(self, queue: Queue, given: Sequence[receipts.Receipt]) -> list[receipts.Outcome]:
        """Delete messages; in FIFO queues none whose time is over: the next of its group may be out already."""
        return receipts.finish(queue.subscription.holder(HOLDER), given, late=not queue.choices.fifo)

    def change(self, caller: Caller, asked: shapes.ChangeMessageVisibility) -> shapes.Nothing | Answer[shapes.Nothing]:
        """Let a message be invisible for so long from now on."""
        queue = self._queues.find(caller, "receive", asked.queue_url)
        _check_visibility(asked.visibility_timeout)
        seat, receipt = queue.subscription.holder(HOLDER), _receipt(queue, asked.receipt_handle)
        if not all(receipts.extend(seat, [receipt], [asked.visibility_timeout * SECOND])):
            raise _not_in_flight()
        return queue.subscription.keeping.kept(shapes.Nothing())

    def change_batch(
        self, caller: Caller, asked: shapes.ChangeMessageVisibilityBatch
    ) -> shapes.DoneBatch | Answer[shapes.DoneBatch]:
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
        return queue.subscription.keeping.kept(told)

    def _read(self, queue: Queue, entries: Sequence[R], told: shapes.DoneBatch) -> list[tuple[R, tuple[int, int]]]:
        """Return the entries with their receipts; those that have none are told of."""
        handles = [entry.receipt_handle for entry in entries]
        return _held(entries, receipts.read_all(handles, queue.topic.record.incarnation), told)


def _held(
    entries: Sequence[R], found: Sequence[receipts.Receipt | None], told: shapes.DoneBatch
) -> list[tuple[R, receipts.Receipt]]:
    """Return the entries that have a receipt with it; of the others it is told."""
    read = []
    for entry, receipt in zip(entries, found, strict=True):
        if receipt is not None:
            read.append((entry, receipt))
        else:
            told.failed.append(failed(entry.id, _no_receipt(entry.receipt_handle)))
    return read


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
