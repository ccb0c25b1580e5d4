"""Who gets rows next: the line of seats with room, and the turns in which they are served.

Owns the line and the budget of one turn; which seats there are is the subscription's affair, which rows the cursors'.
Rows leave through `Seat.deliver`, so it runs the same on a socket and in a test.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from penstock.columns import id_of
from penstock.delivery.cursor import Cursor
from penstock.delivery.due_lane import in_order
from penstock.delivery.durations import BOUNDS_NS, FIRST_NS, Durations
from penstock.delivery.instant import Instant
from penstock.delivery.keeping import Keeping
from penstock.delivery.leases import GRAIN_NS
from penstock.delivery.moves import Moves
from penstock.delivery.policies.policy import Policy
from penstock.delivery.portion import LOOKS_MAX
from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.errors import InvariantError
from penstock.message import Batch

#: One pump hands out at most this much before other connections get their turn (ruling 25).
PUMP_ROWS_MAX = 16_384

#: So many seats are served from lanes of their own before others get their turn. A write and the answer to it cost as
#: much as some hundred rows, and under load those who wait a turn get more rows at once.
HANDS_MAX = 4

#: While seats wait for their turn, rows are put into lanes so many at a time: a piece of a batch for each of them costs
#: as much as some dozens of rows.
SORTED_ROWS = 4096


class Host(Protocol):
    """What dealing needs of the topic."""

    @property
    def is_open(self) -> bool:
        """Whether rows may still be handed out."""

    def now(self) -> Instant:
        """Return this instant."""

    def wall(self) -> int:
        """Return the time on the wall clock."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call in the next turn."""

    def touch(self) -> None:
        """See to it that leases end and acks are written down in time."""

    def set_timer(self) -> None:
        """Look again when the next row is due, or a lane opens."""

    def failed(self, seat: Seat | None, failure: Exception) -> None:
        """Hear that handing rows over failed, and to which seat (None: to whoever's turn it was)."""


class _Nobody(deque[Seat]):
    """The line where nobody ever joined, one for all: an empty one of its own would take 760 bytes."""

    def append(self, seat: Seat) -> None:
        """Refuse who would stand in every line at once."""
        raise InvariantError(f"seat {seat.name!r} has credit and did not join")


_NOBODY = _Nobody()


