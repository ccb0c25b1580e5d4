"""Messages handed out over HTTP: lease by long poll, then ack, extend or release by receipt.

A lease belongs to nobody's connection: it is written down before it is answered, so a receipt holds across a restart.
Invariant: a receipt names one attempt; once that attempt is over the receipt is stale and does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock import times
from penstock.api.endpoint import PREFIX, Call, Endpoint, Nothing
from penstock.api.record import Shown, read_id, shown, shown_id
from penstock.delivery.consumer import Consumer
from penstock.delivery.source import Delivery
from penstock.delivery.subscription import Subscription
from penstock.errors import Refusal
from penstock.intake.limits import check_delay
from penstock.message import id_of, place_of
from penstock.settings import HOUR_NS

LEASE_ROWS_MAX = 1000
WAIT_NS_MAX = 60 * times.SECOND_NS
#: As long as NSQ's max_req_timeout may reasonably be; a message for next month has a due time instead.
DELAY_NS_MAX = 24 * HOUR_NS
RECEIPTS_MAX = 10_000
#: Rows that are there but not in memory are worth this much waiting, also for a client that wants none.
READ_S_MIN = 1.0
ATTEMPTS_MAX = 0xFFFF

Receipts = Annotated[list[str], Meta(min_length=1, max_length=RECEIPTS_MAX)]


class LeaseBody(msgspec.Struct):
    """How many messages, how long to wait for the first, and how long they are to be leased."""

    max: Annotated[int, Meta(ge=1, le=LEASE_ROWS_MAX)] = 1
    wait: str = "0"
    lease: str = ""


class Leased(msgspec.Struct):
    """Messages on lease, each with the receipt that answers for it; none if none came in time."""

    messages: list[Shown]


class ReceiptsBody(msgspec.Struct):
    """Receipts of leased messages."""

    receipts: Receipts


class ExtendBody(msgspec.Struct):
    """Receipts, and how long the leases shall last from now; the subscription's own lease by default."""

    receipts: Receipts
    lease: str = ""


class ReleaseBody(msgspec.Struct):
    """Receipts, and when the messages may go out again."""

    receipts: Receipts
    delay: str = "0"


class UpToBody(msgspec.Struct):
    """The last message to finish; everything before it in its shard is finished with it."""

    id: str


class RemoveBody(msgspec.Struct):
    """Messages that nobody shall get any more."""

    ids: Annotated[list[str], Meta(min_length=1, max_length=RECEIPTS_MAX)]


Status = Literal["ok", "not_leased", "bad_receipt"]


class ReceiptResult(msgspec.Struct):
    """What became of one receipt."""

    receipt: str
    status: Status


class Results(msgspec.Struct):
    """What became of each receipt, in their order; `ok` counts those that held."""

    ok: int
    results: list[ReceiptResult]


class Finished(msgspec.Struct):
    """How many messages were finished."""

    count: int


async def lease(call: Call[Nothing, LeaseBody]) -> Leased:
    """Lease messages, waiting for the first if told to."""
    topic, subscription = call.subscription()
    body, settings = call.body, subscription.settings
    lease_ns = times.duration(body.lease, "lease", settings.lease_max_ns) if body.lease else settings.lease_ns
    if lease_ns == 0:
        raise Refusal("bad_request", "a lease of 0 has ended before it begins")
    patience_ns = times.duration(body.wait, "wait", WAIT_NS_MAX)
    found: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()
    poll = subscription.poll(body.max, lease_ns, found.set_result)
    try:
        topic.pump(subscription)
        least_s = READ_S_MIN if not settings.paused and subscription.depth() else 0.0
        came = await call.wait(found, max(patience_ns / times.SECOND_NS, least_s))
    finally:
        subscription.give_up(poll)
    if topic.deleted or topic.subscriptions.get(subscription.name) is not subscription:
        raise Refusal("gone", f"subscription {subscription.name} of topic {topic.name} was deleted")
    messages = _messages(call, found.result()) if came else []
    if call.is_gone and messages:  # nobody will ever answer for these
        ids = [read_id(message.id) for message in messages]
        subscription.release(subscription.session, ids, 0, call.node.now())
        topic.pump(subscription)
    return Leased(messages)


def _messages(call: Call[Nothing, LeaseBody], deliveries: list[Delivery]) -> list[Shown]:
    messages = []
    for delivery in deliveries:
        first = delivery.batch.first
        for number, offset in enumerate(delivery.offsets()):
            attempts = delivery.attempts if isinstance(delivery.attempts, int) else int(delivery.attempts[number])
            message = shown(delivery.shard, delivery.batch, offset - first, call.node.mapping)
            message.attempts = attempts
            message.receipt = f"{shown_id(id_of(delivery.shard, offset))}-{attempts}"
            messages.append(message)
    return messages


