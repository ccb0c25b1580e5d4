"""The subscriptions of a topic: made, opened, changed and dropped, and who is let in.

Owns what is under way while the registry does not answer. What they do with messages is `delivery`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from penstock.columns import Offsets
from penstock.delivery.cursor import Cursor
from penstock.delivery.policies import policy_of
from penstock.delivery.rules import Rules, rules_of
from penstock.delivery.seat import Deliver, Keep, Seat
from penstock.delivery.subscription import Subscription
from penstock.disk import unmade
from penstock.errors import Refusal
from penstock.filters.acceptance import Acceptance
from penstock.filters.traffic import unknown
from penstock.keyed import shard_of
from penstock.log.shard import Shard
from penstock.moves.dead import bury
from penstock.moves.redrive import NAME as REDRIVE
from penstock.node.events import on_hand
from penstock.registry.answer import Answer, Underway
from penstock.registry.records import SubscriptionRecord
from penstock.settings import SubscriptionSettings

if TYPE_CHECKING:
    from penstock.node.topic import Topic

_NONE = np.empty(0, np.int64)

#: One for all: an empty set of its own would take 216 bytes of every topic.
_ALL_KNOWN: frozenset[tuple[str, str]] = frozenset()

_log = logging.getLogger("penstock.routing")


class Subscriptions:
    """All of one topic, by name."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._node = topic.node
        self.by_name: dict[str, Subscription] = {}
        #: The same, as it may be walked while some come and go.
        self.open: tuple[Subscription, ...] = ()
        #: Those that are being made, and names that are being freed, while the registry does not answer.
        self._coming: Underway[Subscription] = Underway()
        self._going: Underway[None] = Underway()
        #: Traffic types that it was said of which subscription that they are unknown.
        self._unknown = _ALL_KNOWN

    def recover(self, due: Sequence[tuple[Offsets, Offsets]]) -> None:
        """Take up those that the registry and the journals tell of; `due` are the rows of each shard not due yet."""
        for record in self._node.catalog.subscriptions(self._topic.record):
            if not record.settings.ephemeral:
                self._opened(record, due)

    def subscribe(self, name: str, settings: SubscriptionSettings | None = None) -> Answer[Subscription]:
        """Answer with a subscription, made if there is none of this name."""
        subscription = self.by_name.get(name)
        if subscription is not None:
            return Answer.of(subscription)
        return self._coming.get(name) or self.create(name, settings)

    def create(
        self, name: str, settings: SubscriptionSettings | None = None, *, earliest: bool = False
    ) -> Answer[Subscription]:
        """Make a subscription: the first gets what the topic kept for it, later ones begin at the end (ruling 14).

        With `earliest` it gets everything that is kept.
        """
        topic = self._topic
        try:
            topic.check_alive()
        except Refusal as refusal:
            return Answer.refused(refusal)
        if name in self._coming:
            return Answer.refused(Refusal("conflict", f"topic {topic.name} is getting a subscription {name}"))
        settings = settings or SubscriptionSettings()
        if self._topic.settings.ordered and settings.order == "none":
            settings = msgspec.structs.replace(settings, order="shard")
        try:
            policy_of(settings)
            self._node.lifecycle.check_subscriptions(topic.name, len(self.by_name) + len(self._coming))
        except Refusal as refusal:
            return Answer.refused(refusal)
        recorded = self._recorded(name, settings, self._starts(earliest=earliest))
        return self._coming.add(name, self._node.lifecycle.subscribing(recorded.then_make(self._created)))

    def _starts(self, *, earliest: bool) -> tuple[int, ...]:
        if earliest:
            return tuple(shard.start for shard in self._topic.shards)
        if self._has_others(REDRIVE):
            return tuple(shard.end for shard in self._topic.shards)
        kept = zip(self._topic.record.orphan_from, self._topic.shards, strict=False)
        return tuple(max(offset, shard.start) for offset, shard in kept)

    def _recorded(
        self, name: str, settings: SubscriptionSettings, starts: tuple[int, ...]
    ) -> Answer[SubscriptionRecord]:
        """Answer with the record of a subscription that is not open."""
        catalog, going = self._node.catalog, self._going.get(name)
        if going is not None:  # first one, then the other, whatever becomes of the first
            return going.settled().then_ask(lambda _: self._recorded(name, settings, starts))
        left = None if name in self.by_name else catalog.subscription(self._topic.record, name)
        if left is not None and left.settings == settings:
            return Answer.of(left)  # its answer was lost, or it could neither be opened nor undone
        if left is None:
            return catalog.create_subscription(self._topic.record, name, settings, starts)
        removed = catalog.delete_subscription(self._topic.record, name)
        return removed.then_ask(lambda _: catalog.create_subscription(self._topic.record, name, settings, starts))

    def _created(self, record: SubscriptionRecord) -> Subscription:
        """Put a subscription to work that the registry knows since now."""
        self._topic.check_alive()
        now = self._node.now()
        try:
            due = [shard.due_rows(record.start(shard.number), now.wall_ns) for shard in self._topic.shards]
            subscription = self._opened(record, due)
        except Exception as error:
            self.by_name.pop(record.name, None)
            self.open = tuple(self.by_name.values())
            undone = self._node.catalog.delete_subscription(self._topic.record, record.name)
            self._going.add(record.name, undone.settled())
            raise unmade(f"subscription {record.name} of topic {self._topic.name}", error) from error
        self._node.tell("created", self._topic, subscription)
        return subscription

    def forget_passing(self) -> None:
        """Drop, at a start, the subscriptions that lived as long as their consumers."""
        passing = [each for each in self._node.catalog.subscriptions(self._topic.record) if each.settings.ephemeral]
        if passing and not self.by_name:  # the last ones went: the next begins anew
            self._topic.empty()
        for each in passing:
            for shard in self._topic.shards:
                shard.journal(f"s{each.number}")[0].remove()
            self._going.add(each.name, self._node.catalog.delete_subscription(self._topic.record, each.name).settled())

    def _opened(self, record: SubscriptionRecord, due: Sequence[tuple[Offsets, Offsets]]) -> Subscription:
        subscription = Subscription(record.name, record.number, record.settings, self._topic)
        now = self._topic.now()
        for shard, rows_due in zip(self._topic.shards, due, strict=True):
            self._open_cursor(subscription, shard, record.start(shard.number), rows_due)
        self._record(subscription)
        self.by_name[record.name] = subscription
        self.open = tuple(self.by_name.values())
        if Acceptance.of(record.settings).traffic is None:
            self._use({record.name: subscription})
        else:  # filters of traffic types look at a batch together
            self.apply_rules()
        subscription.follow(self._topic.record.grown, shard_of)
        for cursor, rows_due in zip(subscription.cursors, due, strict=True):
            cursor.pass_waiting(rows_due, now.wall_ns)
        self._topic.touch()
        self._topic.set_timer()
        return subscription

    def _open_cursor(self, subscription: Subscription, shard: Shard, start: int, due: tuple[Offsets, Offsets]) -> None:
        journal, entries = shard.journal(f"s{subscription.number}")
        cursor = Cursor(
            shard,
            journal,
            Rules(),
            subscription.wake,
            partial(bury, self._topic, subscription),
            subscription.names,
            self._topic.due_seen_ns,
        )
        cursor.position.gate = self._topic.record.gate[shard.number] if self._topic.record.gate is not None else None
        cursor.recover(entries, start, due, self._topic.now(), subscription.number_of)
        subscription.add(cursor)

    def _record(self, subscription: Subscription) -> None:
        """Let the history hear of a subscription, where one is kept."""
        events, shards = self._node.events, len(self._topic.shards)
        recorders = events.recorders(self._topic.name, shards, subscription.name) if events is not None else None
        if recorders is not None:
            subscription.dealer.on_hand = on_hand(recorders)
            for cursor, recorder in zip(subscription.cursors, recorders, strict=True):
                cursor.states.recorder = recorder

    def apply_rules(self) -> None:
        """Judge from now on by the mapping and settings of this moment."""
        self._use(self.by_name)

    def _use(self, subscriptions: Mapping[str, Subscription]) -> None:
        settings = {name: subscription.settings for name, subscription in subscriptions.items()}
        refused = {name: subscription.refused for name, subscription in subscriptions.items()}
        for name, rules in rules_of(settings, self._node.routing.mapping, refused).items():
            for cursor in subscriptions[name].cursors:
                cursor.use_rules(rules._replace(shard=cursor.source.number))
        self._tell_unknown(settings)

    def _tell_unknown(self, settings: Mapping[str, SubscriptionSettings]) -> None:
        """Say once which traffic types somebody takes and the mapping lacks; without one there is nothing to know."""
        mapping, known = self._node.routing.mapping, self._unknown
        found = {
            (name, each)
            for name, one in settings.items()
            if mapping and one.traffic is not None
            for each in unknown(one.traffic.allowed, mapping)
        }
        kept = {(name, each) for name, each in known if name in self.by_name and name not in settings}
        self._unknown = frozenset(found | kept) or _ALL_KNOWN
        for name, each in sorted(found - known):
            traffic = settings[name].traffic
            follows = "it is passed over"
            if traffic is not None and not traffic.upstream_filter:
                follows = "is_default decides for all its messages"
            text = "topic %s: subscription %s takes traffic type %s, which the routing mapping does not know: %s"
            _log.warning(text, self._topic.name, name, each, follows)

    def update(self, name: str, settings: SubscriptionSettings) -> Answer[Subscription]:
        """Change what a subscription does from now on."""
        subscription = self.by_name.get(name)
        if subscription is None:
            return Answer.refused(self._no_subscription(name))

        try:
            policy_of(settings)
        except Refusal as refusal:
            return Answer.refused(refusal)

        def updated(record: SubscriptionRecord) -> Subscription:
            subscription.configure(record.settings)
            self.apply_rules()
            subscription.follow(self._topic.record.grown, shard_of)
            subscription.pump()
            self._node.tell("changed", self._topic, subscription)
            return subscription

        return self._node.catalog.update_subscription(self._topic.record, name, settings).then_make(updated)

    def get(self, name: str) -> Subscription:
        """Return a subscription that must exist."""
        subscription = self.by_name.get(name)
        if subscription is None:
            raise self._no_subscription(name)
        return subscription

    def _no_subscription(self, name: str) -> Refusal:
        return Refusal("not_found", f"topic {self._topic.name} has no subscription {name!r}")

    def attach(
        self,
        subscription: Subscription,
        deliver: Deliver,
        *,
        lease_ns: int | None = None,
        name: str = "",
        holder: str = "",
        tag: str = "",
        keep: Keep | None = None,
        shard: int | None = None,
        evict: Callable[[], None] | None = None,
        consumer: str = "",
        rack: str = "",
    ) -> Seat:
        """Let a receiver in and return its seat; `evict` is called if the subscription or the topic goes away.

        As a `holder` it has a name: its leases survive it and the process, and it has them again when it comes back.
        `consumer` and `rack` say whom buckets are dealt to, where they are.
        """
        self._topic.check_alive()
        if self._node.stopping:
            raise Refusal("stopping", "the node is stopping")
        lease_ns = subscription.settings.lease_ns if lease_ns is None else lease_ns
        seat = Seat(
            subscription,
            deliver,
            lease_ns,
            holder or name,
            tag=tag,
            keep=keep,
            shard=shard,
            evict=evict,
            named=bool(holder),
            consumer=consumer,
            rack=rack,
        )
        subscription.join(seat)
        return seat

    def _has_others(self, *names: str) -> bool:
        """Tell whether somebody reads the topic; a redrive only remembers which letters went back."""
        return any(each not in names for each in self.by_name)

    def delete(self, name: str, *, undone: bool = False) -> Answer[None]:
        """Drop a subscription and hang up on its consumers; if it is `undone`, the next begins where it did."""
        subscription = self.by_name.get(name)
        if subscription is None:
            return Answer.refused(self._no_subscription(name))
        ends = None
        if (
            not undone and name != REDRIVE and not self._has_others(name, REDRIVE)
        ):  # what comes from now on is kept for the next one
            ends = tuple(shard.end for shard in self._topic.shards)
            if self._topic.settings.ephemeral:
                self._topic.record, ends = msgspec.structs.replace(self._topic.record, orphan_from=ends), None
        deleted = self._node.catalog.delete_subscription(self._topic.record, name, ends)
        return self._going.add(name, deleted.then_make(lambda _: self._drop(subscription)))

    def _drop(self, subscription: Subscription) -> None:
        if self._topic.deleted or self.by_name.get(subscription.name) is not subscription:
            return
        self._topic.changes.follow()
        del self.by_name[subscription.name]
        self.open = tuple(self.by_name.values())
        self._close(subscription, forget=True)
        self._node.tell("deleted", self._topic, subscription)
        if not self.by_name and self._topic.settings.ephemeral:
            self._node.delete_topic(self._topic.name)

    def _close(self, subscription: Subscription, *, forget: bool) -> None:
        for seat in subscription.close(forget=forget):
            if seat.evict is not None:
                self._topic.guarded(seat.evict)

    def grow(self, shards: Sequence[Shard]) -> None:
        """Read new shards from their beginning."""
        for subscription in self.by_name.values():
            for shard in shards:
                self._open_cursor(subscription, shard, 0, (_NONE, _NONE))
            self._record(subscription)
        self.apply_rules()
        for subscription in self.by_name.values():
            subscription.follow(self._topic.record.grown, shard_of)

    def close(self, *, forget: bool) -> None:
        """End all of them; with `forget` their state is dropped for good."""
        for subscription in self.open:
            self._close(subscription, forget=forget)
        if forget:
            self.by_name.clear()
            self.open = ()
