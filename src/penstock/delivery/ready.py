"""Ready rows of one cursor, in lanes.

A lane holds rows to be handed out again and rows that are new, each as ascending arrays of offsets: 8 bytes a row.
Which lane a row goes into, and who may take from it, is the policy's affair; where a policy has one lane for all, that
is lane 0; where it goes by due times, each is a `DueLane`. Rows whose lane is not known yet wait in `unsorted`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy as np

from penstock.columns import Offsets
from penstock.delivery.due_lane import DueLane, due_of
from penstock.delivery.instant import Instant
from penstock.delivery.page import READY, UNSORTED, Slots
from penstock.delivery.pages import Pages
from penstock.delivery.policies.policy import Policy, Taker
from penstock.errors import InvariantError
from penstock.message import Batch

#: Pieces do not grow together beyond this: a page of rows.
PIECE_ROWS_MAX = 1 << 16
#: Which row was due first is looked for among so many of so many unsorted pieces.
HEAD_ROWS, HEAD_PIECES = 4096, 16


class _Nowhere(deque[Offsets]):
    """Stands where no queue was needed yet, one for all: an empty one of its own would take 760 bytes."""

    def append(self, piece: Offsets) -> None:
        """Refuse what would be in every queue at once."""
        raise InvariantError("rows were put into a queue that nobody made")

    def extend(self, pieces: Iterable[Offsets]) -> None:
        """Refuse what would be in every queue at once."""
        raise InvariantError("rows were put into a queue that nobody made")


_NOWHERE = _Nowhere()


class Lane:
    """Ready rows that stand in one line."""

    __slots__ = ("_turn", "again", "fresh")

    def __init__(self, *, new_first: bool = False) -> None:
        #: Rows to be handed out again, and rows that were never out.
        self.again: deque[Offsets] = _NOWHERE
        self.fresh: deque[Offsets] = _NOWHERE
        #: It is the turn of those that go out again.
        self._turn = not new_first

    def __bool__(self) -> bool:
        return bool(self.again or self.fresh)

    def end(self, *, again: bool) -> deque[Offsets]:
        """Return the queue that rows are added to."""
        if again:
            if self.again is _NOWHERE:
                self.again = deque()
            return self.again
        if self.fresh is _NOWHERE:
            self.fresh = deque()
        return self.fresh

    def queue(self, *, ordered: bool = False, more_fresh: bool = False) -> deque[Offsets] | None:
        """Return where the next rows come from, None if there are none; `ordered` is by their offsets.

        `more_fresh` tells that new rows may be found elsewhere as well, so that they have their turn.
        """
        if ordered:
            return lowest(self.again, self.fresh)
        if self.again and (self._turn or not (self.fresh or more_fresh)):
            return self.again
        return self.fresh or None

    def first(self) -> int:
        """Return the lowest row."""
        queue = lowest(self.again, self.fresh)
        return int(queue[0][0]) if queue else 0

    def drop(self, keep: Callable[[Offsets], Offsets]) -> bool:
        """Keep of every piece what `keep` returns; tell whether anything went."""
        again = _drop(self.again, keep)
        return _drop(self.fresh, keep) or again

    def served(self) -> None:
        """Let redelivered and new rows take turns, so that neither starves the other."""
        self._turn = not self._turn


class Ready:
    """All lanes of one cursor."""

    __slots__ = ("_deal", "_lanes", "_ordered", "_pages", "_shard", "many", "only", "policy", "unsorted")

    def __init__(self, shard: int, pages: Pages) -> None:
        self._shard = shard
        self._pages = pages
        self.policy = Policy()
        #: Rows stand in several lanes, which the policy deals; else all of them in `only`.
        self.many = False
        self._ordered = False
        self.clear()

    def clear(self) -> None:
        """Begin with no row."""
        self.only = Lane()
        self.unsorted: deque[Offsets] = _NOWHERE
        self._lanes: dict[int, Lane | DueLane] = {}
        self._deal = self.policy.deal

    def use(self, policy: Policy) -> None:
        """Keep rows in the lanes of a policy from now on, or in one line if it has no more."""
        again, fresh, mixed = self._pieces()
        self._pages.forget_slots()
        self.policy, self.many = policy, policy.many
        self.clear()
        if self.many:
            self.unsorted = deque([*again, *fresh, *mixed])
        else:
            self._line_up(again, fresh, mixed)

    def set_ordered(self, ordered: bool) -> None:
        """Go by the order of the shard from now on, and not by due times: it is asked for, of all rows or of keys."""
        if ordered != self._ordered:
            self._ordered = ordered
            self._deal = -1  # whatever stands in lanes is put there anew

    def __bool__(self) -> bool:
        return bool(self.only or self.unsorted or self._lanes)

    # --- taking out -----------------------------------------------------------------------------------------------

    def lane(self, code: int) -> Lane | DueLane | None:
        """Return a lane if it has rows."""
        lane = self._lanes.get(code)
        if lane is not None and not lane:
            del self._lanes[code]
            return None
        return lane

    def codes(self) -> list[int]:
        """Return the lanes that have rows."""
        return [code for code in tuple(self._lanes) if self.lane(code) is not None]

    def filled(self, now: Instant) -> list[int]:
        """Return the lanes that have rows as they are dealt at this time."""
        self.policy.look(now)
        self._follow()
        return self.codes()

    def by_age(self) -> list[int]:
        """Return the lanes that have rows, the one with the oldest row first."""
        return sorted(self.codes(), key=self._first)

    def open_to(self, taker: Taker, rank: int, now: Instant, *, ordered: bool) -> Iterable[int]:
        """Return the lanes a seat may take from, in the policy's order or (`ordered`) in that of their first rows."""
        self._follow()
        lanes = self.policy.open_to(taker, self, rank, now)
        if self.policy.deal != self._deal:  # it had to be dealt anew to find one
            self._follow()
            lanes = self.policy.open_to(taker, self, rank, now)
        return sorted((lane for lane in lanes if self.lane(lane)), key=self._first) if ordered else lanes

    def next_due_ns(self, after_ns: int) -> int | None:
        """Return when the next row of all lanes is due after a time, where they go by that; None if there is none."""
        times = [lane.next_ns(after_ns) for lane in self._lanes.values() if isinstance(lane, DueLane)]
        return min((time_ns for time_ns in times if time_ns is not None), default=None)

    def _first(self, code: int) -> int:
        return self._lanes[code].first()

    def heads(self) -> Offsets:
        """Return rows, ascending, among which the one is that was due first; of unsorted rows the next ones."""
        found = [piece[:HEAD_ROWS] for piece in islice(self.unsorted, HEAD_PIECES)]
        for lane in (self.only, *self._lanes.values()):
            if isinstance(lane, DueLane):
                found.append(lane.heads(self._pages.ready))
            elif lane:
                found.append(np.array([lane.first()]))
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)

    def drop(self, keep: Callable[[Offsets], Offsets]) -> bool:
        """Keep of every piece what `keep` returns; tell whether anything went."""
        dropped = [lane.drop(keep) for lane in (self.only, *self._lanes.values())]
        return _drop(self.unsorted, keep) or any(dropped)

    # --- putting in -----------------------------------------------------------------------------------------------

    def queue(self, offsets: Offsets) -> None:
        """Add rows that go out again."""
        if not self.many:
            self.only.end(again=True).append(offsets)
            return
        slots = self._pages.slots(offsets)
        known = slots != UNSORTED
        if not known.all():
            self._leave_unsorted(offsets[~known])
            offsets, slots = offsets[known], slots[known]
        if len(offsets):
            self._put(offsets, slots, again=True)

    def add(self, batch: Batch, offsets: Offsets) -> tuple[Slots | None, int | Offsets]:
        """Add rows of a batch that were never out; return their slots where there are several lanes.

        And when they were due, where that counts.
        """
        if not self.many:
            self.only.end(again=False).append(offsets)
            return None, 0
        slots = self._slots_of(batch, offsets)
        due_ns = due_of(batch, offsets) if self.policy.by_due else None
        self._put(offsets, slots, again=False, due_ns=due_ns)
        return slots, 0 if due_ns is None else due_ns

    def line_up(self, rows: Offsets) -> None:
        """Add recovered rows: what was never out goes out in order, and before anything the cursor finds next."""
        self._line_up([], [], [rows])

    def realign(self, more: Offsets) -> None:
        """Let rows that were never out stand in order, whatever they waited for, and more that stood nowhere."""
        again, fresh, mixed = self._pieces()
        self.clear()
        if not self.many:
            self._line_up([], fresh, [*again, *mixed, more])
            return
        rows = np.concatenate([*again, *fresh, *mixed, more])
        rows = np.sort(rows[self._pages.ready(rows)])
        if len(rows):
            self._leave_unsorted(rows)

    def _leave_unsorted(self, rows: Offsets) -> None:
        if self.unsorted is _NOWHERE:
            self.unsorted = deque()
        self.unsorted.append(rows)

    def next_unsorted(self) -> Offsets:
        """Return the next rows whose lane is not known yet, as far as they are ready still."""
        live = self.unsorted[0][self._pages.ready(self.unsorted[0])]
        if len(live) == 0:
            self.unsorted.popleft()
        return live

    def sort(self, live: Offsets, batch: Batch) -> Offsets:
        """Put those of the next unsorted rows into lanes that a batch tells of; return those it holds."""
        part = live
        if not batch.first <= live[0] < live[-1] < batch.end:
            part = live[: int(np.searchsorted(live, batch.end if batch.first <= live[0] else batch.first))]
        replace_head(self.unsorted, live[len(part) :])
        readable = bool(batch.first <= part[0])
        # Damaged or dropped: whoever is to get them next finds out.
        slots = self._slots_of(batch, part) if readable else np.zeros(len(part), np.int32)
        since_ns = self._pages.sort(part, slots)
        if self.policy.by_due:
            if readable and not since_ns.all():
                since_ns = np.where(since_ns == 0, due_of(batch, part), since_ns)
                self._pages.move(part, READY, since_ns)
            self._put(part, slots, again=False, due_ns=since_ns)
            return part if readable else part[:0]
        tried = self._pages.attempts(part) > 0
        for chosen, again in ((tried, True), (~tried, False)):
            if chosen.any():
                self._put(part[chosen], slots[chosen], again=again)
        return part if readable else part[:0]

    def _slots_of(self, batch: Batch, offsets: Offsets) -> Slots:
        slots = self.policy.slots_of(self._shard, batch, offsets)
        return slots if slots is not None else np.zeros(len(offsets), np.int32)

    def _put(self, offsets: Offsets, slots: Slots, *, again: bool, due_ns: Offsets | None = None) -> None:
        """Add rows to their lanes, in their order; with policies that go by it, by when they were due."""
        self._follow()
        by_due = self.policy.by_due
        if by_due and self._ordered:
            due_ns = np.zeros(len(offsets), np.int64)
        elif by_due and due_ns is None:
            due_ns = self._pages.details(offsets)[2]
        for code, part in _by_lane(self.policy.lanes_of(slots)):
            lane = self._lanes.get(code)
            if lane is None:
                lane = self._lanes[code] = DueLane() if by_due else Lane(new_first=self.policy.new_first)
            if isinstance(lane, Lane):
                _append(lane.end(again=again), offsets[part])
            elif due_ns is not None:
                lane.put(offsets[part], due_ns[part])

    def _follow(self) -> None:
        """Put what stands in lanes into those of now, if they were dealt anew; nothing is read for it."""
        if self.policy.deal == self._deal:
            return
        self._deal = self.policy.deal
        lanes, self._lanes = self._lanes, {}
        tried, fresh = _pieces_of(lanes.values())
        fresh += [lane.rows() for lane in lanes.values() if isinstance(lane, DueLane)]
        for pieces, again in ((tried, True), (fresh, False)):
            if pieces:
                rows = np.concatenate(pieces)
                rows = np.sort(rows[self._pages.ready(rows)])
                if len(rows):
                    self._put(rows, self._pages.slots(rows), again=again)

    def _line_up(self, again: list[Offsets], fresh: list[Offsets], mixed: list[Offsets]) -> None:
        for piece in mixed:
            ready = piece[self._pages.ready(piece)]
            tried = self._pages.attempts(ready) > 0
            again.append(ready[tried])
            fresh.append(ready[~tried])
        for piece in again:
            if len(piece):
                self.only.end(again=True).append(piece)
        new = np.concatenate(fresh) if fresh else np.empty(0, np.int64)
        if len(new):
            self.only.end(again=False).append(np.sort(new, kind="stable"))

    def _pieces(self) -> tuple[list[Offsets], list[Offsets], list[Offsets]]:
        """Return all pieces: rows to be handed out again, new ones, and those of which that is not known here."""
        again, fresh = _pieces_of((self.only, *self._lanes.values()))
        by_due = [lane.rows() for lane in self._lanes.values() if isinstance(lane, DueLane)]
        return again, fresh, [*self.unsorted, *by_due]


