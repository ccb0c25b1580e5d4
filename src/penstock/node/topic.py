"""A topic at work: its shards, what comes in, its subscriptions, and what time does to them.

The path of a message goes through here: `publish` (the intake's) -> the log -> `_stored` -> `Subscription.offer` -> a
seat. Everything runs on the node's loop; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ParamSpec

import numpy as np

from penstock.delivery.instant import Instant
from penstock.delivery.seat import Seat
from penstock.delivery.subscription import Subscription
from penstock.delivery.timer import DueTimer
from penstock.dialect import Chosen
from penstock.errors import Refusal
from penstock.intake.intake import Intake
from penstock.log import label
from penstock.log.shard import Shard
from penstock.message import Batch, Done, int64s
from penstock.node import making
from penstock.node.backlogs import Backlogs
from penstock.node.changes import Changes
from penstock.node.making import Made
from penstock.node.storage import Storage
from penstock.node.subscriptions import Subscriptions
from penstock.node.waking import Waking
from penstock.registry.records import TopicRecord
from penstock.rescue.labels import label_of
from penstock.settings import TopicSettings

if TYPE_CHECKING:
    from penstock.node.node import Node

P = ParamSpec("P")

_NONE = np.empty(0, np.int64)


class Topic:
    """One topic of a running node."""

    # As attributes of a dict they would take a kilobyte more; a dict is there only once something else is set.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_clock",
        "_followers",
        "_recorders",
        "_roster",
        "_timer",
        "_waking",
        "apply_rules",
        "attach",
        "backlog",
        "busy",
        "change",
        "changes",
        "chosen",
        "coming",
        "create_subscription",
        "deferred",
        "delete_subscription",
        "deleted",
        "disk",
        "empty",
        "flush_at_once",
        "forget_passing",
        "intake",
        "is_growing",
        "is_leaving",
        "is_shared",
        "is_short",
        "monotonic",
        "name",
        "node",
        "path",
        "pause",
        "publish",
        "record",
        "shards",
        "storage",
        "subscribe",
        "subscription",
        "subscriptions",
        "update",
        "update_subscription",
        "wall",
    )

    def __init__(self, node: Node, record: TopicRecord, path: str, made: Made | None = None) -> None:
        self.node = node
        self.record = record
        self.path = path
        self.name = record.name
        self.is_shared = record.settings.log != "local"
        #: What its settings say to each dialect.
        self.chosen = Chosen(record.settings, node.dialects)
        self.deleted = False
        #: It goes, or went, to another node of the cluster.
        self.is_leaving = False
        #: Shards are being made that it will have.
        self.is_growing = False
        #: Its record names shards that it does not have, or may do so; they are waited for.
        self.is_short = False
        self._roster = roster = Subscriptions(self)
        self.subscriptions = roster.by_name
        self.subscribe, self.subscription, self.attach = roster.subscribe, roster.get, roster.attach
        self.create_subscription, self.update_subscription = roster.create, roster.update
        self.delete_subscription, self.apply_rules = roster.delete, roster.apply_rules
        self.forget_passing = roster.forget_passing
        self.changes = changes = Changes(self)
        self.pause, self.update, self.empty, self.change = changes.pause, changes.update, changes.empty, changes.change
        self._clock = node.clock
        self.wall, self.monotonic = node.clock.now, node.clock.monotonic
        config = node.config.node
        if made is None:
            quota, written = making.quota_of(node, record), label_of(node.catalog, record)
            made = making.opened(node, node.disk, record, path, quota, written)
        #: What its files are on.
        self.disk = made.disk
        self.storage = Storage(self, made.quota)
        self.shards = [self.storage.watched(shard) for shard in made.shards]
        self.intake = Intake(
            record.name,
            node.clock,
            self.shards,
            record.settings,
            node.budget.input,
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
        self._timer = DueTimer(node.clock, len(self.shards), self._due, self._delays, self._lead_ns)
        backlogs = Backlogs(self, self._timer)
        self.backlog, self.deferred, self.coming = backlogs.backlog, backlogs.deferred, backlogs.coming
        self._followers: list[Callable[[], None]] = []
        #: Something happened since the last tick.
        self.busy = False
        #: Wakes it when it sleeps and time has something for it.
        self._waking = Waking(self)
        self._recover()
        # It is looked after once. That it was opened is nothing that happened: thousands would be watched for a while.
        self.busy = False

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
        self._roster.recover(due)

    @property
    def settings(self) -> TopicSettings:
        """What the user chose."""
        return self.record.settings

    @property
    def incarnation(self) -> int:
        """What tells it from a deleted one of the same name, and the key by which queue services show its ids."""
        return self.record.incarnation

    def shard(self, number: int) -> Shard:
        """Return a shard that must exist."""
        if not 0 <= number < len(self.shards):
            text = f"there is no shard {number}; topic {self.name} has 0 to {len(self.shards) - 1}"
            raise Refusal("bad_offset", text)
        return self.shards[number]

    @property
    def published(self) -> int:
        """Messages stored since the node started."""
        return self.intake.published

    # --- in -------------------------------------------------------------------------------------------------------

    def _announce(self, shard: Shard, batch: Batch) -> None:
        """Take note of rows in the log that are due later; they may not be readable yet."""
        due_ns, valid = int64s(batch.columns["due"])
        later = valid & (due_ns > self._timer.see(self._clock.now()))
        if later.any():
            self._timer.wait_for(shard.number, due_ns[later], batch.first + np.flatnonzero(later))

    def _stored(self, shard: Shard, batch: Batch) -> None:
        """Hand out rows that are as durable as promised; their publishers know, so no bug here is theirs."""
        if not self.busy:
            self.touch()
        number = shard.number
        if self._recorders is not None:
            self._recorders[number].published(batch)
        if batch.columns and "due" in batch.columns:
            now = self.now()
            for subscription in self.subscriptions.values():
                self.guarded(subscription.look_at, number, batch, now)
            self._timer.set()
        if not self.node.stopping:
            now_ns = self._clock.monotonic()
            for subscription in self._roster.open:
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
        for subscription in self._roster.open:
            subscription.pump()

    def follow(self, told: Callable[[], None]) -> Callable[[], None]:
        """Call `told` whenever more may be readable; returns what ends it. A follower is no subscription."""
        self._followers.append(told)
        return partial(self._followers.remove, told)

    def _tell_followers(self) -> None:
        for told in list(self._followers):
            self.guarded(told)

    def guarded(self, call: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
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
        if not self.busy:
            self.busy = True
            self.node.ticker.look_after(self)

    def set_timer(self) -> None:
        """Look again when the next row is due."""
        self._timer.set()

    def due_seen_ns(self) -> int:
        """Return the latest time up to which published rows were announced."""
        return self._timer.seen_ns()

    def failed(self, seat: Seat | None, failure: Exception) -> None:
        """Count a failure; hang up on a seat that could not be served, but not inside the look that found it broken."""
        self.node.report(f"topic {self.name}", failure)
        if seat is not None:
            seat.credit = 0
            self._clock.call_soon(partial(self._evict, seat))

    def _evict(self, seat: Seat) -> None:
        if seat.evict is not None:
            self.guarded(seat.evict)
        seat.close()

    def left(self, subscription: Subscription) -> None:
        """Let an ephemeral subscription go with its last seat."""
        if self.deleted or self.subscriptions.get(subscription.name) is not subscription:
            return
        if subscription.settings.ephemeral and not subscription.seats:
            self.delete_subscription(subscription.name)  # if it is refused, it goes with the next one, or at a start

    # --- more shards, and how much there is -------------------------------------------------------------------------

    def take_in(self, shards: Sequence[Shard]) -> None:
        """Make use of new shards: every subscription reads them from their beginning."""
        self.shards += [self.storage.watched(shard) for shard in shards]
        if self.settings.log == "local":
            try:  # before anything is in them: a lost registry is made from labels, and readers of files go by them
                label.write(self.disk, self.path, label_of(self.node.catalog, self.record))
            except OSError as error:
                self.node.report_bug(f"label of topic {self.name}", error)
        self._timer.grow(len(self.shards))
        if self.node.events is not None:
            self._recorders = self.node.events.recorders(self.name, len(self.shards))
        self._roster.grow(shards)

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

    # --- time -----------------------------------------------------------------------------------------------------

    def _delays(self) -> list[int | None]:
        """Return when time brings something to subscriptions."""
        now = self.now()
        return [time_ns for subscription in self._roster.open for time_ns in subscription.next_look_ns(now)]

    def _lead_ns(self) -> int:
        """Return how long before they are due some subscription wants its rows."""
        return max([subscription.policy.lead_ns for subscription in self._roster.open], default=0)

    def _due(self) -> None:
        """Make rows ready whose time has come."""
        wall_ns = self._clock.now()
        for number in range(len(self.shards)):
            arrived = self._timer.pop(number, wall_ns)
            for subscription in self._roster.open:
                self.guarded(subscription.arrive, number, arrived, wall_ns)
        self.pump_all()

    def tick(self, now: Instant) -> bool:
        """Write down acks, let the log do its chores, end leases; False once it sleeps, and wakes up by itself."""
        self._waking.stop()
        happened, self.busy = self.busy, False
        waiting = False
        for subscription in self._roster.open:
            acts, waits = subscription.tick(now)
            happened, waiting = happened or acts, waiting or waits
        self.chores(now)
        if waiting and not self._timer.is_set:
            self._timer.set()
        if happened:
            self._waking.active_ns = now.monotonic_ns
        if happened or self.busy or any(s.journals_suspect or s.journals_wait for s in self.shards):
            return True
        self._waking.set([each.next_end_ns() for each in self._roster.open], now.monotonic_ns)
        return False

    def chores(self, now: Instant) -> None:
        """Let the log do its own work; a quiet topic's grows old too."""
        for number, shard in enumerate(self.shards):
            shard.tick(now.wall_ns)
            if self.subscriptions:
                read_end = min([each.cursors[number].position.offset for each in self.subscriptions.values()])
                if not shard.let_go(read_end):
                    self.busy = True  # the rest goes with the next tick
            if shard.journals_suspect:
                for subscription in self.subscriptions.values():
                    subscription.heal(number, now)
            if shard.dropped:  # a memory topic is full: the oldest rows went
                self.storage.count_dropped(shard)

    # --- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write everything down; a clean end."""
        self._roster.close(forget=False)
        for shard in self.shards:
            shard.close()
        self._stop()

    def syncs(self) -> list[Callable[[Done], None]]:
        """Return what brings everything to the disk that is not there yet, in the executor."""
        for subscription in self.subscriptions.values():
            self.guarded(subscription.flush)
        return [sync for shard in self.shards for sync in shard.syncs()]

    def close_later(self, done: Done) -> None:
        """End cleanly, with the last writes in the executor; `syncs` come first."""
        left = len(self.shards)

        def closed(error: BaseException | None) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done(error)

        self._roster.close(forget=False)
        self._stop()
        for shard in self.shards:
            shard.close_later(closed)

    def delete(self) -> None:
        """Hang up on everybody and let go of the data, which whoever calls this removes."""
        self.deleted = True
        self.intake.closed = self.intake.closed or "gone"
        self._roster.close(forget=True)
        for shard in self.shards:
            shard.drop()
        self._stop()

    def begin_leaving(self) -> None:
        """Take nothing more: it goes to another node."""
        self.is_leaving = True
        self.intake.closed = "unavailable"

    def _stop(self) -> None:
        self.deleted = True
        self.intake.closed = self.intake.closed or "gone"
        self._tell_followers()
        self._timer.cancel()
        self._waking.stop()

    def check_alive(self) -> None:
        """Refuse what nobody can ask of a topic that is gone."""
        if self.deleted:
            if self.is_leaving:
                raise Refusal("unavailable", f"topic {self.name} went to another node; try again")
            raise Refusal("gone", f"topic {self.name} was deleted")
