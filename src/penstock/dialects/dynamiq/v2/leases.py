"""Leases as resources: messages are received under a receipt, and deleted, kept or given back by it.

A receive here takes single messages from wherever they are, whatever partitions clients of version 1 have locked, and
locks none; neither ever gets what the other has. Batches of receipts are looked at as arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from penstock.delivery import receipts
from penstock.delivery.receipts import Receipt
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.dialects.dynamiq.config import DynamiqConfig
from penstock.dialects.dynamiq.queue import HOLDER, Queue
from penstock.dialects.dynamiq.v2 import shapes
from penstock.dialects.dynamiq.v2.endpoint import V2, Call, Endpoint
from penstock.dialects.dynamiq.v2.messages import message
from penstock.dialects.dynamiq.v2.queues import QueueResource
from penstock.intake.limits import check_delay
from penstock.registry.answer import Answer
from penstock.rest.problem import BadField, problem_of
from penstock.rest.reading import Nothing
from penstock.settings import SECOND_NS

if TYPE_CHECKING:
    from penstock.dialects.dynamiq.queues import Queues
    from penstock.dialects.dynamiq.stats import Stats
    from penstock.node.node import Node

#: Does something with the receipts of a queue that can be read, and tells which of them held.
Act = Callable[[Queue, Sequence[Receipt]], list[bool]]


class LeaseResource:
    """What is done with messages that were received."""

    def __init__(
        self, node: Node, config: DynamiqConfig, all_queues: Queues, queues: QueueResource, stats: Stats | None
    ) -> None:
        self._node = node
        self._polls = all_queues.polls
        self._queues = queues
        self._stats = stats
        self._receive_max = config.max_receive_batch
        self._receipts_max = config.max_delete_batch
        self._wait_ns_max = config.max_wait_ns

    def endpoints(self) -> list[Endpoint]:
        """Return the rows of the table."""
        many = V2 + "/queues/{queue}/leases"
        one = many + "/{receipt}"
        held, held_all = shapes.Held, shapes.HeldAll
        return [
            Endpoint(
                "POST",
                many,
                self.receive_messages,
                "Receive messages, by long poll",
                shapes.Received,
                body=shapes.Receive,
            ),
            Endpoint("DELETE", one, self.finish_lease, "Delete a message that was received", held),
            Endpoint("PATCH", one, self.extend_lease, "Keep a message for longer", held, body=shapes.ExtendOne),
            Endpoint("POST", f"{one}/release", self.release_lease, "Give a message back", held, body=shapes.ReleaseOne),
            Endpoint("POST", f"{many}/delete", self.finish_leases, "Delete several", held_all, body=shapes.Finish),
            Endpoint(
                "POST", f"{many}/extend", self.extend_leases, "Keep several for longer", held_all, body=shapes.Extend
            ),
            Endpoint(
                "POST", f"{many}/release", self.release_leases, "Give several back", held_all, body=shapes.Release
            ),
        ]

    # --- out ------------------------------------------------------------------------------------------------------

    def receive_messages(self, call: Call[Nothing, shapes.Receive]) -> Answer[shapes.Received]:
        """Lease messages, waiting for the first if told to."""
        queue = self._queues.named(call.caller, "receive", call.names["queue"])
        asked = call.body
        if asked.max > self._receive_max:
            text = f"max {asked.max} is above the limit of {self._receive_max} (dynamiq.max_receive_batch)"
            raise BadField("bad_request", text, "max")
        wait_ns = round(asked.wait * SECOND_NS)
        if wait_ns > self._wait_ns_max:
            text = f"wait {asked.wait:g} is above the limit of {self._wait_ns_max // SECOND_NS} s (dynamiq.max_wait)"
            raise BadField("bad_request", text, "wait")
        hidden_ns = queue.in_force.visibility_ns if asked.visibility is None else round(asked.visibility * SECOND_NS)
        poll = self._polls.begin(
            queue.topic, queue.subscription, HOLDER, asked.max, max(hidden_ns, 1), wait_ns, is_free=True
        )
        if not poll.answer.is_given:
            call.request.on_gone(poll.give_up)
        return poll.answer.then_make(lambda found: self._received(queue, found, asked.max))

    def _received(self, queue: Queue, deliveries: list[Delivery], limit: int) -> shapes.Received:
        mapping, incarnation = self._node.routing.mapping, queue.topic.incarnation
        messages: list[shapes.Message] = []
        for delivery in deliveries:
            assert delivery.versions is not None
            for (id_, attempts, row), version in zip(delivery.each(), delivery.versions, strict=True):
                found = message(queue, delivery.batch, row, id_, mapping)
                found.attempts = attempts
                found.receipt = receipts.written(id_, version, incarnation)
                messages.append(found)
        if self._stats is not None:
            self._stats.received(queue.topic.name, limit, [int(each.id) for each in messages], queue.partitions)
        return shapes.Received(messages)

    # --- back -----------------------------------------------------------------------------------------------------

    def finish_lease(self, call: Call[Nothing, None]) -> shapes.Held | Answer[shapes.Held]:
        """Delete a message."""
        return self._one(call, self._finished)

    def finish_leases(self, call: Call[Nothing, shapes.Finish]) -> shapes.HeldAll | Answer[shapes.HeldAll]:
        """Delete several."""
        return self._all(call, call.body.receipts, self._finished)

    def extend_lease(self, call: Call[Nothing, shapes.ExtendOne]) -> shapes.Held | Answer[shapes.Held]:
        """Let a message be nobody else's for so long from now on."""
        return self._one(call, partial(self._extended, call.body.visibility))

    def extend_leases(self, call: Call[Nothing, shapes.Extend]) -> shapes.HeldAll | Answer[shapes.HeldAll]:
        """Do so with several."""
        return self._all(call, call.body.receipts, partial(self._extended, call.body.visibility))

    def release_lease(self, call: Call[Nothing, shapes.ReleaseOne]) -> shapes.Held | Answer[shapes.Held]:
        """Let a message be received again."""
        return self._one(call, partial(self._released, call.body.delay))

    def release_leases(self, call: Call[Nothing, shapes.Release]) -> shapes.HeldAll | Answer[shapes.HeldAll]:
        """Do so with several."""
        return self._all(call, call.body.receipts, partial(self._released, call.body.delay))

    def _finished(self, queue: Queue, given: Sequence[Receipt]) -> list[bool]:
        # Where keys are in order, the next one of a message's key may have been received when its time was over.
        late = queue.subscription.settings.order == "none"
        done = [outcome == "done" for outcome in receipts.finish(_seat(queue), given, late=late)]
        if self._stats is not None:
            self._stats.deleted(queue.topic.name, sum(done))
        return done

    def _extended(self, visibility: float | None, queue: Queue, given: Sequence[Receipt]) -> list[bool]:
        time_ns = queue.in_force.visibility_ns if visibility is None else round(visibility * SECOND_NS)
        return receipts.extend(_seat(queue), given, [time_ns] * len(given))

    def _released(self, delay: float, queue: Queue, given: Sequence[Receipt]) -> list[bool]:
        delay_ns = round(delay * SECOND_NS)
        check_delay(queue.topic.name, delay_ns, queue.topic.settings.max_due_ns)
        return receipts.release(_seat(queue), given, [delay_ns] * len(given))

    def _one(self, call: Call[Nothing, Any], act: Act) -> shapes.Held | Answer[shapes.Held]:
        queue, text = self._queue(call), call.names["receipt"]
        (refusal,) = _each(queue, [text], "receipt", act)
        if refusal is not None:
            raise refusal
        return queue.subscription.keeping.kept(shapes.Held(text))

    def _all(self, call: Call[Nothing, Any], texts: list[str], act: Act) -> shapes.HeldAll | Answer[shapes.HeldAll]:
        queue = self._queue(call)
        if len(texts) > self._receipts_max:
            text = f"receipts has {len(texts)} entries, at most {self._receipts_max} are taken at once; divide them"
            raise BadField("bad_request", text, "receipts")
        results = [
            shapes.Held(text) if refusal is None else shapes.Held(text, problem_of(refusal))
            for text, refusal in zip(texts, _each(queue, texts, "receipts[{}]", act), strict=True)
        ]
        held = sum(result.error is UNSET for result in results)
        return queue.subscription.keeping.kept(shapes.HeldAll(held, len(results) - held, results))

    def _queue(self, call: Call[Nothing, Any]) -> Queue:
        return self._queues.named(call.caller, "receive", call.names["queue"])


def _each(queue: Queue, texts: Sequence[str], field: str, act: Act) -> list[BadField | None]:
    """Do something with every receipt that holds; return why not of the others."""
    read = [receipts.read(text, queue.topic.incarnation) for text in texts]
    done = iter(act(queue, [receipt for receipt in read if receipt is not None]))
    return [
        _no_receipt(queue, text, field.format(place))
        if receipt is None
        else None
        if next(done)
        else _stale(queue, text, field.format(place))
        for place, (text, receipt) in enumerate(zip(texts, read, strict=True))
    ]


def _no_receipt(queue: Queue, text: str, field: str) -> BadField:
    said = f"{text[:60]!r} is no receipt of queue {queue.topic.name}; send one that POST …/leases gave, as it is"
    return BadField("bad_request", said, field)


def _stale(queue: Queue, text: str, field: str) -> BadField:
    said = (
        f"receipt {text[:60]!r} is stale: its message in queue {queue.topic.name} was deleted, given back or received"
    )
    return BadField("not_leased", f"{said} again; receive for a new one", field)


def _seat(queue: Queue) -> Seat:
    return queue.subscription.holder(HOLDER)
