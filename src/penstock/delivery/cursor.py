"""The way from a shard's log to a lease: finds the next rows, judges them, and leases them.

It has a `Position` in the log; below it a row has a state (`RowStates`) or is done, and what is ready stands in lanes
(`Ready`). Knows nothing of seats but their holder number, and no clock: times are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from penstock.columns import OFFSET_BITS, Offsets
from penstock.delivery import journal as records
from penstock.delivery import recovery
from penstock.delivery.instant import Instant
from penstock.delivery.journal import EXPIRED, FILTERED, REMOVED, SKIPPED
from penstock.delivery.keys import KeyOrder
from penstock.delivery.leases import FINE_GRAIN_NS, GRAIN_NS, deadline_after
from penstock.delivery.page import DONE, READY
from penstock.delivery.pages import Pages
from penstock.delivery.policies.policy import NO_LIMIT, Policy, Taker
from penstock.delivery.portion import LOOK_BYTES_MAX, LOOKS_MAX, TAKE_BYTES_MAX, Portion
from penstock.delivery.position import FEW_ROWS, LANES_ROWS, Position
from penstock.delivery.ready import Ready
from penstock.delivery.rules import Rules
from penstock.delivery.source import Delivery, JournalFile, Source
from penstock.delivery.states import RowStates
from penstock.message import Batch

_NONE = np.empty(0, np.int64)
_OFFSET_MASK = (1 << OFFSET_BITS) - 1


class Cursor:
    """Delivery state of one subscription over one shard."""

    def __init__(
        self,
        source: Source,
        journal: JournalFile,
        rules: Rules,
        wake: Callable[[], None],
        bury: Callable[[Cursor, Batch, Offsets], None],
        names: Mapping[int, str] | None = None,
        due_seen_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        self.source = source
        self.rules = rules
        pages = Pages(source.last_version)
        self.ready = Ready(source.number, pages)
        self.states = RowStates(pages, journal, names if names is not None else {}, self.ready.queue, due_seen_ns)
        self.position = Position(source, self.states, wake, self._drop_unreadable)
        #: Asks for another look in the next turn.
        self.wake = wake
        #: Takes rows to the dead letters.
        self.bury = bury
        self.use_rules(rules)

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
        self.position.begin(max(state.cursor, 0), state.skips)
        self.states.counts = state.counts
        keep = state.rows >= self.source.kept_from
        if not keep.all():
            self.states.finish(REMOVED, state.rows[~keep])
            state = state.only(keep)
        ready = recovery.recover(self.states, state, due, number_of, now)
        self.position.passed = sum(self.states.counts.values()) + len(state.rows)
        if len(ready):
            self.ready.line_up(ready)
        if self.states.keys is not None:
            self.states.keys.unknown = self.states.pages.held()

    def use_rules(self, rules: Rules) -> None:
        """Judge by other rules from now on."""
        self.rules = rules
        self.ready.set_ordered(rules.ordered or rules.key_run > 0)
        self._looks = rules.looks
        self.position.judged_to = 0
        keys = self.states.keys
        if not rules.key_run:
            self.states.keys = None
            if keys is not None:  # nobody would let parked rows go any more
                self.ready.realign(np.array(keys.parked(), np.int64))
        elif keys is None:
            self.states.keys = KeyOrder(rules.key_run, self.states.pages.held())
        else:
            keys.run = rules.key_run

    def use_lanes(self, policy: Policy, wall_ns: int) -> None:
        """Deal ready rows as a policy says from now on."""
        self.position.judged_to = 0
        self.position.joined_below = LANES_ROWS if policy.many else FEW_ROWS
        self.ready.use(policy)
        self.states.keeps_due = policy.by_due
        self.states.grain_ns = FINE_GRAIN_NS if policy.by_due else GRAIN_NS
        self.states.agenda.set_lead(policy.lead_ns, wall_ns)

    # --- keys that moved ------------------------------------------------------------------------------------------

    def use_moves(self, holds: Callable[[bytes, int], bool] | None, touched: Callable[[bytes], None] | None) -> None:
        """Ask from now on whether a row waits for others of its key in another shard, and tell what they may wait for.

        Rows of all keys are taken note of then, as soon as they are read.
        """
        keys = self.states.keys
        if keys is not None:
            keys.holds, keys.touched = holds, touched
            if holds is not None:
                keys.unknown = self.states.pages.held()

    def free(self, key: bytes | None) -> bool:
        """Queue rows of a key, or of all keys, that wait for nothing elsewhere any more; tell whether there are any."""
        freed = self.states.keys.free(key) if self.states.keys is not None else []
        if freed:
            self.ready.queue(np.array(sorted(freed), np.int64))
        return bool(freed)

    def has_out(self, key: bytes) -> bool:
        """Tell whether a row of a key is out."""
        return self.states.keys is not None and self.states.keys.has_out(key)

    def has_below(self, key: bytes, offset: int) -> bool:
        """Tell whether a row of a key below an offset was read and is not done."""
        return self.states.keys is not None and self.states.keys.has_below(key, offset)

    def knows_below(self, offset: int) -> bool:
        """Tell whether every row below an offset was read, and its key taken note of."""
        keys = self.states.keys
        return self.position.is_past(offset) and (keys is None or self._learn(keys))

    def is_done_below(self, offset: int) -> bool:
        """Tell whether every row below an offset is done."""
        return self.position.is_past(offset) and self.floor >= min(offset, self.position.offset)

    def pass_waiting(self, due: tuple[Offsets, Offsets], wall_ns: int) -> None:
        """Pass the next rows that all wait for their time, without reading them."""
        position = self.position
        if self.rules.test is not None or position.skips.firsts:
            return
        ahead = int(np.searchsorted(due[0], position.offset))
        offsets = due[0][ahead : int(np.searchsorted(due[0], position.end()))]
        in_a_row = int((offsets == position.offset + np.arange(len(offsets))).sum())
        if in_a_row:
            self.states.wait(offsets[:in_a_row], due[1][ahead : ahead + in_a_row], wall_ns)
            position.offset += in_a_row
            position.passed += in_a_row

    # --- handing out ----------------------------------------------------------------------------------------------

    def more(self) -> bool:
        """Tell whether a look for rows may find some."""
        only = self.ready.only
        return bool(only.again or only.fresh or (self.ready.many and self.ready)) or self.position.ahead()

    def lease_tip(self, batch: Batch, limit: int, holder: int, deadline_ns: int, now_ns: int) -> bool:
        """Lease a batch that was just stored, whole, if it is all there is to hand out and nothing asks for a look."""
        count = batch.count
        position, ready = self.position, self.ready
        if (
            position.offset != batch.first
            or count > limit
            or position.gate is not None
            or ready.many
            or ready.only.again
            or ready.only.fresh
            or self._looks
            or position.skips.firsts
            or (batch.columns and self.rules.concerns(batch))
            or len(batch.body) > TAKE_BYTES_MAX
        ):
            return False
        self.states.lease_fresh(batch.first, count, holder, deadline_ns, now_ns)
        position.offset += count
        position.passed += count
        return True

    def take(self, limit: int, taker: Taker, lease_ns: int, now: Instant, rank: int = 0) -> list[Delivery]:
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
        bytes_max = NO_LIMIT if taker.owner is None else LOOK_BYTES_MAX
        if taker.owner is None and self.ready.many and not self.ready.policy.by_due:
            bytes_max = TAKE_BYTES_MAX
        key_holder = holder if self.states.keys is None else taker.key_holder
        deadline_ns = deadline_after(now.monotonic_ns, lease_ns, self.states.grain_ns)
        portion = Portion(self, limit, holder, key_holder, deadline_ns, now, bytes_max)
        try:
            if self.ready.many:
                portion.fill_from_lanes(taker, rank)
            else:
                portion.fill_from_line()
            if portion.out and holder in self.states.names:
                self.states.named.note(portion.out, holder, now)
                self.flush(now)
        except Exception:
            portion.take_back()
            raise
        return portion.out

    def _is_settled(self) -> bool:
        """Tell whether rows may be taken: where order is kept, all that may have to go first must be known."""
        keys = self.states.keys
        if keys is not None and len(keys.unknown) and not self._learn(keys):
            return False
        if not self.ready.unsorted or not (self.rules.ordered or keys is not None):
            return True
        for _ in range(LOOKS_MAX):
            if not self.ready.unsorted:
                return True
            if not self._sort_piece():
                return False
        self.wake()
        return False

    def _one_is_out(self) -> bool:
        """Tell whether a row of the shard is out, or was and will come back."""
        states = self.states
        return bool(states.leased or states.moving or states.returning)

    def sort_ahead(self, now: Instant) -> bool:
        """Put one more piece of what is ready into lanes, or pass one more batch; False if there is nothing to do."""
        if self.ready.unsorted:
            return self._sort_piece()
        position = self.position
        if not position.ahead():
            return False
        if position.skips.firsts and position.pass_skipped():
            return True
        end = position.end()
        batch = position.batch_at(position.offset)
        if batch is None:
            return False
        if batch.first > position.offset:
            position.pass_hole(min(batch.first, end))
        else:
            self.judge(batch, position.offset - batch.first, min(batch.count, end - batch.first), now)
        return True

    def _sort_piece(self) -> bool:
        """Find the lanes of rows that became ready before anybody asked for lanes."""
        live = self.ready.next_unsorted()
        if len(live) == 0:
            return True
        batch = self.position.batch_at(int(live[0]))
        if batch is None:
            return False
        rows = self.ready.sort(live, batch)
        if self.states.keys is not None and len(rows):
            self.states.keys.note_rows(batch, rows)
        return True

    def _learn(self, keys: KeyOrder) -> bool:
        """Tell the order of rows that were held before it was asked for; False if that takes longer than this turn."""
        for _ in range(LOOKS_MAX):
            if len(keys.unknown) == 0:
                return True
            batch = self.position.batch_at(int(keys.unknown[0]))
            if batch is None:
                return False
            keys.learn(batch, self.states.pages)
        self.wake()
        return False

    # --- from the log ---------------------------------------------------------------------------------------------

    def judge(self, batch: Batch, row: int, stop: int, now: Instant) -> None:
        """Apply the rules to the rest of a batch; it is passed unless all of it may go out as it is."""
        position, states = self.position, self.states
        sifted = self.rules.sift(batch, row, stop, now.wall_ns)
        if position.skips.firsts:
            sifted = position.without_skips(sifted, batch.first + row, batch.first + stop)
        ready = sifted.ready
        if len(ready) == stop - row and not self.ready.many and states.keys is None:
            position.judged_to = batch.first + stop
            position.judged_ns = now.wall_ns
            return
        position.passed += stop - row
        position.offset = batch.first + stop
        for op, offsets in ((FILTERED, sifted.filtered), (EXPIRED, sifted.expired)):
            if len(offsets):
                states.finish(op, offsets)
        if len(sifted.waiting):
            states.wait(sifted.waiting, sifted.waiting_due_ns, now.wall_ns)
            if states.agenda.lead_ns:
                states.pop_due(now.wall_ns)
        if len(ready):
            states.hold_ready(ready, *self.ready.add(batch, ready))
            keys = states.keys
            if keys is not None and (self.ready.many or keys.holds is not None):
                keys.note_rows(batch, ready)

    def look_at(self, batch: Batch, now: Instant) -> None:
        """Pass a batch that was just stored and brings due times: its rows wait here, not in the log."""
        if self.ready.unsorted:
            return  # rows before it come first
        position = self.position
        if position.offset == batch.first and batch.end <= position.end() and position.judged_to <= batch.first:
            self.judge(batch, 0, batch.count, now)

    def _drop_unreadable(self, offset: int) -> bool:
        """Finish queued rows from an offset on, where nothing can be read any more: they would hold up the others."""
        dropped = False
        keys = self.states.keys
        if keys is not None:
            known = keys.unknown < offset
            dropped = not known.all()
            keys.unknown = keys.unknown[known]

        def keep(piece: Offsets) -> Offsets:
            kept = piece[piece < offset]
            self.states.finish_ready(REMOVED, piece[len(kept) :])
            return kept

        return self.ready.drop(keep) or dropped

    # --- passing without a lease ----------------------------------------------------------------------------------

    def unfinished(self, offsets: Offsets) -> Offsets:
        """Return those of ascending offsets whose rows are there and not finished."""
        at = self.position.offset
        seen = offsets[offsets < at]
        seen = seen[self.states.pages.details(seen)[0] != DONE]
        return np.concatenate((seen, self.position.stored(offsets[offsets >= at])))

    def remove(self, offsets: Offsets) -> dict[int, int]:
        """Finish rows whatever their state; return how many each holder had out."""
        at = self.position.offset
        lost = self.states.drop(offsets[offsets < at], REMOVED)
        ahead = offsets[offsets >= at]
        if len(ahead):
            for _, first, last, _, _ in records.finished(SKIPPED, ahead):
                self.position.skip(first, last + 1)
        return lost

    def adopt(self, wanted: npt.NDArray[np.bool_], attempts: Offsets) -> None:
        """Pass the next rows as another broker left them: some are done, the others ready after so many attempts."""
        position = self.position
        offsets = position.offset + np.arange(len(wanted))
        rows, tries = offsets[wanted], attempts[wanted]
        position.offset += len(wanted)
        position.passed += len(wanted)
        if len(rows) < len(wanted):
            self.states.finish(REMOVED, offsets[~wanted])
        if len(rows):
            self.states.pages.hold(rows, READY, tries)
            self.states.ready += len(rows)
            self.ready.queue(rows)
            tried = tries > 0
            nothing = np.zeros(int(tried.sum()), np.int64)
            self.states.journal.released(rows[tried], tries[tried], nothing, nothing)

    def finish_below(self, offset: int, op: int) -> dict[int, int]:
        """Finish every row below an offset for one reason; return how many each holder had out."""
        lost = self.states.drop(self.states.pages.held(below=offset), op)
        if offset > self.position.offset:
            self.position.pass_to(offset, op)
            self.position.pass_skipped()
        self.ready.drop(lambda piece: piece if int(piece[-1]) >= offset else _NONE)
        return lost

    def seek(self, offset: int) -> None:
        """Begin anew at an offset: everything out is forgotten, counts start at zero."""
        self.states.tell_ended("removed", named=True)
        self.states.clear()
        self.ready.clear()
        self.position.begin(offset)
        self.use_rules(self.rules)
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
        return recovery.snapshot(self.states, self.position.offset, self.position.skips.ranges(), now)

    def close(self, *, forget: bool, now: Instant) -> None:
        """Write down the rest, or drop the state for good."""
        self.states.tell_ended("removed" if forget else "stopped", named=forget)
        if forget:
            self.source.last_version = max(self.source.last_version, self.states.pages.numbering.last)
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
        return self.position.offset if first is None else first

    def depth(self) -> int:
        """Return the rows that could be handed out now if there were credit."""
        return self.states.ready + self.position.unread_rows()


def by_shard(cursors: Sequence[Cursor], ids: Offsets, refused: list[int]) -> Iterator[tuple[Cursor, Offsets]]:
    """Yield each shard's cursor with ascending, distinct offsets; what cannot be is added to `refused`."""
    places = ids - 1
    if len(places) > 1 and not bool((places[1:] > places[:-1]).all()):
        places, first = np.unique(places, return_index=True)
        if len(places) < len(ids):
            refused += np.delete(ids, first).tolist()
    if len(cursors) == 1 and len(places) and places[0] >= 0 and places[-1] <= _OFFSET_MASK:
        yield cursors[0], places
        return
    shards = places >> OFFSET_BITS
    for shard in np.unique(shards).tolist():
        part = places[shards == shard]
        if 0 <= shard < len(cursors):
            yield cursors[shard], part & _OFFSET_MASK
        else:
            refused += (part + 1).tolist()
