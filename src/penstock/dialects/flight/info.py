"""Topics as flights: one endpoint for each shard, with a ticket for all of it.

Owns what ListFlights and GetFlightInfo say, and the document that describes a topic.
"""

from __future__ import annotations

import os
from functools import partial

import pyarrow.flight as flight

from penstock.callers import Caller
from penstock.client.wire import Read, ShardRange, TopicInfo, encoded
from penstock.columns import COLUMNS
from penstock.dialects.flight.service import Service
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
        path=None if durability == "memory" else os.path.abspath(topic.path),
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
    return infos


def flight_info(info: TopicInfo) -> flight.FlightInfo:
    """Return a topic as a flight; its endpoints are read over the connection that asked."""
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
