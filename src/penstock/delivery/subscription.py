"""A subscription: named delivery state over a topic, shared by its seats.

Owns who is here, the line of those with room, and the policy in force; the rows are the cursors' business, one per
shard. Rows leave through `Seat.deliver`, so it runs the same on a socket and in a test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from penstock.delivery.cursor import LOOKS_MAX, Cursor
from penstock.delivery.instant import Instant
from penstock.delivery.journal import ACKED, FINISHED, NAMES, REMOVED
from penstock.delivery.leases import GRAIN_NS
from penstock.delivery.policies.policy import Policy
from penstock.delivery.policies.shared import Shared
from penstock.delivery.policies.tagged import Tagged
from penstock.delivery.seat import Seat, nobody
from penstock.delivery.source import Delivery
from penstock.errors import Refusal
from penstock.message import OFFSET_BITS, Batch, Offsets, id_of, place_of
from penstock.settings import SubscriptionSettings

#: One pump hands out at most this much before other connections get their turn (ruling 25).
PUMP_ROWS_MAX = 16_384

#: So many seats are served from lanes of their own before others get their turn. A write and the answer to it cost as
#: much as some hundred rows, and under load those who wait a turn get more rows at once.
HANDS_MAX = 4

#: Holders are numbered with 16 bits.
HOLDERS_MAX = 0xFFFF

#: A holder's name is written into each journal it holds rows of.
HOLDER_NAME_BYTES_MAX = 256

POLICIES: dict[str, Callable[[], Policy]] = {"shared": Shared}

_OFFSET_MASK = (1 << OFFSET_BITS) - 1


class Host(Protocol):
    """What a subscription needs of its topic."""

    #: Acks are written down before anything later is answered.
    flush_at_once: bool

    @property
    def is_open(self) -> bool:
        """Whether rows may still be handed out."""

    def now(self) -> Instant:
        """Return this instant."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call in the next turn."""

    def touch(self) -> None:
        """See to it that leases end and acks are written down in time."""

    def set_timer(self) -> None:
        """Look again when the next row is due."""

    def left(self, subscription: Subscription) -> None:
        """Hear that a seat of a subscription was closed."""

    def failed(self, seat: Seat | None, failure: Exception) -> None:
        """Hear that handing rows over failed, and to which seat (None: to whoever's turn it was)."""