async def ack(call: Call[Nothing, ReceiptsBody]) -> Results:
    """Finish leased messages; the answer means that this is written down."""
    topic, subscription = call.subscription()
    results = _each(subscription, call.body.receipts, lambda session, ids: subscription.ack(session, ids))
    topic.settle(subscription, always=True)
    topic.pump(subscription)
    return results


async def extend(call: Call[Nothing, ExtendBody]) -> Results:
    """Let leases last longer."""
    _, subscription = call.subscription()
    settings, text = subscription.settings, call.body.lease
    lease_ns = times.duration(text, "lease", settings.lease_max_ns) if text else settings.lease_ns
    now = call.node.now()
    return _each(
        subscription, call.body.receipts, lambda session, ids: subscription.extend(session, ids, lease_ns, now)
    )


async def release(call: Call[Nothing, ReleaseBody]) -> Results:
    """Give leased messages back, to go out again at once or later."""
    topic, subscription = call.subscription()
    delay_ns = times.duration(call.body.delay, "delay", DELAY_NS_MAX)
    check_delay(topic.name, delay_ns, topic.settings.max_due_ns)
    now = call.node.now()
    results = _each(
        subscription, call.body.receipts, lambda session, ids: subscription.release(session, ids, delay_ns, now)
    )
    topic.settle(subscription, always=True)
    topic.wait(delay_ns)
    topic.pump(subscription)
    return results


async def ack_up_to(call: Call[Nothing, UpToBody]) -> Finished:
    """Finish a message and everything before it in its shard, leased or not."""
    topic, subscription = call.subscription()
    id_ = _stored(subscription, call.body.id)
    before = _finished(subscription)
    subscription.ack_up_to(id_)
    topic.settle(subscription, always=True)
    topic.pump(subscription)
    return Finished(_finished(subscription) - before)


async def remove(call: Call[Nothing, RemoveBody]) -> Finished:
    """Finish messages whatever their state: the owner does not want them delivered any more."""
    topic, subscription = call.subscription()
    ids = sorted({_stored(subscription, text) for text in call.body.ids})
    subscription.remove(ids)
    topic.settle(subscription, always=True)
    topic.pump(subscription)
    return Finished(len(ids))


def _each(subscription: Subscription, receipts: list[str], act: Callable[[Consumer, list[int]], list[int]]) -> Results:
    """Do something with every receipt that holds, once, and tell what became of each."""
    read = [_read(receipt) for receipt in receipts]
    holding = {place for place in read if place is not None and subscription.by_receipt([place])[1]}
    ids = [id_ for id_, _ in holding]
    refused = set(act(subscription.session, ids)) if ids else set()
    left = {place for place in holding if place[0] not in refused}
    results = []
    for receipt, place in zip(receipts, read, strict=True):
        status: Status = "bad_receipt"
        if place is not None:
            status = "ok" if place in left else "not_leased"
            left.discard(place)  # a receipt given twice does something once
        results.append(ReceiptResult(receipt, status))
    return Results(sum(result.status == "ok" for result in results), results)


def _read(receipt: str) -> tuple[int, int] | None:
    """Return (id, attempts) of a receipt, None if it is none."""
    id_, _, attempts = receipt.partition("-")
    if not (attempts.isascii() and attempts.isdigit() and len(attempts) <= 5 and int(attempts) <= ATTEMPTS_MAX):
        return None
    try:
        return read_id(id_), int(attempts)
    except Refusal:
        return None


def _stored(subscription: Subscription, text: str) -> int:
    """Return the id of a message that is or was in the log: one that is still to come cannot be finished."""
    id_ = read_id(text)
    shard, offset = place_of(id_)
    if not 0 <= shard < len(subscription.cursors) or offset >= subscription.cursors[shard].source.readable_end:
        raise Refusal("bad_offset", f"there is no message {text} in this topic")
    return id_


def _finished(subscription: Subscription) -> int:
    return sum(count for name, count in subscription.counts().items() if name not in ("passed", "held"))


_ONE = PREFIX + "/topics/{topic}/subscriptions/{subscription}"
ENDPOINTS = (
    Endpoint("POST", f"{_ONE}/lease", lease, "Lease messages, by long poll", Leased, body=LeaseBody),
    Endpoint("POST", f"{_ONE}/ack", ack, "Finish leased messages", Results, body=ReceiptsBody),
    Endpoint("POST", f"{_ONE}/extend", extend, "Let leases last longer", Results, body=ExtendBody),
    Endpoint("POST", f"{_ONE}/release", release, "Give leased messages back", Results, body=ReleaseBody),
    Endpoint("POST", f"{_ONE}/ack-up-to", ack_up_to, "Finish everything up to a message", Finished, body=UpToBody),
    Endpoint("POST", f"{_ONE}/remove", remove, "Finish messages without a lease", Finished, body=RemoveBody),
)
