"""What one subscription has had of one shard: the path of a row from ready to done.

Rows at or above `cursor` were never handed out and cost nothing. Below it a row has a state in the pages, or is
done. Owns the moves; `Pages` holds the arrays, `Leases` the deadlines, `Calendar` the waiting rows, `journal` what
is written down. Knows nothing of consumers but their holder number, and no clock: times are passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.delivery import journal as records
from penstock.delivery.consumer import SESSION
from penstock.delivery.due import Calendar
from penstock.delivery.journal import ACKED, DEAD, EXPIRED, FILTERED, HELD, HOLE, RELEASED, REMOVED, SKIPPED, START
from penstock.delivery.lease import GRAIN_NS, Leases, deadline_after
from penstock.delivery.outlets import Outlets
from penstock.delivery.pages import DONE, LEASED, MOVING, READY, WAITING, Page, Pages
from penstock.delivery.rules import Rules, Sifted
from penstock.delivery.source import Delivery, Entry, JournalFile, Source
from penstock.filters.tag import TagTable
from penstock.message import Batch, Cuts, Offsets

_NONE = np.empty(0, np.int64)

#: What a look for rows returns when another look at once would find none either.
NOTHING_NOW = -1

#: One look hands out at most about this much, so that a consumer whose socket fills up is noticed in time.
TAKE_BYTES_MAX = 1 << 20

#: Batches in a row that may give nothing before other connections get their turn.
LOOKS_MAX = 16

#: Dead letters are tried again after this long when their topic refuses them.
DEAD_RETRY_NS = 1_000_000_000


class Now(NamedTuple):
    """One moment on both clocks: leases are counted on the monotonic one, due times on the wall's."""

    monotonic_ns: int
    wall_ns: int


