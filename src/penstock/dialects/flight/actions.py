"""Actions: JSON in, one JSON result out.

Owns the table of them. Each is a small step on the node; what waits for the disk waits on Flight's thread.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec
import pyarrow.flight as flight

from penstock.callers import Caller
from penstock.client.wire import (
    Commit,
    Committed,
    Decide,
    Decided,
    Hold,
    Part,
    PipelineReport,
    Routing,
    TopicInfo,
    decoded,
    encoded,
    made,
)
from penstock.clock import MILLISECOND
from penstock.dialects.flight import offered, owners
from penstock.dialects.flight.bridge import Settle
from penstock.dialects.flight.get import look, offset_at
from penstock.dialects.flight.info import all_topics, topic_info
from penstock.dialects.flight.service import Service
from penstock.errors import Refusal, hint
from penstock.intake.staging import name_of
from penstock.registry.answer import Answer
from penstock.settings import TopicSettings
from penstock.transactions.decisions import Decision


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopicName:
    """Names a topic."""

    name: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewTopic:
    """A topic to make; the settings that are not given come from the node's configuration."""

    name: str
    settings: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seek:
    """Where a subscription begins anew: an offset of a shard, or a time in all shards or one."""

    topic: str
    subscription: str
    shard: int | None = None
    offset: int | None = None
    time_ns: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class OffsetsAt:
    """Asks for the first offset at or after a time, in each shard."""

    topic: str
    time_ns: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class HoldName:
    """Names a hold."""

    name: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nothing:
    """An action that is told nothing."""


def topics(service: Service, caller: Caller, document: Nothing) -> object:
    """Describe all topics."""
    return {"topics": all_topics(service, caller)}


def topic(service: Service, caller: Caller, document: TopicName) -> TopicInfo:
    """Describe a topic."""
    return service.bridge.call(lambda: topic_info(service.topic(caller, "see", document.name)))


def create_topic(service: Service, caller: Caller, document: NewTopic) -> TopicInfo:
    """Make a topic."""
    base = service.node.config.topic.settings()
    given = document.settings or {}
    fields = base.__struct_fields__
    for name in given:
        if name not in fields:
            raise Refusal("bad_request", f"a topic has no setting {name!r}; {hint(name, fields, show=repr)}")
    if "retention_bytes" in given and "retention_hard" not in given:
        given = {**given, "retention_hard": True}  # who names a bound means it, as in the configuration
    try:
        settings = msgspec.convert({**msgspec.to_builtins(base), **given}, TopicSettings)
    except msgspec.ValidationError as error:
        raise Refusal("bad_request", f"these settings cannot be used: {error}") from None
    if settings.paused:
        raise Refusal("bad_request", "a topic is paused once it exists, not when it is made")

    def begin(settle: Settle[TopicInfo]) -> None:
        service.node.create_for(caller, document.name, settings).then_make(topic_info).then(settle)

    return service.bridge.ask(begin)


def delete_topic(service: Service, caller: Caller, document: TopicName) -> object:
    """Drop a topic with everything in it."""

    def begin(settle: Settle[None]) -> None:
        caller.check("delete", document.name)
        service.node.delete_topic(document.name).then(settle)

    service.bridge.ask(begin)
    return {}


def seek(service: Service, caller: Caller, document: Seek) -> object:
    """Begin a subscription anew at an offset or a time."""
    if (document.offset is None) == (document.time_ns is None):
        raise Refusal("bad_request", "a seek needs 'offset' or 'time_ns', one of them")
    count = service.bridge.call(lambda: len(service.topic(caller, "change", document.topic).shards))
    if document.offset is not None and document.shard is None and count > 1:
        raise Refusal("bad_request", f"topic {document.topic} has {count} shards; an offset belongs to one, name it")
    numbers = range(count) if document.shard is None else [document.shard]
    places = []
    for number in numbers:
        if document.time_ns is None:
            places.append((number, document.offset))
        else:
            source = service.bridge.call(partial(look, service, caller, document.topic, number))
            places.append((number, offset_at(service, source, document.time_ns)))

    def move(settle: Settle[None]) -> None:
        found = service.topic(caller, "change", document.topic)
        subscription = found.subscription(document.subscription)
        for number, offset in places:
            assert offset is not None
            subscription.seek(found.shard(number).number, offset)
        subscription.keeping.after(Answer.of(None)).then(settle)

    service.bridge.ask(move)
    return {}


def offsets_at(service: Service, caller: Caller, document: OffsetsAt) -> object:
    """Tell the first offset at or after a time, for each shard; its end where there is none."""
    count = service.bridge.call(lambda: len(service.topic(caller, "read", document.topic).shards))
    offsets = []
    for number in range(count):
        source = service.bridge.call(partial(look, service, caller, document.topic, number))
        offsets.append(offset_at(service, source, document.time_ns))
    return {"offsets": offsets}


def commit(service: Service, caller: Caller, document: Commit) -> Committed:
    """Make what these attempts staged visible, once for each (query, topic, batch)."""
    if document.topic is not None:
        service.bridge.call(partial(owners.check_here, service.node, document.topic))
    obtain = partial(service.node.obtain_for, caller, "publish")
    call = partial(
        service.node.transactions.commit, any_rows=document.any_rows, obtain=obtain, decided=document.decided
    )
    found: tuple[int, bool] = service.bridge.ask(partial(call, document.query, document.batch, document.attempts))
    return Committed(rows=found[0], already=found[1])


