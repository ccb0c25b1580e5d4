"""A topic at work: its shards, what comes in, its subscriptions, and what time does to them.

The path of a message goes through here: `publish` (the intake's) -> the log -> `_stored` -> `Subscription.offer` -> a
seat. Everything runs on the node's loop; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ParamSpec

import msgspec
import numpy as np

from penstock import growth
from penstock.answer import Answer, Underway
from penstock.clock import SECOND
from penstock.delivery.cursor import Cursor
from penstock.delivery.instant import Instant
from penstock.delivery.policies import policy_of
from penstock.delivery.rules import Rules, rules_of
from penstock.delivery.seat import Deliver, Keep, Seat
from penstock.delivery.subscription import Subscription
from penstock.delivery.timer import DueTimer
from penstock.dialect import Chosen, chosen, measure_of
from penstock.disk import unmade
from penstock.errors import Refusal
from penstock.events import on_hand
from penstock.intake.intake import Intake
from penstock.intake.spread import shard_of
from penstock.log import label
from penstock.log.quota import Quota
from penstock.log.shard import Shard
from penstock.log.weight import Measures
from penstock.message import Batch, Done, Offsets, int64s
from penstock.moves.dead import bury
from penstock.registry.records import Growth, Measured, SubscriptionRecord, TopicRecord
from penstock.rescue.labels import label_of
from penstock.settings import SubscriptionSettings, TopicSettings
from penstock.storage import Storage

if TYPE_CHECKING:
    from penstock.node import Node

P = ParamSpec("P")

_NONE = np.empty(0, np.int64)

#: A topic is looked after every tick until it has been quiet for this long; then it costs nothing.
QUIET_NS = 5 * SECOND


class Topic:
    """One topic of a running node."""

    def __init__(self, node: Node, record: TopicRecord, path: str) -> None:
        self.node = node
        self.record = record
        self.path = path
        self.name = record.name
        #: What its settings say to each dialect.
        self.chosen = Chosen(record.settings, node.dialects)
        self.deleted = False
        self.subscriptions: dict[str, Subscription] = {}
        #: The same, as it may be walked while some come and go.
        self._open: tuple[Subscription, ...] = ()
        #: Subscriptions that are being made, and names that are being freed, while the registry does not answer.
        self._coming: Underway[Subscription] = Underway()
        self._going: Underway[None] = Underway()
        self._clock = node.clock
        config = node.config.node
        node.disk.make(path)
        label.write(node.disk, path, label_of(node.catalog, record))
        self.storage = Storage(self, Quota(record.settings.quota_bytes, node.quota))
        self.shards = [self.open_shard(number, record.settings) for number in range(record.settings.shards)]
        self.intake = Intake(
            record.name,
            node.clock,
            self.shards,
            record.settings,
            node.input_memory,
            node.ledger,
            self._announce,
            self._stored,
            node.report_bug,
            record.grown,
        )
        #: Takes rows in; the first step of a message.
        self.publish = self.intake.publish
        self.flush_at_once = config.ack_flush_ns == 0
        #: Who hears what is published, by shard; None where no history is kept.
        self._recorders = node.events.recorders(self.name, len(self.shards)) if node.events is not None else None
        self._timer = DueTimer(node.clock, len(self.shards), self._due, self._delays)
        self._dropped = [0] * len(self.shards)
        self._followers: list[Callable[[], None]] = []
        #: Something happened since the last tick, and when that was last seen.
        self._busy = False
        self._active_ns = 0
        self._recover()

    def open_shard(self, number: int, settings: TopicSettings) -> Shard:
        """Open a shard, or make it: that of a record which was written before its directory, too."""
        node = self.node
        shard = Shard.open(
            node.disk,
            node.clock,
            f"{self.path}/{number}",
            number,
            settings,
            strict=node.config.node.recovery == "strict",
            measures=self.measures(number),
            cache_bytes=node.cache_bytes,
            quota=self.storage.quota,
        )
        shard.on_readable = self.pump_all
        self.storage.watch(shard)
        return shard

    def _recover(self) -> None:
        """Take up due times, idempotence keys and subscriptions as the log and the journals tell them."""
        now = self.node.now()
        due = []
        self.intake.remember()
        for shard in self.shards:
            offsets, due_ns = shard.due_rows(shard.kept_from, now.wall_ns)
            due.append((offsets, due_ns))
            if len(offsets):
                self._timer.wait_for(shard.number, due_ns, offsets)
        for record in self.node.catalog.subscriptions(self.record):
            if not record.settings.ephemeral:
                self._open_subscription(record, due)

    @property
    def settings(self) -> TopicSettings:
        """What the user chose."""
        return self.record.settings

    def shard(self, number: int) -> Shard:
        """Return a shard that must exist."""
        if not 0 <= number < len(self.shards):
            raise self._no_shard(number)
        return self.shards[number]

    def _no_shard(self, number: int) -> Refusal:
        text = f"there is no shard {number}; topic {self.name} has 0 to {len(self.shards) - 1}"
        return Refusal("bad_offset", text)

    def measures(self, shard: int) -> Measures:
        """Return what rows of a shard weigh, and weighed."""
        return tuple(
            (each.starts[shard] if shard < len(each.starts) else 0, each.measure) for each in self.record.measures
        )

    @property
    def published(self) -> int:
        """Messages stored since the node started."""
        return self.intake.published

    @property
    def published_bytes(self) -> int:
        """Bytes of their bodies."""
        return self.intake.published_bytes

    @property
    def forgotten_keys(self) -> int:
        """Idempotence keys dropped inside their window because there were too many."""
        return self.intake.forgotten_keys

    # --- in -------------------------------------------------------------------------------------------------------

    def _announce(self, shard: Shard, batch: Batch) -> None:
        """Take note of rows in the log that are due later; they may not be readable yet."""
        due_ns, valid = int64s(batch.columns["due"])
        wall_ns = self._clock.now()
        self._timer.see(wall_ns)
        later = valid & (due_ns > wall_ns)
        if later.any():
            self._timer.wait_for(shard.number, due_ns[later], batch.first + np.flatnonzero(later))

    def _stored(self, shard: Shard, batch: Batch) -> None:
        """Hand out rows that are as durable as promised; their publishers know, so no bug here is theirs."""
        if not self._busy:
            self.touch()
        number = shard.number
        if self._recorders is not None:
            self._recorders[number].published(batch)
        if batch.columns and "due" in batch.columns:
            now = self.now()
            for subscription in self.subscriptions.values():
                self._guarded(subscription.cursors[number].look_at, batch, now)
            self._timer.set()
        if not self.node.stopping:
            now_ns = self._clock.monotonic()
            for subscription in self._open:
                try:
                    subscription.offer(number, batch, now_ns)
                except Exception as failure:
                    self.failed(None, failure)
        if self._followers:
            self._tell_followers()

    # --- out ------------------------------------------------------------------------------------------------------

    def pump_all(self) -> None:
        """Hand out what is new to every subscription with room, and tell those who follow the log."""
        self._tell_followers()
        for subscription in self._open:
            subscription.pump()

    def follow(self, told: Callable[[], None]) -> Callable[[], None]:
        """Call `told` whenever more may be readable; returns what ends it. A follower is no subscription."""
        self._followers.append(told)
        return partial(self._followers.remove, told)

    def _tell_followers(self) -> None:
        for told in list(self._followers):
            self._guarded(told)

    def _guarded(self, call: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call what may have a bug that must not cost others."""
        try:
            call(*args, **kwargs)
        except Exception as failure:
            self.failed(None, failure)

    # --- what subscriptions need ----------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether rows may still be handed out."""
        return not (self.deleted or self.node.stopping)

    def now(self) -> Instant:
        """Return this instant."""
        return self.node.now()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call in the next turn."""
        self._clock.call_soon(call)

    def touch(self) -> None:
        """Ask to be looked after."""
        if not self._busy:
            self._busy = True
            self.node.look_after(self)

    def set_timer(self) -> None:
        """Look again when the next row is due."""
        self._timer.set()

    def failed(self, seat: Seat | None, failure: Exception) -> None:
        """Report a bug; hang up on a seat that could not be served, but not inside the look that found it broken."""
        self.node.report_bug(f"topic {self.name}", failure)
        if seat is not None:
            seat.credit = 0
            self._clock.call_soon(partial(self._evict, seat))

    def _evict(self, seat: Seat) -> None:
        if seat.evict is not None:
            self._guarded(seat.evict)
        seat.close()

    def left(self, subscription: Subscription) -> None:
        """Let an ephemeral subscription go with its last seat."""
        if self.deleted or self.subscriptions.get(subscription.name) is not subscription:
            return
        if subscription.settings.ephemeral and not subscription.seats:
            self.delete_subscription(subscription.name)  # if it is refused, it goes with the next one, or at a start

    # --- subscriptions --------------------------------------------------------------------------------------------

    def subscribe(self, name: str, settings: SubscriptionSettings | None = None) -> Answer[Subscription]:
        """Answer with a subscription, made if there is none of this name."""
        subscription = self.subscriptions.get(name)
        if subscription is not None:
            return Answer.of(subscription)
        return self._coming.get(name) or self.create_subscription(name, settings)

    def create_subscription(
        self, name: str, settings: SubscriptionSettings | None = None, *, earliest: bool = False
    ) -> Answer[Subscription]:
        """Make a subscription: the first gets what the topic kept for it, later ones begin at the end (ruling 14).

        With `earliest` it gets everything that is kept.
        """
        if self.deleted or name in self._coming:
            code, why = ("gone", "was deleted") if self.deleted else ("conflict", f"is getting a subscription {name}")
            return Answer.refused(Refusal(code, f"topic {self.name} {why}"))
        settings = settings or SubscriptionSettings()
        if self.settings.ordered and settings.order == "none":
            settings = msgspec.structs.replace(settings, order="shard")
        try:
            policy_of(settings)
        except Refusal as refusal:  # one that is not there
            return Answer.refused(refusal)
        recorded = self._recorded(name, settings, self._starts(earliest=earliest))
        return self._coming.add(name, recorded.then_make(self._created))

    def _starts(self, *, earliest: bool) -> tuple[int, ...]:
        if earliest:
            return tuple(shard.start for shard in self.shards)
        if self.subscriptions:
            return tuple(shard.end for shard in self.shards)
        return tuple(
            max(offset, shard.start) for offset, shard in zip(self.record.orphan_from, self.shards, strict=False)
        )

    def _recorded(
        self, name: str, settings: SubscriptionSettings, starts: tuple[int, ...]
    ) -> Answer[SubscriptionRecord]:
        """Answer with the record of a subscription that is not open."""
        catalog, going = self.node.catalog, self._going.get(name)
        if going is not None:  # first one, then the other, whatever becomes of the first
            return going.settled().then_ask(lambda _: self._recorded(name, settings, starts))
        left = None if name in self.subscriptions else catalog.subscription(self.record, name)
        if left is not None and left.settings == settings:
            return Answer.of(left)  # its answer was lost, or it could neither be opened nor undone
        if left is None:
            return catalog.create_subscription(self.record, name, settings, starts)
        removed = catalog.delete_subscription(self.record, name)
        return removed.then_ask(lambda _: catalog.create_subscription(self.record, name, settings, starts))

    def _created(self, record: SubscriptionRecord) -> Subscription:
        """Put a subscription to work that the registry knows since now."""
        self._check_alive()
        now = self.node.now()
        try:
            due = [shard.due_rows(record.start(shard.number), now.wall_ns) for shard in self.shards]
            subscription = self._open_subscription(record, due)
        except Exception as error:
            self.subscriptions.pop(record.name, None)
            self._open = tuple(self.subscriptions.values())
            undone = self.node.catalog.delete_subscription(self.record, record.name)
            self._going.add(record.name, undone.settled())
            raise unmade(f"subscription {record.name} of topic {self.name}", error) from error
        self.node.tell("created", self, subscription)
        return subscription

    def forget_passing(self) -> None:
        """Drop, at a start, the subscriptions that lived as long as their consumers."""
        passing = [each for each in self.node.catalog.subscriptions(self.record) if each.settings.ephemeral]
        if passing and not self.subscriptions:  # the last ones went: the next begins anew
            self.empty()
        for each in passing:
            for shard in self.shards:
                shard.journal(f"s{each.number}")[0].remove()
            self._going.add(each.name, self.node.catalog.delete_subscription(self.record, each.name).settled())

    def _open_subscription(self, record: SubscriptionRecord, due: Sequence[tuple[Offsets, Offsets]]) -> Subscription:
        subscription = Subscription(record.name, record.number, record.settings, self)
        now = self.now()
        for shard, rows_due in zip(self.shards, due, strict=True):
            self._open_cursor(subscription, shard, record.start(shard.number), rows_due)
        self._record(subscription)
        self.subscriptions[record.name] = subscription
        self._open = tuple(self.subscriptions.values())
        self.apply_rules()
        subscription.follow(self.record.grown, shard_of)
        for cursor, rows_due in zip(subscription.cursors, due, strict=True):
            cursor.pass_waiting(rows_due, now.wall_ns)
        self.touch()
        self._timer.set()
        return subscription

    def _open_cursor(self, subscription: Subscription, shard: Shard, start: int, due: tuple[Offsets, Offsets]) -> None:
        journal, entries = shard.journal(f"s{subscription.number}")
        cursor = Cursor(
            shard,
            journal,
            Rules(),
            subscription.wake,
            partial(bury, self, subscription),
            subscription.names,
            self._timer.seen_ns,
        )
        cursor.position.gate = self.record.gate[shard.number] if self.record.gate is not None else None
        cursor.recover(entries, start, due, self.now(), subscription.number_of)
        subscription.add(cursor)

    def _record(self, subscription: Subscription) -> None:
        """Let the history hear of a subscription, where one is kept."""
        events = self.node.events
        recorders = events.recorders(self.name, len(self.shards), subscription.name) if events is not None else None
        if recorders is not None:
            subscription.dealer.on_hand = on_hand(recorders)
            for cursor, recorder in zip(subscription.cursors, recorders, strict=True):
                cursor.states.recorder = recorder

    def apply_rules(self) -> None:
        """Judge from now on by the mapping and settings of this moment."""
        settings = {name: subscription.settings for name, subscription in self.subscriptions.items()}
        for name, rules in rules_of(settings, self.node.mapping).items():
            for cursor in self.subscriptions[name].cursors:
                cursor.use_rules(rules)

    def update_subscription(self, name: str, settings: SubscriptionSettings) -> Answer[Subscription]:
        """Change what a subscription does from now on."""
        subscription = self.subscriptions.get(name)
        if subscription is None:
            return Answer.refused(self._no_subscription(name))

        try:
            policy_of(settings)
        except Refusal as refusal:
            return Answer.refused(refusal)

        def updated(record: SubscriptionRecord) -> Subscription:
            subscription.configure(record.settings)
            self.apply_rules()
            subscription.follow(self.record.grown, shard_of)
            subscription.pump()
            return subscription

        return self.node.catalog.update_subscription(self.record, name, settings).then_make(updated)

    def subscription(self, name: str) -> Subscription:
        """Return a subscription that must exist."""
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise self._no_subscription(name)
        return subscription

    def _no_subscription(self, name: str) -> Refusal:
        return Refusal("not_found", f"topic {self.name} has no subscription {name!r}")

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
    ) -> Seat:
        """Let a receiver in and return its seat; `evict` is called if the subscription or the topic goes away.

        As a `holder` it has a name: its leases survive it and the process, and it has them again when it comes back.
        """
        self._check_alive()
        if self.node.stopping:
            raise Refusal("stopping", "the node is stopping")
        lease_ns = subscription.settings.lease_ns if lease_ns is None else lease_ns
        named = bool(holder)
        seat = Seat(
            subscription, deliver, lease_ns, holder or name, tag=tag, keep=keep, shard=shard, evict=evict, named=named
        )
        subscription.join(seat)
        return seat

    def delete_subscription(self, name: str) -> Answer[None]:
        """Drop a subscription and hang up on its consumers."""
        subscription = self.subscriptions.get(name)
        if subscription is None:
            return Answer.refused(self._no_subscription(name))
        ends = None
        if len(self.subscriptions) == 1:  # what comes from now on is kept for the next one
            ends = tuple(shard.end for shard in self.shards)
            if self.settings.ephemeral:
                self.record, ends = msgspec.structs.replace(self.record, orphan_from=ends), None
        deleted = self.node.catalog.delete_subscription(self.record, name, ends)
        return self._going.add(name, deleted.then_make(lambda _: self._drop(subscription)))

    def _drop(self, subscription: Subscription) -> None:
        if self.deleted or self.subscriptions.get(subscription.name) is not subscription:
            return
        self._follow_record()
        del self.subscriptions[subscription.name]
        self._open = tuple(self.subscriptions.values())
        self._close_subscription(subscription, forget=True)
        self.node.tell("deleted", self, subscription)
        if not self.subscriptions and self.settings.ephemeral:
            self.node.delete_topic(self.name)

    def _close_subscription(self, subscription: Subscription, *, forget: bool) -> None:
        for seat in subscription.close(forget=forget):
            if seat.evict is not None:
                self._guarded(seat.evict)

    # --- pause, empty, retention ----------------------------------------------------------------------------------

    def pause(self, *, paused: bool) -> Answer[None]:
        """Keep what comes from now on in the topic, or let it flow again."""
        if paused and self.record.gate is not None:
            return Answer.of(None)  # a second pause must not let through what came since the first
        settings = msgspec.structs.replace(self.settings, paused=paused)
        gate = tuple(shard.end for shard in self.shards) if paused else None
        if gate is not None:  # at once, so that nothing passes while the registry is asked
            self._gate(gate)
        changed = self.change(settings=settings, gate=gate)
        changed.then(lambda _, __: self._gate(self.record.gate))
        return changed.then_make(lambda _: self.pump_all())

    def _gate(self, gate: tuple[int, ...] | None) -> None:
        for subscription in self.subscriptions.values():
            for cursor in subscription.cursors:
                cursor.position.gate = gate[cursor.source.number] if gate is not None else None

    def update(self, settings: TopicSettings) -> Answer[None]:
        """Change settings that may change while messages flow."""
        problem = ""
        if settings.durability != self.settings.durability:
            problem = f"topic {self.name} is {self.settings.durability!r} for good; make a new one"
        elif settings.paused != self.settings.paused:
            problem = "use pause and resume for that"
        elif settings.shards < len(self.shards):
            problem = growth.no_fewer(self, settings.shards)
        if problem:
            return Answer.refused(Refusal("bad_request", problem))
        if settings.shards > len(self.shards):
            return growth.grow(self, settings.shards).then_ask(lambda _: self.update(settings))
        try:
            measure = measure_of(chosen(settings, self.node.dialects, self.settings), self.node.dialects)
        except Refusal as refusal:
            return Answer.refused(refusal)
        measured = None
        if measure is not None:
            measured = Measured(measure, tuple(shard.end for shard in self.shards))
            for shard in self.shards:  # at once, so that what comes while the registry is asked weighs so
                if shard.measure != measure:
                    shard.weigh_by((*shard.measures, (shard.end, measure)))
        changed = self.change(settings=settings, measured=measured)
        changed.then(lambda _, __: self._weigh())
        return changed.then_make(lambda _: self._updated())

    def _updated(self) -> None:
        settings = self.settings
        self.intake.configure(settings)
        self.storage.quota.bytes_max = settings.quota_bytes
        for shard in self.shards:
            shard.settings = settings
        self.node.tell("changed", self)

    def _weigh(self) -> None:
        for shard in self.shards:
            shard.weigh_by(self.measures(shard.number))

    def take_in(self, shards: Sequence[Shard]) -> None:
        """Make use of new shards: every subscription reads them from their beginning."""
        self.shards += shards
        try:  # before anything is in them: a lost registry is made again from labels, and readers of files go by them
            label.write(self.node.disk, self.path, label_of(self.node.catalog, self.record))
        except OSError as error:
            self.node.report_bug(f"label of topic {self.name}", error)
        self._timer.grow(len(self.shards))
        self._dropped += [0] * len(shards)
        if self.node.events is not None:
            self._recorders = self.node.events.recorders(self.name, len(self.shards))
        for subscription in self.subscriptions.values():
            for shard in shards:
                self._open_cursor(subscription, shard, 0, (_NONE, _NONE))
            self._record(subscription)
        self.apply_rules()
        for subscription in self.subscriptions.values():
            subscription.follow(self.record.grown, shard_of)

    def change(
        self,
        *,
        settings: TopicSettings | None = None,
        gate: tuple[int, ...] | msgspec.UnsetType | None = msgspec.UNSET,
        orphan_from: tuple[int, ...] | None = None,
        measured: Measured | None = None,
        grown: tuple[Growth, ...] | None = None,
    ) -> Answer[None]:
        """Change the topic's record; it is up to date here when the answer is told."""
        # An ephemeral topic's place is known here alone, so it is said again with every change of the record.
        kept = orphan_from or (self.record.orphan_from if self.settings.ephemeral else None)
        changed = self.node.catalog.update_topic(
            self.name, settings=settings, gate=gate, orphan_from=kept, measured=measured, grown=grown
        )
        return changed.then_make(lambda _: self._follow_record())

    def _follow_record(self) -> None:
        """Take the record as the registry has it: answers may come in another order than the changes were made."""
        record = self.node.catalog.topic(self.name)
        if record is not None and record.number == self.record.number:
            kept = record.orphan_from
            if self.settings.ephemeral:
                kept = (*self.record.orphan_from, *kept[len(self.record.orphan_from) :])
            if record.settings.dialects != self.settings.dialects:
                self.chosen = Chosen(record.settings, self.node.dialects)
            self.record = msgspec.structs.replace(record, orphan_from=kept)

    def empty(self) -> Answer[None]:
        """Let go of what no subscription has yet: all of it if there is none, else what a pause keeps back."""
        ends = tuple(shard.end for shard in self.shards)
        if self.settings.ephemeral:
            self.record = msgspec.structs.replace(self.record, orphan_from=ends)
            self._skip_to(ends)
            return Answer.of(None)
        return self.change(orphan_from=ends).then_make(lambda _: self._skip_to(ends))

    def _skip_to(self, ends: tuple[int, ...]) -> None:
        if self.record.gate is None:
            return
        for subscription in self.subscriptions.values():
            for cursor, gate, end in zip(subscription.cursors, self.record.gate, ends, strict=False):
                cursor.position.skip(gate, end)
            subscription.flush()

    def depth(self) -> int:
        """Return the rows that no subscription has."""
        if not self.subscriptions:
            return sum(self.storage.unread(shard) for shard in self.shards)
        if self.record.gate is None:
            return 0
        # What was emptied, or kept for nobody when the last subscription went, is not there for those of now either.
        kept = [max(places) for places in zip(self.record.gate, self.record.orphan_from, strict=False)]
        return sum(s.rows_between(k, s.end) for s, k in zip(self.shards, kept, strict=False) if k < s.end)

    def stored_bytes(self) -> int:
        """Return what its segments hold."""
        return sum(shard.stored_bytes() for shard in self.shards)

    def deferred(self, subscription: Subscription) -> int:
        """Return the rows a subscription has not come to yet and that are not due either."""
        return sum(
            self._timer.between(cursor.source.number, *stretch)
            for cursor in subscription.cursors
            for stretch in cursor.position.unread()
        )

    def retain(self) -> None:
        """Drop history that is neither needed nor young (ruling 13)."""
        self.storage.retain()

    # --- time -----------------------------------------------------------------------------------------------------

    def _delays(self) -> list[int | None]:
        """Return when time brings something to subscriptions."""
        now = self.now()
        return [time_ns for subscription in self._open for time_ns in subscription.next_look_ns(now)]

    def _due(self) -> None:
        """Make rows ready whose time has come."""
        wall_ns = self._clock.now()
        for number in range(len(self.shards)):
            arrived = self._timer.pop(number, wall_ns)
            for subscription in self._open:
                states = subscription.cursors[number].states
                if arrived is not None and len(arrived):
                    self._guarded(states.arrive, arrived, wall_ns)
                self._guarded(states.pop_due, wall_ns)
        self.pump_all()

    def tick(self, now: Instant) -> bool:
        """Write down acks, let the log do its chores, end leases; False once there is nothing more to do."""
        leased = waiting = False
        if self._busy:
            self._busy = False
            self._active_ns = now.monotonic_ns
        for subscription in self._open:
            ended = subscription.expire(now)
            for cursor in subscription.cursors:
                leased = leased or cursor.states.leased > 0
                waiting = waiting or cursor.states.waiting > 0
                if cursor.dirty:
                    cursor.flush(now)
            if ended:
                subscription.pump()
        self.chores(now)
        if waiting and not self._timer.is_set:
            self._timer.set()
        suspect = any(shard.journals_suspect for shard in self.shards)
        return leased or suspect or now.monotonic_ns - self._active_ns < QUIET_NS

    def chores(self, now: Instant) -> None:
        """Let the log do its own work; a quiet topic's grows old too."""
        for number, shard in enumerate(self.shards):
            shard.tick(now.wall_ns)
            if shard.journals_suspect:
                for subscription in self.subscriptions.values():
                    subscription.cursors[number].heal(now)
            dropped = shard.dropped_rows - self._dropped[number]
            if dropped:  # a memory topic is full: the oldest rows went
                self._dropped[number] += dropped
                self.node.ledger.add("memory_rows", self.name, dropped, now.wall_ns)

    # --- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write everything down; a clean end."""
        for subscription in self.subscriptions.values():
            self._close_subscription(subscription, forget=False)
        for shard in self.shards:
            shard.close()
        self._stop()

    def syncs(self) -> list[Callable[[Done], None]]:
        """Return what brings everything to the disk that is not there yet, in the executor."""
        for subscription in self.subscriptions.values():
            self._guarded(subscription.flush)
        return [sync for shard in self.shards for sync in shard.syncs()]

    def close_later(self, done: Done) -> None:
        """End cleanly, with the last writes in the executor; `syncs` come first."""
        left = len(self.shards)

        def closed(error: BaseException | None) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done(error)

        for subscription in self.subscriptions.values():
            self._close_subscription(subscription, forget=False)
        self._stop()
        for shard in self.shards:
            shard.close_later(closed)

    def delete(self) -> None:
        """Hang up on everybody and drop the data."""
        self.deleted = True
        self.intake.closed = "gone"
        for subscription in self._open:
            self._close_subscription(subscription, forget=True)
        self.subscriptions.clear()
        self._open = ()
        for shard in self.shards:
            shard.delete()
        self._stop()

    def _stop(self) -> None:
        self.deleted = True
        self.intake.closed = self.intake.closed or "gone"
        self._tell_followers()
        self._timer.cancel()

    def _check_alive(self) -> None:
        if self.deleted:
            raise Refusal("gone", f"topic {self.name} was deleted")
