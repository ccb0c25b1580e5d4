"""Timelines at work on a node: the service, what Flight carries of it, and its administration over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Self

from penstock.config import Config
from penstock.dialect import Bound, Families, Peer, Sample
from penstock.dialects.timeline.config import TimelineConfig
from penstock.dialects.timeline.http import Http
from penstock.dialects.timeline.metrics import describe
from penstock.dialects.timeline.service import Service
from penstock.http import Door, Listener
from penstock.http.away import join
from penstock.http.listener import tls_of
from penstock.node.node import Node
from penstock.registry.answer import Answer
from penstock.wire.crowd import Crowd, files_left

#: The registry is waited for so long when the node ends: who is not heard then is gone by the end of its lease.
GOODBYE_S = 2.0


class Timelines:
    """The dialect of one node. Without `start` it needs no loop: somebody else connects to its listener."""

    def __init__(self, node: Node, config: Config) -> None:
        timeline, limits = config.of(TimelineConfig), config.limits
        self._node = node
        self.service = Service(node, config)
        node.offers["timeline"] = self.service.offer()
        crowd = Crowd(limits.connections, limits.connections_per_address, files_left())
        door = Door(timeline.address, config.http.hosts)
        app = Http(node, self.service)
        self.listener = Listener("timeline.port", app, node.clock, node.budget, node.gate, door, crowd)
        join(node, self.listener)
        self._goodbye: Answer[None] = Answer.of(None)

    @classmethod
    async def start(cls, node: Node, config: Config, bound: Bound) -> Self:
        """Serve clients in the running loop."""
        running = cls(node, config)
        await running.listener.serve(bound.taken(), tls_of(config))
        return running

    async def drain(self) -> None:
        """Let nobody new in, and end all streams: what is on lease stays so."""
        self._node.offers.pop("timeline", None)
        self._goodbye = self.service.close()

    async def close(self) -> None:
        """Hang up on everybody, and end when the cluster knows that this broker is gone."""
        await self.listener.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await self._goodbye

    def samples(self) -> Iterable[Sample]:
        """Return how many there are."""
        service = self.service
        yield Sample("connections", "gauge", "Connections to the administration.", len(self.listener.connections))
        yield Sample("requests_total", "counter", "Requests to the administration.", self.listener.requests)
        yield Sample("sessions", "gauge", "Producers and consumers that greeted.", len(service.sessions))
        for timeline in service.topics.all():
            labels = {"topic": timeline.topic.name}
            yield Sample("consumers", "gauge", "Consumers with a stream.", len(timeline.consumers), labels)
            yield Sample("ids", "gauge", "Message ids that are looked up.", len(timeline.index), labels)

    def describe(self, out: Families, *, seed_names: bool) -> None:
        """Tell how the brokers of the cluster do."""
        describe(out, self.service.membership, seed_names=seed_names)

    def peers(self) -> Iterable[Peer]:
        """Return who is connected."""
        yield from (Peer(connection.peer, "timeline.port") for connection in self.listener.connections)
        for timeline in self.service.topics.all():
            for name, consumer in timeline.consumers.items():
                held = consumer.seat.in_flight if consumer.seat is not None else 0
                place = timeline.topic.name, timeline.subscription.name
                yield Peer(consumer.caller.address, "flight.port", name, consumer.joined_ns, *place, held)
