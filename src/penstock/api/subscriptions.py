"""Subscriptions and their consumers over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.api.endpoint import PREFIX, Call, Endpoint, Nothing
from penstock.api.setting import inward, outward, schema
from penstock.delivery.seat import Seat
from penstock.delivery.subscription import Subscription
from penstock.errors import Refusal
from penstock.node.since import since
from penstock.node.topic import Topic
from penstock.registry.answer import Answer
from penstock.settings import SubscriptionSettings
from penstock.units import times

SubscriptionSettingsText = Annotated[dict[str, Any], Meta(extra_json_schema=schema(SubscriptionSettings))]


class SubscriptionBody(msgspec.Struct):
    """A subscription to make."""

    name: str
    settings: SubscriptionSettingsText = {}


class SubscriptionChange(msgspec.Struct):
    """Settings to change; the others stay."""

    settings: SubscriptionSettingsText


class ConsumerInfo(msgspec.Struct):
    """One receiver."""

    topic: str
    subscription: str
    name: str
    credit: int
    in_flight: int
    acked: int
    released: int
    expired: int


class SubscriptionInfo(msgspec.Struct):
    """A subscription in full. In `counts`, `passed` is the sum of the others, since the start or the last seek."""

    topic: str
    name: str
    number: int
    settings: SubscriptionSettingsText
    depth: int
    in_flight: int
    waiting: int
    released: int
    expired_leases: int
    counts: dict[str, int]
    consumers: list[ConsumerInfo]
    #: Named holders, whose leases outlive connections, and the long polls that wait now.
    holders: list[ConsumerInfo]
    polls: int
    #: Who gets which message, as it is in force now: `tagged` while some consumer asks for a tag.
    policy: str


class SubscriptionList(msgspec.Struct):
    """All subscriptions of a topic, by name."""

    subscriptions: list[SubscriptionInfo]


class ConsumerList(msgspec.Struct):
    """Consumers that are connected."""

    consumers: list[ConsumerInfo]


class ConsumerQuery(msgspec.Struct):
    """Whose consumers."""

    topic: str | None = None
    subscription: str | None = None


class SeekBody(msgspec.Struct):
    """Where to begin anew: "earliest", "latest", an offset, or a time. Without a shard: in all of them."""

    to: str | int
    shard: int | None = None


async def list_subscriptions(call: Call[Nothing, None]) -> SubscriptionList:
    """Show the subscriptions of a topic."""
    topic = call.topic()
    return SubscriptionList([_info(topic, topic.subscriptions[name]) for name in sorted(topic.subscriptions)])


async def create_subscription(call: Call[Nothing, SubscriptionBody]) -> SubscriptionInfo:
    """Make a subscription."""
    topic = call.topic()
    settings = inward(call.body.settings, SubscriptionSettings())
    _check_letters(call, settings)
    return _info(topic, await topic.create_subscription(call.body.name, settings))


def _check_letters(call: Call[Nothing, Any], settings: SubscriptionSettings) -> None:
    """Refuse to send dead letters where who asks may not publish."""
    if settings.dead_letter:
        call.caller.check("publish", settings.dead_letter)


async def show_subscription(call: Call[Nothing, None]) -> SubscriptionInfo:
    """Show one subscription."""
    return _info(*call.subscription())


async def change_subscription(call: Call[Nothing, SubscriptionChange]) -> SubscriptionInfo:
    """Change settings of a subscription."""
    topic, subscription = call.subscription()
    settings = inward(call.body.settings, subscription.settings)
    if settings.dead_letter != subscription.settings.dead_letter:
        _check_letters(call, settings)
    return _info(topic, await topic.update_subscription(subscription.name, settings))


async def delete_subscription(call: Call[Nothing, None]) -> None:
    """Drop a subscription and hang up on its consumers."""
    topic, subscription = call.subscription()
    await topic.delete_subscription(subscription.name)


async def pause_subscription(call: Call[Nothing, None]) -> SubscriptionInfo:
    """Hand out nothing more."""
    return await _paused(call, paused=True)


async def resume_subscription(call: Call[Nothing, None]) -> SubscriptionInfo:
    """Hand out again."""
    return await _paused(call, paused=False)


async def _paused(call: Call[Nothing, None], *, paused: bool) -> SubscriptionInfo:
    topic, subscription = call.subscription()
    settings = msgspec.structs.replace(subscription.settings, paused=paused)
    return _info(topic, await topic.update_subscription(subscription.name, settings))


async def empty_subscription(call: Call[Nothing, None]) -> SubscriptionInfo:
    """Finish everything there is."""
    topic, subscription = call.subscription()
    subscription.empty()
    await subscription.keeping.after(Answer.of(None))
    return _info(topic, subscription)


async def seek_subscription(call: Call[Nothing, SeekBody]) -> SubscriptionInfo:
    """Begin anew somewhere else; every shard is checked before any is moved."""
    topic, subscription = call.subscription()
    places = await _places(topic, call.body, call.node.clock.now())
    for shard, offset in places:
        kept = topic.shards[shard]
        if not kept.start <= offset <= kept.readable_end:
            raise Refusal(
                "bad_offset",
                f"offset {offset} of shard {shard} is not kept; choose one from {kept.start} to {kept.readable_end}",
            )
    for shard, offset in places:
        subscription.seek(shard, offset)
    await subscription.keeping.after(Answer.of(None))
    return _info(topic, subscription)


async def _places(topic: Topic, body: SeekBody, now_ns: int) -> list[tuple[int, int]]:
    numbers = range(len(topic.shards)) if body.shard is None else [topic.shard(body.shard).number]
    to = body.to
    if isinstance(to, str) and to.lstrip("-").isdigit() and to.isascii():
        to = int(to)
    if isinstance(to, int):
        if len(numbers) > 1:
            raise Refusal("bad_request", f"an offset is of one shard; name it, 0 to {len(topic.shards) - 1}")
        return [(numbers[0], to)]
    if to == "earliest":
        return [(number, topic.shards[number].start) for number in numbers]
    if to == "latest":
        return [(number, topic.shards[number].readable_end) for number in numbers]
    try:
        time_ns = times.past(to, now_ns, "to")
    except Refusal:
        raise Refusal(
            "bad_request",
            f"{to!r} is no place to seek to: write earliest, latest, an offset, a time like 2026-01-31T12:00:00Z, "
            "or a duration like 1h for an hour ago",
        ) from None
    found = await since(topic, numbers, time_ns)
    return [(number, min(offset, topic.shards[number].readable_end)) for number, offset in found]


async def list_consumers(call: Call[ConsumerQuery, None]) -> ConsumerList:
    """Show who is connected."""
    wanted = call.query
    caller, topics = call.caller, list(call.node.topics.values())
    if wanted.topic is not None:
        topics = [call.node.reach(caller, "see", wanted.topic)]
    return ConsumerList(
        [
            _consumer(topic, subscription, consumer)
            for topic in topics
            if caller.may("see", topic.name)
            for subscription in topic.subscriptions.values()
            if wanted.subscription in (None, subscription.name)
            for consumer in subscription.seats.values()
        ]
    )


def _info(topic: Topic, subscription: Subscription) -> SubscriptionInfo:
    return SubscriptionInfo(
        topic.name,
        subscription.name,
        subscription.number,
        outward(subscription.settings),
        subscription.depth(),
        subscription.in_flight(),
        subscription.waiting(),
        subscription.released,
        subscription.expired_leases,
        subscription.counts(),
        [_consumer(topic, subscription, consumer) for consumer in subscription.seats.values()],
        [_consumer(topic, subscription, holder) for holder in subscription.named.values()],
        len(subscription.looks),
        subscription.policy.name,
    )


def _consumer(topic: Topic, subscription: Subscription, consumer: Seat) -> ConsumerInfo:
    return ConsumerInfo(
        topic.name,
        subscription.name,
        consumer.name,
        consumer.credit,
        consumer.in_flight,
        consumer.acked,
        consumer.released,
        consumer.expired,
    )


_ALL = PREFIX + "/topics/{topic}/subscriptions"
_ONE = _ALL + "/{subscription}"
_INFO = SubscriptionInfo
ENDPOINTS = (
    Endpoint("GET", _ALL, list_subscriptions, "List the subscriptions of a topic", SubscriptionList),
    Endpoint("POST", _ALL, create_subscription, "Make a subscription", _INFO, body=SubscriptionBody, status=201),
    Endpoint("GET", _ONE, show_subscription, "Show a subscription", _INFO),
    Endpoint("PATCH", _ONE, change_subscription, "Change settings of a subscription", _INFO, body=SubscriptionChange),
    Endpoint("DELETE", _ONE, delete_subscription, "Drop a subscription", status=204),
    Endpoint("POST", f"{_ONE}/pause", pause_subscription, "Hand out nothing more", _INFO),
    Endpoint("POST", f"{_ONE}/resume", resume_subscription, "Hand out again", _INFO),
    Endpoint("POST", f"{_ONE}/empty", empty_subscription, "Finish everything there is", _INFO),
    Endpoint("POST", f"{_ONE}/seek", seek_subscription, "Begin anew somewhere else", _INFO, body=SeekBody),
    Endpoint(
        "GET", f"{PREFIX}/consumers", list_consumers, "List connected consumers", ConsumerList, query=ConsumerQuery
    ),
)
