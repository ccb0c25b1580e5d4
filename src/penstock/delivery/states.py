"""Row states: what a subscription was handed of a shard and has not finished, and every move between ready, leased,
waiting and done.

`Pages` holds the arrays, `Leases` the deadlines, `Agenda` the waiting rows, `KeyOrder` which keys are out, `Returns`
the way back. What happens is noted for the journal. Knows nothing of the log but offsets, and no clock: times are
passed in. Rows that become ready go to `queue`, which puts them into their lanes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from penstock.columns import Offsets
from penstock.delivery import journal as records
from penstock.delivery.agenda import Agenda
from penstock.delivery.durations import BOUNDS_NS, FIRST_NS, Durations
from penstock.delivery.instant import Instant
from penstock.delivery.journal import ACKED, DEAD, DISCARDED, FILTERED, NAMES, JournalWriter
from penstock.delivery.keys import KeyOrder
from penstock.delivery.leases import GRAIN_NS, Leases
from penstock.delivery.named import NamedLeases
from penstock.delivery.page import BEGAN_BITS, DONE, LEASED, MOVING, READY, WAITING, Slots, since_all_ns, since_ns
from penstock.delivery.pages import Pages
from penstock.delivery.recorder import Recorder
from penstock.delivery.returns import Returns
from penstock.delivery.source import JournalFile

_NONE = np.empty(0, np.int64)

#: Dead letters are tried again after this long when their topic refuses them.
DEAD_RETRY_NS = 1_000_000_000


class RowStates:
    """Rows of one shard that are one subscription's to deliver, and their states."""

    def __init__(
        self,
        pages: Pages,
        journal: JournalFile,
        names: Mapping[int, str],
        queue: Callable[[Offsets], None],
        due_seen_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        self.pages = pages
        self._few = pages.few
        self.journal = JournalWriter(journal)
        #: The holders that outlive connections: their leases are written down before anybody hears of them.
        self.names = names
        self._queue = queue
        #: The leases of these.
        self.named = NamedLeases(pages, self.journal, names)
        #: When waiting rows are looked for.
        self.agenda = Agenda(pages, due_seen_ns)
        #: Told what becomes of rows, where somebody keeps a history.
        self.recorder: Recorder | None = None
        #: How long rows were out that were acked; the subscription's, over all its shards.
        self.leased_for = Durations()
        #: It is kept with a ready row since when it is.
        self.keeps_due = False
        #: Leases end at multiples of this.
        self.grain_ns = GRAIN_NS
        #: How rows come back that were out.
        self.returns = Returns(self, queue)
        self.clear()

    def clear(self) -> None:
        """Begin with nothing held."""
        self.pages.clear()
        self.leases = Leases(self.pages)
        self.agenda.clear()
        self.counts = dict.fromkeys(records.FINISHED, 0)
        self.ready = self.leased = self.waiting = self.moving = 0
        #: Waiting rows that were out before: where order is kept, what came after them must wait as well.
        self.returning = 0
        #: Which keys are out, where the subscription keeps order by key.
        self.keys: KeyOrder | None = None
        self.returns.revoked = {}
        if self.names:
            self.pages.keep_versions()

    # --- what others ask ------------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Rows handed out or ready and not finished."""
        return self.ready + self.leased + self.waiting + self.moving

    def held_between(self, first: int, end: int) -> Offsets:
        """Return the rows of a range of offsets that were passed and are not finished."""
        return self.pages.between(first, end) if self.held and first < end else _NONE

    # --- going out ------------------------------------------------------------------------------------------------

    def hold_ready(self, offsets: Offsets, slots: Slots | None = None, due_ns: int | Offsets = 0) -> None:
        """Take in rows that may go out and were never out before."""
        self.pages.hold(offsets, READY, due_ns=due_ns, slots=slots)
        self.ready += len(offsets)

    def lease_fresh(self, first: int, count: int, holder: int, deadline_ns: int, now_ns: int) -> None:
        """Lease rows that were never seen."""
        self.pages.lease_fresh(first, count, holder, deadline_ns, now_ns)
        self.leases.add_range(holder, first, count, deadline_ns)
        self.leased += count

    def lease_first(self, offsets: Offsets, holder: int, deadline_ns: int, now_ns: int) -> bool:
        """Lease ascending rows if all are ready and none was ever leased; False changes nothing."""
        if not self.pages.lease_first(offsets, holder, deadline_ns, now_ns):
            return False
        self.leases.add(holder, offsets, deadline_ns)
        self.ready -= len(offsets)
        self.leased += len(offsets)
        return True

    def lease(self, offsets: Offsets, holder: int, deadline_ns: int, now_ns: int) -> npt.NDArray[np.uint16]:
        """Lease ready rows and return which attempt this is for each."""
        attempts = self.pages.lease(offsets, holder, deadline_ns, now_ns)
        self.leases.add(holder, offsets, deadline_ns)
        self.ready -= len(offsets)
        self.leased += len(offsets)
        return attempts

    def lease_ahead(self, offsets: Offsets, holder: int, deadline_ns: int, now: Instant) -> npt.NDArray[np.uint16]:
        """Lease ready rows of which some are not due yet: their leases are as long, from then on."""
        # What came back is ready since a time that may be to come once more: the clock was set back.
        ahead_ns = np.clip(self.pages.details(offsets)[2] - now.wall_ns, 0, self.agenda.lead_ns)
        ends_ns = deadline_ns + ahead_ns
        attempts = self.pages.lease(offsets, holder, deadline_ns, now.monotonic_ns)
        self.pages.move(offsets, LEASED, ends_ns)
        for end_ns in np.unique(ends_ns).tolist():
            self.leases.add(holder, offsets[ends_ns == end_ns], end_ns)
        self.ready -= len(offsets)
        self.leased += len(offsets)
        return attempts

    def wait(self, offsets: Offsets, due_ns: Offsets, wall_ns: int) -> None:
        """Let rows wait that were never handed out; the topic announces them, unless the clock was set back since."""
        self.pages.hold(offsets, WAITING, 0, due_ns)
        self.waiting += len(offsets)
        self.agenda.put_published(offsets, due_ns, wall_ns)

    def dying(self, offsets: Offsets, attempts_max: int) -> Offsets:
        """Return those of the ready rows that failed too often, now on their way to the dead-letter topic."""
        dead: Offsets = offsets[self.pages.attempts(offsets) >= attempts_max]
        if len(dead):
            self.pages.move(dead, MOVING)
            self.ready -= len(dead)
            self.moving += len(dead)
        return dead

    # --- being done, and lasting longer -----------------------------------------------------------------------------

    def ack_one(self, offset: int, holder: int, now_ns: int) -> bool:
        """Finish one row; False if this holder does not have it."""
        began = self._few.finish_one(offset, holder)
        if began is None:
            return False
        if began:
            time_ns = (now_ns >> BEGAN_BITS) - began << BEGAN_BITS
            if time_ns < 0:
                time_ns = since_ns(began, now_ns)
            # As `Durations.add`, without a call for every message.
            durations = self.leased_for
            durations.counts[bisect_left(BOUNDS_NS, time_ns) if time_ns > FIRST_NS else 0] += 1
            durations.sum_ns += time_ns
        self.leases.less(holder, 1)
        self.journal.acked(offset)
        self.counts[ACKED] += 1
        self.leased -= 1
        if self.keys is not None:
            self._free([offset])
        if self.recorder is not None:
            self.recorder.acked_one(offset)
        return True

    def ack_few(self, offsets: list[int], holder: int, now_ns: int, versions: list[int] | None = None) -> list[int]:
        """Finish a few rows, as `ack` would; return those that this holder does not have."""
        began = self._few.finish_few(offsets, holder, versions)
        refused: list[int] = []
        if None in began:
            refused = [offset for offset, when in zip(offsets, began, strict=True) if when is None]
            offsets = [offset for offset, when in zip(offsets, began, strict=True) if when is not None]
        count = len(offsets)
        if count:
            if began[0] and began.count(began[0]) == len(began):  # they went out together
                self.leased_for.add(since_ns(began[0], now_ns), count)
            else:
                for when in began:
                    if when:
                        self.leased_for.add(since_ns(when, now_ns))
            self.leases.less(holder, count)
            self.journal.acked_few(offsets)
            self.counts[ACKED] += count
            self.leased -= count
            if self.keys is not None:
                self._free(offsets)
            if self.recorder is not None:
                self.recorder.acked_few(offsets)
        return refused

    def ack(self, offsets: Offsets, holder: int, now_ns: int) -> Offsets:
        """Finish rows, given ascending and distinct; return those that this holder does not have."""
        began = self.pages.began(offsets)
        good = self.pages.finish_held(offsets, holder)
        refused = _NONE
        if good is not None:
            refused, offsets, began = offsets[~good], offsets[good], began[good]
        if len(offsets):
            self._count_times(began, now_ns)
            self.leases.less(holder, len(offsets))
            self.journal.acked(offsets)
            self.counts[ACKED] += len(offsets)
            self.leased -= len(offsets)
            if self.keys is not None:
                self._free(offsets.tolist())
            if self.recorder is not None:
                self.recorder.acked(offsets)
        return refused

    def _count_times(self, began: npt.NDArray[np.uint32], now_ns: int) -> None:
        least = int(began.min())
        if least == int(began.max()):  # they went out together, as most do that come back together
            if least:
                self.leased_for.add(since_ns(least, now_ns), len(began))
        else:
            self.leased_for.add_all(since_all_ns(began[began > 0], now_ns))

    def refuse(self, offsets: Offsets, holder: int) -> None:
        """Finish rows that the seat they were just leased to does not want."""
        self.pages.finish(offsets)
        self.leases.less(holder, len(offsets))
        self.leased -= len(offsets)
        self.finish(FILTERED, offsets)

    def extend(
        self,
        offsets: Offsets,
        holder: int,
        lease_ns: int,
        lease_max_ns: int,
        now: Instant,
        *,
        begun_ns: int,
        renew: bool,
    ) -> Offsets:
        """Let leases last `lease_ns` from now; return the rows the holder does not have.

        A connection leases for `begun_ns` at first. `renew` gives new versions.
        """
        good = self.pages.leased(offsets, holder)
        mine = offsets[good]
        if len(mine):
            name = self.names.get(holder)
            # How long a named holder asked for at first is not known.
            begun = None if name is not None else begun_ns
            if renew:
                self.pages.next_versions(mine)
            deadlines = self.pages.extend(mine, now.monotonic_ns, lease_ns, lease_max_ns, self.grain_ns, begun)
            for deadline_ns in np.unique(deadlines).tolist():
                part = mine[deadlines == deadline_ns]
                self.leases.add(holder, part, deadline_ns, again=True)
                if name is not None:
                    self.named.note_rows(holder, part, deadline_ns, now)
        return offsets[~good]

    def _free(self, offsets: list[int]) -> None:
        """Let rows go that waited for others of their key."""
        freed = self.keys.finished(offsets) if self.keys is not None else None
        if freed:
            self._queue(np.array(sorted(freed), np.int64))

    # --- waiting --------------------------------------------------------------------------------------------------

    def pop_due(self, wall_ns: int) -> None:
        """Make rows ready whose time has come, as far as the topic does not announce them."""
        offsets = self.agenda.pop(wall_ns)
        if len(offsets) > 1:  # one that was announced twice stands there twice
            offsets = np.unique(offsets)
        self.arrive(offsets, wall_ns + self.agenda.lead_ns)

    def announced(self, offsets: Offsets, until_ns: int, wall_ns: int) -> None:
        """Make rows ready that the topic announces, which are due by a time; look later for those it is too early for.

        It announces them as long ahead as one of its subscriptions wants, and never again.
        """
        ready_ns = wall_ns + self.agenda.lead_ns
        self.arrive(offsets, ready_ns)
        if until_ns > ready_ns and self.waiting:
            offsets = np.sort(offsets)
            state, attempts, due_ns, _ = self.pages.details(offsets)
            early = (state == WAITING) & (attempts == 0) & (due_ns > ready_ns) & (due_ns <= until_ns)
            if early.any():
                self.agenda.put(offsets[early], due_ns[early], wall_ns)

    def arrive(self, offsets: Offsets, wall_ns: int) -> None:
        """Make rows ready whose time has come, as far as they are waiting here."""
        if len(offsets) == 0 or self.waiting == 0:
            return
        if not (offsets[1:] > offsets[:-1]).all():
            offsets = np.sort(offsets)
        # A row that was due, went out and was released waits for its later time, also when the clock was set back.
        keeps_due = self.keeps_due or self.agenda.lead_ns > 0
        offsets = self.pages.arrive(offsets, wall_ns, keeps_due=keeps_due)
        if len(offsets):
            if self.returning:
                self.returning -= int((self.pages.attempts(offsets) > 0).sum())
            self.agenda.note_ahead(offsets, wall_ns)
            self.ready, self.waiting = self.ready + len(offsets), self.waiting - len(offsets)
            self._queue(offsets)

    def wait_again(self, offsets: Offsets, due_ns: Offsets, wall_ns: int) -> None:
        """Let ready rows wait that were never handed out: the clock was set back behind the time they are due."""
        self.pages.move(offsets, WAITING, due_ns)
        self.ready, self.waiting = self.ready - len(offsets), self.waiting + len(offsets)
        self.agenda.put(offsets, due_ns, wall_ns)

    # --- finishing without a lease --------------------------------------------------------------------------------

    def bury(self, offsets: Offsets) -> None:
        """Finish rows that are safe in the dead-letter topic."""
        offsets = self._still_moving(offsets)
        if len(offsets):
            if self.recorder is not None:
                self.recorder.returned("dead", offsets, self.pages.attempts(offsets), "attempts")
            self.pages.finish(offsets)
            self.moving -= len(offsets)
            self.finish(DEAD, offsets)

    def unbury(self, offsets: Offsets, now: Instant) -> None:
        """Take back rows that the dead-letter topic refused; they are tried again a little later."""
        offsets = self._still_moving(offsets)
        if len(offsets):
            self.moving -= len(offsets)
            self.returns.back(offsets, now.wall_ns + DEAD_RETRY_NS, now)

    def _still_moving(self, offsets: Offsets) -> Offsets:
        """Return the rows that nobody finished while they were on their way to the dead-letter topic."""
        moving: Offsets = offsets[self.pages.details(offsets)[0] == MOVING]
        return moving

    def finish_ready(self, op: int, offsets: Offsets) -> None:
        """Finish those of some rows that are ready."""
        gone = offsets[self.pages.ready(offsets)]
        if len(gone):
            self.pages.finish(gone)
            self.ready -= len(gone)
            self.finish(op, gone)

    def drop(self, offsets: Offsets, op: int) -> dict[int, int]:
        """Finish rows whatever their state; return how many each holder had out."""
        state, attempts, _, holders = self.pages.details(offsets)
        there = state != DONE
        offsets, state, attempts, holders = offsets[there], state[there], attempts[there], holders[there]
        if len(offsets) == 0:
            return {}
        owners, counts = np.unique(holders[state == LEASED], return_counts=True)
        lost: dict[int, int] = dict(zip(owners.tolist(), counts.tolist(), strict=True))
        for holder, count in lost.items():
            self.leases.less(holder, count)
        if self.recorder is not None and lost:
            out = offsets[state == LEASED]
            if op == ACKED:
                self.recorder.acked(out)
            else:
                self.recorder.returned("released", out, self.pages.attempts(out), "removed")
        self.pages.finish(offsets)
        self.ready -= int((state == READY).sum())
        self.leased -= int((state == LEASED).sum())
        self.waiting -= int((state == WAITING).sum())
        self.returning -= int(((state == WAITING) & (attempts > 0)).sum())
        self.moving -= int((state == MOVING).sum())
        self.finish(op, offsets)
        return lost

    def finish(self, op: int, offsets: Offsets) -> None:
        """Note that rows are done; their states are the caller's affair."""
        self.journal.finished(op, offsets)
        self.counts[op] += len(offsets)
        if self.recorder is not None and op in DISCARDED:
            self.recorder.discarded(NAMES[op], len(offsets))
        if self.keys is not None:
            self._free(offsets.tolist())

    def tell_ended(self, reason: str, *, named: bool) -> None:
        """Tell the recorder that what seats hold is theirs no more; what named holders have may stay."""
        if self.recorder is None or not self.leased:
            return
        for holder in self.leases.holders():
            if named or holder not in self.names:
                rows = self.leases.of(holder)
                self.recorder.returned("released", rows, self.pages.attempts(rows), reason)
