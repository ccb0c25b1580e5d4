"""Where a subscription is in a shard: finds the next rows, judges them, and leases them.

Rows at or above `cursor` were never handed out and cost nothing; below it a row has a state (`RowStates`) or is done.
Owns the way from the log to a lease; knows nothing of seats but their holder number, and no clock: times are passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from penstock.delivery import journal as records
from penstock.delivery import recovery
from penstock.delivery.instant import Instant
from penstock.delivery.journal import DISCARDED, EXPIRED, FILTERED, HOLE, NAMES, REMOVED, SKIPPED
from penstock.delivery.keys import KeyOrder, keys_of
from penstock.delivery.leases import deadline_after
from penstock.delivery.pages import LEASED, READY, Lanes
from penstock.delivery.policies.policy import Policy, Taker
from penstock.delivery.ready import Ready, replace_head
from penstock.delivery.rules import Rules, Sifted
from penstock.delivery.skips import Skips
from penstock.delivery.source import Delivery, JournalFile, Source
from penstock.delivery.states import RowStates
from penstock.message import Batch, Cuts, Offsets

#: What a look for rows returns when another look at once would find none either.
NOTHING_NOW = -1

#: One look hands out at most about this much, so that a seat whose socket fills up is noticed in time.
TAKE_BYTES_MAX = 1 << 20

#: Batches in a row that may give nothing before other connections get their turn.
LOOKS_MAX = 16

_NONE = np.empty(0, np.int64)


class Cursor:
    """Delivery state of one subscription over one shard."""

    def __init__(
        self,
        source: Source,
        journal: JournalFile,
        rules: Rules,
        wake: Callable[[], None],
        bury: Callable[[Cursor, Offsets], None],
        names: Mapping[int, str] | None = None,
        due_seen_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        self.source = source
        self.rules = rules
        self.states = RowStates(journal, names if names is not None else {}, self._queue, due_seen_ns)
        self.ready = Ready()
        self.cursor = source.start
        #: A paused topic lets nobody pass this offset.
        self.gate: int | None = None
        self.passed = 0
        self._wake = wake
        self._bury = bury
        self._policy: Policy | None = None
        self._clear()
        self.use_rules(rules)

    def _clear(self) -> None:
        self.states.clear()
        self.ready = Ready(many=self.ready.many)
        #: Rows above the cursor that were removed before it came there.
        self._skips = Skips()
        #: Rows below it were judged and may go out straight from the batch.
        self._judged_to = 0
        self._judged_ns = 0
        self._fetching = False
        self._nothing_at = (-1, -1)
        #: Rows held when order by key was asked for, of which it does not know yet.
        self._unknown = _NONE

    # --- recovery and rules ---------------------------------------------------------------------------------------

    def recover(
        self,
        entries: npt.NDArray[np.int64],
        start: int,
        due: tuple[Offsets, Offsets],
        now: Instant,
        number_of: Callable[[str], int],
    ) -> None:
        """Take up the state a journal describes; `due` are the shard's rows that are not due yet."""
        state = records.replay(entries, start)
        self.cursor, self.states.counts, self._skips = max(state.cursor, 0), state.counts, Skips(state.skips)
        keep = state.rows >= self.source.kept_from
        if not keep.all():
            self.states.finish(REMOVED, state.rows[~keep])
            state = state.only(keep)
        ready = recovery.recover(self.states, state, due, number_of, now)
        self.passed = sum(self.states.counts.values()) + len(state.rows)
        if len(ready):
            self._line_up([], [], [ready])
        if self.states.keys is not None:
            self._unknown = self.states.pages.held()

    def use_rules(self, rules: Rules) -> None:
        """Judge by other rules from now on."""
        self.rules = rules
        self._looks = rules.looks
        self._judged_to = 0
        keys = self.states.keys
        if not rules.key_run:
            self.states.keys = None
            if keys is not None and (parked := keys.parked()):  # nobody would let them go any more
                self._queue(np.array(parked, np.int64))
        elif keys is None:
            self.states.keys = KeyOrder(rules.key_run)
            self._unknown = self.states.pages.held()
        else:
            keys.run = rules.key_run

    def pass_waiting(self, due: tuple[Offsets, Offsets], wall_ns: int) -> None:
        """Pass the rows right after the cursor that all wait for their time, without reading them."""
        if self.rules.traffic is not None or self._skips.firsts:
            return
        ahead = int(np.searchsorted(due[0], self.cursor))
        offsets = due[0][ahead : int(np.searchsorted(due[0], self._end()))]
        in_a_row = int((offsets == self.cursor + np.arange(len(offsets))).sum())
        if in_a_row:
            self.states.wait(offsets[:in_a_row], due[1][ahead : ahead + in_a_row], wall_ns)
            self.cursor += in_a_row
            self.passed += in_a_row

    # --- handing out ----------------------------------------------------------------------------------------------

    def more(self) -> bool:
        """Tell whether a look for rows may find some."""
        return bool(self.ready) or self._ahead()

    def lease_tip(self, batch: Batch, limit: int, holder: int, deadline_ns: int) -> bool:
        """Lease a batch that was just stored, whole, if it is all there is to hand out and nothing asks for a look."""
        count = batch.count
        if (
            self.cursor != batch.first
            or count > limit
            or self.gate is not None
            or self.ready.many
            or self.ready.only.again
            or self.ready.only.fresh
            or self._looks
            or self._skips.firsts
            or (batch.columns and self.rules.concerns(batch))
            or len(batch.body) > TAKE_BYTES_MAX
        ):
            return False
        self.states.lease_fresh(self.cursor, count, holder, deadline_ns)
        self.cursor += count
        self.passed += count
        return True

    def take(self, limit: int, taker: Taker, lease_ns: int, now: Instant) -> list[Delivery]:
        """Lease up to `limit` rows to a seat, of the lanes that are open to it where there are several.

        An empty list means that nothing is there now. Of several lanes only what stands in them already is looked at.
        """
        holder = taker.holder
        if not self._is_settled():
            return []
        if self.rules.ordered:
            if self._one_is_out():
                return []
            limit = 1
        out: list[Delivery] = []
        deadline_ns = deadline_after(now.monotonic_ns, lease_ns)
        if self._policy is None:
            self._take_line(out, limit, holder, deadline_ns, now)
        else:
            self._take_lanes(self._policy, out, limit, taker, deadline_ns, now)
        if out and holder in self.states.names:
            self.states.note_leases(out, holder, now.wall_ns + lease_ns)
            self.flush(now)
        return out

    def _take_line(self, out: list[Delivery], limit: int, holder: int, deadline_ns: int, now: Instant) -> None:
        """Take from the one line, and from the log behind it."""
        line = self.ready.only
        ordered = self.rules.ordered
        looks = LOOKS_MAX
        while limit > 0:
            ahead = self._ahead()
            queue = line.queue(ordered=ordered, more_fresh=ahead)
            if queue is not None:
                count = self._take_queued(queue, out, limit, holder, deadline_ns, now, fresh=queue is line.fresh)
            elif ahead:
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
            if count and len(out[-1].batch.body) > TAKE_BYTES_MAX:
                break
        if out:
            line.served()

    def _take_lanes(
        self, policy: Policy, out: list[Delivery], limit: int, taker: Taker, deadline_ns: int, now: Instant
    ) -> None:
        """Take from the lanes that are open to a seat, in turn."""
        lanes = policy.open_to(taker, self.ready, now.monotonic_ns)
        if self.rules.ordered and len(lanes) > 1:
            lanes = sorted(lanes, key=self.ready.first)
        for code in lanes:
            taken = self._take_lane(code, out, limit, taker.holder, deadline_ns, now)
            policy.served(code, taker, taken, deadline_ns)
            limit -= taken
            if limit <= 0:
                break

    def _take_lane(
        self, code: int, out: list[Delivery], limit: int, holder: int, deadline_ns: int, now: Instant
    ) -> int:
        """Take from one lane of several and return how many."""
        lane = self.ready.lane(code)
        taken = 0
        while lane is not None and taken < limit:
            queue = lane.queue(ordered=self.rules.ordered)
            if queue is None:
                break
            fresh = queue is lane.fresh
            count = self._take_queued(queue, out, limit - taken, holder, deadline_ns, now, fresh=fresh)
            if count == NOTHING_NOW:
                break
            taken += count
        if taken and lane is not None:
            lane.served()
        return taken

    def _is_settled(self) -> bool:
        """Tell whether rows may be taken: where order is kept, all that may have to go first must be known."""
        keys = self.states.keys
        if keys is not None and len(self._unknown) and not self._learn(keys):
            return False
        if not self.ready.unsorted or not (self.rules.ordered or keys is not None):
            return True
        for _ in range(LOOKS_MAX):
            if not self.ready.unsorted:
                return True
            if not self._sort_piece():
                return False
        self._wake()
        return False

    def _one_is_out(self) -> bool:
        """Tell whether a row of the shard is out, or was and will come back."""
        states = self.states
        return bool(states.leased or states.moving or states.returning)

    def go_on(self) -> None:
        """Ask for another look in the next turn."""
        self._wake()

    # --- lanes ----------------------------------------------------------------------------------------------------

    def use_lanes(self, policy: Policy | None) -> None:
        """Keep ready rows in the lanes of a policy from now on, or (None) in one line again."""
        again, fresh, unsorted = self.ready.drain()
        self.states.pages.forget_lanes()
        self._policy = policy
        self._judged_to = 0
        self.ready = Ready(many=policy is not None)
        if policy is None:
            self._line_up(again, fresh, unsorted)
        else:
            self.ready.unsorted.extend([*again, *fresh, *unsorted])

    def _line_up(self, again: list[Offsets], fresh: list[Offsets], mixed: list[Offsets]) -> None:
        """Queue rows in one line: what was never out goes out in order, and before anything the cursor finds next."""
        pages = self.states.pages
        for piece in mixed:
            ready = piece[pages.ready(piece)]
            tried = pages.attempts(ready) > 0
            again.append(ready[tried])
            fresh.append(ready[~tried])
        self.ready.only.again.extend(piece for piece in again if len(piece))
        new = np.concatenate(fresh) if fresh else _NONE
        if len(new):
            self.ready.only.fresh.append(np.sort(new, kind="stable"))

    def _queue(self, offsets: Offsets) -> None:
        """Queue rows that are ready and go out again."""
        if self.ready.many:
            self.ready.put(offsets, self.states.pages.lanes(offsets), again=True)
        else:
            self.ready.only.again.append(offsets)

    def sort_ahead(self, now: Instant) -> bool:
        """Put one more piece of what is ready into lanes, or pass one more batch; False if there is nothing to do."""
        if self.ready.unsorted:
            return self._sort_piece()
        if not self._ahead():
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

    def _sort_piece(self) -> bool:
        """Find the lanes of rows that became ready before anybody asked for lanes."""
        unsorted, pages = self.ready.unsorted, self.states.pages
        live = unsorted[0][pages.ready(unsorted[0])]
        if len(live) == 0:
            unsorted.popleft()
            return True
        batch = self._batch_at(int(live[0]))
        if batch is None:
            return False
        part = live[: int(np.searchsorted(live, batch.end if batch.first <= live[0] else batch.first))]
        replace_head(unsorted, live[len(part) :])
        if batch.first > part[0]:  # damaged or dropped: whoever is to get them next finds out
            lanes = np.zeros(len(part), np.int32)
        else:
            lanes = self._lanes_of(batch, part)
        pages.set_lanes(part, lanes)
        tried = pages.attempts(part) > 0
        for chosen, again in ((tried, True), (~tried, False)):
            if chosen.any():
                self.ready.put(part[chosen], lanes[chosen], again=again)
        if self.states.keys is not None and batch.first <= part[0]:
            self.states.keys.note_rows(batch, part)
        return True

    def _lanes_of(self, batch: Batch, offsets: Offsets) -> Lanes:
        lanes = self._policy.lanes_of(batch, offsets) if self._policy is not None else None
        return lanes if lanes is not None else np.zeros(len(offsets), np.int32)

    # --- from the log ---------------------------------------------------------------------------------------------

    def _ahead(self) -> bool:
        """Tell whether the log may hold rows that were not seen yet."""
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

        def keep(piece: Offsets) -> Offsets:
            kept = piece[piece < offset]
            self.states.finish_ready(REMOVED, piece[len(kept) :])
            return kept

        return self.ready.drop(keep) or dropped

    def _take_fresh(self, out: list[Delivery], limit: int, holder: int, deadline_ns: int, now: Instant) -> int:
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
        keys = self.states.keys
        if self._judged_to <= first and (self._skips.firsts or keys is not None or self.rules.concerns(batch)):
            self._judge(batch, row, stop, now)
            return 0
        count = min(limit, stop - row)
        if len(batch.body) > TAKE_BYTES_MAX:
            count = _within(batch.cuts, row, count)
        self.states.lease_fresh(first, count, holder, deadline_ns)
        self.cursor = first + count
        self.passed += count
        out.append(Delivery(self.source.number, batch, slice(row, row + count), count, 1))
        return count

    def _judge(self, batch: Batch, row: int, stop: int, now: Instant) -> None:
        """Apply the rules to the rest of a batch; the cursor passes it unless all of it may go out as it is."""
        sifted = self.rules.sift(batch, row, stop, now.wall_ns)
        if self._skips.firsts:
            sifted = self._without_skips(sifted, batch.first + row, batch.first + stop)
        ready, keys = sifted.ready, self.states.keys
        if len(ready) == stop - row and not self.ready.many and keys is None:
            self._judged_to = batch.first + stop
            self._judged_ns = now.wall_ns
            return
        self.passed += stop - row
        self.cursor = batch.first + stop
        for op, offsets in ((FILTERED, sifted.filtered), (EXPIRED, sifted.expired)):
            if len(offsets):
                self.states.finish(op, offsets)
        if len(sifted.waiting):
            self.states.wait(sifted.waiting, sifted.waiting_due_ns, now.wall_ns)
        if len(ready) == 0:
            return
        if not self.ready.many:
            self.states.hold_ready(ready)
            self.ready.only.fresh.append(ready)
        else:
            lanes = self._lanes_of(batch, ready)
            self.states.hold_ready(ready, lanes)
            self.ready.put(ready, lanes, again=False)
            if keys is not None:
                keys.note_rows(batch, ready)

    def look_at(self, batch: Batch, now: Instant) -> None:
        """Pass a batch that was just stored and brings due times: its rows wait here, not behind the cursor."""
        if self.ready.unsorted:
            return  # rows before it come first
        if self.cursor == batch.first and batch.end <= self._end() and self._judged_to <= batch.first:
            self._judge(batch, 0, batch.count, now)

    # --- from a queue ---------------------------------------------------------------------------------------------

    def _take_queued(
        self,
        queue: deque[Offsets],
        out: list[Delivery],
        limit: int,
        holder: int,
        deadline_ns: int,
        now: Instant,
        *,
        fresh: bool,
    ) -> int:
        """Lease rows from the head of a queue and return how many: 0 means that a look again may find some.

        Rows of a `fresh` queue were never out before.
        """
        piece = queue[0]
        first = int(piece[0])
        states = self.states
        if first < self.source.kept_from:  # retention took it
            kept = piece[piece >= self.source.kept_from]
            states.finish_ready(REMOVED, piece[: len(piece) - len(kept)])
            replace_head(queue, kept)
            return 0
        batch = self._batch_at(first)
        if batch is None:
            return NOTHING_NOW
        if fresh and states.keys is None and not self.rules.ttl_ns:
            count = self._take_plain(queue, out, limit, holder, deadline_ns)
            if count:
                return count
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
        live = self._live(batch, part, now)
        if states.keys is not None and len(live):
            live = self._in_order(states.keys, batch, live, holder)
        if len(live) == 0:
            return 0
        attempts = states.lease(live, holder, deadline_ns)
        out.append(Delivery(self.source.number, batch, live - batch.first, len(live), attempts))
        return len(live)

    def _live(self, batch: Batch, part: Offsets, now: Instant) -> Offsets:
        """Return those of queued rows that may still go out; the others are finished or on their way to be."""
        live = part[self.states.pages.ready(part)]
        if self.rules.max_attempts and len(live):
            dead = self.states.dying(live, self.rules.max_attempts)
            if len(dead):
                self._bury(self, dead)
                live = live[~np.isin(live, dead)]
        if len(live) and (self.rules.ttl_ns or "expires" in batch.columns):
            over = self.rules.expired(batch, live - batch.first, now.wall_ns)
            if over.any():
                self.states.finish_ready(EXPIRED, live[over])
                live = live[~over]
        return live

    def _take_plain(self, queue: deque[Offsets], out: list[Delivery], limit: int, holder: int, deadline_ns: int) -> int:
        """Lease rows that need no second look, over several batches at once; 0 means that each needs one.

        With tags a batch holds a handful of rows for a seat, and a call for each of them would cost more than they.
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
        if at == 0 or not self.states.lease_first(piece[:at], holder, deadline_ns):
            return 0
        out += pieces
        replace_head(queue, queue[0][at:])
        return at

    def _in_order(self, keys: KeyOrder, batch: Batch, live: Offsets, holder: int) -> Offsets:
        """Return the rows that may go out now; the others wait for those of their key before them."""
        values = keys_of(batch, live)
        if values is None:
            return live
        free = [
            key is None or keys.admit(key, offset, holder) for key, offset in zip(values, live.tolist(), strict=True)
        ]
        if keys.freed:
            freed, keys.freed = keys.freed, []
            self._queue(np.array(sorted(freed), np.int64))
        return live[np.array(free, np.bool_)]

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
            state, _, _, holders = self.states.pages.details(part)
            keys.note_rows(batch, part[state == READY])
            out = part[state == LEASED]
            found = zip(keys_of(batch, out) or (), out.tolist(), holders[state == LEASED].tolist(), strict=False)
            for key, offset, holder in found:
                if key is not None:
                    keys.note_out(key, offset, holder)
        self._wake()
        return False

    # --- passing without a lease ----------------------------------------------------------------------------------

    def remove(self, offsets: Offsets) -> dict[int, int]:
        """Finish rows whatever their state; return how many each holder had out."""
        lost = self.states.drop(offsets[offsets < self.cursor], REMOVED)
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
            self.states.journal.passed(SKIPPED, first, end, 0)
            self._judged_to = 0  # what was judged before may hold some of them
            self._pass_skipped()

    def _without_skips(self, sifted: Sifted, first: int, end: int) -> Sifted:
        """Finish what was removed before the cursor came here."""
        skipped = self._skips.offsets(first, end)
        if len(skipped) == 0:
            return sifted
        self._skips.drop_below(end)
        self.states.finish(REMOVED, skipped)
        return sifted.without(skipped)

    def _pass_hole(self, end: int) -> None:
        self.states.journal.passed(HOLE, self.cursor, end, 0)
        self.cursor = end
        self._skips.drop_below(end)

    def _pass_skipped(self) -> bool:
        """Finish the removed rows that begin at the cursor, unread; False if there are none."""
        end = self._skips.end_at(self.cursor)
        if end == self.cursor:
            return False
        self._pass_range(end, REMOVED)
        return True

    def _pass_range(self, end: int, op: int) -> None:
        """Finish every row from the cursor up to an offset, unread."""
        states = self.states
        rows = self.source.rows_between(self.cursor, end)
        states.journal.passed(op, self.cursor, end, rows)
        states.counts[op] += rows
        if states.recorder is not None and rows and op in DISCARDED:
            states.recorder.discarded(NAMES[op], rows)
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
            self.states.finish(REMOVED, offsets[~wanted])
        if len(rows):
            self.states.pages.hold(rows, READY, tries)
            self.states.ready += len(rows)
            self._queue(rows)
            tried = tries > 0
            nothing = np.zeros(int(tried.sum()), np.int64)
            self.states.journal.released(rows[tried], tries[tried], nothing, nothing)

    def finish_below(self, offset: int, op: int) -> dict[int, int]:
        """Finish every row below an offset for one reason; return how many each holder had out."""
        lost = self.states.drop(self.states.pages.held(below=offset), op)
        if offset > self.cursor:
            self._pass_range(offset, op)
            self._pass_skipped()
        self.ready.drop(lambda piece: piece if int(piece[-1]) >= offset else _NONE)
        return lost

    def seek(self, offset: int) -> None:
        """Begin anew at an offset: everything out is forgotten, counts start at zero."""
        self.states.tell_ended("removed", named=True)
        self._clear()
        self.use_rules(self.rules)
        self.passed = 0
        self.cursor = offset
        self.states.journal.begin(offset)

    # --- the journal ----------------------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        """Whether there is something to write down."""
        return self.states.journal.dirty

    def flush(self, now: Instant) -> None:
        """Write down what happened since the last time, in one frame."""
        self.states.journal.flush(self.states.held, self._snapshot, now)

    def _snapshot(self, now: Instant) -> npt.NDArray[np.int64]:
        return recovery.snapshot(self.states, self.cursor, self._skips.ranges(), now)

    def close(self, *, forget: bool, now: Instant) -> None:
        """Write down the rest, or drop the state for good."""
        self.states.tell_ended("removed" if forget else "stopped", named=forget)
        if forget:
            self.states.journal.remove()
        else:
            self.states.journal.close(self._snapshot, now)

    def heal(self, now: Instant) -> None:
        """Write everything anew if a sync of the journal failed: what is there may be lost."""
        self.states.journal.heal(self._snapshot, now)

    # --- what others ask ------------------------------------------------------------------------------------------

    @property
    def floor(self) -> int:
        """First offset that may still be needed."""
        first = self.states.pages.first() if self.states.held else None
        return self.cursor if first is None else first

    def depth(self) -> int:
        """Return the rows that could be handed out now if there were credit."""
        return self.states.ready + sum(self.source.rows_between(*stretch) for stretch in self.unread())

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