def prepare(service: Service, caller: Caller, document: Commit) -> object:
    """Tell whether what these attempts staged could be committed."""
    if document.topic is not None:
        service.bridge.call(partial(owners.check_here, service.node, document.topic))
    call = service.node.transactions.prepare
    service.bridge.ask(partial(call, document.query, document.batch, document.attempts))
    return {}


def decide(service: Service, caller: Caller, document: Decide) -> Decided:
    """Write down that a batch of several topics of a cluster is committed, whoever carries it out."""

    def asked() -> Answer[Decision]:
        if service.node.share is None:
            raise Refusal("bad_request", "this node is in no cluster: commit all attempts of a batch at once")
        wanted: dict[str, list[str]] = {}
        for part in document.parts:
            caller.check("publish", part.topic)
            for attempt in part.attempts:
                name_of(document.query, document.batch, attempt)
            wanted.setdefault(part.topic, []).extend(part.attempts)
        decisions = service.node.transactions.decisions
        return decisions.decide(document.query, document.batch, wanted, any_rows=document.any_rows)

    def ask(settle: Settle[Decision]) -> None:
        asked().then(settle)

    found: Decision = service.bridge.ask(ask)
    return Decided(
        batch=found.batch, parts=[Part(topic=part.topic, attempts=list(part.attempts)) for part in found.parts]
    )


def abort(service: Service, caller: Caller, document: Commit) -> object:
    """Drop what these attempts staged."""
    if document.topic is not None:
        service.bridge.call(partial(owners.check_here, service.node, document.topic))
    service.bridge.call(partial(service.node.transactions.abort, document.query, document.batch, document.attempts))
    return {}


def hold(service: Service, caller: Caller, document: Hold) -> object:
    """Keep rows from these offsets on against retention for a while; again to renew it."""

    def place() -> Answer[None]:
        record = service.topic(caller, "read", document.topic).record
        if document.incarnation and record.incarnation != document.incarnation:
            raise Refusal("gone", f"topic {document.topic} was deleted and made anew")
        return service.node.holds.hold(document.name, record, document.offsets, document.ttl_ms * MILLISECOND)

    service.bridge.ask(lambda settle: place().then(settle))
    return {}


def release_hold(service: Service, caller: Caller, document: HoldName) -> object:
    """End all holds of a name."""
    holds = service.node.holds

    def release(settle: Settle[int]) -> None:
        for topic in holds.topics(document.name):
            caller.check("read", topic, f"hold {document.name}")
        holds.release(document.name).then(settle)

    service.bridge.ask(release)
    return {}


def pipeline(service: Service, caller: Caller, document: PipelineReport) -> object:
    """Tell how a pipeline is; the node shows it until it hears nothing any more."""
    service.bridge.call(partial(service.node.pipelines.report, document))
    return {}


def routing(service: Service, caller: Caller, document: Nothing) -> Routing:
    """Tell the routing mapping: which bit each traffic type is."""
    mapping = service.bridge.call(service.node.routing.in_force)
    return Routing(traffic_types=mapping.traffic_types, retired=mapping.retired)


class Kind(NamedTuple):
    """One action: what it takes, and what it does."""

    document: type
    call: Callable[[Service, Caller, Any], object]


ACTIONS: dict[str, Kind] = {
    "topics": Kind(Nothing, topics),
    "topic": Kind(TopicName, topic),
    "create-topic": Kind(NewTopic, create_topic),
    "delete-topic": Kind(TopicName, delete_topic),
    "seek": Kind(Seek, seek),
    "offsets-at": Kind(OffsetsAt, offsets_at),
    "commit": Kind(Commit, commit),
    "prepare": Kind(Commit, prepare),
    "decide": Kind(Decide, decide),
    "abort": Kind(Commit, abort),
    "hold": Kind(Hold, hold),
    "release-hold": Kind(HoldName, release_hold),
    "routing": Kind(Nothing, routing),
    "pipeline": Kind(PipelineReport, pipeline),
}


def carry_out(service: Service, caller: Caller, action: flight.Action) -> bytes:
    """Return the result of an action."""
    content = action.body.to_pybytes() if action.body is not None else b""
    if "." in action.type:
        return offered.carry_out(service, caller, action.type, content)
    kind = ACTIONS.get(action.type)
    if kind is None:
        near = hint(action.type, ACTIONS, show=repr)
        raise Refusal("bad_request", f"there is no action {action.type!r}; {near}")
    document: object = decoded(content, kind.document) if content else made({}, kind.document)
    caller.doing = action.type
    result = kind.call(service, caller, document)
    if dataclasses.is_dataclass(result):
        return encoded(result)
    return json.dumps(result, separators=(",", ":"), default=dataclasses.asdict).encode()


def described(service: Service) -> list[flight.ActionType]:
    """Return what ListActions tells."""
    elsewhere = service.bridge.call(partial(offered.actions, service))
    return [
        flight.ActionType(name, f"{(kind.call.__doc__ or '').strip()} Takes {_fields(kind.document)}.")
        for name, kind in ACTIONS.items()
    ] + [flight.ActionType(name, (action.__doc__ or "").strip()) for name, action in elsewhere.items()]


def _fields(document: type) -> str:
    names = [field.name for field in dataclasses.fields(document)]
    return f"a JSON object with {', '.join(names)}" if names else "nothing"
