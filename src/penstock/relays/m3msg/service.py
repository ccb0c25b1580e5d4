"""One consumer service of a topic: the subscriptions that are its own, as its placement asks for them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import msgspec

from penstock.clock import SECOND
from penstock.delivery.subscription import Subscription
from penstock.errors import PenstockError
from penstock.m3.placement import Placement
from penstock.m3.topic import ConsumerService, Filters
from penstock.registry.answer import Answer
from penstock.relays.m3msg.connection import Counts, Manner
from penstock.relays.m3msg.connections import Connections
from penstock.relays.m3msg.members import REMEMBERED
from penstock.relays.m3msg.owners import Owner, beyond, replicas, shared, usable
from penstock.relays.m3msg.replica import Replica
from penstock.relays.m3msg.stream import Stream
from penstock.settings import HOUR_NS, SubscriptionSettings, TrafficSettings

_log = logging.getLogger("penstock.m3msg")

#: Longer than any pause of a retry, which counts from when a message goes out.
LEASE_NS_MAX = 24 * HOUR_NS

#: How often it is looked whether a service that is about to go has acked everything, as upstream does.
CLOSE_CHECK_NS = SECOND


class Service:
    """Keeps the subscriptions of a service, and their connections, as its placement is."""

    def __init__(self, stream: Stream, said: ConsumerService, shards: int, manner: Manner, connections: int) -> None:
        self.said = said
        self.counts = Counts()
        #: Placements that could not be followed, and instances of the one in force that cannot be dialled.
        self.refused = self.unusable = 0
        #: Shards in it that the topic does not have; each instance counts.
        self.unknown_shards = 0
        self._stream = stream
        self._shards = shards
        self._manner = manner
        self.connections = Connections(connections, manner, self.counts, shards)
        self._replicas: list[Replica] = []
        self._placement: Placement | None = None
        self._closed = self._is_draining = False
        #: Hears when it has gone, while it is about to.
        self._left: Callable[[Answer[None]], None] | None = None
        #: Its topic had filters for it, so what its subscriptions have are not somebody else's.
        self._was_filtered = False
        #: Changes are made one after the other.
        self._changing: Answer[None] = Answer.of(None)

    @property
    def name(self) -> str:
        """The name of its first subscription; those of further replicas have a number behind it."""
        parts = (self.said.service_id.zone, self.said.service_id.environment, self.said.service_id.name)
        return "m3msg." + ".".join(part for part in parts if part)

    @property
    def has_subscription(self) -> bool:
        """Whether there is a subscription of its own already."""
        return bool(self._subscriptions())

    @property
    def is_placed(self) -> bool:
        """Whether its placement is known and followed."""
        return self._placement is not None and self._changing.is_given

    @property
    def lag(self) -> int:
        """How many messages are not acked yet."""
        return max((replica.subscription.depth() for replica in self._replicas), default=0)

    # --- changes --------------------------------------------------------------------------------------------------

    def begin(self, known: Answer[None]) -> None:
        """See to it that nothing is missed once it is remembered, whatever the placement is."""
        self._then(lambda: known.then_ask(lambda _: self._subscribed(0)).then_make(lambda _: None))

    def configured(self) -> None:
        """Hear that the settings of a subscription of its own may have changed."""
        for replica in self._replicas:
            replica.configured()

    def lost(self, subscription: Subscription) -> None:
        """Hear that a subscription was deleted: if it was one of its own, have another for what comes from now on."""
        names = self._names()
        if self._closed or subscription.name not in names:
            return
        number = names.index(subscription.name)
        for replica in self._replicas[number:]:
            replica.close()
        del self._replicas[number:]
        if self._left is None:
            _log.warning("subscription %s was deleted and is made anew: its service is in the topic", subscription.name)
            self._then(self._again)

    def become(self, said: ConsumerService) -> None:
        """Take over what a topic says of it now, but how it is consumed, which stays."""
        if said.consumption != self.said.consumption:
            _log.warning(
                "service %s cannot become %s: add it anew under another name", said.service_id, said.consumption
            )
            said = msgspec.structs.replace(said, consumption=self.said.consumption)
        if said != self.said:
            self._was_filtered |= self.said.filters is not None
            self.said = said
            self._then(self._configure)

    def place(self, placement: Placement) -> None:
        """Send to these instances from now on."""
        if self.said.consumption == "replicated" and not placement.is_sharded:
            self.refused += 1
            _log.warning("service %s is replicated, and its placement has no shards: it changes nothing", self.name)
            return
        self._placement, problems = usable(placement)
        self.unusable = len(problems)
        for problem in problems:
            _log.warning("service %s does without an instance of its placement: %s", self.name, problem)
        extra = beyond(self._placement, self._shards)
        self.unknown_shards = sum(extra.values())
        for name, number in extra.items():
            text = "service %s: %s has %d shards that the topic, with %d, does not have: nothing goes there"
            _log.warning(text, self.name, name, number, self._shards)
        self._then(self._place)

    def drain(self) -> None:
        """Send nothing more, to nobody who comes either."""
        self._is_draining = True
        for replica in self._replicas:
            replica.drain()
        for connection in self.connections:
            connection.drain()

    def close(self) -> None:
        """Hang up; what is not acked is sent again by whoever comes next."""
        self.drain()  # a placement may wait for the registry, and would call somebody when that answers
        self._closed = True
        for replica in self._replicas:
            replica.close()

    def leave(self, left: Callable[[Answer[None]], None], after_ns: int = 0) -> None:
        """Go: at once, or, where that is asked for, when everything that was published until now is acked.

        `left` hears when it goes, with the answer that comes when its subscriptions are gone.
        """
        self._left = left
        for subscription in self._subscriptions():
            subscription.gate([cursor.source.readable_end for cursor in subscription.cursors])
        if after_ns:
            self._look_later(after_ns)
        else:
            self._look_around()

    def stay(self) -> None:
        """Do not go after all."""
        self._left = None
        for subscription in self._subscriptions():
            subscription.gate(None)
            subscription.pump()
        self._then(self._again)  # somebody may have deleted one meanwhile

    def _look_around(self) -> None:
        """Go if nothing is waited for any more."""
        if self._closed or self._left is None:
            return
        if self._manner.is_graceful and self._has_more():
            self._look_later(CLOSE_CHECK_NS)
        else:
            self._left(self._remove())

    def _look_later(self, after_ns: int) -> None:
        clock = self._manner.clock
        clock.call_at(clock.monotonic() + after_ns, self._look_around)

    def _has_more(self) -> bool:
        return any(each.depth() or each.in_flight() or each.waiting() for each in self._subscriptions())

    def _remove(self) -> Answer[None]:
        """Hang up, and keep nothing for it any more, nor for a replica that it once had."""
        self.close()
        removed: Answer[None] = Answer.of(None)
        for name in [each.name for each in self._subscriptions()]:
            one = self._stream.delete_subscription(name)
            one.then(partial(_failed, f"subscription {name} cannot be removed"))
            removed = removed.then_ask(lambda _, one=one: one)  # type: ignore[misc]
        return removed.then_ask(lambda _: self._forget_places())

    # --- inside ---------------------------------------------------------------------------------------------------

    def _then(self, ask: Callable[[], Answer[None]]) -> None:
        """Make a change after those before it."""
        self._changing = self._changing.settled().then_ask(lambda _: Answer.of(None) if self._closed else ask())
        self._changing.then(self._changed)

    def _changed(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            self.refused += 1
            _failed(f"service {self.name} cannot follow its placement", None, error)

    def _settings(self, before: SubscriptionSettings | None = None) -> SubscriptionSettings:
        """Return the settings of a subscription; without filters in the topic, those of the file, or those it has."""
        settings = msgspec.structs.replace(
            before or SubscriptionSettings(),
            # To M3, a time to live below nothing is none.
            ttl_ns=max(self.said.ttl_ns, 0),
            lease_ns=self._manner.retry.after_ns(1),
            lease_max_ns=LEASE_NS_MAX,
            policy="routed",
        )
        if self.said.filters is not None:
            return _filtered(settings, self.said.filters)
        static = self._stream.declared(self.name, settings)
        if static is not None:
            return static
        return _filtered(settings, Filters()) if self._was_filtered else settings

    def _configure(self) -> Answer[None]:
        """Let every subscription follow what the topic says."""
        answer: Answer[None] = Answer.of(None)
        for replica in self._replicas:
            name = replica.subscription.name
            answer = answer.then_ask(
                lambda _, name=name: self._stream.update_subscription(  # type: ignore[misc]
                    name, self._settings(self._stream.subscriptions[name].settings)
                ).settled()
            )
        return answer.then_make(lambda _: self.configured())

    def _name_of(self, number: int) -> str:
        return self.name if number == 0 else f"{self.name}.{number}"

    def _names(self) -> list[str]:
        return [self._name_of(number) for number in range(max(len(self._replicas), len(self._places()), 1))]

    def _subscriptions(self) -> list[Subscription]:
        """Return those it has, also where their replicas are nobody's any more."""
        return [self._stream.subscriptions[name] for name in self._names() if name in self._stream.subscriptions]

    def _again(self) -> Answer[None]:
        return self._subscribed(0).then_ask(lambda _: self._place())

    def _subscribed(self, number: int) -> Answer[Subscription]:
        name = self._name_of(number)
        there = self._stream.subscriptions.get(name)
        if there is None:
            return self._stream.subscribe(name, self._settings())
        # Somebody made it before: the file that has filters for it, or this relay when it ran the last time.
        settings = self._settings(there.settings)
        return Answer.of(there) if settings == there.settings else self._stream.update_subscription(name, settings)

    def _place(self) -> Answer[None]:
        placement = self._placement
        if placement is None or self._is_draining:
            return Answer.of(None)
        if self.said.consumption == "shared":
            owners = {shard: tuple(some) for shard, some in shared(placement, self._shards).items()}
            return self._grown(1).then_make(lambda _: self._replicas[0].place(owners, discards=False))
        before = self._places()
        tables = replicas(placement, self._shards, before)
        # A replica that has no owner any more, as every one in a placement without instances, keeps nothing.
        tables += [{}] * (max(len(before), 1) - len(tables))
        kept = self._grown(len(tables)).then_ask(lambda _: self._keep_places(tables))
        return kept.then_make(lambda _: self._deal(tables))

    def _deal(self, tables: list[dict[int, Owner]]) -> None:
        for number, replica in enumerate(self._replicas):
            table = tables[number] if number < len(tables) else {}
            replica.place({shard: (owner,) for shard, owner in table.items()}, discards=True)

    def _grown(self, count: int) -> Answer[None]:
        """Answer once there are so many subscriptions."""
        number = len(self._replicas)
        if number >= count:
            return Answer.of(None)

        def made(subscription: Subscription) -> None:
            if len(self._replicas) != number:  # one before it was lost meanwhile: begin there
                return
            first_shard = number * self._shards
            replica = Replica(
                self._stream.attach,
                subscription,
                self._manner,
                self.connections,
                self.counts,
                self._shards,
                first_shard,
            )
            self._replicas.append(replica)
            if self._is_draining:
                replica.drain()

        return self._subscribed(number).then_make(made).then_ask(lambda _: self._grown(count))

    # --- who has which replica, across restarts -------------------------------------------------------------------

    @property
    def _key(self) -> str:
        return f"{REMEMBERED}{self._stream.name}/{self.name}"

    def _places(self) -> list[dict[int, str]]:
        value = self._stream.remembered(self._key)
        return msgspec.json.decode(value, type=list[dict[int, str]]) if value is not None else []

    def _keep_places(self, tables: list[dict[int, Owner]]) -> Answer[None]:
        places = [{shard: owner.endpoint for shard, owner in table.items()} for table in tables]
        if places == self._places():
            return Answer.of(None)
        return self._stream.remember(self._key, msgspec.json.encode(places))

    def _forget_places(self) -> Answer[None]:
        return Answer.of(None) if self._stream.remembered(self._key) is None else self._stream.forget(self._key)


def _filtered(settings: SubscriptionSettings, filters: Filters) -> SubscriptionSettings:
    """Return settings with these filters and no others."""
    routing, share = filters.routing, filters.percentage
    return msgspec.structs.replace(
        settings,
        traffic=TrafficSettings(routing.allowed_traffic_types, routing.is_default) if routing is not None else None,
        storage_policies=filters.storage_policies or (),
        # Upstream checks that it is below 100 and reads it as a fraction: both are taken for what they can only mean.
        percentage=1.0 if share is None else share if share <= 1 else share / 100,
        shard_set=filters.shard_set or "",
    )


def _failed(what: str, _: object, error: BaseException | None) -> None:
    if error is not None:
        level = logging.WARNING if isinstance(error, PenstockError) else logging.ERROR
        _log.log(level, "%s: %s", what, error)
