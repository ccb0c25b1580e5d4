"""Where a subscription is in a shard: finds the next rows, judges them and leases them.

Rows at or above `cursor` were never handed out and cost nothing; below it a row is held (`Holding`) or done. Owns the
way from the log to a lease; knows nothing of consumers but their holder number, and no clock: times are passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.delivery import journal as records
from penstock.delivery.consumer import SESSION
from penstock.delivery.holding import Holding
from penstock.delivery.journal import DISCARDED, EXPIRED, FILTERED, HOLE, NAMES, RELEASED, REMOVED, SKIPPED, START
from penstock.delivery.lease import deadline_after
from penstock.delivery.moment import Now
from penstock.delivery.order import KeyOrder
from penstock.delivery.outlets import Outlets, lowest
from penstock.delivery.pages import LEASED, MOVING, READY, WAITING
from penstock.delivery.rules import Rules, Sifted
from penstock.delivery.skips import Skips
from penstock.delivery.source import Delivery, JournalFile, Source
from penstock.filters.tag import TagTable
from penstock.message import Batch, Cuts, Offsets

#: What a look for rows returns when another look at once would find none either.
NOTHING_NOW = -1

#: One look hands out at most about this much, so that a consumer whose socket fills up is noticed in time.
TAKE_BYTES_MAX = 1 << 20

#: Batches in a row that may give nothing before other connections get their turn.
LOOKS_MAX = 16


class Cursor(Holding):
    """Delivery state of one subscription over one shard."""

    def __init__(
        self,
        source: Source,
        journal: JournalFile,
        rules: Rules,
        wake: Callable[[], None],
        bury: Callable[[Cursor, Offsets], None],
    ) -> None:
        super().__init__(journal)
        self.source = source
        self.rules = rules
        self.cursor = source.start
        #: A paused topic lets nobody pass this offset.
        self.gate: int | None = None
        self.passed = 0
        self._wake = wake
        self._bury = bury
        self._clear()
        self.use_rules(rules)

    def _clear(self) -> None:
        self._forget()
        self._codes: TagTable | None = None
        #: Rows below it were judged and may go out straight from the batch.
        self._judged_to = 0
        self._judged_ns = 0
        self._fetching = False
        self._nothing_at = (-1, -1)
        self._turn = True
        #: Rows held when order by key was asked for, of which it does not know yet.
        self._unknown = np.empty(0, np.int64)

    # --- recovery -------------------------------------------------------------------------------------------------

    def recover(self, entries: npt.NDArray[np.int64], start: int, due: tuple[Offsets, Offsets], now: Now) -> None:
        """Take up the state a journal describes; `due` are the shard's rows that are not due yet."""
        state = records.replay(entries, start)
        self.cursor, self.counts, self._skips = max(state.cursor, 0), state.counts, Skips(state.skips)
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
        self.returning = int((later & (attempts > 0)).sum())
        self.passed = sum(self.counts.values()) + len(rows)
        if self.ready:
            self._line_up([], [], [rows[ready]])
        if self.keys is not None:
            self._unknown = self._pages.held()

    def use_rules(self, rules: Rules) -> None:
        """Judge by other rules from now on."""
        self.rules = rules
        self._judged_to = 0
        if not rules.key_run:
            if self.keys is not None and (parked := self.keys.parked()):  # nobody would let them go any more
                self._make_ready(np.array(parked, np.int64))
            self.keys = None
        elif self.keys is None:
            self.keys = KeyOrder(rules.key_run)
            self._unknown = self._pages.held()
        else:
            self.keys.run = rules.key_run

    def pass_waiting(self, due: tuple[Offsets, Offsets], wall_ns: int) -> None:
        """Pass the rows right after the cursor that all wait for their time, without reading them."""
        if self.rules.traffic is not None or self._skips.firsts:
            return
        ahead = int(np.searchsorted(due[0], self.cursor))
        offsets = due[0][ahead : int(np.searchsorted(due[0], self._end()))]
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
        if len(self._unknown) and self.keys is not None and not self._learn(self.keys):
            return out
        if self.rules.ordered:
            if self._one_is_out():
                return out
            limit, self._turn = 1, lowest(self._again, self._fresh) is not self._fresh
        while limit > 0:
            if self._again and (self._turn or not self._more()):
                count = self._take_queued(self._again, out, limit, holder, deadline_ns, now, fresh=False)
            elif self._fresh:
                count = self._take_queued(self._fresh, out, limit, holder, deadline_ns, now, fresh=True)
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
        again, fresh, unsorted = list(self._again), list(self._fresh), list[Offsets]()
        if self.outlets is not None:
            again, fresh, unsorted = self.outlets.empty()
        self._again.clear()
        self._fresh.clear()
        self._pages.forget_tags()
        self._codes = codes
        self._judged_to = 0
        if codes is None:
            self.outlets = None
            self._line_up(again, fresh, unsorted)
        else:
            self.outlets = Outlets()
            self.outlets.unsorted.extend([*again, *fresh, *unsorted])

    def _line_up(self, again: list[Offsets], fresh: list[Offsets], mixed: list[Offsets]) -> None:
        """Queue rows in one line: what was never out goes out in order, and before anything the cursor finds next."""
        for piece in mixed:
            ready = piece[self._pages.ready(piece)]
            tried = self._pages.attempts(ready) > 0
            again.append(ready[tried])
            fresh.append(ready[~tried])
        self._again.extend(piece for piece in again if len(piece))
        new = np.concatenate(fresh) if fresh else np.empty(0, np.int64)
        if len(new):
            self._fresh.append(np.sort(new, kind="stable"))

    def take_tagged(self, code: int, limit: int, holder: int, lease_ns: int, now: Now) -> list[Delivery]:
        """Lease up to `limit` rows of one tag; only what is sorted already is looked at."""
        out: list[Delivery] = []
        if (self.rules.ordered or self.keys is not None) and not self._sort_all():
            return out
        if self.rules.ordered:
            if self._one_is_out():
                return out
            limit = 1
        deadline_ns = deadline_after(now.monotonic_ns, lease_ns)
        outlet = self.outlets.get(code) if self.outlets is not None else None
        while outlet is not None and limit > 0:
            queue = outlet.queue(ordered=self.rules.ordered)
            if queue is None:
                break
            fresh = queue is outlet.fresh
            count = self._take_queued(queue, out, limit, holder, deadline_ns, now, fresh=fresh)
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
        if self._skips.firsts and self._pass_skipped():
            return True
        end = self._end()
        batch = self._batch_at(self.cursor)
        if batch is None:
            return False
        if batch.first > self.cursor:
            self._pass_hole(min(batch.first, end))
        else:
            self._judge(batch, self.cursor - batch.first, min(batch.count, end - batch.first), now)
        return True

    def _sort_all(self) -> bool:
        """Sort what is not sorted yet, because it may have to go first; False if that takes longer than this turn."""
        if self.keys is not None and not self._learn(self.keys):
            return False
        for _ in range(LOOKS_MAX):
            if self.outlets is None or not self.outlets.unsorted:
                return True
            if not self._sort_piece(self.outlets):
                return False
        self._wake()
        return False

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
        part = live[: int(np.searchsorted(live, batch.end if batch.first <= live[0] else batch.first))]
        _replace_head(outlets.unsorted, live[len(part) :])
        if batch.first > part[0]:  # damaged or dropped: whoever is to get them next finds out
            tags = np.zeros(len(part), np.uint16)
        else:
            tags = self._tags_of(batch, part)
        self._pages.set_tags(part, tags)
        tried = self._pages.attempts(part) > 0
        for chosen, again in ((tried, True), (~tried, False)):
            if chosen.any():
                outlets.put(part[chosen], tags[chosen], again=again)
        if self.keys is not None and batch.first <= part[0]:
            self._note_keys(self.keys, batch, part)
        return True

    def _tags_of(self, batch: Batch, offsets: Offsets) -> npt.NDArray[np.uint16]:
        column = batch.columns.get("tag")
        if column is None or self._codes is None:
            return np.zeros(len(offsets), np.uint16)
        return self._codes.codes(column)[offsets - batch.first]

    def _pass_hole(self, end: int) -> None:
        self._finished.append((HOLE, self.cursor, end - 1, 0, 0))
        self.cursor = end
        self._skips.drop_below(end)

    def _one_is_out(self) -> bool:
        """Tell whether a row of the shard is out, or was and will come back."""
        return bool(self.leased or self.moving or self.returning)

    def go_on(self) -> None:
        """Ask for another look in the next turn."""
        self._wake()

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
        if self.source.read(offset) is None:  # damaged or lost to the end: wait for something new
            self._nothing_at = (offset, self._end())
            if not self._drop_unreadable(offset):
                return
        self._wake()

    def _drop_unreadable(self, offset: int) -> bool:
        """Finish queued rows from an offset on, where nothing can be read any more: they would hold up the others."""
        known = self._unknown < offset
        dropped = not known.all()
        self._unknown = self._unknown[known]
        parked = self.outlets.queues() if self.outlets is not None else []
        for queue in (self._again, self._fresh, *parked):
            for _ in range(len(queue)):
                piece = queue.popleft()
                kept = piece[piece < offset]
                if len(kept) < len(piece):
                    self._remove_ready(piece[len(kept) :])
                    dropped = True
                if len(kept):
                    queue.append(kept)
        return dropped

    def _take_fresh(self, out: list[Delivery], limit: int, holder: int, deadline_ns: int, now: Now) -> int:
        """Lease rows straight from the log and return how many: 0 means that a look again may find some."""
        if self._skips.firsts and self._pass_skipped():
            return 0
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
        if self._judged_to <= first and (self._skips.firsts or self.keys is not None or self.rules.concerns(batch)):
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
        if self._skips.firsts:
            sifted = self._without_skips(sifted, batch.first + row, batch.first + stop)
        ready = sifted.ready
        if len(ready) == stop - row and self.outlets is None and self.keys is None:
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
                if self.keys is not None:
                    self._note_keys(self.keys, batch, ready)

    def look_at(self, batch: Batch, now: Now) -> None:
        """Pass a batch that was just stored and brings due times: its rows wait here, not behind the cursor."""
        if self.outlets is not None and self.outlets.unsorted:
            return  # rows before it come first
        if self.cursor == batch.first and batch.end <= self._end() and self._judged_to <= batch.first:
            self._judge(batch, 0, batch.count, now)

    def _without_skips(self, sifted: Sifted, first: int, end: int) -> Sifted:
        """Finish what was removed before the cursor came here."""
        skipped = self._skips.offsets(first, end)
        if len(skipped) == 0:
            return sifted
        self._skips.drop_below(end)
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
        self,
        queue: deque[Offsets],
        out: list[Delivery],
        limit: int,
        holder: int,
        deadline_ns: int,
        now: Now,
        *,
        fresh: bool,
    ) -> int:
        """Lease rows from the head of a queue and return how many: 0 means that a look again may find some.

        Rows of a `fresh` queue were never out before.
        """
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
        if fresh and self.keys is None and not self.rules.ttl_ns:
            count = self._take_plain(queue, out, limit, holder, deadline_ns)
            if count:
                return count
        if len(batch.body) > TAKE_BYTES_MAX:
            limit = _within(batch.cuts, first - batch.first, limit) if batch.first <= first else limit
        last = len(piece) if piece[-1] < batch.end else int(np.searchsorted(piece, batch.end))
        part = piece[: min(limit, last)]
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
        if self.keys is not None and len(live):
            live = self._in_order(self.keys, batch, live, holder)
            rows = live - batch.first
        if len(live) == 0:
            return 0
        attempts = self._pages.lease(live, holder, deadline_ns)
        self._leases.add(holder, live, deadline_ns)
        self.ready -= len(live)
        out.append(Delivery(self.source.number, batch, rows, len(live), attempts))
        return len(live)

    def _take_plain(self, queue: deque[Offsets], out: list[Delivery], limit: int, holder: int, deadline_ns: int) -> int:
        """Lease rows that need no second look, over several batches at once; 0 means that each needs one.

        With tags a batch holds a handful of rows for a consumer, and a call for each of them would cost more than they.
        """
        piece = queue[0][:limit]
        pieces: list[Delivery] = []
        at, end = 0, len(piece)
        while at < end:
            first = int(piece[at])
            batch = self.source.read(first)
            if batch is None or first < batch.first or "expires" in batch.columns or len(batch.body) > TAKE_BYTES_MAX:
                break
            stop = end if piece[-1] < batch.end else int(np.searchsorted(piece, batch.end))
            pieces.append(Delivery(self.source.number, batch, piece[at:stop] - batch.first, stop - at, 1))
            at = stop
        if at == 0 or not self._pages.lease_first(piece[:at], holder, deadline_ns):
            return 0
        self._leases.add(holder, piece[:at], deadline_ns)
        self.ready -= at
        out += pieces
        _replace_head(queue, queue[0][at:])
        return at

    def _in_order(self, keys: KeyOrder, batch: Batch, live: Offsets, holder: int) -> Offsets:
        """Return the rows that may go out now; the others wait for those of their key before them."""
        values = _keys_of(batch, live)
        if values is None:
            return live
        free = [
            key is None or keys.admit(key, offset, holder) for key, offset in zip(values, live.tolist(), strict=True)
        ]
        if keys.freed:
            freed, keys.freed = keys.freed, []
            self._make_ready(np.array(sorted(freed), np.int64))
        return live[np.array(free, np.bool_)]

    def _note_keys(self, keys: KeyOrder, batch: Batch, offsets: Offsets) -> None:
        """Tell the order of rows that stand in queues which may be served in any order."""
        for key, offset in zip(_keys_of(batch, offsets) or (), offsets.tolist(), strict=False):
            if key is not None:
                keys.note(key, offset)

    def _learn(self, keys: KeyOrder) -> bool:
        """Tell the order of rows that were held before it was asked for; False if that takes longer than this turn."""
        for _ in range(LOOKS_MAX):
            if len(self._unknown) == 0:
                return True
            first = int(self._unknown[0])
            batch = self._batch_at(first)
            if batch is None:
                return False
            part = self._unknown[: int(np.searchsorted(self._unknown, max(batch.end, first + 1)))]
            self._unknown = self._unknown[len(part) :]
            part = part[part >= batch.first]  # below it they cannot be read any more
            state, _, _, holders = self._pages.details(part)
            self._note_keys(keys, batch, part[state == READY])
            out = part[state == LEASED]
            found = zip(_keys_of(batch, out) or (), out.tolist(), holders[state == LEASED].tolist(), strict=False)
            for key, offset, holder in found:
                if key is not None:
                    keys.note_out(key, offset, holder)
        self._wake()
        return False

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

    # --- finishing without a lease --------------------------------------------------------------------------------

    def remove(self, offsets: Offsets) -> dict[int, int]:
        """Finish rows whatever their state; return how many each holder had out."""
        lost = self._drop(offsets[offsets < self.cursor], REMOVED)
        ahead = offsets[offsets >= self.cursor]
        if len(ahead):
            for _, first, last, _, _ in records.finished(SKIPPED, ahead):
                self.skip(first, last + 1)
        return lost

    def skip(self, first: int, end: int) -> None:
        """Remove a range of rows that the cursor has not come to; costs the same whatever their number."""
        first = max(first, self.cursor)
        if first < end:
            self._skips.add(first, end)
            self._finished.append((SKIPPED, first, end - 1, 0, 0))
            self._judged_to = 0  # what was judged before may hold some of them
            self._pass_skipped()

    def _pass_skipped(self) -> bool:
        """Finish the removed rows that begin at the cursor, unread; False if there are none."""
        end = self._skips.end_at(self.cursor)
        if end == self.cursor:
            return False
        self._pass_range(end, REMOVED)
        return True

    def _pass_range(self, end: int, op: int) -> None:
        """Finish every row from the cursor up to an offset, unread."""
        rows = self.source.rows_between(self.cursor, end)
        self._finished.append((op, self.cursor, end - 1, rows, 0))
        self.counts[op] += rows
        if self.witness is not None and rows and op in DISCARDED:
            self.witness.discarded(NAMES[op], rows)
        self.passed += rows
        self.cursor = end
        self._skips.drop_below(end)

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
            self._pass_range(offset, op)
            self._pass_skipped()
        self._fresh = deque(piece for piece in self._fresh if int(piece[-1]) >= offset)
        self._again = deque(piece for piece in self._again if int(piece[-1]) >= offset)
        return lost

    def seek(self, offset: int) -> None:
        """Begin anew at an offset: everything out is forgotten, counts start at zero."""
        codes = self._codes
        self._tell_ended("removed", sessions=True)
        self._clear()
        self.use_rules(self.rules)
        if codes is not None:
            self.sort_by_tag(codes)
        self.counts = dict.fromkeys(records.FINISHED, 0)
        self.passed = self.ready = self.leased = self.waiting = self.returning = self.moving = 0
        self.cursor = offset
        self._journal.append([(START, offset, offset, 0, 0)])

    # --- what others ask ----------------------------------------------------------------------------------------------

    @property
    def floor(self) -> int:
        """First offset that may still be needed."""
        first = self._pages.first() if self.held else None
        return self.cursor if first is None else first

    def depth(self) -> int:
        """Return the rows that could be handed out now if there were credit."""
        return self.ready + sum(self.source.rows_between(*stretch) for stretch in self.unread())

    def unread(self) -> list[tuple[int, int]]:
        """Return the stretches of offsets that are still to come, first and end of each."""
        at, end = self.cursor, self._end()
        stretches: list[tuple[int, int]] = []
        if at >= end or self._nothing_at == (at, end):
            return stretches
        for first, after in self._skips.between(at, end):
            if at < first:
                stretches.append((at, first))
            at = after
        if at < end:
            stretches.append((at, end))
        return stretches


def _within(cuts: Cuts, row: int, count: int) -> int:
    """Return how many rows from `row` on stay within TAKE_BYTES_MAX, at least one."""
    most = int(np.searchsorted(cuts, int(cuts[row]) + TAKE_BYTES_MAX, side="right")) - 1 - row
    return max(1, min(count, most))


def _keys_of(batch: Batch, offsets: Offsets) -> list[bytes | None] | None:
    """Return the keys of rows of a batch; None if none has one."""
    column = batch.columns.get("key")
    if column is None or len(offsets) == 0:
        return None
    rows = (offsets - batch.first).tolist()
    values = [column[row] for row in rows] if isinstance(column, list) else column.take(pa.array(rows)).to_pylist()
    return [None if key is None else bytes(key) for key in values]


def _replace_head(queue: deque[Offsets], rest: Offsets) -> None:
    if len(rest):
        queue[0] = rest
    else:
        queue.popleft()
