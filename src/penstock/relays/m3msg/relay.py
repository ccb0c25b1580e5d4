"""The relay at work: topics of this node, each with the consumer services that M3's topic of its name has."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from random import Random

from penstock.clock import SECOND
from penstock.dialect import Peer, Sample
from penstock.m3.topic import ServiceId
from penstock.m3.topic import Topic as Said
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.relays.m3msg.config import RelayConfig
from penstock.relays.m3msg.retry import Retry
from penstock.relays.m3msg.service import Service
from penstock.relays.m3msg.topology import Topology
from penstock.wire.dial import Dialler
from penstock.wire.link import Backoff

_log = logging.getLogger("penstock.m3msg")

#: As upstream dials: after a second, then after twice as long each time.
DIAL_NS_MIN = SECOND
DIAL_NS_MAX = 15 * SECOND


class Way:
    """How messages are sent, the same for all connections of a relay."""

    def __init__(self, node: Node, config: RelayConfig, dialler: Dialler, random: Random) -> None:
        self.clock = node.clock
        self.dialler = dialler
        self.retry = Retry(config.retry_initial_ns, config.retry_max_ns, random)
        self.in_flight = config.in_flight
        self.dial_timeout_ns = config.dial_timeout_ns
        self.write_timeout_ns = config.write_timeout_ns
        self.frame_bytes = config.frame_bytes
        self._random = random

    def backoff(self) -> Backoff:
        """Return when to dial again."""
        return Backoff(DIAL_NS_MIN, DIAL_NS_MAX, self._random)


class Relayed:
    """One topic and its services."""

    def __init__(self, topic: Topic, topology: Topology, way: Way, connections: int) -> None:
        self.topic = topic
        self.services: dict[ServiceId, Service] = {}
        self.shards = 0
        #: Changes of the topic that could not be followed.
        self.refused = 0
        self._topology = topology
        self._way = way
        self._connections = connections
        self._cancels: dict[ServiceId, Callable[[], None]] = {}
        self._cancel = topology.watch_topic(topic.name, self._heard)

    def _heard(self, said: Said) -> None:
        """Have the services that M3's topic has now."""
        if self.shards and said.shards != self.shards:
            self.refused += 1
            _log.warning(
                "topic %s has %d shards and cannot get %d: nothing of the change holds",
                said.name,
                self.shards,
                said.shards,
            )
            return
        self.shards = said.shards
        now = {service.service_id: service for service in said.services}
        for gone in [each for each in self.services if each not in now]:
            self._cancels.pop(gone)()
            self.services.pop(gone).remove()
        for key, service in now.items():
            if key in self.services:
                self.services[key].become(service)
            else:
                new = self.services[key] = Service(self.topic, service, said.shards, self._way, self._connections)
                new.begin()
                self._cancels[key] = self._topology.watch_placement(key, new.place)

    def close(self) -> None:
        """Hang up on everybody."""
        self._cancel()
        for cancel in self._cancels.values():
            cancel()
        for service in self.services.values():
            service.close()


async def _nothing() -> None:
    pass


class Relay:
    """All topics that are relayed."""

    def __init__(
        self,
        node: Node,
        config: RelayConfig,
        topology: Topology,
        dialler: Dialler,
        random: Random,
        end: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self._end = end
        self._config = config
        self._topology = topology
        self._way = Way(node, config, dialler, random)
        self._closed = False
        self.topics: dict[str, Relayed] = {}
        for name in config.topics:
            node.obtain(name).then(partial(self._found, name))

    def _found(self, name: str, topic: Topic | None, error: BaseException | None) -> None:
        if topic is None:
            _log.error("topic %s cannot be relayed: %s", name, error)
        elif not self._closed:
            self.topics[name] = Relayed(topic, self._topology, self._way, self._config.connections)

    async def drain(self) -> None:
        """Send nothing more; acks of what is out still come."""
        for relayed in self.topics.values():
            for service in relayed.services.values():
                service.drain()

    async def close(self) -> None:
        """Hang up on everybody."""
        self._closed = True
        for relayed in self.topics.values():
            relayed.close()
        await self._topology.close()
        await self._end()

    def samples(self) -> Iterator[Sample]:
        """Return the figures of each service."""
        for topic, relayed in self.topics.items():
            yield Sample(
                "refused_changes_total",
                "counter",
                "Changes of M3's topic that cannot be.",
                relayed.refused,
                {"topic": topic},
            )
            for key, service in relayed.services.items():
                labels = {"topic": topic, "service": str(key)}
                counts = service.counts
                for name, text, value in (
                    ("sent_total", "Messages sent, again as well.", counts.sent),
                    ("resent_total", "Messages sent again.", counts.resent),
                    ("acked_total", "Messages that were acked.", counts.acked),
                    ("unknown_acks_total", "Acks of messages that were not out.", counts.unknown),
                    ("too_large_total", "Messages that fit into no frame, and were not sent.", counts.too_large),
                    ("unowned_total", "Messages to shards that nobody has, which were not sent.", counts.unowned),
                    ("untimely_total", "Messages from before or after the time of their owner.", counts.untimely),
                    ("resets_total", "Connections that broke.", counts.resets),
                ):
                    yield Sample(name, "counter", text, value, labels)
                yield Sample("lag", "gauge", "Messages that wait to be sent.", service.lag, labels)
                connections = list(service.connections)
                open_ = sum(connection.is_open for connection in connections)
                yield Sample("connections", "gauge", "Connections that stand.", open_, labels)
                out = sum(connection.in_flight for connection in connections)
                yield Sample("in_flight", "gauge", "Messages that wait for their ack.", out, labels)

    def peers(self) -> Iterator[Peer]:
        """Return the instances that are connected."""
        for topic, relayed in self.topics.items():
            for service in relayed.services.values():
                for connection in service.connections:
                    if connection.is_open:
                        yield Peer(
                            connection.link.name,
                            "m3msg_relay",
                            topic=topic,
                            subscription=service.name,
                            in_flight=connection.in_flight,
                        )
