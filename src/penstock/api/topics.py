"""Topics over HTTP: what there is, and what an operator does with them."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.api.endpoint import PREFIX, Call, Endpoint, Nothing
from penstock.api.setting import inward, outward, schema
from penstock.errors import Refusal
from penstock.http.away import Away
from penstock.log.shard import Shard
from penstock.node.topic import Topic
from penstock.settings import Choice, TopicSettings
from penstock.units import times

PAGE_MAX = 10_000

TopicSettingsText = Annotated[dict[str, Any], Meta(extra_json_schema=schema(TopicSettings))]


class TopicBody(msgspec.Struct):
    """A topic to make."""

    name: str
    settings: TopicSettingsText = {}


class TopicChange(msgspec.Struct):
    """Settings to change; the others stay."""

    settings: TopicSettingsText


class DamageInfo(msgspec.Struct):
    """Offsets first .. end - 1 of a shard that cannot be read."""

    first: int
    end: int
    reason: str


class ShardInfo(msgspec.Struct):
    """One ordered piece of a topic's log: offsets start .. end - 1, rows of them stored."""

    number: int
    start: int
    end: int
    readable_end: int
    rows: int
    bytes: int
    damaged: list[DamageInfo]


class TopicSummary(msgspec.Struct):
    """A topic at a glance. `published` counts from the start of the process."""

    name: str
    published: int
    depth: int
    rows: int
    bytes: int
    subscriptions: list[str]
    is_paused: bool
    #: Where there is a cluster: the node that has it, and why that does not tell more.
    node: str | UnsetType = UNSET
    problem: str | UnsetType = UNSET


class TopicInfo(msgspec.Struct):
    """A topic in full. The incarnation is text because it may need more digits than a JSON number keeps."""

    name: str
    number: int
    incarnation: str
    created: str
    #: The user who made it, in whose quota it counts; empty = nobody's.
    owner: str
    settings: TopicSettingsText
    published: int
    published_bytes: int
    depth: int
    #: What its segments hold; `quota_bytes` bounds this.
    bytes: int
    shards: list[ShardInfo]
    subscriptions: list[str]


class TopicPage(msgspec.Struct):
    """Topics by name; `next` is the `after` of the following page, null at the end."""

    topics: list[TopicSummary]
    next: str | None


class PageQuery(msgspec.Struct):
    """Which part of a list by name."""

    prefix: str = ""
    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 1000
    #: Only what this node of a cluster has.
    here: bool = False


async def list_topics(call: Call[PageQuery, None]) -> TopicPage:
    """Show topics by name; in a cluster those of all nodes."""
    node, query = call.node, call.query
    every = sorted(node.topics) if query.here else node.known.names()
    names = [name for name in every if name.startswith(query.prefix) and name > query.after]
    page = names[: query.limit]
    following = page[-1] if len(page) < len(names) else None
    seen = [name for name in page if call.caller.may("see", name)]
    shown = {name: _summary(node.topics[name]) for name in seen if name in node.topics}
    missing = [name for name in seen if name not in shown]
    if missing and call.away is not None:
        shown |= await _elsewhere(call, call.away, missing)
    return TopicPage([shown[name] for name in seen if name in shown], following)


async def _elsewhere(call: Call[PageQuery, None], away: Away, names: list[str]) -> dict[str, TopicSummary]:
    """Return what other nodes say of their topics; of those that cannot be asked, that they are there."""
    asked = {"here": "true", "prefix": call.query.prefix, "after": call.query.after, "limit": PAGE_MAX}
    told = await away.ask_owners(names, call.caller, f"{PREFIX}/topics?{urlencode(asked)}")
    found: dict[str, TopicSummary] = {}
    for owner, content in told.items():
        if not isinstance(content, Refusal):
            for topic in msgspec.json.decode(content, type=TopicPage).topics:
                topic.node = owner
                found[topic.name] = topic
    for name in names:
        if name not in found:
            there = call.node.elsewhere(name) or ""
            problem = str(told.get(there) or (call.node.places and call.node.places.refusal(name)) or "it is gone")
            found[name] = TopicSummary(name, 0, 0, 0, 0, [], False, there, problem)
    return found


