"""The relay at work: topics of this node, each with a seat, and one router for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from random import Random

import msgspec

from penstock.clock import SECOND
from penstock.delivery.policies.in_order import InOrder
from penstock.delivery.subscription import Subscription
from penstock.dialect import Peer, Sample
from penstock.errors import Elsewhere, PenstockError
from penstock.node.declared import declared, with_filters
from penstock.node.node import Change, Node
from penstock.node.topic import Topic
from penstock.relays.kafka.books import Watch
from penstock.relays.kafka.config import KafkaRelayConfig
from penstock.relays.kafka.knowledge import Times
from penstock.relays.kafka.lane import LEASE_NS, Lane
from penstock.relays.kafka.learning import Learning
from penstock.relays.kafka.router import Router
from penstock.relays.kafka.wanted import wanted
from penstock.relays.kafka.way import Outside
from penstock.settings import SubscriptionSettings

_log = logging.getLogger("penstock.kafka")

#: A topic that cannot be had now is asked for again after this.
RETRY_NS = 5 * SECOND


async def _nothing() -> None:
    pass


class Relay:
    """All topics that are relayed."""

    def __init__(
        self,
        node: Node,
        config: KafkaRelayConfig,
        outside: Outside,
        random: Random,
        end: Callable[[], Awaitable[None]] = _nothing,
        learning: Learning | None = None,
    ) -> None:
        self.router = Router(config, node.clock, random, outside, node.discards, node.budget.output)
        self._node = node
        self._config = config
        self._end = end
        self._learning = learning
        self._keep = wanted(config.tags, config.header)
        self._is_closed = False
        #: Topics that are about to get a lane.
        self._coming: set[str] = set()
        #: Why topics cannot be relayed yet.
        self._put_offs: dict[str, str] = {}
        node.watchers.append(self._changed)
        for topic in list(node.topics.values()):
            self._consider(topic)
        for name in config.topics:
            if not set(name) & set("*?["):
                self._seek(name)
        self.router.start()

    # --- which topics ---------------------------------------------------------------------------------------------

    def _seek(self, name: str) -> None:
        if not self._is_closed and not self._node.stopping:
            self._node.obtain(name).then(partial(self._found, name))

    def _found(self, name: str, topic: Topic | None, error: BaseException | None) -> None:
        if isinstance(error, Elsewhere):
            return  # its node relays it; if it comes here, that is told
        if topic is None:
            self._put_off(name, error, partial(self._seek, name))
        else:
            self._consider(topic)

    def _put_off(self, name: str, error: BaseException | None, again: Callable[[], None]) -> None:
        """Say why a topic cannot be relayed, once, and try again later: the registry may be away."""
        if self._put_offs.get(name) != str(error):
            self._put_offs[name] = str(error)
            level = logging.WARNING if isinstance(error, PenstockError) else logging.ERROR
            _log.log(level, "topic %s cannot be relayed: %s; trying again", name, error)
        clock = self._node.clock
        clock.call_at(clock.monotonic() + RETRY_NS, again)

    def _changed(self, event: Change, topic: Topic, subscription: Subscription | None) -> None:
        if subscription is None and event == "created":
            self._consider(topic)
        elif subscription is not None and event == "deleted":
            if subscription.name == self._config.subscription and self._config.relays(topic.name):
                _log.warning("topic %s: its subscription was deleted, and is made again for what comes now", topic.name)
                self._node.clock.call_soon(partial(self._consider, topic))
        elif subscription is None and event in ("deleted", "left"):
            lane = self.router.lanes.get(topic.name)
            if lane is not None and lane.topic is topic:
                self.router.remove(lane)
                if self._learning is not None:
                    self._learning.forget(topic.name)

    def _consider(self, topic: Topic) -> None:
        """Relay a topic if that is asked for."""
        lane = self.router.lanes.get(topic.name)
        if self._is_closed or topic.name in self._coming or (lane is not None and lane.is_open):
            return
        if not self._config.relays(topic.name) or not topic.is_open or self._node.stopping:
            return
        self._coming.add(topic.name)
        name = self._config.subscription
        there = topic.subscriptions.get(name)
        settings = self._settings(topic, there)
        if there is None:
            asked = topic.subscribe(name, settings)
        else:
            asked = topic.update_subscription(name, settings)
        asked.then(partial(self._subscribed, topic))

    def _settings(self, topic: Topic, there: Subscription | None) -> SubscriptionSettings:
        """Return the settings of its subscription: those of the file, or the filters that it has."""
        settings = msgspec.structs.replace(
            there.settings if there is not None else SubscriptionSettings(),
            lease_ns=LEASE_NS,
            lease_max_ns=LEASE_NS,
            policy=InOrder.name,
        )
        static = declared(self._node, topic.name, self._config.subscription)
        return with_filters(settings, static) if static is not None else settings

    def _subscribed(self, topic: Topic, subscription: Subscription | None, error: BaseException | None) -> None:
        self._coming.discard(topic.name)
        if subscription is None:
            if topic.is_open:
                self._put_off(topic.name, error, partial(self._consider, topic))
        elif not self._is_closed and topic.is_open and not self._node.stopping:
            self._put_offs.pop(topic.name, None)
            config = self._config
            manner = config.manner(topic.name)
            self.router.add(Lane(topic, subscription, manner, self.router.take, self._keep, config.in_flight))

    # --- running --------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Send what is in hand, for as long as a stopping node waits for it."""
        ended = asyncio.Event()
        self.router.drain(ended.set)
        clock = self._node.clock
        timer = clock.call_at(clock.monotonic() + self._config.shutdown_max_delay_ns, ended.set)
        await ended.wait()
        timer.cancel()
        taken = asyncio.Event()
        self.router.leftovers.take(taken.set)
        await taken.wait()
        self._close()

    async def close(self) -> None:
        """Hang up on everybody."""
        self._close()
        await self._end()

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._node.watchers.remove(self._changed)
            self.router.close()

    def hindrances(self) -> list[str]:
        """Return why nothing goes out at this moment."""
        why = self.router.trouble
        return [f"nothing is sent to Kafka: {why}. What is published is stored and goes out later"] if why else []

    def samples(self) -> Iterator[Sample]:
        """Return its figures."""
        counts = self.router.books.counts
        for name, text, value in (
            ("taken_total", "Messages that the relay took in hand.", counts.taken),
            ("sent_total", "Messages sent, again as well.", counts.sent),
            ("requests_total", "Requests that carried them.", counts.requests),
            ("acked_total", "Messages that Kafka has.", counts.acked),
            ("discarded_total", "Messages that were thrown away; why is told with the discards.", counts.discarded),
            ("resent_total", "Messages sent again, or on another way.", counts.resent),
            ("possible_duplicates_total", "Messages that Kafka may have twice.", counts.duplicates),
            ("pauses_total", "Times that sending stopped because of trouble.", counts.pauses),
            ("metadata_fetches_total", "Times that Kafka said what it has.", counts.metadata_fetched),
            ("metadata_failures_total", "Times that it did not.", counts.metadata_failed),
            ("metadata_changed_total", "Times that it was asked again, and had news.", counts.metadata_changed),
            ("metadata_unchanged_total", "Times that it was, and had none.", counts.metadata_unchanged),
        ):
            yield Sample(name, "counter", text, value)
        for kind, value in counts.connection_failures.items():
            text = "Connections to brokers that could not be had, ended, fell silent, answered wrongly, or broke."
            yield Sample("connection_failures_total", "counter", text, value, {"kind": kind})
        for code, value in sorted(counts.errors.items()):
            yield Sample("errors_total", "counter", "Answers with an error.", value, {"code": str(code)})
        if self._learning is not None:
            yield from self._learning.samples()
        yield Sample("held", "gauge", "Messages in hand.", self.router.held)
        held_bytes = self.router.books.held_bytes
        yield Sample("held_bytes", "gauge", "Their bytes, of what kafka_relay.in_flight_bytes allows.", held_bytes)
        text = "Messages in hand that were looked at, by what they wait for: company, their turn, Kafka's answer."
        for topic, *waiting in self.queues():
            for state, count in zip(("batch", "send", "ack"), waiting, strict=True):
                yield Sample("waiting", "gauge", text, count, {"topic": topic, "for": state})
        text = "Messages that were not looked at yet."
        yield Sample("unseen", "gauge", text, self.waiting())
        times = self.metadata_times()
        text = "When Kafka last said what it has, as Unix time; 0 = never."
        yield Sample("metadata_updated_timestamp_seconds", "gauge", text, times.updated_ms / 1000)
        text = "When that was last news."
        yield Sample("metadata_modified_timestamp_seconds", "gauge", text, times.modified_ms / 1000)
        yield Sample("is_sending", "gauge", "1 while nothing keeps it from sending.", int(not self.router.trouble))
        ready = sum(1 for _ in self.peers())
        yield Sample("connections", "gauge", "Brokers that can be sent to.", ready)

    def peers(self) -> Iterator[Peer]:
        """Return the brokers that are connected."""
        for line in self.router.lines.values():
            if line.wire is not None and line.wire.is_ready:
                out = sum(part.count for request in line.out for part in request)
                yield Peer(f"{line.broker.host}:{line.broker.port}", "kafka_relay", in_flight=out)

    # --- for status pages -----------------------------------------------------------------------------------------

    @property
    def watch(self) -> Watch | None:
        """Who is told of single messages."""
        return self.router.books.watch

    @watch.setter
    def watch(self, watch: Watch | None) -> None:
        self.router.books.watch = watch

    def queues(self) -> Iterator[tuple[str, int, int, int]]:
        """Return the topics of which it holds messages: how many in a batch, to be sent, and sent."""
        return self.router.routes.queues()

    def waiting(self) -> int:
        """Return how many messages it has not looked at yet."""
        return sum(lane.waiting for lane in self.router.lanes.values())

    def metadata_times(self) -> Times:
        """Return when it learned what it knows."""
        return self.router.knowledge.times

    def update_metadata(self) -> None:
        """Ask Kafka again, soon."""
        self.router.refresh()
