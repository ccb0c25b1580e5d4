"""One topic that is relayed: the consumer services that M3's topic of its name has, and how they are sent to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from random import Random

from penstock.clock import SECOND, Clock
from penstock.config import parse_duration
from penstock.delivery.subscription import Subscription
from penstock.m3.topic import ConsumerService, ServiceId, Topic
from penstock.registry.answer import Answer
from penstock.relays.m3msg.config import RelayConfig
from penstock.relays.m3msg.members import Members
from penstock.relays.m3msg.retry import Retry
from penstock.relays.m3msg.service import Service
from penstock.relays.m3msg.stream import Stream
from penstock.relays.m3msg.topology import Topology
from penstock.settings import SubscriptionSettings
from penstock.wire.dial import Dialler
from penstock.wire.link import Backoff

_log = logging.getLogger("penstock.m3msg")

#: As upstream dials: after a second, then after twice as long each time.
DIAL_NS_MIN = SECOND
DIAL_NS_MAX = 15 * SECOND

#: A service that left while nobody looked is let go of so long after the topic is known.
FLAG_NS = SECOND


class Way:
    """How messages are sent, the same for all connections of a relay."""

    def __init__(self, clock: Clock, config: RelayConfig, dialler: Dialler, random: Random) -> None:
        self.clock = clock
        self.dialler = dialler
        pauses_ns = [parse_duration(pause) for pause in config.retry_pauses]
        self.retry = Retry(config.retry_initial_ns, config.retry_max_ns, random, pauses_ns=pauses_ns)
        self.in_flight = config.in_flight
        self.dial_timeout_ns = config.dial_timeout_ns
        self.write_timeout_ns = config.write_timeout_ns
        self.frame_bytes = config.frame_bytes
        self.ignores_times = config.ignore_cutover_cutoff
        #: A service that leaves its topic gets what was published for it before.
        self.is_graceful = config.graceful_close
        self._random = random

    def backoff(self) -> Backoff:
        """Return when to dial again."""
        return Backoff(DIAL_NS_MIN, DIAL_NS_MAX, self._random)

    def be_graceful(self, graceful: bool) -> None:
        """Let services leave like this from now on, also those that are about to."""
        self.is_graceful = graceful


def followed(config: RelayConfig, topology: Topology, way: Way) -> Callable[[], None]:
    """Let a key in etcd say how services leave, where the configuration names one; returns what ends it."""
    if not config.graceful_close_key:
        return lambda: None
    return topology.watch_flag(config.graceful_close_key, way.be_graceful)


class Relayed:
    """One topic and its services."""

    def __init__(self, stream: Stream, topology: Topology, way: Way, connections: int) -> None:
        self.stream = stream
        self.services: dict[ServiceId, Service] = {}
        #: Those that are in the topic no more, and are waited for.
        self.leaving: dict[ServiceId, Service] = {}
        self.shards = 0
        #: Changes of the topic that could not be followed.
        self.refused = 0
        self._topology = topology
        self._way = way
        self._connections = connections
        self._members = Members(stream)
        self._cancels: dict[ServiceId, Callable[[], None]] = {}
        #: What is being removed of services that left, which must be over before one of them comes back.
        self._going: dict[ServiceId, Answer[None]] = {}
        self._is_draining = False
        self._cancel = topology.watch_topic(stream.name, self._heard)

    @property
    def is_placed(self) -> bool:
        """Whether the topic is known, and where each of its services is."""
        return bool(self.shards) and all(service.is_placed for service in self.services.values())

    def _heard(self, said: Topic) -> None:
        """Have the services that M3's topic has now."""
        if self._is_draining:
            return
        if self.shards and said.shards != self.shards:
            self.refused += 1
            _log.warning(
                "topic %s has %d shards and cannot get %d: nothing of the change holds",
                said.name,
                self.shards,
                said.shards,
            )
            return
        is_first, self.shards = not self.shards, said.shards
        now = {service.service_id: service for service in said.services}
        for gone in [each for each in self.services if each not in now]:
            self._leave(gone)
        if is_first:
            self._leave_absent(now)
        known = self._members.add(said.services)
        for key, service in now.items():
            back = self.leaving.pop(key, None)
            if back is not None:
                back.stay()
                self.services[key] = back
            if key in self.services:
                self.services[key].become(service)
            else:
                going = self._going.get(key, known)
                self._made(service).begin(known.then_ask(lambda _, going=going: going))  # type: ignore[misc]
                self._cancels[key] = self._topology.watch_placement(key, self.services[key].place)

    def _made(self, said: ConsumerService) -> Service:
        made = self.services[said.service_id] = Service(self.stream, said, self.shards, self._way, self._connections)
        return made

    def _leave_absent(self, now: Mapping[ServiceId, ConsumerService]) -> None:
        """Let go of those that left the topic while it was not relayed here."""
        for said in self._members.absent(now):
            if self._made(said).has_subscription:
                self._cancels[said.service_id] = self._topology.watch_placement(
                    said.service_id, self.services[said.service_id].place
                )
                # The flag that says how services leave may come a moment after the topic.
                self._leave(said.service_id, FLAG_NS)
            else:
                self._forget(self.services.pop(said.service_id))

    def _leave(self, key: ServiceId, after_ns: int = 0) -> None:
        service = self.leaving[key] = self.services.pop(key)
        cancel = self._cancels[key]

        def left(removed: Answer[None]) -> None:
            cancel()
            del self._cancels[key], self.leaving[key]
            going = self._going[key] = removed.settled()
            removed.then(lambda _, error: self._gone(service, going, error))

        service.leave(left, after_ns)

    def _gone(self, service: Service, going: Answer[None], error: BaseException | None) -> None:
        key = service.said.service_id
        if self._going.get(key) is going:
            del self._going[key]
        if error is None:
            self._forget(service)

    def configured(self) -> None:
        """Go by the settings that the subscriptions of its services have now."""
        for service in (*self.services.values(), *self.leaving.values()):
            service.configured()

    def lost(self, subscription: Subscription) -> None:
        """Make a subscription of a service anew that somebody deleted."""
        if not self._is_draining:
            for service in (*self.services.values(), *self.leaving.values()):
                service.lost(subscription)

    def _forget(self, gone: Service) -> None:
        """Remember a service no more, but while the file has filters for it: each start makes its subscription anew."""
        key = gone.said.service_id
        if key not in self.services and self.stream.declared(gone.name, SubscriptionSettings()) is None:
            self._members.remove(key)

    def drain(self) -> None:
        """Send nothing more, and follow no change: a node that stops gives no seats."""
        self._is_draining = True
        for service in (*self.services.values(), *self.leaving.values()):
            service.drain()

    def close(self) -> None:
        """Hang up on everybody."""
        self._cancel()
        for cancel in self._cancels.values():
            cancel()
        for service in (*self.services.values(), *self.leaving.values()):
            service.close()
