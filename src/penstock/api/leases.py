"""Messages handed out over HTTP: lease by long poll, then ack, extend or release by receipt.

A lease belongs to the holder `api` and to nobody's connection: it is written down before it is answered, so a receipt
holds across a restart.
Invariant: a receipt names one version of a lease; once that is over it is stale and does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.api.endpoint import PREFIX, Call, Endpoint, Nothing
from penstock.columns import id_of
from penstock.delivery.journal import UNNAMED as HOLDER
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.delivery.subscription import Subscription
from penstock.delivery.versions import VERSION_MAX
from penstock.errors import Refusal
from penstock.intake.limits import check_delay
from penstock.registry.answer import Answer
from penstock.rest.record import Shown, read_id, shown, shown_id
from penstock.settings import HOUR_NS
from penstock.units import times

LEASE_ROWS_MAX = 1000
WAIT_NS_MAX = 60 * times.SECOND_NS
#: As long as a client may reasonably ask for; a message for next month has a due time instead.
DELAY_NS_MAX = 24 * HOUR_NS
RECEIPTS_MAX = 10_000
#: Leases that are there and not written down yet are worth this much waiting, also for a client that wants none.
KEEP_S_MAX = 60.0
#: Ids have 63 bits; what is written with more was never one.
ID_END = 1 << 63

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


class LeaseInfo(msgspec.Struct):
    """A message on lease, and the receipt that answers for it."""

    id: str
    receipt: str
    attempts: int
    ends: str


class HolderInfo(msgspec.Struct):
    """Somebody whose leases outlive connections and the node: how many, and the first of them."""

    name: str
    connected: bool
    in_flight: int
    leases: list[LeaseInfo]


class HolderList(msgspec.Struct):
    """The named holders of a subscription, by name."""

    holders: list[HolderInfo]


class HolderQuery(msgspec.Struct):
    """How many leases of each holder are listed."""

    max: Annotated[int, Meta(ge=0, le=RECEIPTS_MAX)] = LEASE_ROWS_MAX


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
    poll = call.context.polls.begin(topic, subscription, HOLDER, body.max, lease_ns, patience_ns)
    poll.answer.then(partial(_settle, found))
    try:
        await call.wait(found, KEEP_S_MAX + patience_ns / times.SECOND_NS)
    finally:
        poll.give_up()
    messages = _messages(call, found.result())
    if call.is_gone and messages:  # nobody will ever answer for these
        subscription.holder(HOLDER).release([read_id(message.id) for message in messages])
    return Leased(messages)


def _settle(found: asyncio.Future[list[Delivery]], deliveries: list[Delivery] | None, error: Exception | None) -> None:
    if error is not None:
        found.set_exception(error)
    else:
        found.set_result(deliveries or [])


def _messages(call: Call[Nothing, LeaseBody], deliveries: list[Delivery]) -> list[Shown]:
    messages = []
    for delivery in deliveries:
        first = delivery.batch.first
        assert delivery.versions is not None
        for number, (offset, version) in enumerate(zip(delivery.offsets(), delivery.versions, strict=True)):
            attempts = delivery.attempts if isinstance(delivery.attempts, int) else int(delivery.attempts[number])
            message = shown(delivery.shard, delivery.batch, offset - first, call.node.routing.mapping)
            message.attempts = attempts
            message.receipt = f"{shown_id(id_of(delivery.shard, offset))}-{version}"
            messages.append(message)
    return messages


async def list_holders(call: Call[HolderQuery, None]) -> HolderList:
    """Show who holds messages under a name, and which."""
    _, subscription = call.subscription()
    await subscription.keeping.after(Answer.of(None))
    now = call.node.now()
    holders = []
    for name, seat in sorted(subscription.named.items()):
        leases = [
            LeaseInfo(
                shown_id(one.id),
                f"{shown_id(one.id)}-{one.version}",
                one.attempts,
                times.shown(one.ends_ns - now.monotonic_ns + now.wall_ns),
            )
            for one in seat.leases(call.query.max)
        ]
        holders.append(HolderInfo(name, seat.holder in subscription.seats, seat.in_flight, leases))
    return HolderList(holders)


async def ack(call: Call[Nothing, ReceiptsBody]) -> Results:
    """Finish leased messages; the answer means that this is written down."""
    _, subscription = call.subscription()
    return await _each(subscription, call.body.receipts, lambda seat, ids: seat.ack(ids))


async def extend(call: Call[Nothing, ExtendBody]) -> Results:
    """Let leases last longer."""
    _, subscription = call.subscription()
    settings, text = subscription.settings, call.body.lease
    lease_ns = times.duration(text, "lease", settings.lease_max_ns) if text else settings.lease_ns
    return await _each(subscription, call.body.receipts, lambda seat, ids: seat.extend(ids, lease_ns))


async def release(call: Call[Nothing, ReleaseBody]) -> Results:
    """Give leased messages back, to go out again at once or later."""
    topic, subscription = call.subscription()
    delay_ns = times.duration(call.body.delay, "delay", DELAY_NS_MAX)
    check_delay(topic.name, delay_ns, topic.settings.max_due_ns)
    return await _each(subscription, call.body.receipts, lambda seat, ids: seat.release(ids, delay_ns))


async def ack_up_to(call: Call[Nothing, UpToBody]) -> Finished:
    """Finish a message and everything before it in its shard, leased or not."""
    _, subscription = call.subscription()
    id_ = _stored(subscription, call.body.id)
    before = _finished(subscription)
    subscription.ack_up_to(id_)
    return await subscription.keeping.after(Answer.of(Finished(_finished(subscription) - before)))


async def remove(call: Call[Nothing, RemoveBody]) -> Finished:
    """Finish messages whatever their state: the owner does not want them delivered any more."""
    _, subscription = call.subscription()
    ids = sorted({_stored(subscription, text) for text in call.body.ids})
    subscription.remove(ids)
    return await subscription.keeping.after(Answer.of(Finished(len(ids))))


def _each(
    subscription: Subscription, receipts: list[str], act: Callable[[Seat, list[int]], list[int]]
) -> Answer[Results]:
    """Do something with every receipt that holds, once, and tell what became of each when that is kept."""
    read = [_read(receipt) for receipt in receipts]
    known = list(dict.fromkeys(place for place in read if place is not None and place[0] < ID_END))
    seat = subscription.holder(HOLDER)
    good = [place for place, holds in zip(known, seat.current(known), strict=True) if holds]
    refused = set(act(seat, [id_ for id_, _ in good])) if good else set()
    held = {place for place in good if place[0] not in refused}
    results = []
    for receipt, place in zip(receipts, read, strict=True):
        status: Status = "bad_receipt"
        if place is not None:
            status = "ok" if place in held else "not_leased"
            held.discard(place)  # a receipt given twice does something once
        results.append(ReceiptResult(receipt, status))
    return subscription.keeping.after(Answer.of(Results(sum(result.status == "ok" for result in results), results)))


def _read(receipt: str) -> tuple[int, int] | None:
    """Return (id, version) of a receipt, None if it is none."""
    id_, _, version = receipt.partition("-")
    if not (version.isascii() and version.isdigit() and len(version) <= 10 and int(version) <= VERSION_MAX):
        return None
    try:
        return read_id(id_), int(version)
    except Refusal:
        return None


def _stored(subscription: Subscription, text: str) -> int:
    """Return the id of a message that is or was in the log: one that is still to come cannot be finished."""
    id_ = read_id(text)
    if not subscription.has_stored(id_):
        raise Refusal("bad_offset", f"there is no message {text} in this topic")
    return id_


def _finished(subscription: Subscription) -> int:
    return sum(count for name, count in subscription.counts().items() if name not in ("passed", "held"))


_ONE = PREFIX + "/topics/{topic}/subscriptions/{subscription}"
ENDPOINTS = tuple(
    endpoint._replace(action="receive")
    for endpoint in (
        Endpoint("POST", f"{_ONE}/lease", lease, "Lease messages, by long poll", Leased, body=LeaseBody),
        Endpoint(
            "GET", f"{_ONE}/holders", list_holders, "List named holders and their leases", HolderList, query=HolderQuery
        ),
        Endpoint("POST", f"{_ONE}/ack", ack, "Finish leased messages", Results, body=ReceiptsBody),
        Endpoint("POST", f"{_ONE}/extend", extend, "Let leases last longer", Results, body=ExtendBody),
        Endpoint(
            "POST", f"{_ONE}/release", release, "Give leased messages back", Results, body=ReleaseBody, action="receive"
        ),
        Endpoint(
            "POST",
            f"{_ONE}/ack-up-to",
            ack_up_to,
            "Finish everything up to a message",
            Finished,
            body=UpToBody,
            action="receive",
        ),
        Endpoint(
            "POST",
            f"{_ONE}/remove",
            remove,
            "Finish messages without a lease",
            Finished,
            body=RemoveBody,
            action="receive",
        ),
    )
)