async def create_topic(call: Call[Nothing, TopicBody]) -> TopicInfo:
    """Make a topic; what is not chosen comes from the node's configuration."""
    settings = inward(call.body.settings, call.node.config.topic.settings(), call.node.dialects)
    # A pause is more than a setting: it notes where the topic stood.
    topic = await call.node.create_for(call.caller, call.body.name, msgspec.structs.replace(settings, paused=False))
    if settings.paused:
        await topic.pause(paused=True)
    return info(topic)


async def show_topic(call: Call[Nothing, None]) -> TopicInfo:
    """Show one topic."""
    return info(call.topic())


async def change_topic(call: Call[Nothing, TopicChange]) -> TopicInfo:
    """Change settings of a topic."""
    topic = call.topic()
    call.caller.check_not_own(topic.name)
    settings = inward(call.body.settings, topic.settings, call.node.dialects)
    await topic.update(msgspec.structs.replace(settings, paused=topic.settings.paused))
    if settings.paused != topic.settings.paused:
        await topic.pause(paused=settings.paused)
    return info(topic)


async def delete_topic(call: Call[Nothing, None]) -> None:
    """Drop a topic with everything in it."""
    name = call.names["topic"]
    call.caller.check(call.action, name)
    await call.node.delete_topic(name)


async def pause_topic(call: Call[Nothing, None]) -> TopicInfo:
    """Keep what comes from now on in the topic."""
    topic = call.topic()
    await topic.pause(paused=True)
    return info(topic)


async def resume_topic(call: Call[Nothing, None]) -> TopicInfo:
    """Let messages flow to the subscriptions again."""
    topic = call.topic()
    await topic.pause(paused=False)
    return info(topic)


async def empty_topic(call: Call[Nothing, None]) -> TopicInfo:
    """Let go of what no subscription has yet."""
    topic = call.topic()
    await topic.empty()
    return info(topic)


def info(topic: Topic) -> TopicInfo:
    """Return all about a topic."""
    record = topic.record
    return TopicInfo(
        topic.name,
        record.number,
        str(record.incarnation),
        times.shown(record.created_ns),
        record.owner,
        outward(topic.settings) | {"dialects": _choices(topic)},
        topic.published,
        topic.intake.published_bytes,
        topic.depth(),
        topic.stored_bytes(),
        [_shard(shard) for shard in topic.shards],
        sorted(topic.subscriptions),
    )


def _choices(topic: Topic) -> dict[str, dict[str, Choice]]:
    """Return what the topic is to each dialect of which somebody chose something, or which made it."""
    found = {
        dialect.name: outward(topic.chosen.of(dialect.choices))
        for dialect in topic.node.dialects
        if dialect.choices is not None and dialect.name in topic.settings.dialects
    }
    return {**topic.settings.dialects, **found}


def _summary(topic: Topic) -> TopicSummary:
    return TopicSummary(
        topic.name,
        topic.published,
        topic.depth(),
        sum(shard.rows_between(shard.kept_from, shard.end) for shard in topic.shards),
        topic.stored_bytes(),
        sorted(topic.subscriptions),
        topic.settings.paused,
    )


def _shard(shard: Shard) -> ShardInfo:
    return ShardInfo(
        shard.number,
        shard.start,
        shard.end,
        shard.readable_end,
        shard.rows_between(shard.kept_from, shard.end),
        shard.stored_bytes(),
        [DamageInfo(damage.first, damage.end, damage.reason) for damage in shard.damaged],
    )


_ONE = PREFIX + "/topics/{topic}"
ENDPOINTS = (
    Endpoint("GET", f"{PREFIX}/topics", list_topics, "List topics by name", TopicPage, query=PageQuery),
    Endpoint("POST", f"{PREFIX}/topics", create_topic, "Make a topic", TopicInfo, body=TopicBody, status=201),
    Endpoint("GET", _ONE, show_topic, "Show a topic", TopicInfo),
    Endpoint("PATCH", _ONE, change_topic, "Change settings of a topic", TopicInfo, body=TopicChange),
    Endpoint("DELETE", _ONE, delete_topic, "Drop a topic with everything in it", status=204, action="delete"),
    Endpoint("POST", f"{_ONE}/pause", pause_topic, "Keep what comes from now on in the topic", TopicInfo),
    Endpoint("POST", f"{_ONE}/resume", resume_topic, "Let messages flow again", TopicInfo),
    Endpoint(
        "POST", f"{_ONE}/empty", empty_topic, "Let go of what no subscription has yet", TopicInfo, action="delete"
    ),
)