def lowest(again: deque[Offsets], fresh: deque[Offsets]) -> deque[Offsets] | None:
    """Return the queue whose next row has the lower offset; what came back is turned so that its lowest is next."""
    if len(again) > 1:
        again.rotate(-min(range(len(again)), key=lambda number: int(again[number][0])))
    if again and fresh:
        return again if again[0][0] < fresh[0][0] else fresh
    return again or fresh or None


def replace_head(queue: deque[Offsets], rest: Offsets) -> None:
    """Leave the rest of the first piece in a queue."""
    if len(rest):
        queue[0] = rest
    else:
        queue.popleft()


def _append(queue: deque[Offsets], part: Offsets) -> None:
    """Add a piece at the end; small ones grow together, so that a row that waits costs 8 bytes and not an array."""
    while queue and len(queue[-1]) <= 2 * len(part) <= PIECE_ROWS_MAX and queue[-1][-1] < part[0]:
        part = np.concatenate((queue.pop(), part))
    queue.append(part)


def _pieces_of(lanes: Iterable[Lane | DueLane]) -> tuple[list[Offsets], list[Offsets]]:
    """Return the pieces of lanes: rows to be handed out again, and new ones."""
    plain = [lane for lane in lanes if isinstance(lane, Lane)]
    return [piece for lane in plain for piece in lane.again], [piece for lane in plain for piece in lane.fresh]


def _drop(queue: deque[Offsets], keep: Callable[[Offsets], Offsets]) -> bool:
    dropped = False
    for _ in range(len(queue)):
        piece = queue.popleft()
        kept = keep(piece)
        dropped = dropped or len(kept) < len(piece)
        if len(kept):
            queue.append(kept)
    return dropped


def _by_lane(lanes: Slots) -> Iterator[tuple[int, slice | Offsets]]:
    """Yield which rows go into each lane."""
    first = int(lanes[0])
    if len(lanes) == 1 or bool((lanes == first).all()):
        yield first, slice(None)
        return
    # A stable sort of 16 bits is a radix sort, ten times as fast.
    order = np.argsort(lanes.astype(np.uint16) if lanes.min() >= 0 and lanes.max() <= 0xFFFF else lanes, kind="stable")
    sorted_lanes = lanes[order]
    cuts = (np.flatnonzero(sorted_lanes[1:] != sorted_lanes[:-1]) + 1).tolist()
    for start, stop in zip((0, *cuts), (*cuts, len(lanes)), strict=True):
        yield int(sorted_lanes[start]), order[start:stop]
