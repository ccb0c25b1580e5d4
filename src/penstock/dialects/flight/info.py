"""Topics as flights: one endpoint for each shard, with a ticket for all of it.

Owns what ListFlights and GetFlightInfo say, and the document that describes a topic. Of one that another node has it
says which node that is: its endpoints are there.
"""

from __future__ import annotations

import os
from functools import partial

import pyarrow.flight as flight

from penstock.callers import Caller
from penstock.client.wire import Read, ShardRange, TopicInfo, encoded
from penstock.columns import COLUMNS
from penstock.dialects.flight import owners
from penstock.dialects.flight.service import Service
from penstock.errors import Elsewhere
from penstock.log.record import schema_of
from penstock.log.shard import Shard
from penstock.node.topic import Topic

#: Topics described in one step of the loop.
STEP_TOPICS = 100


def topic_info(topic: Topic) -> TopicInfo:
    """Return what clients may know of a topic."""
    durability = topic.settings.durability
    return TopicInfo(
        name=topic.name,
        incarnation=topic.record.incarnation,
        shards=[_range(shard) for shard in topic.shards],
        # Of a topic on the shared log only a part is on this disk, and that goes with it.
        path=None if durability == "memory" or topic.is_shared else os.path.abspath(topic.path),
        durability=durability,
    )


def all_topics(service: Service, caller: Caller, prefix: str = "") -> list[TopicInfo]:
    """Return all topics by name; on a Flight thread, some of them in each step of the loop."""
    names = service.bridge.call(lambda: sorted(name for name in service.node.topics if name.startswith(prefix)))
    names = [name for name in names if caller.may("see", name)]

    def some(part: list[str]) -> list[TopicInfo]:
        found = (service.node.topics.get(name) for name in part)
        return [topic_info(topic) for topic in found if topic is not None]

    infos: list[TopicInfo] = []
    for start in range(0, len(names), STEP_TOPICS):
        infos += service.bridge.call(partial(some, names[start : start + STEP_TOPICS]))
    return sorted(infos + service.bridge.call(partial(_far, service, caller, prefix)), key=lambda info: info.name)


def _far(service: Service, caller: Caller, prefix: str) -> list[TopicInfo]:
    """Return what is known of topics that other nodes have; on the loop."""
    node = service.node
    return [owners.far_info(node, each) for each in owners.far_records(node, prefix) if caller.may("see", each.name)]


def one_topic(service: Service, caller: Caller, name: str) -> TopicInfo:
    """Return a topic, also one that another node has; on the loop."""
    try:
        return topic_info(service.topic(caller, "see", name))
    except Elsewhere:
        record = service.node.catalog.topic(name)
        if record is None:
            raise
        return owners.far_info(service.node, record)


def flight_info(service: Service, info: TopicInfo) -> flight.FlightInfo:
    """Return a topic as a flight; its endpoints are read over the connection that asked, or where they say."""
    if info.location or not info.shards:
        return _far_flight(service, info)
    endpoints = []
    for shard in info.shards:
        ticket = Read(
            topic=info.name, shard=shard.shard, incarnation=info.incarnation, start=shard.start, end=shard.end
        )
        endpoints.append(flight.FlightEndpoint(encoded(ticket), []))
    return flight.FlightInfo(
        schema_of(tuple(COLUMNS)),
        flight.FlightDescriptor.for_path(info.name),
        endpoints,
        sum(shard.rows for shard in info.shards),
        sum(shard.bytes for shard in info.shards),
        app_metadata=encoded(info),
    )


def _far_flight(service: Service, info: TopicInfo) -> flight.FlightInfo:
    """Return a topic of another node as a flight, whose rows nobody here can count."""
    record = service.bridge.call(partial(service.node.catalog.topic, info.name))
    count = record.settings.shards if record is not None else 0
    tickets = (Read(topic=info.name, shard=shard, incarnation=info.incarnation) for shard in range(count))
    locations = [info.location] if info.location else []
    return flight.FlightInfo(
        schema_of(tuple(COLUMNS)),
        flight.FlightDescriptor.for_path(info.name),
        [flight.FlightEndpoint(encoded(ticket), locations) for ticket in tickets],
        -1,
        -1,
        app_metadata=encoded(info),
    )


def _range(shard: Shard) -> ShardRange:
    start, end = shard.start, shard.readable_end
    return ShardRange(
        shard=shard.number,
        start=start,
        end=max(start, end),
        rows=shard.rows_between(start, end),
        bytes=shard.stored_bytes(),
        stretches=[list(stretch) for stretch in shard.stretches()],
    )
