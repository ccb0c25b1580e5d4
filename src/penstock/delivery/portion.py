"""What one seat gets of one shard in one look: rows are leased until it has as many as it may, or none are left.

Owns the taking: from the log, from one line, or from the lanes that are open to the seat. Where rows come from, and
which of them may go out, the cursor knows.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.columns import Cuts, Offsets
from penstock.delivery.due_lane import NEVER_NS, DueLane, earliest
from penstock.delivery.instant import Instant
from penstock.delivery.journal import EXPIRED, REMOVED
from penstock.delivery.page import READY
from penstock.delivery.policies.policy import NO_LIMIT, Taker
from penstock.delivery.ready import replace_head
from penstock.delivery.source import Delivery
from penstock.message import Batch, int64s

if TYPE_CHECKING:
    from penstock.delivery.cursor import Cursor

#: What a look for rows returns when another look at once would find none either.
NOTHING_NOW = -1

#: One look hands out at most about this much, so that a seat whose socket fills up is noticed in time.
TAKE_BYTES_MAX = 1 << 20

#: One look that is over with what it finds gets at most about this much: its rows are one answer.
LOOK_BYTES_MAX = 8 << 20

#: Batches in a row that may give nothing before other connections get their turn.
LOOKS_MAX = 16


class Portion:
    """Rows leased so far, and how many more there may be."""

    __slots__ = ("_bytes_left", "_cursor", "_deadline_ns", "_holder", "_key_holder", "_left", "_now", "out")

    def __init__(
        self,
        cursor: Cursor,
        limit: int,
        holder: int,
        key_holder: int,
        deadline_ns: int,
        now: Instant,
        bytes_max: int = NO_LIMIT,
    ) -> None:
        self._cursor = cursor
        self._left = limit
        self._bytes_left = bytes_max
        self._holder = holder
        self._key_holder = key_holder
        self._deadline_ns = deadline_ns
        self._now = now
        self.out: list[Delivery] = []

    def _add(self, delivery: Delivery) -> int:
        self.out.append(delivery)
        self._left -= delivery.count
        if self._bytes_left < NO_LIMIT:
            self._bytes_left -= _bytes(delivery.batch, delivery.count)
        return delivery.count

    def take_back(self) -> None:
        """Lease nothing after all: nobody has heard of it."""
        states = self._cursor.states
        states.journal.forget_leases()
        for delivery in self.out:
            rows = np.array(delivery.offsets(), np.int64)
            states.pages.uncount(rows)
            states.returns.release(rows, self._holder, 0, self._now)
            if delivery.due_ns is not None:
                self._cursor.ready.policy.came_back(delivery.due_ns, self._now.wall_ns)
        self._cursor.ready.policy.unserved()

    def fill_from_line(self) -> None:
        """Take from the one line, and from the log behind it."""
        cursor = self._cursor
        line = cursor.ready.only
        ordered = cursor.rules.ordered or cursor.ready.policy.in_order
        looks = LOOKS_MAX
        while self._left > 0 and self._bytes_left > 0:
            ahead = cursor.position.ahead()
            queue = line.queue(ordered=ordered, more_fresh=ahead)
            if queue is not None:
                count = self._take_queued(queue, fresh=queue is line.fresh)
            elif ahead:
                count = self._take_fresh()
            else:
                break
            if count == NOTHING_NOW:
                break
            if count == 0:
                looks -= 1
                if looks == 0:  # much is filtered out or not due: others shall have their turn
                    cursor.wake()
                    break
            elif len(self.out[-1].batch.body) > TAKE_BYTES_MAX:
                break
        if self.out:
            line.served()

    def fill_from_lanes(self, taker: Taker, rank: int) -> None:
        """Take from the lanes that are open to a seat, in turn."""
        cursor = self._cursor
        if cursor.ready.policy.by_due:
            self._fill_by_due(taker, rank)
            return
        for code in cursor.ready.open_to(taker, rank, self._now, ordered=cursor.rules.ordered):
            taken = self._take_lane(code)
            goes_on = cursor.ready.policy.served(code, taker, taken, self._deadline_ns)
            if self._bytes_left <= 0 and taker.owner is None:  # more may stand there, for when its socket took this
                cursor.wake()
            if not goes_on or self._left <= 0 or self._bytes_left <= 0:
                break

    def _take_lane(self, code: int) -> int:
        """Take from one lane of several and return how many."""
        cursor = self._cursor
        lane = cursor.ready.lane(code)
        if isinstance(lane, DueLane):
            return 0
        before = self._left
        ordered = cursor.rules.ordered or cursor.ready.policy.in_order
        while lane is not None and self._left > 0 and self._bytes_left > 0:
            queue = lane.queue(ordered=ordered)
            if queue is None or self._take_queued(queue, fresh=queue is lane.fresh) == NOTHING_NOW:
                break
        taken = before - self._left
        if taken and lane is not None:
            lane.served()
        return taken

    def _fill_by_due(self, taker: Taker, rank: int) -> None:
        """Take what was due first: at first of all lanes together, then of one after the other."""
        ready = self._cursor.ready
        codes = list(ready.open_to(taker, rank, self._now, ordered=False))
        if self._cursor.rules.ordered:  # nothing goes before the first row of the shard, whosever that is
            codes = [code for code in ready.by_age()[:1] if code in codes]
        for group in (codes,) if rank == 0 else [[code] for code in codes]:
            more = self._take_of([lane for code in group if isinstance(lane := ready.lane(code), DueLane)], taker)
            for code in group:
                ready.lane(code)  # nobody looks for rows in one that is empty
            if not more:
                break

    def _take_of(self, lanes: list[DueLane], taker: Taker) -> bool:
        """Take what is due of some lanes, then what may go ahead of its time; tell whether more may be elsewhere."""
        if not self._cursor.states.agenda.lead_ns:
            return self._take_due(lanes, NEVER_NS)
        for lane in lanes:
            self._set_back(lane)
        # A look is answered with what it finds: it cannot keep a row until that is due, as a seat's owner can.
        ahead = self._cursor.ready.policy.ahead_rows(self._now.wall_ns) if taker.owner is None else 0
        if ahead >= self._left:
            return self._take_due(lanes, NEVER_NS)
        return self._take_due(lanes, self._now.wall_ns) and (ahead <= 0 or self._take_due(lanes, NEVER_NS, ahead))

    def _set_back(self, lane: DueLane) -> None:
        """Let rows be ready since now that came back while the clock was ahead: they would wait for that time."""
        wall_ns, states = self._now.wall_ns, self._cursor.states
        rows, due_ns = lane.cut(wall_ns + states.agenda.lead_ns)
        if len(rows) == 0:
            return
        rows, _ = self._without_early(rows, due_ns)
        rows = rows[states.pages.ready(rows)]
        states.pages.move(rows, READY, wall_ns)
        if len(rows):
            lane.put(rows, np.full(len(rows), wall_ns))

    def _take_due(self, lanes: list[DueLane], until_ns: int, most: int = NO_LIMIT) -> bool:
        """Take from some lanes, so many at most; tell whether more may be taken elsewhere."""
        while self._left > 0 and self._bytes_left > 0 and most > 0:
            wanted = min(self._left, most)
            most -= wanted
            found, due_ns = earliest(lanes, wanted, until_ns)
            if len(found) == 0:
                return True
            rows, due_ns = self._without_early(found, due_ns)
            if len(rows) == 0:
                continue
            queue, before = deque([rows]), len(self.out)
            try:
                while queue and self._left > 0 and self._bytes_left > 0:
                    # Those that were out before are found out about there.
                    if self._take_queued(queue, fresh=True) == NOTHING_NOW:
                        return False
            finally:
                for rest in queue:
                    self._cursor.ready.queue(rest)
                for delivery in self.out[before:]:
                    if delivery.count == len(rows):
                        delivery.due_ns = due_ns
                    else:
                        delivery.due_ns = due_ns[np.searchsorted(rows, delivery.batch.first + delivery.picks())]
                    self._cursor.ready.policy.went_ahead(delivery.due_ns, self._now.wall_ns)
            if len(found) < wanted:  # that was all
                return self._left > 0
        return self._left > 0 and self._bytes_left > 0

    def _without_early(self, rows: Offsets, due_ns: Offsets) -> tuple[Offsets, Offsets]:
        """Return what may go out of ready rows; those the clock was set back behind wait again."""
        states = self._cursor.states
        early = due_ns > self._now.wall_ns + states.agenda.lead_ns
        if not early.any():
            return rows, due_ns
        # What was out before is ready since it came back, whatever the clock showed then.
        early &= states.pages.ready(rows)
        early[early] = (states.pages.attempts(rows[early]) == 0) & self._are_timed(rows[early])
        states.wait_again(rows[early], due_ns[early], self._now.wall_ns)
        return rows[~early], due_ns[~early]

    def _are_timed(self, rows: Offsets) -> npt.NDArray[np.bool_]:
        """Tell which rows say when they are due; one that does not is due since it was stored."""
        timed = np.ones(len(rows), np.bool_)
        at = 0
        while at < len(rows):
            batch = self._cursor.position.batch_at(int(rows[at]))
            if batch is None or batch.end <= rows[at]:
                break
            stop = int(np.searchsorted(rows, batch.end))
            column = batch.columns.get("due")
            places = np.maximum(rows[at:stop] - batch.first, 0)
            timed[at:stop] = int64s(column)[1][places] if column is not None else False
            at = stop
        return timed

    def _take_fresh(self) -> int:
        """Lease rows straight from the log and return how many: 0 means that a look again may find some."""
        cursor = self._cursor
        position = cursor.position
        if position.skips.firsts and position.pass_skipped():
            return 0
        end = position.end()
        first = position.offset
        batch = position.batch_at(first)
        if batch is None:
            return NOTHING_NOW
        if batch.first > first:
            position.pass_hole(min(batch.first, end))
            return 0
        row = first - batch.first
        stop = min(batch.count, end - batch.first)
        if cursor.rules.ages(batch):  # what was young enough a moment ago may have grown too old
            stop = min(stop, row + self._left)
            if position.judged_ns != self._now.wall_ns:
                position.judged_to = first
        if position.judged_to <= first and (
            position.skips.firsts
            or cursor.states.keys is not None
            or (cursor.rules.concerns(batch) and not cursor.rules.all_go(batch, row, stop, self._now.wall_ns))
        ):
            cursor.judge(batch, row, stop, self._now)
            return 0
        count = min(self._left, stop - row)
        if len(batch.body) > TAKE_BYTES_MAX:
            count = _within(batch.cuts, row, count)
        cursor.states.lease_fresh(first, count, self._holder, self._deadline_ns, self._now.monotonic_ns)
        position.offset = first + count
        position.passed += count
        return self._add(Delivery(cursor.source.number, batch, slice(row, row + count), count, 1))

    # --- from a queue ---------------------------------------------------------------------------------------------

    def _take_queued(self, queue: deque[Offsets], *, fresh: bool) -> int:
        """Lease rows from the head of a queue and return how many: 0 means that a look again may find some.

        Rows of a `fresh` queue were never out before.
        """
        cursor = self._cursor
        piece = queue[0]
        first = int(piece[0])
        states = cursor.states
        if first < cursor.source.kept_from:  # retention took it
            kept = piece[piece >= cursor.source.kept_from]
            states.finish_ready(REMOVED, piece[: len(piece) - len(kept)])
            replace_head(queue, kept)
            return 0
        batch = cursor.position.batch_at(first)
        if batch is None:
            return NOTHING_NOW
        if fresh and states.keys is None and not cursor.rules.ttl_ns and not states.agenda.lead_ns:
            count = self._take_plain(queue)
            if count:
                return count
        limit = self._left
        if len(batch.body) > TAKE_BYTES_MAX:
            limit = _within(batch.cuts, first - batch.first, limit) if batch.first <= first else limit
        last = len(piece) if piece[-1] < batch.end else int(np.searchsorted(piece, batch.end))
        part = piece[: min(limit, last)]
        if batch.first > first:  # damaged: these rows cannot be read any more
            part = piece[: int(np.searchsorted(piece, batch.first))]
            states.finish_ready(REMOVED, part)
            replace_head(queue, piece[len(part) :])
            return 0
        replace_head(queue, piece[len(part) :])
        live = self._live(batch, part)
        if states.keys is not None and len(live):
            live = states.keys.admitted(batch, live, self._key_holder)
            if states.keys.freed:
                freed, states.keys.freed = states.keys.freed, []
                cursor.ready.queue(np.array(sorted(freed), np.int64))
        if len(live) == 0:
            return 0
        if states.agenda.lead_ns:
            attempts = states.lease_ahead(live, self._holder, self._deadline_ns, self._now)
        else:
            attempts = states.lease(live, self._holder, self._deadline_ns, self._now.monotonic_ns)
        return self._add(Delivery(cursor.source.number, batch, live - batch.first, len(live), attempts))

    def _live(self, batch: Batch, part: Offsets) -> Offsets:
        """Return those of queued rows that may still go out; the others are finished or on their way to be."""
        cursor = self._cursor
        live = part[cursor.states.pages.ready(part)]
        if cursor.rules.max_attempts and len(live):
            dead = cursor.states.dying(live, cursor.rules.max_attempts)
            if len(dead):
                cursor.bury(cursor, batch, dead)
                live = live[~np.isin(live, dead)]
        if len(live) and (cursor.rules.ttl_ns or "expires" in batch.columns):
            over = cursor.rules.expired(batch, live - batch.first, self._now.wall_ns)
            if over.any():
                cursor.states.finish_ready(EXPIRED, live[over])
                live = live[~over]
        return live

    def _take_plain(self, queue: deque[Offsets]) -> int:
        """Lease rows that need no second look, over several batches at once; 0 means that each needs one.

        With tags a batch holds a handful of rows for a seat, and a call for each of them would cost more than they.
        """
        cursor = self._cursor
        piece = queue[0][: self._left]
        pieces: list[Delivery] = []
        at, end, left = 0, len(piece), self._bytes_left
        while at < end:
            first = int(piece[at])
            batch = cursor.source.read(first, cursor.position.joined_below)
            if batch is None or first < batch.first or "expires" in batch.columns or len(batch.body) > TAKE_BYTES_MAX:
                break
            stop = end if piece[-1] < batch.end else int(np.searchsorted(piece, batch.end))
            pieces.append(Delivery(cursor.source.number, batch, piece[at:stop] - batch.first, stop - at, 1))
            left -= _bytes(batch, stop - at)
            at = stop
            if left <= 0:
                break
        now_ns = self._now.monotonic_ns
        if at == 0 or not cursor.states.lease_first(piece[:at], self._holder, self._deadline_ns, now_ns):
            return 0
        for delivery in pieces:
            self._add(delivery)
        replace_head(queue, queue[0][at:])
        return at


def _bytes(batch: Batch, count: int) -> int:
    """Return about how much some rows of a batch weigh."""
    return len(batch.body) * count // batch.count


def _within(cuts: Cuts, row: int, count: int) -> int:
    """Return how many rows from `row` on stay within TAKE_BYTES_MAX, at least one."""
    most = int(np.searchsorted(cuts, int(cuts[row]) + TAKE_BYTES_MAX, side="right")) - 1 - row
    return max(1, min(count, most))
