"""A subscription: named delivery state over a topic, shared by its seats.

Owns who is here and the policy in force. Rows are the cursors' business, one per shard; who gets them next, and when,
the dealer's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from penstock.columns import OFFSET_BITS, Offsets, place_of
from penstock.delivery import dealer
from penstock.delivery.cursor import Cursor, by_shard
from penstock.delivery.dealer import Dealer
from penstock.delivery.durations import Durations
from penstock.delivery.holders import Holders
from penstock.delivery.instant import Instant
from penstock.delivery.journal import ACKED, FINISHED, NAMES, REMOVED
from penstock.delivery.keeping import AT_ONCE, AtOnce, Keeping
from penstock.delivery.moves import Growth, Moves, ShardOf
from penstock.delivery.policies import dealt_by, policy_of
from penstock.delivery.policies.policy import Policy
from penstock.delivery.policies.tagged import Tagged
from penstock.delivery.seat import Seat, nobody
from penstock.errors import Refusal
from penstock.message import Batch
from penstock.settings import SubscriptionSettings

_EMPTY = np.empty(0, np.int64)


class Host(dealer.Host, Protocol):
    """What a subscription needs of its topic."""

    #: Acks are written down before anything later is answered.
    flush_at_once: bool
    #: It will be looked after soon; whoever changes something sees to that.
    busy: bool
    #: Another node may go on with it at any moment, by what was synced.
    is_shared: bool

    def monotonic(self) -> int:
        """Return the time on the monotonic clock."""

    @property
    def incarnation(self) -> int:
        """The key by which ids are shown where they are not as they are."""

    def left(self, subscription: Subscription) -> None:
        """Hear that a seat of a subscription was closed."""


class Subscription:
    """Seats on one side, cursors on the other, a policy between."""

    def __init__(self, name: str, number: int, settings: SubscriptionSettings, host: Host) -> None:
        self.name = name
        self.number = number
        self.settings = settings
        self.host = host
        self.cursors: list[Cursor] = []
        self.dealer = Dealer(self.cursors, host, self.leave)
        #: The way of a message goes straight through.
        self.offer, self.pump, self.wake = self.dealer.offer, self.dealer.pump, self.dealer.wake
        #: Tells when what was done is kept, so that it may be answered.
        self.keeping: AtOnce = AT_ONCE
        if host.is_shared:
            self.keeping = self.dealer.keeping = Keeping(self.cursors, host)
        self.holders = Holders(self)
        #: Connected seats by holder number, and the seats of named holders by name.
        self.seats, self.named = self.holders.seats, self.holders.named
        #: The names by number, which cursors write down with what they lease.
        self.names = self.holders.names
        #: Looks that have found nothing yet.
        self.looks: dict[Seat, None] = {}
        self.released = 0
        self.expired_leases = 0
        #: What its filters refused since the start, by kind of filter.
        self.refused: dict[str, int] = {}
        #: How long rows waited before they first went out, and how long those were out that were acked.
        self.waited, self.leased_for = self.dealer.waited, Durations()
        #: Told the ids of what seats finished, where somebody measures that.
        self.on_ack: Callable[[list[int] | Offsets], None] | None = None
        #: Why it cannot begin anew elsewhere, and what to do instead; empty where it can.
        self.no_seek = ""
        #: Looks how keys moved when the topic grew; None where it did not.
        self._moves: Callable[[], Moves] | None = None
        #: The policy that was chosen; in force unless some seat asks for a tag.
        self.chosen_policy: Policy = policy_of(settings, host.incarnation)
        self.dealer.policy = self.chosen_policy
        #: Made by the first seat that asks for a tag.
        self._tagged: Tagged | None = None
        self.configure(settings)

    def add(self, cursor: Cursor) -> None:
        """Take in the cursor of one shard; what it recovered on lease belongs to named holders."""
        self.cursors.append(cursor)
        cursor.states.leased_for = self.leased_for
        cursor.use_lanes(self.policy, self.host.now().wall_ns)
        if self.names:
            cursor.states.pages.keep_versions()
        for holder in cursor.states.leases.holders():
            rows = cursor.states.leases.of(holder)
            self.named[self.names[holder]].in_flight += len(rows)
            self.chosen_policy.recovered(cursor.source.number, rows, cursor.states.pages.details(rows)[2])

    def follow(self, grown: Sequence[Growth], shard_of: ShardOf) -> None:
        """Keep the order of keys that had other shards before the topic grew."""
        self._moves = partial(Moves, self.cursors, grown, shard_of) if grown else None
        self._follow_keys()

    def _follow_keys(self) -> None:
        moves = self._moves() if self._moves is not None and self.settings.order == "key" else None
        self.dealer.moves = moves or None

    @property
    def has_filters(self) -> bool:
        """Whether it may refuse messages for what they are."""
        return any(cursor.rules.test is not None for cursor in self.cursors)

    @property
    def policy(self) -> Policy:
        """The policy in force: `tagged` while some seat asks for a tag, else the one that was chosen."""
        return self._tagged if self._tagged else self.chosen_policy

    def configure(self, settings: SubscriptionSettings) -> None:
        """Go by these settings from now on."""
        if dealt_by(settings) != dealt_by(self.settings):
            before, self.chosen_policy = self.chosen_policy, policy_of(settings, self.host.incarnation)
            self.chosen_policy.take_over(before)
            for seat in self.seats.values():
                self.chosen_policy.joined(seat)
            self._deal_by(self.policy)
        self.settings = settings
        self.dealer.paused = settings.paused

    def _deal_by(self, policy: Policy) -> None:
        self.dealer.policy = policy
        for cursor in self.cursors:
            if cursor.ready.policy is not policy:
                cursor.use_lanes(policy, self.host.now().wall_ns)
        self.host.set_timer()  # it may look further ahead

    # --- who is here ----------------------------------------------------------------------------------------------

    def join(self, seat: Seat) -> None:
        """Let a seat in; it gets nothing before it has credit."""
        if seat.shard is not None:
            self.cursor(seat.shard)
        self.dealer.tidy()
        self.holders.join(seat)
        self.chosen_policy.joined(seat)
        if seat.tag:
            self._claim(seat)

    def join_look(self, seat: Seat) -> None:
        """Let somebody in who asks once."""
        self.dealer.tidy()
        self.looks[seat] = None
        if seat.tag:
            self._claim(seat)

    def holder(self, name: str) -> Seat:
        """Return the seat of a named holder that only looks, made now if it is new; its name stays."""
        return self.holders.looking(name)

    def number_of(self, name: str) -> int:
        """Return the number of a named holder."""
        return self.holders.under(name).holder

    def _claim(self, seat: Seat) -> None:
        if self._tagged is None:
            self._tagged = Tagged()
        seat.lane = self._tagged.claim(seat.tag)
        self._deal_by(self._tagged)

    def unclaim(self, seat: Seat) -> None:
        """Give a seat's tag back to whoever takes any."""
        if seat.tag and self._tagged is not None:
            self._tagged.unclaim(seat.tag)
            self._deal_by(self.policy)

    def leave(self, seat: Seat, *, release: bool = False) -> None:
        """Let a seat go; what it held is ready for the others at once, or stays on lease under its name.

        With `release` a name keeps nothing either.
        """
        if seat.gone or seat.kept:
            return
        seat.gone = True
        seat.deliver = nobody  # it may stand in line for long, and must not keep a connection in memory
        seat.evict = None
        self.dealer.gone(seat)
        if not seat.closing:
            self.unclaim(seat)
        self.looks.pop(seat, None)
        if seat.owner is None and seat.holder >= 0:
            self.chosen_policy.left(seat)
            kept = seat.in_flight if seat.named and not release else 0
            if not kept:
                now = self.host.now()
                for cursor in self.cursors:
                    cursor.states.returns.leave(seat.holder, now)
            self.holders.leave(seat, kept)
            if seat.named:
                self.flush()
            self.count_revoked()
            self.host.touch()
        if seat.owner is None or seat.tag:  # a look leaves nothing behind for others, who may ask in the same turn
            self.wake()

    def close(self, *, forget: bool) -> list[Seat]:
        """End it and return the seats whose owners must hear of it; with `forget` its state is dropped for good."""
        seats = [*self.seats.values(), *self.looks]
        for seat in seats:
            seat.gone = True
        now = self.host.now()
        for cursor in self.cursors:
            cursor.close(forget=forget, now=now)
        return seats

    # --- back -----------------------------------------------------------------------------------------------------

    def expire(self, now: Instant) -> None:
        """Give back what was held too long, between two ticks; who waits in line gets it in the next turn."""
        if self._end_leases(now):
            self.host.call_soon(self.pump)

    def _end_leases(self, now: Instant) -> bool:
        ended = False
        for cursor in self.cursors:
            for holder, count in cursor.states.returns.expire(now):
                ended = True
                self.expired_leases += count
                seat = self.holders.of(holder)
                if seat is not None:
                    seat.in_flight -= count
                    seat.expired += count
                    self.dealer.queue(seat)
                    self.holders.rest(seat)
        self.count_revoked()
        return ended

    def flush(self) -> None:
        """Write down what happened, at once."""
        now = None
        for cursor in self.cursors:
            if cursor.dirty:
                now = now or self.host.now()
                cursor.flush(now)

    def count_revoked(self) -> None:
        """Give credit back for rows that were taken back because an earlier one of their key was."""
        for cursor in self.cursors:
            returns = cursor.states.returns
            if returns.revoked:
                revoked, returns.revoked = returns.revoked, {}
                self._lost(revoked)

    def _lost(self, lost: dict[int, int]) -> None:
        for holder, count in lost.items():
            seat = self.holders.of(holder)
            if seat is not None:
                seat.in_flight -= count
                self.dealer.queue(seat)
                self.holders.rest(seat)

    # --- what time and the log bring ------------------------------------------------------------------------------

    def look_at(self, shard: int, batch: Batch, now: Instant) -> None:
        """Look at a batch that was just stored and brings due times."""
        self.cursors[shard].look_at(batch, now)

    def arrive(self, shard: int, announced: tuple[Offsets, int] | None, wall_ns: int) -> None:
        """Make rows ready whose time has come: of those the topic announces, and those that were released until now."""
        states = self.cursors[shard].states
        if announced is not None and len(announced[0]):
            states.announced(*announced, wall_ns)
        states.pop_due(wall_ns)

    def tick(self, now: Instant) -> tuple[bool, bool]:
        """End leases and write down acks; tell whether there were any, and whether rows wait for their time."""
        waiting = False
        happened = ended = self._end_leases(now)
        for cursor in self.cursors:
            waiting = waiting or cursor.states.waiting > 0
            if cursor.dirty:
                happened = True
                cursor.flush(now)
        if ended:
            self.pump()
        return happened, waiting

    def next_end_ns(self) -> int | None:
        """Return when the next lease ends, on the monotonic clock; None while nothing is out."""
        ends = [cursor.states.leases.next_end_ns() for cursor in self.cursors]
        return min((end_ns for end_ns in ends if end_ns is not None), default=None)

    def heal(self, shard: int, now: Instant) -> None:
        """Write a journal anew if a sync of it failed."""
        self.cursors[shard].heal(now)

    def gate(self, offsets: Sequence[int] | None) -> None:
        """Pass nothing from these offsets on, one a shard; None for no limit."""
        for cursor in self.cursors:
            cursor.position.gate = offsets[cursor.source.number] if offsets is not None else None

    # --- without a lease ------------------------------------------------------------------------------------------

    def remove(self, ids: list[int] | Offsets) -> Offsets:
        """Finish messages whatever their state: the owner does not want them delivered any more.

        Return the ids of those that were not finished before.
        """
        there = self.unfinished(ids)
        for cursor, offsets in by_shard(self.cursors, there, []):
            self._lost(cursor.remove(offsets))
        self._changed()
        return there

    def unfinished(self, ids: list[int] | Offsets) -> Offsets:
        """Return those of some ids whose messages are there and not finished, each once, in order."""
        found = [_EMPTY]
        for cursor, offsets in by_shard(self.cursors, np.asarray(ids, np.int64), []):
            found.append((cursor.source.number << OFFSET_BITS) + cursor.unfinished(offsets) + 1)
        return np.concatenate(found)

    def ack_up_to(self, id_: int) -> None:
        """Finish every message of a shard up to and including this one."""
        shard, offset = place_of(id_)
        self._lost(self.cursor(shard).finish_below(offset + 1, ACKED))
        self._changed()

    def drop_below(self, shard: int, offset: int) -> None:
        """Finish every message of a shard below an offset: it is not kept any more."""
        self._lost(self.cursor(shard).finish_below(offset, REMOVED))

    def skip(self, firsts: Sequence[int], ends: Sequence[int]) -> None:
        """Remove rows that are still ahead: a range of each shard."""
        for cursor, first, end in zip(self.cursors, firsts, ends, strict=False):
            cursor.position.skip(first, end)
        self.flush()

    def empty(self) -> None:
        """Finish everything there is; what a paused topic keeps back is not here yet."""
        for cursor in self.cursors:
            end = cursor.source.readable_end
            self._lost(
                cursor.finish_below(end if cursor.position.gate is None else min(cursor.position.gate, end), REMOVED)
            )
        self._changed()

    def check_seek(self) -> None:
        """Refuse to begin anew where that cannot be."""
        if self.no_seek:
            raise Refusal("conflict", f"subscription {self.name} stays where it is: {self.no_seek}")

    def seek(self, shard: int, offset: int) -> None:
        """Begin anew at an offset of a shard."""
        self.check_seek()
        cursor = self.cursor(shard)
        if not cursor.source.start <= offset <= cursor.source.readable_end:
            raise Refusal(
                "bad_offset",
                f"offset {offset} of shard {shard} is not kept; choose one from {cursor.source.start} "
                f"to {cursor.source.readable_end}",
            )
        cursor.seek(offset)
        self._follow_keys()
        for seat in [*self.seats.values(), *self.named.values()]:
            seat.in_flight = sum(len(each.states.leases.of(seat.holder)) for each in self.cursors)
            self.dealer.queue(seat)
            self.holders.rest(seat)
        self._changed()

    def _changed(self) -> None:
        """Write down what somebody did to the subscription as a whole before he hears of it, and go on."""
        self.flush()
        self.pump()

    def next_look_ns(self, now: Instant) -> list[int | None]:
        """Return when time brings something: a row of each cursor that is due, a lane that opens. On the wall clock."""
        opens_ns = self.policy.opens_ns(now)
        times: list[int | None] = [cursor.states.agenda.next_ns() for cursor in self.cursors]
        if self.policy.lead_ns and (self.looks or self.policy.ahead_rows(now.wall_ns) <= 0):
            # Looks get nothing ahead of its time, and nobody does where too many rows are out so.
            times += [cursor.ready.next_due_ns(now.wall_ns) for cursor in self.cursors]
        return times if opens_ns is None else [*times, opens_ns - now.monotonic_ns + now.wall_ns]

    # --- what others ask ------------------------------------------------------------------------------------------

    def is_busy(self) -> bool:
        """Tell whether a look that found nothing may find something although nothing new comes: go on in a moment."""
        if self.dealer.is_waking:
            return True
        for cursor in self.cursors:  # noqa: SIM110 - any() would cost a generator for every receive
            if cursor.position.is_fetching:
                return True
        return False

    def depth(self) -> int:
        """Return the rows that could be handed out now if there were credit."""
        return sum(cursor.depth() for cursor in self.cursors)

    def unread(self) -> Iterator[tuple[int, int, int]]:
        """Yield the stretches that are still to come: shard, first offset and end of each."""
        for cursor in self.cursors:
            for first, end in cursor.position.unread():
                yield cursor.source.number, first, end

    def ready(self) -> int:
        """Return the rows that were passed and stand ready."""
        return sum(cursor.states.ready for cursor in self.cursors)

    def in_flight(self) -> int:
        """Return the rows out on lease."""
        return sum([cursor.states.leased for cursor in self.cursors])

    def ahead(self, wall_ns: int) -> int:
        """Return the rows that stand ready ahead of their time, for those who hold them until then."""
        return sum(len(cursor.states.agenda.ahead(wall_ns)) for cursor in self.cursors if cursor.states.ready)

    def waiting(self) -> int:
        """Return the rows that wait for their time."""
        return sum(cursor.states.waiting for cursor in self.cursors)

    def counts(self) -> dict[str, int]:
        """Return rows passed, held and finished by reason: passed is the sum of the others."""
        totals = {NAMES[op]: sum(cursor.states.counts[op] for cursor in self.cursors) for op in FINISHED}
        passed = sum(cursor.position.passed for cursor in self.cursors)
        return {"passed": passed, "held": sum(cursor.states.held for cursor in self.cursors), **totals}

    def has_stored(self, id_: int) -> bool:
        """Tell whether a message of this id is or was in the log."""
        shard, offset = place_of(id_)
        return 0 <= shard < len(self.cursors) and offset < self.cursors[shard].source.readable_end

    def cursor(self, shard: int) -> Cursor:
        """Return the cursor of a shard that must exist."""
        if not 0 <= shard < len(self.cursors):
            raise Refusal("bad_offset", f"there is no shard {shard} in this topic")
        return self.cursors[shard]
