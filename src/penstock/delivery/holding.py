"""What a subscription was handed of a shard and has not finished: every move between ready, leased, waiting and done.

`Pages` holds the arrays, `Leases` the deadlines, `Calendar` the waiting rows; ready rows stand in queues, by tag where
somebody asks for tags. What happens is noted and written to the journal in one frame. Knows nothing of the log but
offsets, and no clock: times are passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from penstock.delivery import journal as records
from penstock.delivery.consumer import SESSION
from penstock.delivery.due import Calendar
from penstock.delivery.journal import ACKED, DEAD, DISCARDED, FILTERED, HELD, HOLE, NAMES, RELEASED, SKIPPED
from penstock.delivery.lease import GRAIN_NS, Leases
from penstock.delivery.moment import Now
from penstock.delivery.order import KeyOrder
from penstock.delivery.outlets import Outlets
from penstock.delivery.pages import DONE, LEASED, MOVING, READY, WAITING, Page, Pages
from penstock.delivery.skips import Skips
from penstock.delivery.source import Delivery, Entry, JournalFile
from penstock.delivery.witness import Witness
from penstock.message import SMALL, Offsets

_NONE = np.empty(0, np.int64)

#: Dead letters are tried again after this long when their topic refuses them.
DEAD_RETRY_NS = 1_000_000_000


class Holding:
    """Rows of one shard that are one subscription's to deliver, and their states."""

    def __init__(self, journal: JournalFile) -> None:
        #: Tells up to which wall-clock time the topic took published rows for due: it will not announce these again.
        self.due_seen_ns: Callable[[], int] = _never
        #: Rows at or above it were never handed out.
        self.cursor = 0
        self.counts = dict.fromkeys(records.FINISHED, 0)
        self.ready = self.leased = self.waiting = self.moving = 0
        #: Waiting rows that were out before: where order is kept, what came after them must wait as well.
        self.returning = 0
        #: Told what becomes of rows, where somebody keeps a history.
        self.witness: Witness | None = None
        self._journal = journal
        self._forget()

    def _forget(self) -> None:
        """Begin with nothing held."""
        self._pages = Pages()
        self._leases = Leases(self._pages)
        self._calendar: Calendar | None = None
        #: Rows to be handed out again, and rows that passed the rules and wait for credit; pieces ascend.
        self._again: deque[Offsets] = deque()
        self._fresh: deque[Offsets] = deque()
        #: The same by tag, while somebody in the subscription asks for one; the two above are then empty.
        self.outlets: Outlets | None = None
        #: Which keys are out, where the subscription keeps order by key.
        self.keys: KeyOrder | None = None
        #: Rows taken back from each holder because an earlier one of their key came back.
        self.revoked: dict[int, int] = {}
        #: Rows above the cursor that were removed before it came there.
        self._skips = Skips()
        self._acked: list[int | Offsets] = []
        self._kept: list[Entry] = []
        self._finished: list[Entry] = []
        #: Entries written since the last snapshot.
        self._written = 0

    # --- what others ask ------------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Rows handed out or ready and not finished."""
        return self.ready + self.leased + self.waiting + self.moving

    def held_between(self, first: int, end: int) -> Offsets:
        """Return the rows of a range of offsets that were passed and are not finished."""
        return self._pages.between(first, end) if self.held and first < end else _NONE

    def _make_ready(self, offsets: Offsets) -> None:
        """Queue rows that are READY and go out again."""
        if self.outlets is None:
            self._again.append(offsets)
        else:
            self.outlets.put(offsets, self._pages.tags(offsets), again=True)

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
        if self.keys is not None:
            self._free([offset])
        if self.witness is not None:
            self.witness.acked_one(offset)
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
            self._free(offsets.tolist())
            if self.witness is not None:
                self.witness.acked(offsets)
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
            if self.witness is not None:
                self.witness.returned("released", mine, self.attempts(mine))
            self._back(mine, due_ns if due_ns > now.wall_ns else 0, now)
        return offsets[~good]

    def leave(self, holder: int, now: Now) -> int:
        """Give back everything a holder has; return how much that was."""
        mine = self._leases.of(holder)
        if len(mine):
            self._leases.less(holder, len(mine))
            self.leased -= len(mine)
            if self.witness is not None:
                self.witness.returned("released", mine, self.attempts(mine), "left")
            self._back(mine, 0, now)
        return len(mine)

    def expire(self, now: Now) -> list[tuple[int, int]]:
        """Give back what was held too long; return (holder, rows) of each."""
        ended = []
        for holder, rows in self._leases.expire(now.monotonic_ns):
            if self.keys is not None:  # a row that ended before may have revoked some of these
                rows = rows[self._pages.leased(rows, holder)]
            self._leases.less(holder, len(rows))
            self.leased -= len(rows)
            if self.witness is not None and len(rows):
                self.witness.returned("expired", rows, self.attempts(rows))
            self._back(rows, 0, now)
            ended.append((holder, len(rows)))
        return ended

    def _free(self, offsets: list[int]) -> None:
        """Let rows go that waited for others of their key."""
        if self.keys is not None:
            freed = self.keys.finished(offsets)
            if freed:
                self._make_ready(np.array(sorted(freed), np.int64))

    def _revoke(self, offsets: Offsets, *, delayed: bool) -> Offsets:
        """Take back later rows of keys whose earlier rows come back; return which of those may be queued now."""
        if self.keys is None:
            return offsets
        queue, revoked = self.keys.came_back(offsets.tolist(), delayed=delayed)
        if revoked:
            rows = np.array(sorted(revoked), np.int64)
            _, attempts, _, holders = self._pages.details(rows)
            if self.witness is not None:
                self.witness.returned("released", rows, self.attempts(rows), "order")
            for holder in np.unique(holders).tolist():
                count = int((holders == holder).sum())
                self._leases.less(holder, count)
                self.revoked[holder] = self.revoked.get(holder, 0) + count
            self._pages.move(rows, READY)
            self._kept += records.pending(RELEASED, rows, attempts, np.zeros(len(rows), np.int64))
            self.leased -= len(rows)
            self.ready += len(rows)
        return np.array(sorted(queue), np.int64)

    def _back(self, offsets: Offsets, due_ns: int, now: Now) -> None:
        queue = self._revoke(offsets, delayed=due_ns > 0)
        attempts = self._pages.attempts(offsets).astype(np.int64)
        self._kept += records.pending(RELEASED, offsets, attempts, np.full(len(offsets), due_ns))
        if due_ns:
            self._pages.move(offsets, WAITING, due_ns)
            self._due(now.wall_ns).put(np.full(len(offsets), due_ns), offsets)
            self.waiting += len(offsets)
            self.returning += len(offsets)
        else:
            self._pages.move(offsets, READY)
            self.ready += len(offsets)
            if len(queue):
                self._make_ready(queue)

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
            if self.returning:
                self.returning -= int((self._pages.attempts(offsets) > 0).sum())
            self._pages.move(offsets, READY)
            self.waiting -= len(offsets)
            self.ready += len(offsets)
            self._make_ready(offsets)

    def next_due_ns(self) -> int | None:
        """Return the wall-clock time at which `pop_due` has something to do."""
        return self._calendar.next_ns() if self._calendar is not None and len(self._calendar) else None

    # --- finishing without a lease --------------------------------------------------------------------------------

    def bury(self, offsets: Offsets) -> None:
        """Finish rows that are safe in the dead-letter topic."""
        offsets = self._still_moving(offsets)
        if len(offsets):
            if self.witness is not None:
                self.witness.returned("dead", offsets, self.attempts(offsets), "attempts")
            self._pages.finish(offsets)
            self.moving -= len(offsets)
            self._finish(DEAD, offsets, counted=True)

    def unbury(self, offsets: Offsets, now: Now) -> None:
        """Take back rows that the dead-letter topic refused; they are tried again a little later."""
        offsets = self._still_moving(offsets)
        if len(offsets):
            self.moving -= len(offsets)
            self._back(offsets, now.wall_ns + DEAD_RETRY_NS, now)

    def _still_moving(self, offsets: Offsets) -> Offsets:
        """Return the rows that nobody finished while they were on their way to the dead-letter topic."""
        moving: Offsets = offsets[self._pages.details(offsets)[0] == MOVING]
        return moving

    def _drop(self, offsets: Offsets, op: int) -> dict[int, int]:
        lost: dict[int, int] = {}
        state, attempts, _, holders = self._pages.details(offsets)
        offsets, attempts, holders = offsets[state != DONE], attempts[state != DONE], holders[state != DONE]
        state = state[state != DONE]
        if len(offsets) == 0:
            return lost
        owners, counts = np.unique(holders[state == LEASED], return_counts=True)
        for holder, count in zip(owners.tolist(), counts.tolist(), strict=True):
            lost[holder] = count
            self._leases.less(holder, count)
        if self.witness is not None and lost:
            out = offsets[state == LEASED]
            if op == ACKED:
                self.witness.acked(out)
            else:
                self.witness.returned("released", out, self.attempts(out), "removed")
        self._pages.finish(offsets)
        self.ready -= int((state == READY).sum())
        self.leased -= int((state == LEASED).sum())
        self.waiting -= int((state == WAITING).sum())
        self.returning -= int(((state == WAITING) & (attempts > 0)).sum())
        self.moving -= int((state == MOVING).sum())
        self._finish(op, offsets, counted=True)
        return lost

    def _tell_ended(self, reason: str, *, sessions: bool) -> None:
        """Tell the witness that what consumers hold is theirs no more; what sessions hold may stay."""
        if self.witness is None or not self.leased:
            return
        for holder in self._leases.holders():
            if sessions or holder != SESSION:
                rows = self._leases.of(holder)
                self.witness.returned("released", rows, self.attempts(rows), reason)

    # --- the journal ----------------------------------------------------------------------------------------------

    def _finish(self, op: int, offsets: Offsets, *, counted: bool) -> None:
        self._finished += records.finished(op, offsets)
        if counted:
            self.counts[op] += len(offsets)
            if self.witness is not None and op in DISCARDED:
                self.witness.discarded(NAMES[op], len(offsets))
        if self.keys is not None:
            self._free(offsets.tolist())

    @property
    def dirty(self) -> bool:
        """Whether there is something to write down."""
        return bool(self._acked or self._kept or self._finished)

    def flush(self, now: Now) -> None:
        """Write down what happened since the last time, in one frame."""
        entries: list[Entry] | npt.NDArray[np.int64]
        entries = [*self._kept]
        apart = None
        if self._acked:
            single = [offset for offset in self._acked if isinstance(offset, int)]
            parts = [part for part in self._acked if not isinstance(part, int)]
            if single:
                parts.append(np.array(single, np.int64))
            acked = parts[0] if len(parts) == 1 else np.concatenate(parts)
            first, last = records.ranges(np.sort(acked))
            if len(first) > SMALL:  # who deals by tags finishes rows far and wide
                apart = records.table(ACKED, first, last, last - first + 1)
            else:
                entries += records.finished_ranges(ACKED, first, last)
        entries += self._finished
        if apart is not None:
            entries = np.concatenate([np.array(entries, np.int64).reshape(-1, 5), apart])
        if len(entries):
            self._journal.append(entries)
            self._kept, self._acked, self._finished = [], [], []  # not before: it may have failed
            self._written += len(entries)
            # A snapshot looks at every row that is held, so it must pay for itself.
            if self._journal.bloated and self._written > self.held >> 3:
                self._written = 0
                self._journal.compact(self._snapshot(now))

    def close(self, *, forget: bool, now: Now) -> None:
        """Write down the rest, or drop the state for good."""
        self._tell_ended("removed" if forget else "stopped", sessions=forget)
        if forget:
            self._journal.remove()
        else:
            self.flush(now)
            self._journal.close(lambda: self._snapshot(now))

    def heal(self, now: Now) -> None:
        """Write everything anew if a sync of the journal failed: what is there may be lost."""
        if self._journal.needs_snapshot:
            self.flush(now)
            self._journal.compact(self._snapshot(now))

    def _snapshot(self, now: Now) -> npt.NDArray[np.int64]:
        """Return the entries that say everything anew, page by page: 5 million held rows take some 20 ms."""
        kept: list[Entry] = []
        gaps: list[Entry] = []
        between: list[npt.NDArray[np.int64]] = []
        floor = last = None
        for first, page, rows in self._pages.walk():
            offsets = first + rows
            if last is None:
                floor = int(offsets[0])
            elif offsets[0] > last + 1:
                gaps.append((HOLE, last + 1, int(offsets[0]) - 1, 0, 0))
            cuts = np.flatnonzero(np.diff(rows) > 1)
            # The rows between two unfinished ones are finished; why is in the counts.
            between.append(records.table(HOLE, offsets[cuts] + 1, offsets[cuts + 1] - 1, 0))
            last = int(offsets[-1])
            kept += self._kept_of(page, rows, offsets, now)
        if last is not None and last + 1 < self.cursor:
            gaps.append((HOLE, last + 1, self.cursor - 1, 0, 0))
        gaps += [(SKIPPED, first, end - 1, 0, 0) for first, end in self._skips.ranges()]
        return records.snapshot(self.cursor if floor is None else floor, self.counts, gaps, kept, between)

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


def _never() -> int:
    return 0