class Cursor:
    """Delivery state of one subscription over one shard."""

    def __init__(
        self,
        source: Source,
        journal: JournalFile,
        rules: Rules,
        wake: Callable[[], None],
        bury: Callable[[Cursor, Offsets], None],
    ) -> None:
        self.source = source
        self.rules = rules
        self.cursor = source.start
        #: A paused topic lets nobody pass this offset.
        self.gate: int | None = None
        #: Tells up to which wall-clock time the topic took published rows for due: it will not announce these again.
        self.due_seen_ns: Callable[[], int] = _never
        self.counts = dict.fromkeys(records.FINISHED, 0)
        self.passed = 0
        self.ready = self.leased = self.waiting = self.moving = 0
        self._journal = journal
        self._wake = wake
        self._bury = bury
        self._clear()

    def _clear(self) -> None:
        self._pages = Pages()
        self._leases = Leases(self._pages)
        self._calendar: Calendar | None = None
        #: Rows to be handed out again, and rows that passed the rules and wait for credit; pieces ascend.
        self._again: deque[Offsets] = deque()
        self._fresh: deque[Offsets] = deque()
        #: The same by tag, while somebody in the subscription asks for one; the two above are then empty.
        self.outlets: Outlets | None = None
        self._codes: TagTable | None = None
        self._skips: set[int] = set()
        #: Rows below it were judged and may go out straight from the batch.
        self._judged_to = 0
        self._judged_ns = 0
        self._fetching = False
        self._nothing_at = (-1, -1)
        self._turn = True
        self._acked: list[int | Offsets] = []
        self._kept: list[Entry] = []
        self._finished: list[Entry] = []
        #: Entries written since the last snapshot.
        self._written = 0

    # --- recovery -------------------------------------------------------------------------------------------------

    def recover(self, entries: npt.NDArray[np.int64], start: int, due: tuple[Offsets, Offsets], now: Now) -> None:
        """Take up the state a journal describes; `due` are the shard's rows that are not due yet."""
        state = records.replay(entries, start)
        self.cursor, self.counts, self._skips = max(state.cursor, 0), state.counts, state.skips
        keep = state.rows >= self.source.start
        rows, attempts, due_ns, held = state.rows[keep], state.attempts[keep], state.due_ns[keep], state.held[keep]
        if len(rows) < len(state.rows):
            self._finish(REMOVED, state.rows[~keep], counted=True)
        published = np.searchsorted(due[0], rows)
        published = np.minimum(published, max(len(due[0]) - 1, 0))
        first_due = np.where(due[0][published] == rows, due[1][published], 0) if len(due[0]) else 0 * rows
        due_ns = np.where(due_ns > 0, due_ns, np.where(attempts == 0, first_due, 0))
        later = (due_ns > now.wall_ns) & ~held
        leased = held & (due_ns > now.wall_ns)
        ready = ~(later | leased)
        self._pages.hold(rows[ready], READY, attempts[ready])
        self._pages.hold(rows[later], WAITING, attempts[later], due_ns[later])
        self._pages.hold(rows[leased], READY, attempts[leased] - 1)
        for deadline in np.unique(due_ns[leased]).tolist():
            part = rows[leased & (due_ns == deadline)]
            ends = deadline_after(now.monotonic_ns, deadline - now.wall_ns)
            self._pages.lease(part, SESSION, ends)
            self._leases.add(SESSION, part, ends)
        again = later & ((attempts > 0) | (due_ns <= self.due_seen_ns()))
        if again.any():
            self._due(now.wall_ns).put(due_ns[again], rows[again])
        self.ready, self.waiting, self.leased = int(ready.sum()), int(later.sum()), int(leased.sum())
        self.passed = sum(self.counts.values()) + len(rows)
        if self.ready:
            self._again.append(rows[ready])

    def pass_waiting(self, due: tuple[Offsets, Offsets], wall_ns: int) -> None:
        """Pass the rows right after the cursor that all wait for their time, without reading them."""
        if self.rules.traffic is not None or self._skips:
            return
        ahead = int(np.searchsorted(due[0], self.cursor))
        offsets = due[0][ahead:]
        in_a_row = int((offsets == self.cursor + np.arange(len(offsets))).sum())
        if in_a_row:
            self._wait(offsets[:in_a_row], due[1][ahead : ahead + in_a_row], wall_ns)
            self.cursor += in_a_row
            self.passed += in_a_row

    # --- handing out ----------------------------------------------------------------------------------------------

    def more(self) -> bool:
        """Tell whether a look for rows may find some."""
        return bool(self._again or self.outlets) or self._more()

    def take(self, limit: int, holder: int, lease_ns: int, now: Now) -> list[Delivery]:
        """Lease up to `limit` rows to a holder; an empty list means that nothing is there now."""
        out: list[Delivery] = []
        deadline_ns = deadline_after(now.monotonic_ns, lease_ns)
        looks = LOOKS_MAX
        if self.rules.ordered:
            if self.leased or self.moving or (self._calendar is not None and len(self._calendar)):
                return out
            limit, self._turn = 1, True
        while limit > 0:
            if self._again and (self._turn or not self._more()):
                count = self._take_queued(self._again, out, limit, holder, deadline_ns, now)
            elif self._fresh:
                count = self._take_queued(self._fresh, out, limit, holder, deadline_ns, now)
            elif self._more():
                count = self._take_fresh(out, limit, holder, deadline_ns, now)
            else:
                break
            if count == NOTHING_NOW:
                break
            if count == 0:
                looks -= 1
                if looks == 0:  # much is filtered out or not due: others shall have their turn
                    self._wake()
                    break
            limit -= count
            self.leased += count
            if count and len(out[-1].batch.body) > TAKE_BYTES_MAX:
                break
        if out:
            # A row that keeps coming back must not starve the new ones, nor the other way round: they take turns.
            self._turn = not self._turn
            if holder == SESSION:
                self._note_held(out, lease_ns, now)
        return out

    # --- by tag ---------------------------------------------------------------------------------------------------

    def sort_by_tag(self, codes: TagTable | None) -> None:
        """Keep ready rows by tag from now on, or (None) in one line again."""
        pieces = [*self._again, *self._fresh] if self.outlets is None else self.outlets.empty()
        self._again.clear()
        self._fresh.clear()
        self._pages.forget_tags()
        self._codes = codes
        self._judged_to = 0
        if codes is None:
            self.outlets = None
            self._again.extend(pieces)
        else:
            self.outlets = Outlets()
            self.outlets.unsorted.extend(pieces)

    def take_tagged(self, code: int, limit: int, holder: int, lease_ns: int, now: Now) -> list[Delivery]:
        """Lease up to `limit` rows of one tag; only what is sorted already is looked at."""
        out: list[Delivery] = []
        deadline_ns = deadline_after(now.monotonic_ns, lease_ns)
        outlet = self.outlets.get(code) if self.outlets is not None else None
        while outlet is not None and limit > 0:
            queue = outlet.queue()
            if queue is None:
                break
            count = self._take_queued(queue, out, limit, holder, deadline_ns, now)
            if count == NOTHING_NOW:
                break
            limit -= count
            self.leased += count
        if out and outlet is not None:
            outlet.served()
            if holder == SESSION:
                self._note_held(out, lease_ns, now)
        return out

    def sort_ahead(self, now: Now) -> bool:
        """Sort one more piece of what is ready, or pass one more batch; False if there is nothing to do now."""
        if self.outlets is not None and self.outlets.unsorted:
            return self._sort_piece(self.outlets)
        if not self._more():
            return False
        end = self._end()
        batch = self._batch_at(self.cursor)
        if batch is None:
            return False
        if batch.first > self.cursor:
            self._pass_hole(min(batch.first, end))
        else:
            self._judge(batch, self.cursor - batch.first, min(batch.count, end - batch.first), now)
        return True

    def _sort_piece(self, outlets: Outlets) -> bool:
        """Look up the tags of rows that became ready before anybody asked for tags."""
        piece = outlets.unsorted[0]
        live = piece[self._pages.ready(piece)]
        if len(live) == 0:
            outlets.unsorted.popleft()
            return True
        batch = self._batch_at(int(live[0]))
        if batch is None:
            return False
        part = live[: max(int(np.searchsorted(live, batch.end)), 1)]
        _replace_head(outlets.unsorted, live[len(part) :])
        if batch.first > part[0]:  # damaged or dropped: whoever is to get them next finds out
            tags = np.zeros(len(part), np.uint16)
        else:
            tags = self._tags_of(batch, part)
        self._pages.set_tags(part, tags)
        outlets.put(part, tags, again=True)
        return True

    def _tags_of(self, batch: Batch, offsets: Offsets) -> npt.NDArray[np.uint16]:
        column = batch.columns.get("tag")
        if column is None or self._codes is None:
            return np.zeros(len(offsets), np.uint16)
        return self._codes.codes(column)[offsets - batch.first]

    def _make_ready(self, offsets: Offsets) -> None:
        """Queue rows that are READY and go out again."""
        if self.outlets is None:
            self._again.append(offsets)
        else:
            self.outlets.put(offsets, self._pages.tags(offsets), again=True)

    def _pass_hole(self, end: int) -> None:
        self._finished.append((HOLE, self.cursor, end - 1, 0, 0))
        self.cursor = end

    def _more(self) -> bool:
        if self._fresh:
            return True
        end = self.source.readable_end
        if self.gate is not None and self.gate < end:
            end = self.gate
        return self.cursor < end and not self._fetching and self._nothing_at != (self.cursor, end)

    def _end(self) -> int:
        end = self.source.readable_end
        return end if self.gate is None or self.gate > end else self.gate

    def _batch_at(self, offset: int) -> Batch | None:
        batch = self.source.read(offset)
        if batch is None and not self._fetching:
            self._fetching = True
            self.source.fetch(offset, lambda: self._fetched(offset))
        return batch

    def _fetched(self, offset: int) -> None:
        self._fetching = False
        if self.source.read(offset) is None:  # damaged to the end: wait for something new
            self._nothing_at = (offset, self._end())
            return
        self._wake()

    def _take_fresh(self, out: list[Delivery], limit: int, holder: int, deadline_ns: int, now: Now) -> int:
        """Lease rows straight from the log and return how many: 0 means that a look again may find some."""
        end = self._end()
        batch = self._batch_at(self.cursor)
        if batch is None:
            return NOTHING_NOW
        if batch.first > self.cursor:
            self._pass_hole(min(batch.first, end))
            return 0
        first = self.cursor
        row = first - batch.first
        stop = min(batch.count, end - batch.first)
        if self.rules.ages(batch):  # what was young enough a moment ago may have grown too old
            stop = min(stop, row + limit)
            if self._judged_ns != now.wall_ns:
                self._judged_to = first
        if self._judged_to <= first and (self._skips or self.rules.concerns(batch)):
            self._judge(batch, row, stop, now)
            return 0
        count = min(limit, stop - row)
        if len(batch.body) > TAKE_BYTES_MAX:
            count = _within(batch.cuts, row, count)
        self._pages.lease_fresh(first, count, holder, deadline_ns)
        self._leases.add_range(holder, first, count, deadline_ns)
        self.cursor = first + count
        self.passed += count
        out.append(Delivery(self.source.number, batch, slice(row, row + count), count, 1))
        return count

    def _judge(self, batch: Batch, row: int, stop: int, now: Now) -> None:
        """Apply the rules to the rest of a batch; the cursor passes it unless all of it may go out as it is."""
        sifted = self.rules.sift(batch, row, stop, now.wall_ns)
        if self._skips:
            sifted = self._without_skips(sifted, batch.first + row, batch.first + stop)
        ready = sifted.ready
        if len(ready) == stop - row and self.outlets is None:
            self._judged_to = batch.first + stop
            self._judged_ns = now.wall_ns
            return
        self.passed += stop - row
        self.cursor = batch.first + stop
        for op, offsets in ((FILTERED, sifted.filtered), (EXPIRED, sifted.expired)):
            if len(offsets):
                self._finish(op, offsets, counted=True)
        if len(sifted.waiting):
            self._wait(sifted.waiting, sifted.waiting_due_ns, now.wall_ns)
        if len(ready):
            self.ready += len(ready)
            if self.outlets is None:
                self._pages.hold(ready, READY)
                self._fresh.append(ready)
            else:
                tags = self._tags_of(batch, ready)
                self._pages.hold(ready, READY, tags=tags)
                self.outlets.put(ready, tags, again=False)

    def look_at(self, batch: Batch, now: Now) -> None:
        """Pass a batch that was just stored and brings due times: its rows wait here, not behind the cursor."""
        if self.cursor == batch.first and batch.end <= self._end() and self._judged_to <= batch.first:
            self._judge(batch, 0, batch.count, now)

    def _without_skips(self, sifted: Sifted, first: int, end: int) -> Sifted:
        """Finish what was removed before the cursor came here."""
        skipped = np.array(sorted(offset for offset in self._skips if first <= offset < end), np.int64)
        if len(skipped) == 0:
            return sifted
        self._skips.difference_update(skipped.tolist())
        self._finish(REMOVED, skipped, counted=True)
        later = ~np.isin(sifted.waiting, skipped)
        return Sifted(
            np.setdiff1d(sifted.ready, skipped, assume_unique=True),
            sifted.waiting[later],
            sifted.waiting_due_ns[later],
            np.setdiff1d(sifted.filtered, skipped, assume_unique=True),
            np.setdiff1d(sifted.expired, skipped, assume_unique=True),
        )

    def _take_queued(
        self, queue: deque[Offsets], out: list[Delivery], limit: int, holder: int, deadline_ns: int, now: Now
    ) -> int:
        """Lease rows from the head of a queue and return how many: 0 means that a look again may find some."""
        piece = queue[0]
        first = int(piece[0])
        if first < self.source.start:  # retention took it
            kept = piece[piece >= self.source.start]
            self._remove_ready(piece[: len(piece) - len(kept)])
            _replace_head(queue, kept)
            return 0
        batch = self._batch_at(first)
        if batch is None:
            return NOTHING_NOW
        if len(batch.body) > TAKE_BYTES_MAX:
            limit = _within(batch.cuts, first - batch.first, limit) if batch.first <= first else limit
        part = piece[: min(limit, int(np.searchsorted(piece, batch.end)))]
        if batch.first > first:  # damaged: these rows cannot be read any more
            part = piece[: int(np.searchsorted(piece, batch.first))]
            self._remove_ready(part)
            _replace_head(queue, piece[len(part) :])
            return 0
        _replace_head(queue, piece[len(part) :])
        live = part[self._pages.ready(part)]
        live = self._without_dead(live)
        rows = live - batch.first
        if len(live) and (self.rules.ttl_ns or "expires" in batch.columns):
            over = self.rules.expired(batch, rows, now.wall_ns)
            if over.any():
                self._pages.finish(live[over])
                self.ready -= int(over.sum())
                self._finish(EXPIRED, live[over], counted=True)
                live, rows = live[~over], rows[~over]
        if len(live) == 0:
            return 0
        attempts = self._pages.lease(live, holder, deadline_ns)
        self._leases.add(holder, live, deadline_ns)
        self.ready -= len(live)
        out.append(Delivery(self.source.number, batch, rows, len(live), attempts))
        return len(live)

    def _without_dead(self, live: Offsets) -> Offsets:
        limit = self.rules.max_attempts
        if not limit or len(live) == 0:
            return live
        over = self._pages.attempts(live) >= limit
        if over.any():
            dead = live[over]
            self._pages.move(dead, MOVING)
            self.ready -= len(dead)
            self.moving += len(dead)
            self._bury(self, dead)
            live = live[~over]
        return live

    def _remove_ready(self, offsets: Offsets) -> None:
        gone = offsets[self._pages.ready(offsets)]
        if len(gone):
            self._pages.finish(gone)
            self.ready -= len(gone)
            self._finish(REMOVED, gone, counted=True)

    def _note_held(self, out: list[Delivery], lease_ns: int, now: Now) -> None:
        """Write down leases that no connection holds, before anybody hears of them (ruling 3)."""
        ends_ns = now.wall_ns + lease_ns
        for delivery in out:
            offsets = np.array(delivery.offsets(), np.int64)
            attempts = np.broadcast_to(np.asarray(delivery.attempts, np.int64), offsets.shape)
            self._kept += records.pending(HELD, offsets, attempts, np.full(len(offsets), ends_ns))
        self.flush(now)

    # --- coming back ----------------------------------------------------------------------------------------------

    def ack_one(self, offset: int, holder: int) -> bool:
        """Finish one row; False if this holder does not have it."""
        if not self._pages.finish_one(offset, holder):
            return False
        self._leases.less(holder, 1)
        self._acked.append(offset)
        self.counts[ACKED] += 1
        self.leased -= 1
        return True

    def ack(self, offsets: Offsets, holder: int) -> Offsets:
        """Finish rows, given ascending and distinct; return those that this holder does not have."""
        good = self._pages.leased(offsets, holder)
        refused = _NONE
        if not good.all():
            refused, offsets = offsets[~good], offsets[good]
        if len(offsets):
            self._pages.finish(offsets)
            self._leases.less(holder, len(offsets))
            self._acked.append(offsets)
            self.counts[ACKED] += len(offsets)
            self.leased -= len(offsets)
        return refused

    def attempts(self, offsets: Offsets) -> npt.NDArray[np.uint16]:
        """Return how often each row was handed out."""
        return self._pages.attempts(offsets)

    def has(self, offset: int, holder: int) -> bool | None:
        """Tell whether a holder has a row on lease; None if nobody has."""
        state, owner = self._pages.state_of(offset)
        return (owner == holder) if state == LEASED else None

    def refuse(self, offsets: Offsets, holder: int) -> None:
        """Finish rows that the consumer they were just leased to does not want."""
        self._pages.finish(offsets)
        self._leases.less(holder, len(offsets))
        self.leased -= len(offsets)
        self._finish(FILTERED, offsets, counted=True)

    def leases_of(self, holder: int) -> Offsets:
        """Return the rows a holder has on lease."""
        return self._leases.of(holder)

    def extend(self, offsets: Offsets, holder: int, lease_ns: int, lease_max_ns: int, now: Now) -> Offsets:
        """Let leases last `lease_ns` from now; return the rows this holder does not have."""
        good = self._pages.leased(offsets, holder)
        mine = offsets[good]
        if len(mine):
            # A connection's leases are all of one length; how long a session asked for at first is not known any more.
            begun = None if holder == SESSION else lease_ns
            deadlines = self._pages.extend(mine, now.monotonic_ns, lease_ns, lease_max_ns, GRAIN_NS, begun)
            for deadline_ns in np.unique(deadlines).tolist():
                part = mine[deadlines == deadline_ns]
                self._leases.add(holder, part, deadline_ns, again=True)
                if holder == SESSION:
                    ends_ns = np.full(len(part), now.wall_ns + deadline_ns - now.monotonic_ns)
                    self._kept += records.pending(HELD, part, self.attempts(part).astype(np.int64), ends_ns)
            if holder == SESSION:
                self.flush(now)
        return offsets[~good]

    def release(self, offsets: Offsets, holder: int, due_ns: int, now: Now) -> Offsets:
        """Give rows back, to go out again at once or not before `due_ns`; return those the holder does not have."""
        good = self._pages.leased(offsets, holder)
        mine = offsets[good]
        if len(mine):
            self._leases.less(holder, len(mine))
            self.leased -= len(mine)
            self._back(mine, due_ns if due_ns > now.wall_ns else 0, now)
        return offsets[~good]

    def leave(self, holder: int, now: Now) -> int:
        """Give back everything a holder has; return how much that was."""
        mine = self._leases.of(holder)
        if len(mine):
            self._leases.less(holder, len(mine))
            self.leased -= len(mine)
            self._back(mine, 0, now)
        return len(mine)

    def expire(self, now: Now) -> list[tuple[int, int]]:
        """Give back what was held too long; return (holder, rows) of each."""
        ended = []
        for holder, rows in self._leases.expire(now.monotonic_ns):
            self._leases.less(holder, len(rows))
            self.leased -= len(rows)
            self._back(rows, 0, now)
            ended.append((holder, len(rows)))
        return ended

    def _back(self, offsets: Offsets, due_ns: int, now: Now) -> None:
        attempts = self._pages.attempts(offsets).astype(np.int64)
        self._kept += records.pending(RELEASED, offsets, attempts, np.full(len(offsets), due_ns))
        if due_ns:
            self._pages.move(offsets, WAITING, due_ns)
            self._due(now.wall_ns).put(np.full(len(offsets), due_ns), offsets)
            self.waiting += len(offsets)
        else:
            self._pages.move(offsets, READY)
            self._make_ready(offsets)
            self.ready += len(offsets)

    # --- waiting --------------------------------------------------------------------------------------------------

    def _due(self, wall_ns: int) -> Calendar:
        if self._calendar is None:
            self._calendar = Calendar(wall_ns)
        return self._calendar

    def _wait(self, offsets: Offsets, due_ns: Offsets, wall_ns: int) -> None:
        """Let rows wait that were never handed out; the topic announces them, unless the clock was set back since."""
        self._pages.hold(offsets, WAITING, 0, due_ns)
        self.waiting += len(offsets)
        unannounced = due_ns <= self.due_seen_ns()
        if unannounced.any():
            self._due(wall_ns).put(due_ns[unannounced], offsets[unannounced])

    def pop_due(self, wall_ns: int) -> None:
        """Make released rows ready whose time has come."""
        if self._calendar is not None and len(self._calendar):
            self.arrive(self._calendar.pop(wall_ns), wall_ns)

    def arrive(self, offsets: Offsets, wall_ns: int) -> None:
        """Make rows ready whose time has come, as far as they are waiting here."""
        if len(offsets) == 0 or self.waiting == 0:
            return
        offsets = np.sort(offsets)
        # A row that was due, went out and was released waits for its later time, also when the clock was set back.
        offsets = offsets[self._pages.waiting(offsets, wall_ns)]
        if len(offsets):
            self._pages.move(offsets, READY)
            self.waiting -= len(offsets)
            self.ready += len(offsets)
            self._make_ready(offsets)

    def next_due_ns(self) -> int | None:
        """Return the wall-clock time at which `pop_due` has something to do."""
        return self._calendar.next_ns() if self._calendar is not None and len(self._calendar) else None

    def next_expiry_ns(self) -> int | None:
        """Return the monotonic time at which `expire` has something to do."""
        return self._leases.next_ns()

    # --- finishing without a lease --------------------------------------------------------------------------------

    def bury(self, offsets: Offsets) -> None:
        """Finish rows that are safe in the dead-letter topic."""
        self._pages.finish(offsets)
        self.moving -= len(offsets)
        self._finish(DEAD, offsets, counted=True)

    def unbury(self, offsets: Offsets, now: Now) -> None:
        """Take back rows that the dead-letter topic refused; they are tried again a little later."""
        self.moving -= len(offsets)
        self._back(offsets, now.wall_ns + DEAD_RETRY_NS, now)

    def remove(self, offsets: Offsets) -> dict[int, int]:
        """Finish rows whatever their state; return how many each holder had out."""
        lost = self._drop(offsets[offsets < self.cursor], REMOVED)
        ahead = offsets[offsets >= self.cursor]
        if len(ahead):
            self._skips.update(ahead.tolist())
            self._finish(SKIPPED, ahead, counted=False)
            self._judged_to = 0  # what was judged before may hold some of them
        return lost

    def adopt(self, wanted: npt.NDArray[np.bool_], attempts: Offsets) -> None:
        """Pass the next rows as another broker left them: some are done, the others ready after so many attempts."""
        offsets = self.cursor + np.arange(len(wanted))
        rows, tries = offsets[wanted], attempts[wanted]
        self.cursor += len(wanted)
        self.passed += len(wanted)
        if len(rows) < len(wanted):
            self._finish(REMOVED, offsets[~wanted], counted=True)
        if len(rows):
            self._pages.hold(rows, READY, tries)
            self.ready += len(rows)
            self._again.append(rows)
            tried = tries > 0
            self._kept += records.pending(RELEASED, rows[tried], tries[tried], np.zeros(int(tried.sum()), np.int64))

    def finish_below(self, offset: int, op: int) -> dict[int, int]:
        """Finish every row below an offset for one reason; return how many each holder had out."""
        lost = self._drop(self._pages.held(below=offset), op)
        if offset > self.cursor:
            rows = self.source.rows_between(self.cursor, offset)
            self._finished.append((op, self.cursor, offset - 1, rows, 0))
            self.counts[op] += rows
            self.passed += rows
            self._skips = {skip for skip in self._skips if skip >= offset}
            self.cursor = offset
        self._fresh = deque(piece for piece in self._fresh if int(piece[-1]) >= offset)
        self._again = deque(piece for piece in self._again if int(piece[-1]) >= offset)
        return lost

    def _drop(self, offsets: Offsets, op: int) -> dict[int, int]:
        lost: dict[int, int] = {}
        state, _, _, holders = self._pages.details(offsets)
        offsets, holders = offsets[state != DONE], holders[state != DONE]
        state = state[state != DONE]
        if len(offsets) == 0:
            return lost
        owners, counts = np.unique(holders[state == LEASED], return_counts=True)
        for holder, count in zip(owners.tolist(), counts.tolist(), strict=True):
            lost[holder] = count
            self._leases.less(holder, count)
        self._pages.finish(offsets)
        self.ready -= int((state == READY).sum())
        self.leased -= int((state == LEASED).sum())
        self.waiting -= int((state == WAITING).sum())
        self.moving -= int((state == MOVING).sum())
        self._finish(op, offsets, counted=True)
        return lost

    def seek(self, offset: int) -> None:
        """Begin anew at an offset: everything out is forgotten, counts start at zero."""
        codes = self._codes
        self._clear()
        if codes is not None:
            self.sort_by_tag(codes)
        self.counts = dict.fromkeys(records.FINISHED, 0)
        self.passed = self.ready = self.leased = self.waiting = self.moving = 0
        self.cursor = offset
        self._journal.append([(START, offset, offset, 0, 0)])

    # --- what others ask ------------------------------------------------------------------------------------------

    @property
    def floor(self) -> int:
        """First offset that may still be needed."""
        first = self._pages.first() if self.held else None
        return self.cursor if first is None else first

    @property
    def held(self) -> int:
        """Rows handed out or ready and not finished."""
        return self.ready + self.leased + self.waiting + self.moving

    def depth(self) -> int:
        """Return the rows that could be handed out now if there were credit."""
        end = self._end()
        ahead = self.source.rows_between(self.cursor, end) if self.cursor < end else 0
        return self.ready + ahead

    # --- the journal ----------------------------------------------------------------------------------------------

    def _finish(self, op: int, offsets: Offsets, *, counted: bool) -> None:
        self._finished += records.finished(op, offsets)
        if counted:
            self.counts[op] += len(offsets)

    @property
    def dirty(self) -> bool:
        """Whether there is something to write down."""
        return bool(self._acked or self._kept or self._finished)

    def flush(self, now: Now) -> None:
        """Write down what happened since the last time, in one frame."""
        entries, self._kept = self._kept, []
        if self._acked:
            single = [offset for offset in self._acked if isinstance(offset, int)]
            parts = [part for part in self._acked if not isinstance(part, int)]
            if single:
                parts.append(np.array(single, np.int64))
            acked = parts[0] if len(parts) == 1 else np.concatenate(parts)
            entries += records.finished(ACKED, np.sort(acked))
            self._acked = []
        if self._finished:
            entries += self._finished
            self._finished = []
        if entries:
            self._journal.append(entries)
            self._written += len(entries)
            # A snapshot looks at every row that is held, so it must pay for itself.
            if self._journal.bloated and self._written > self.held >> 3:
                self._written = 0
                self._journal.compact(self._snapshot(now))

    def close(self, *, forget: bool, now: Now) -> None:
        """Write down the rest, or drop the state for good."""
        if forget:
            self._journal.remove()
        else:
            self.flush(now)
            self._journal.close()

    def _snapshot(self, now: Now) -> npt.NDArray[np.int64]:
        """Return the entries that say everything anew, page by page: 5 million held rows take some 20 ms."""
        kept: list[Entry] = []
        gaps: list[Entry] = []
        floor = last = None
        for first, page, rows in self._pages.walk():
            offsets = first + rows
            if last is None:
                floor = int(offsets[0])
            elif offsets[0] > last + 1:
                gaps.append((HOLE, last + 1, int(offsets[0]) - 1, 0, 0))
            cuts = np.flatnonzero(np.diff(rows) > 1)
            # The rows between two unfinished ones are finished; why is in the counts.
            gaps += [(HOLE, int(offsets[cut]) + 1, int(offsets[cut + 1]) - 1, 0, 0) for cut in cuts]
            last = int(offsets[-1])
            kept += self._kept_of(page, rows, offsets, now)
        if last is not None and last + 1 < self.cursor:
            gaps.append((HOLE, last + 1, self.cursor - 1, 0, 0))
        gaps += [(SKIPPED, skip, skip, 0, 0) for skip in sorted(self._skips)]
        return records.snapshot(self.cursor if floor is None else floor, self.counts, gaps, kept)

    def _kept_of(self, page: Page, rows: Offsets, offsets: Offsets, now: Now) -> list[Entry]:
        """Return the entries of those rows of a page of which more than "not finished" must be told."""
        at = page.find(rows)
        told = page.attempts[at] > 0
        if not told.any():  # when a row that was never handed out is due stands in the log
            return []
        at, offsets = at[told], offsets[told]
        state, attempts, deadline = page.state[at], page.attempts[at].astype(np.int64), page.deadline[at]
        leased = state == LEASED
        held = leased & (page.holder[at] == SESSION)
        due_ns = np.where(state == WAITING, deadline, np.where(held, deadline - now.monotonic_ns + now.wall_ns, 0))
        # A row on a connection's lease comes again after a crash with the attempt it is on.
        attempts[leased & ~held] -= 1
        again = ~held & (attempts > 0)
        return [
            *records.pending(RELEASED, offsets[again], attempts[again], due_ns[again]),
            *records.pending(HELD, offsets[held], attempts[held], due_ns[held]),
        ]


def _within(cuts: Cuts, row: int, count: int) -> int:
    """Return how many rows from `row` on stay within TAKE_BYTES_MAX, at least one."""
    most = int(np.searchsorted(cuts, int(cuts[row]) + TAKE_BYTES_MAX, side="right")) - 1 - row
    return max(1, min(count, most))


def _never() -> int:
    return 0


def _replace_head(queue: deque[Offsets], rest: Offsets) -> None:
    if len(rest):
        queue[0] = rest
    else:
        queue.popleft()
