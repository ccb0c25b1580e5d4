"""The relay at work: topics of this node that are M3's as well."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from random import Random

from penstock.clock import SECOND
from penstock.delivery.subscription import Subscription
from penstock.dialect import Peer, Sample
from penstock.errors import Elsewhere
from penstock.node.declared import declared, with_filters
from penstock.node.node import Change, Node
from penstock.node.topic import Topic
from penstock.registry.answer import Answer
from penstock.relays.m3msg.config import RelayConfig
from penstock.relays.m3msg.relayed import Relayed, Way, followed
from penstock.relays.m3msg.topology import Topology
from penstock.settings import SubscriptionSettings
from penstock.wire.dial import Dialler

#: A topic that cannot be had is asked for again so often.
RETRY_NS = 5 * SECOND

_log = logging.getLogger("penstock.m3msg")


class NodeStream:
    """A topic of this node, as a relay sees it."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.name = topic.name
        self.subscriptions = topic.subscriptions
        self.attach, self.subscribe = topic.attach, topic.subscribe
        self.update_subscription, self.delete_subscription = topic.update_subscription, topic.delete_subscription

    def declared(self, subscription: str, settings: SubscriptionSettings) -> SubscriptionSettings | None:
        """Return settings with the filters that the file has for a subscription; None where it has none."""
        static = declared(self._topic.node, self.name, subscription)
        return with_filters(settings, static) if static is not None else None

    def remembered(self, key: str) -> bytes | None:
        """Return what the registry has under a key."""
        entry = self._topic.node.catalog.registry.get(key)
        return entry.value if entry is not None else None

    def remember(self, key: str, value: bytes) -> Answer[None]:
        """Put something into the registry."""
        return self._topic.node.catalog.put(key, value)

    def forget(self, key: str) -> Answer[None]:
        """Take something out of the registry."""
        return self._topic.node.catalog.remove([key])


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
        self._way = Way(node.clock, config, dialler, random)
        self._cancel = followed(config, topology, self._way)
        self._closed = False
        self.topics: dict[str, Relayed] = {}
        self._node = node
        node.watchers.append(self._changed)
        for name in config.topics:
            self._seek(name)

    def _seek(self, name: str) -> None:
        if not self._closed and not self._node.stopping:
            self._node.obtain(name).then(partial(self._found, name))

    def _found(self, name: str, topic: Topic | None, error: BaseException | None) -> None:
        if isinstance(error, Elsewhere):
            return  # its node relays it; if it comes here, that is told
        if topic is None:
            _log.error("topic %s cannot be relayed: %s; trying again", name, error)
            clock = self._node.clock
            clock.call_at(clock.monotonic() + RETRY_NS, partial(self._seek, name))
        else:
            self._begin(topic)

    def _begin(self, topic: Topic) -> None:
        if not self._closed and topic.name not in self.topics and topic.is_open:
            stream = NodeStream(topic)
            self.topics[topic.name] = Relayed(stream, self._topology, self._way, self._config.connections)

    def _changed(self, event: Change, topic: Topic, subscription: Subscription | None) -> None:
        """Follow topics and subscriptions that somebody deletes: what M3's topic asks for is made anew."""
        if topic.name not in self._config.topics:
            return
        if subscription is not None:
            if event == "deleted" and topic.name in self.topics:
                self.topics[topic.name].lost(subscription)
            elif event == "changed" and topic.name in self.topics:
                self.topics[topic.name].configured()
        elif event == "created":
            self._begin(topic)
        elif event in ("deleted", "left") and topic.name in self.topics:
            self.topics.pop(topic.name).close()

    async def drain(self) -> None:
        """Send nothing more; acks of what is out still come."""
        for relayed in self.topics.values():
            relayed.drain()

    async def close(self) -> None:
        """Hang up on everybody."""
        self._closed = True
        if self._changed in self._node.watchers:
            self._node.watchers.remove(self._changed)
        self._cancel()
        for relayed in self.topics.values():
            relayed.close()
        await self._topology.close()
        await self._end()

    def hindrances(self) -> list[str]:
        """Return why what goes out may not go where it should."""
        away = self._topology.away
        return [f"M3's topics and placements are as etcd last said, for it cannot be read: {away}"] if away else []

    def samples(self) -> Iterator[Sample]:
        """Return the figures of the topology, and of each service."""
        told = self._topology
        text = "1 while M3's topics and placements are known to be current."
        yield Sample("topology_current", "gauge", text, int(not told.away))
        text = "Times at which etcd ceased to say what M3's topics and placements are."
        yield Sample("topology_losses_total", "counter", text, told.losses)
        text = "Values of topics, placements and flags that could not be used."
        yield Sample("unreadable_values_total", "counter", text, told.refused)
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
                text = "Placements, or changes of the service, that could not be followed."
                yield Sample("refused_placements_total", "counter", text, service.refused, labels)
                text = "Instances of the placement that have no address that can be used."
                yield Sample("unusable_instances", "gauge", text, service.unusable, labels)
                text = "Shards that instances of the placement have and the topic does not."
                yield Sample("unknown_shards", "gauge", text, service.unknown_shards, labels)
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