class Dealer:
    """Serves the seats of one subscription from its cursors."""

    __slots__ = (
        "_busy",
        "_cursors",
        "_gone",
        "_host",
        "_hungry",
        "_leave",
        "_next_shard",
        "_unasked",
        "_waking",
        "keeping",
        "line",
        "moves",
        "on_hand",
        "paused",
        "policy",
        "waited",
    )

    def __init__(self, cursors: list[Cursor], host: Host, leave: Callable[[Seat], None]) -> None:
        self._cursors = cursors
        self._host = host
        self._leave = leave
        #: Seats that had room when they joined it, in turn.
        self.line: deque[Seat] = _NOBODY
        #: Nobody gets anything.
        self.paused = False
        #: Who gets which row.
        self.policy = Policy()
        #: Which rows wait for others of their keys in another shard; None where none can.
        self.moves: Moves | None = None
        #: Hands out what is on lease under a name, where such leases must be kept first.
        self.keeping: Keeping | None = None
        #: Told what is handed out, before it is, where somebody keeps a history.
        self.on_hand: Callable[[list[Delivery]], None] | None = None
        #: How many in the line may have gone; on a quiet topic nobody else would take them out.
        self._gone = 0
        #: How long rows waited before they first went out.
        self.waited = Durations()
        self._next_shard = 0
        #: It is dealing, or will be in the next turn and not before.
        self._busy = False
        self._waking = False
        #: Seats that were served last from lanes of their own took all there was and would take more.
        self._hungry = False
        #: How many are still to be asked since rows were last put into lanes.
        self._unasked = 0

    # --- the line -------------------------------------------------------------------------------------------------

    def queue(self, seat: Seat) -> None:
        """Let a seat stand in line if it has room."""
        if not seat.queued and seat.room > 0:
            seat.queued = True
            self.line.append(seat)

    def tidy(self) -> None:
        """Have a line for whoever joins, and take out those who have gone, where they are many."""
        if self.line is _NOBODY:
            self.line = deque()
        if self._gone * 2 > len(self.line):
            self._gone = 0
            here = [one for one in self.line if not one.gone]
            self.line.clear()
            self.line.extend(here)

    def gone(self, seat: Seat) -> None:
        """Note that a seat has gone, which may stand in line."""
        self._gone += seat.queued

    # --- turns ----------------------------------------------------------------------------------------------------

    def offer(self, shard: int, batch: Batch, now_ns: int) -> None:
        """Hand out a batch that was just stored: straight from it if it is all there is, else the general way."""
        line = self.line
        if not line or self._busy or self._waking or self.paused:
            return
        seat = line[0]
        room = 0 if seat.blocked or seat.gone else seat.credit - seat.in_flight
        if (
            seat.keep is None
            and (seat.shard is None or seat.shard == shard)
            and seat.owner is None
            and not seat.named
            and self._cursors[shard].lease_tip(
                batch, room, seat.holder, -(-(now_ns + seat.lease_ns) // GRAIN_NS) * GRAIN_NS, now_ns
            )
        ):
            if room <= batch.count:
                line.popleft()
                seat.queued = False
            elif len(line) > 1:
                line.rotate(-1)
            self._busy = True
            try:
                self._hand(seat, [Delivery(shard, batch, slice(0, batch.count), batch.count, 1)])
            finally:
                self._busy = False
        else:
            self.pump()

    def pump(self) -> None:
        """Hand out what can be handed out; a part of the work goes on in the next turn if it is much."""
        if not self.line or self._busy or self._waking or self.paused:
            return
        if self.moves is not None:
            self._look_at_moves(self.moves)
        if not self.can_give() or not self._host.is_open:
            return
        self._busy = True
        self._host.touch()
        cut_off = False
        try:
            now = self._host.now()
            if self.policy.many:
                cut_off = self._deal_lanes(now)
                if self.policy.lead_ns or (self.line and self.policy.opens_ns(now) is not None):
                    self._host.set_timer()
            else:
                cut_off = self._deal(now)
        except Exception as failure:  # whoever's turn this is, it is not its bug
            self._host.failed(None, failure)
            for seat in [each for each in self.line if each.owner is not None]:  # they wait for an answer
                self._host.failed(seat, failure)
        finally:
            self._busy = False
        if cut_off or (self.moves is not None and self._look_at_moves(self.moves)):
            self.wake()

    def _look_at_moves(self, moves: Moves) -> bool:
        """Let rows go that waited for others of their key in another shard; tell whether there were any."""
        freed = moves.look()
        self.moves = moves or None
        return freed

    def wake(self) -> None:
        """Go on in the next turn, and not before it."""
        if not self._waking:
            self._waking = True
            self._host.call_soon(self._go_on)

    @property
    def is_waking(self) -> bool:
        """Whether it will go on in the next turn."""
        return self._waking

    def _go_on(self) -> None:
        self._waking = False
        self.pump()

    def can_give(self) -> bool:
        """Tell whether something may be there for somebody."""
        if len(self._cursors) == 1:
            return self._cursors[0].more()
        for cursor in self._cursors:  # noqa: SIM110 - any() would cost a generator for every message
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
        dealt, looks, hands, rank = 0, LOOKS_MAX, HANDS_MAX, 0
        if self._hungry:
            # They had little each: with what came meanwhile the next ones get more at once.
            self._hungry = False
            if self._unasked <= 0 or any(cursor.position.behind() >= SORTED_ROWS for cursor in self._cursors):
                self._sort_ahead(now)
        wanted = self.policy.stock(self.line[0].room)
        while wanted and looks > 1 and self._stock() < wanted and self._sort_ahead(now):
            looks -= 1
        while dealt < PUMP_ROWS_MAX and self.line:
            got, hands = self._round(PUMP_ROWS_MAX - dealt, hands, rank, now)
            dealt += got
            if hands == 0:
                return True
            if not self.line and wanted:  # looks are over; the next ones say how much they need
                break
            # Whoever is still in line has had all that stands in its lanes.
            if dealt < PUMP_ROWS_MAX and not self._sort_ahead(now):
                rank += 1
                if rank >= self.policy.ranks:
                    break
                continue
            rank = 0
            looks -= 1
            if looks == 0:  # much is parked: others shall have their turn before the search goes on
                return True
        return dealt >= PUMP_ROWS_MAX

    def _round(self, budget: int, hands: int, rank: int, now: Instant) -> tuple[int, int]:
        """Ask every seat with room once; return the rows dealt and how many more seats may be served."""
        line = self.line
        dealt = 0
        full = False
        filled = None
        if self.policy.by_due:
            filled = {code for cursor in self._cursors for code in cursor.ready.filled(now)}
            if not filled:
                return 0, hands
        for _ in range(len(line)):
            seat = line.popleft()
            seat.queued = False
            self._unasked -= 1
            room = min(seat.room, budget - dealt)
            if room > 0 and (self._stocked(seat) if filled is None else self.policy.may_take(seat, filled, rank)):
                deliveries = self._take(room, seat, now, rank)
                if deliveries:
                    if self.policy.by_due:
                        deliveries = in_order(deliveries)
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
        return not seat.tag or any(cursor.ready.lane(seat.lane) is not None for cursor in self._cursors)

    def _stock(self) -> int:
        """Return how many rows stand in lanes."""
        return sum([cursor.states.ready for cursor in self._cursors])

    def _sort_ahead(self, now: Instant) -> bool:
        """Put more rows into lanes; False if there are none to look at now."""
        self._unasked = len(self.line)
        sorted_some = False
        for cursor in self._cursors:  # each of them, so that no shard waits for another
            sorted_some = cursor.sort_ahead(now) or sorted_some
        return sorted_some

    def _take(self, limit: int, seat: Seat, now: Instant, rank: int = 0) -> list[Delivery]:
        """Lease up to `limit` rows to a seat, from all shards in turn, and finish what its own filter refuses."""
        for _ in range(LOOKS_MAX):
            try:
                taken = self._leased(limit, seat, now, rank)
            except Exception as failure:
                if seat.owner is None:
                    raise
                self._host.failed(seat, failure)  # whoever looked is told, and may look again
                return []
            if seat.keep is None or not taken:
                return taken
            kept = self._kept(seat, taken)
            if kept:
                return kept
        self.wake()  # it wants next to nothing: others shall have their turn before the search goes on
        return []

    def _leased(self, limit: int, seat: Seat, now: Instant, rank: int) -> list[Delivery]:
        cursors = self._cursors
        if len(cursors) == 1 or seat.shard is not None:
            return cursors[seat.shard or 0].take(limit, seat, seat.lease_ns, now, rank)
        out: list[Delivery] = []
        for _ in cursors:
            self._next_shard = (self._next_shard + 1) % len(cursors)
            part = cursors[self._next_shard].take(limit, seat, seat.lease_ns, now, rank)
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
                self._cursors[delivery.shard].states.refuse(offsets, seat.holder)
                delivery = delivery.picked(mask)
            if delivery.count:
                kept.append(delivery)
        return kept

    def _hand(self, seat: Seat, deliveries: list[Delivery]) -> int:
        """Send leased rows to their seat and return how many they are."""
        count = 0
        wall_ns = self._host.wall()
        for delivery in deliveries:
            count += delivery.count
            batch = delivery.batch
            taken_ns = batch.timestamp
            if batch.columns or not isinstance(taken_ns, int) or not isinstance(delivery.attempts, int):
                self.waited.add_first(delivery, wall_ns)
            elif wall_ns > taken_ns:  # as `Durations.add`, without a call for every message
                time_ns = wall_ns - taken_ns
                waited = self.waited
                waited.counts[bisect_left(BOUNDS_NS, time_ns) if time_ns > FIRST_NS else 0] += delivery.count
                waited.sum_ns += time_ns * delivery.count
            else:
                self.waited.counts[0] += delivery.count
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
        if self.keeping is not None and (owner is not None or seat.named):
            self.keeping.hand(seat, deliveries, self._leave)
            return count
        if owner is not None:  # it asked once
            self._leave(seat)
        try:
            deliver(deliveries)
        except Exception as failure:
            if owner is not None or seat.named:  # nobody knows their receipts
                (owner or seat).release([id_of(each.shard, offset) for each in deliveries for offset in each.offsets()])
            self._host.failed(seat, failure)
        return count