class Subscription:
    """Seats on one side, cursors on the other, a policy between."""

    def __init__(self, name: str, number: int, settings: SubscriptionSettings, host: Host) -> None:
        self.name = name
        self.number = number
        self.settings = settings
        self.host = host
        self.cursors: list[Cursor] = []
        #: Seats that had room when they joined it, in turn.
        self.line: deque[Seat] = deque()
        #: How many in that line may have gone; on a quiet topic nobody else would take them out.
        self._gone_in_line = 0
        #: Connected seats by holder number, and the seats of named holders by name.
        self.seats: dict[int, Seat] = {}
        self.named: dict[str, Seat] = {}
        #: The names by number, which cursors write down with what they lease.
        self.names: dict[int, str] = {}
        #: Looks that have found nothing yet.
        self.looks: dict[Seat, None] = {}
        self.released = 0
        self.expired_leases = 0
        #: Told the ids of what seats finished, where somebody measures that.
        self.on_ack: Callable[[list[int] | Offsets], None] | None = None
        #: Told what is handed out, before it is, where somebody keeps a history.
        self.on_hand: Callable[[list[Delivery]], None] | None = None
        self._policy: Policy = POLICIES[settings.policy]()
        self._tagged = Tagged()
        self._next_shard = 0
        self._free_holders: list[int] = []
        self._holder_top = 0
        #: It is being pumped, or will be in the next turn and not before.
        self._busy = False
        self._waking = False
        #: Seats that were served last from lanes of their own took all there was and would take more.
        self._hungry = False

    def add(self, cursor: Cursor) -> None:
        """Take in the cursor of one shard; what it recovered on lease belongs to named holders."""
        self.cursors.append(cursor)
        if self.policy.many:
            cursor.use_lanes(self.policy)
        for holder in cursor.states.leases.holders():
            self.named[self.names[holder]].in_flight += len(cursor.states.leases.of(holder))

    @property
    def policy(self) -> Policy:
        """The policy in force: `tagged` while some seat asks for a tag, else the one that was chosen."""
        return self._tagged if self._tagged else self._policy

    # --- who is here ----------------------------------------------------------------------------------------------

    def join(self, seat: Seat) -> None:
        """Let a seat in; it gets nothing before it has credit."""
        if seat.shard is not None:
            self.cursor(seat.shard)
        self._tidy_line()
        seat.holder = self._new_holder()
        self.seats[seat.holder] = seat
        if seat.tag:
            self._claim(seat)

    def join_look(self, seat: Seat) -> None:
        """Let somebody in who asks once."""
        self._tidy_line()
        self.looks[seat] = None
        if seat.tag:
            self._claim(seat)

    def holder(self, name: str) -> Seat:
        """Return the seat of a named holder, made now if it is new; its leases outlive everybody who uses it."""
        seat = self.named.get(name)
        if seat is None:
            if not 0 < len(name.encode("utf-8", "replace")) <= HOLDER_NAME_BYTES_MAX or "\0" in name:
                raise Refusal("bad_request", f"a holder's name has 1 to {HOLDER_NAME_BYTES_MAX} bytes, and no NUL")
            seat = Seat(self, nobody, self.settings.lease_ns, name)
            seat.named = True
            seat.holder = self._new_holder()
            self.named[name] = seat
            self.names[seat.holder] = name
            for cursor in self.cursors:
                cursor.states.pages.keep_versions()
        return seat

    def number_of(self, name: str) -> int:
        """Return the number of a named holder."""
        return self.holder(name).holder

    def _new_holder(self) -> int:
        if self._free_holders:
            return self._free_holders.pop()
        if self._holder_top >= HOLDERS_MAX:
            raise Refusal("conflict", f"subscription {self.name!r} has {HOLDERS_MAX} consumers, no more fit")
        self._holder_top += 1
        return self._holder_top - 1

    def _tidy_line(self) -> None:
        if self._gone_in_line * 2 > len(self.line):
            self._gone_in_line = 0
            here = [one for one in self.line if not one.gone]
            self.line.clear()
            self.line.extend(here)

    def _claim(self, seat: Seat) -> None:
        first = not self._tagged
        seat.lane = self._tagged.claim(seat.tag)
        if first:
            for cursor in self.cursors:
                cursor.use_lanes(self._tagged)

    def unclaim(self, seat: Seat) -> None:
        """Give a seat's tag back to whoever takes any."""
        if not seat.lane:
            return
        self._tagged.unclaim(seat.lane)
        if not self._tagged:
            for cursor in self.cursors:
                cursor.use_lanes(self._policy if self._policy.many else None)

    def leave(self, seat: Seat) -> None:
        """Let a seat go; what it held is ready for the others at once. A named holder keeps what it has."""
        if seat.gone:
            return
        if seat.named:
            seat.credit, seat.deliver, seat.evict = 0, nobody, None
            return
        seat.gone = True
        seat.deliver = nobody  # it may stand in line for long, and must not keep a connection in memory
        seat.evict = None
        self._gone_in_line += seat.queued
        if not seat.closing:
            self.unclaim(seat)
        self.looks.pop(seat, None)
        if seat.owner is None and seat.holder >= 0:
            now = self.host.now()
            for cursor in self.cursors:
                cursor.states.leave(seat.holder, now)
            del self.seats[seat.holder]
            self._free_holders.append(seat.holder)
            seat.holder = -1  # the number is the next one's, and so are its leases
            self.count_revoked()
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

    # --- out ------------------------------------------------------------------------------------------------------

    def offer(self, shard: int, batch: Batch, now_ns: int) -> None:
        """Hand out a batch that was just stored: straight from it if it is all there is, else the general way."""
        line = self.line
        if not line or self._busy or self._waking or self.settings.paused:
            return
        seat = line[0]
        if (
            seat.keep is None
            and (seat.shard is None or seat.shard == shard)
            and seat.owner is None
            and self.cursors[shard].lease_tip(
                batch, seat.room, seat.holder, -(-(now_ns + seat.lease_ns) // GRAIN_NS) * GRAIN_NS
            )
        ):
            if seat.room <= batch.count:
                line.popleft()
                seat.queued = False
            elif len(line) > 1:
                line.rotate(-1)
            self.host.touch()
            self._busy = True
            try:
                self._hand(seat, [Delivery(shard, batch, slice(0, batch.count), batch.count, 1)])
            finally:
                self._busy = False
        else:
            self.pump()

    def pump(self) -> None:
        """Hand out what can be handed out; a part of the work goes on in the next turn if it is much."""
        if not self.line or self._busy or self._waking or self.settings.paused or not self.can_give():
            return
        if not self.host.is_open:
            return
        self._busy = True
        self.host.touch()
        cut_off = False
        try:
            now = self.host.now()
            cut_off = self._deal_lanes(now) if self.policy.many else self._deal(now)
        except Exception as failure:  # whoever's turn this is, it is not its bug
            self.host.failed(None, failure)
        finally:
            self._busy = False
        if cut_off:
            self.wake()

    def wake(self) -> None:
        """Go on in the next turn, and not before it."""
        if not self._waking:
            self._waking = True
            self.host.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._waking = False
        self.pump()

    def can_give(self) -> bool:
        """Tell whether something may be there for somebody."""
        for cursor in self.cursors:  # noqa: SIM110 - any() would cost a generator for every message
            if cursor.more():
                return True
        return False

    def _deal(self, now: Instant) -> bool:
        """Serve the line from one lane; True if the work was cut off."""
        line = self.line
        dealt = misses = 0
        while line and dealt < PUMP_ROWS_MAX and self.can_give():
            seat = line[0]
            room = seat.room
            if room <= 0:
                line.popleft()
                seat.queued = False
                continue
            deliveries = self._take(min(room, PUMP_ROWS_MAX - dealt), seat, now)
            if not deliveries:
                misses += 1
                if seat.shard is None or misses >= len(line):
                    break
                line.rotate(-1)  # its shard has nothing; another seat may read others
                continue
            misses = 0
            line.popleft()
            seat.queued = False
            dealt += self._hand(seat, deliveries)
            if not seat.queued and seat.room > 0:
                seat.queued = True
                line.append(seat)
        return dealt >= PUMP_ROWS_MAX

    def _deal_lanes(self, now: Instant) -> bool:
        """Serve everybody from its own lanes, in turns; True if the work was cut off."""
        dealt, looks, hands = 0, LOOKS_MAX, HANDS_MAX
        if self._hungry:
            # They had little each: with what came meanwhile the next ones get more at once.
            self._hungry = False
            self._sort_ahead(now)
        while dealt < PUMP_ROWS_MAX and self.line:
            got, hands = self._round(PUMP_ROWS_MAX - dealt, hands, now)
            dealt += got
            if hands == 0:
                return True
            # Whoever is still in line has had all that stands in its lanes.
            if dealt >= PUMP_ROWS_MAX or not self._sort_ahead(now):
                break
            looks -= 1
            if looks == 0:  # much is parked: others shall have their turn before the search goes on
                return True
        return dealt >= PUMP_ROWS_MAX

    def _round(self, budget: int, hands: int, now: Instant) -> tuple[int, int]:
        """Ask every seat with room once; return the rows dealt and how many more seats may be served."""
        line = self.line
        dealt = 0
        full = False
        for _ in range(len(line)):
            seat = line.popleft()
            seat.queued = False
            room = min(seat.room, budget - dealt)
            if room > 0 and self._stocked(seat):
                deliveries = self._take(room, seat, now)
                if deliveries:
                    dealt += self._hand(seat, deliveries)
                    hands -= 1
                    full = full or seat.room <= 0
            if not seat.queued and seat.room > 0:
                seat.queued = True
                line.append(seat)
            if hands == 0:
                self._hungry = not full
                break
        return dealt, hands

    def _stocked(self, seat: Seat) -> bool:
        """Tell whether rows may stand in the lane of a seat that asks for a tag."""
        return not seat.lane or any(cursor.ready.lane(seat.lane) is not None for cursor in self.cursors)

    def _sort_ahead(self, now: Instant) -> bool:
        """Put more rows into lanes; False if there are none to look at now."""
        sorted_some = False
        for cursor in self.cursors:  # each of them, so that no shard waits for another
            sorted_some = cursor.sort_ahead(now) or sorted_some
        return sorted_some

    def _take(self, limit: int, seat: Seat, now: Instant) -> list[Delivery]:
        """Lease up to `limit` rows to a seat, from all shards in turn, and finish what its own filter refuses."""
        for _ in range(LOOKS_MAX):
            taken = self._leased(limit, seat, now)
            if seat.keep is None or not taken:
                return taken
            kept = self._kept(seat, taken)
            if kept:
                return kept
        self.wake()  # it wants next to nothing: others shall have their turn before the search goes on
        return []

    def _leased(self, limit: int, seat: Seat, now: Instant) -> list[Delivery]:
        cursors = self.cursors
        if len(cursors) == 1 or seat.shard is not None:
            return cursors[seat.shard or 0].take(limit, seat, seat.lease_ns, now)
        out: list[Delivery] = []
        for _ in cursors:
            self._next_shard = (self._next_shard + 1) % len(cursors)
            part = cursors[self._next_shard].take(limit, seat, seat.lease_ns, now)
            limit -= sum(delivery.count for delivery in part)
            out += part
            if limit <= 0:
                break
        return out

    def _kept(self, seat: Seat, taken: list[Delivery]) -> list[Delivery]:
        kept = []
        for delivery in taken:
            mask = seat.keep(delivery.shard, delivery.batch, delivery.rows)  # type: ignore[misc]
            if not mask.all():
                refused = delivery.picked(~mask)
                offsets = refused.batch.first + np.asarray(refused.rows)
                self.cursors[delivery.shard].states.refuse(offsets, seat.holder)
                delivery = delivery.picked(mask)
            if delivery.count:
                kept.append(delivery)
        return kept

    def _hand(self, seat: Seat, deliveries: list[Delivery]) -> int:
        """Send leased rows to their seat and return how many they are."""
        count = 0
        for delivery in deliveries:
            count += delivery.count
        owner = seat.owner
        if owner is None:
            seat.in_flight += count
            seat.received += count
        else:
            owner.in_flight += count
            owner.received += count
        if self.on_hand is not None:
            self.on_hand(deliveries)
        deliver = seat.deliver
        if owner is not None:  # it asked once
            self.leave(seat)
        try:
            deliver(deliveries)
        except Exception as failure:
            if owner is not None:  # nobody knows their receipts
                owner.release([id_of(each.shard, offset) for each in deliveries for offset in each.offsets()])
            self.host.failed(seat, failure)
        return count

    # --- back -----------------------------------------------------------------------------------------------------

    def expire(self, now: Instant) -> bool:
        """Give back what was held too long; True if there was any."""
        ended = False
        for cursor in self.cursors:
            for holder, count in cursor.states.expire(now):
                ended = True
                self.expired_leases += count
                seat = self._seat_of(holder)
                if seat is not None:
                    seat.in_flight -= count
                    seat.expired += count
                    self._queue(seat)
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
            if cursor.states.revoked:
                revoked, cursor.states.revoked = cursor.states.revoked, {}
                self._lost(revoked)

    def _lost(self, lost: dict[int, int]) -> None:
        for holder, count in lost.items():
            seat = self._seat_of(holder)
            if seat is not None:
                seat.in_flight -= count
                self._queue(seat)

    def _seat_of(self, holder: int) -> Seat | None:
        name = self.names.get(holder)
        return self.seats.get(holder) if name is None else self.named[name]

    def _queue(self, seat: Seat) -> None:
        if not seat.queued and seat.room > 0:
            seat.queued = True
            self.line.append(seat)

    # --- without a lease ------------------------------------------------------------------------------------------

    def remove(self, ids: list[int]) -> None:
        """Finish messages whatever their state: the owner does not want them delivered any more."""
        refused: list[int] = []
        for cursor, offsets in self.by_shard(np.asarray(ids, np.int64), refused):
            self._lost(cursor.remove(offsets))
        self._changed()

    def ack_up_to(self, id_: int) -> None:
        """Finish every message of a shard up to and including this one."""
        shard, offset = place_of(id_)
        self._lost(self.cursor(shard).finish_below(offset + 1, ACKED))
        self._changed()

    def drop_below(self, shard: int, offset: int) -> None:
        """Finish every message of a shard below an offset: it is not kept any more."""
        self._lost(self.cursor(shard).finish_below(offset, REMOVED))

    def empty(self) -> None:
        """Finish everything there is; what a paused topic keeps back is not here yet."""
        for cursor in self.cursors:
            end = cursor.source.readable_end
            self._lost(cursor.finish_below(end if cursor.gate is None else min(cursor.gate, end), REMOVED))
        self._changed()

    def seek(self, shard: int, offset: int) -> None:
        """Begin anew at an offset of a shard."""
        cursor = self.cursor(shard)
        if not cursor.source.start <= offset <= cursor.source.readable_end:
            raise Refusal(
                "bad_offset",
                f"offset {offset} of shard {shard} is not kept; choose one from {cursor.source.start} "
                f"to {cursor.source.readable_end}",
            )
        cursor.seek(offset)
        for seat in [*self.seats.values(), *self.named.values()]:
            seat.in_flight = sum(len(each.states.leases.of(seat.holder)) for each in self.cursors)
            self._queue(seat)
        self._changed()

    def _changed(self) -> None:
        """Write down what somebody did to the subscription as a whole before he hears of it, and go on."""
        self.flush()
        self.pump()

    # --- what others ask ------------------------------------------------------------------------------------------

    def depth(self) -> int:
        """Return the rows that could be handed out now if there were credit."""
        return sum(cursor.depth() for cursor in self.cursors)

    def ready(self) -> int:
        """Return the rows that were passed and stand ready."""
        return sum(cursor.states.ready for cursor in self.cursors)

    def in_flight(self) -> int:
        """Return the rows out on lease."""
        return sum(cursor.states.leased for cursor in self.cursors)

    def waiting(self) -> int:
        """Return the rows that wait for their time."""
        return sum(cursor.states.waiting for cursor in self.cursors)

    def counts(self) -> dict[str, int]:
        """Return rows passed, held and finished by reason: passed is the sum of the others."""
        totals = {NAMES[op]: sum(cursor.states.counts[op] for cursor in self.cursors) for op in FINISHED}
        passed = sum(cursor.passed for cursor in self.cursors)
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

    def by_shard(self, ids: Offsets, refused: list[int]) -> Iterator[tuple[Cursor, Offsets]]:
        """Yield each shard's cursor with ascending, distinct offsets; what cannot be is added to `refused`."""
        places = ids - 1
        if len(places) > 1 and not bool((places[1:] > places[:-1]).all()):
            places, first = np.unique(places, return_index=True)
            if len(places) < len(ids):
                refused += np.delete(ids, first).tolist()
        if len(self.cursors) == 1 and len(places) and places[0] >= 0 and places[-1] <= _OFFSET_MASK:
            yield self.cursors[0], places
            return
        shards = places >> OFFSET_BITS
        for shard in np.unique(shards).tolist():
            part = places[shards == shard]
            if 0 <= shard < len(self.cursors):
                yield self.cursors[shard], part & _OFFSET_MASK
            else:
                refused += (part + 1).tolist()
