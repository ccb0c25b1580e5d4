"""A lane that gives rows by when they were due, and how what was taken from several goes out in that order.

For policies that say so (`Policy.by_due`). Rows of one time go by their offsets. Costs 16 bytes a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from penstock.columns import OFFSET_BITS, Offsets
from penstock.delivery.source import Delivery
from penstock.message import Batch, int64s

#: Runs do not grow together beyond this: a page of rows.
RUN_ROWS_MAX = 1 << 16

#: No row is due later.
NEVER_NS = (1 << 63) - 1


class _Run:
    """Rows by due time, then offset, that are taken from the front."""

    __slots__ = ("at", "due_ns", "offsets")

    def __init__(self, offsets: Offsets, due_ns: Offsets) -> None:
        # Mostly they are in order as they come.
        if len(offsets) > 1 and not _ascends(due_ns, offsets):
            order = np.lexsort((offsets, due_ns))
            offsets, due_ns = offsets[order], due_ns[order]
        self.offsets, self.due_ns = offsets, due_ns
        self.at = 0

    def __len__(self) -> int:
        return len(self.offsets) - self.at

    def up_to(self, limit: int, until_ns: int) -> int:
        """Return where the next rows end: `limit` of them, due by a time."""
        end = min(self.at + limit, len(self.offsets))
        if end > self.at and self.due_ns[end - 1] > until_ns:
            end = self.at + int(np.searchsorted(self.due_ns[self.at : end], until_ns, side="right"))
        return end


class DueLane:
    """Ready rows, the one that was due first in front."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    def put(self, offsets: Offsets, due_ns: Offsets) -> None:
        """Add rows; small runs grow together, so that there are few of them."""
        runs = self._runs
        while runs and len(runs[-1]) <= 2 * len(offsets) <= RUN_ROWS_MAX:
            last = runs.pop()
            offsets = np.concatenate((last.offsets[last.at :], offsets))
            due_ns = np.concatenate((last.due_ns[last.at :], due_ns))
        runs.append(_Run(offsets, due_ns))

    def rows(self) -> Offsets:
        """Return all rows, ascending."""
        return np.sort(np.concatenate([run.offsets[run.at :] for run in self._runs])) if self._runs else _NONE

    def first(self) -> int:
        """Return the lowest row."""
        return min((int(run.offsets[run.at :].min()) for run in self._runs), default=0)

    def heads(self, are_ready: Callable[[Offsets], npt.NDArray[np.bool_]]) -> Offsets:
        """Return of every run the first row that is ready still: others stand here until somebody comes to them."""
        firsts = np.sort(np.array([run.offsets[run.at] for run in self._runs], np.int64))
        good_firsts = set(firsts[are_ready(firsts)].tolist())  # mostly all of them, and that is asked once
        found: list[int] = []
        for run in self._runs:
            first = int(run.offsets[run.at])
            if first in good_firsts:
                found.append(first)
                continue
            at, size = run.at + 1, 4
            while at < len(run.offsets):
                part = run.offsets[at : at + size]
                good = np.isin(part, (ordered := np.sort(part))[are_ready(ordered)])
                if good.any():
                    found.append(int(part[good.argmax()]))
                    break
                at, size = at + size, 4 * size
        return np.array(found, np.int64)

    def next_ns(self, after_ns: int) -> int | None:
        """Return when the next row is due after a time, None if there is none."""
        ends = [(run, run.up_to(len(run), after_ns)) for run in self._runs]
        return min((int(run.due_ns[end]) for run, end in ends if end < len(run.due_ns)), default=None)

    def cut(self, after_ns: int) -> tuple[Offsets, Offsets]:
        """Take out the rows that are due after a time; return them, ascending, and when each is."""
        ends = [(run, run.up_to(len(run), after_ns)) for run in self._runs if run.due_ns[-1] > after_ns]
        if not ends:
            return _NONE, _NONE
        offsets = np.concatenate([run.offsets[end:] for run, end in ends])
        due_ns = np.concatenate([run.due_ns[end:] for run, end in ends])
        for run, end in ends:
            run.offsets, run.due_ns = run.offsets[:end], run.due_ns[:end]
        self._runs = [run for run in self._runs if len(run)]
        order = np.argsort(offsets)
        return offsets[order], due_ns[order]

    def drop(self, keep: Callable[[Offsets], Offsets]) -> bool:
        """Keep what `keep` returns of ascending rows; tell whether anything went."""
        before = self.rows()
        kept = keep(before) if len(before) else before
        if len(kept) == len(before):
            return False
        left = [(run, np.isin(run.offsets[run.at :], kept)) for run in self._runs]
        self._runs = [_Run(run.offsets[run.at :][good], run.due_ns[run.at :][good]) for run, good in left if good.any()]
        return True


def earliest(lanes: Sequence[DueLane], limit: int, until_ns: int = NEVER_NS) -> tuple[Offsets, Offsets]:
    """Take the rows of some lanes that were due first, up to `limit`, none due after a time.

    Return them, ascending, and when each was due.
    """
    runs = [run for lane in lanes for run in lane._runs]
    if not runs:
        return _NONE, _NONE
    if len(runs) == 1:
        return _from_one(lanes, runs[0], runs[0].up_to(limit, until_ns))
    ends = [run.up_to(limit, until_ns) for run in runs]
    offsets = np.concatenate([run.offsets[run.at : end] for run, end in zip(runs, ends, strict=True)])
    due_ns = np.concatenate([run.due_ns[run.at : end] for run, end in zip(runs, ends, strict=True)])
    whose = np.repeat(np.arange(len(runs)), [end - run.at for run, end in zip(runs, ends, strict=True)])
    first = np.lexsort((offsets, due_ns))[:limit]
    offsets, due_ns = offsets[first], due_ns[first]
    for run, count in zip(runs, np.bincount(whose[first], minlength=len(runs)).tolist(), strict=True):
        run.at += count
    for lane in lanes:
        lane._runs = [run for run in lane._runs if len(run)]
    order = np.argsort(offsets, kind="stable")
    return offsets[order], due_ns[order]


def _from_one(lanes: Sequence[DueLane], run: _Run, end: int) -> tuple[Offsets, Offsets]:
    """Take the next rows of the only run there is."""
    # Copies: who leases them would keep the whole run in memory.
    offsets, due_ns = run.offsets[run.at : end].copy(), run.due_ns[run.at : end].copy()
    run.at = end
    if not len(run):
        for lane in lanes:
            lane._runs = []
    if (offsets[1:] > offsets[:-1]).all():
        return offsets, due_ns
    order = np.argsort(offsets, kind="stable")
    return offsets[order], due_ns[order]


def due_of(batch: Batch, offsets: Offsets) -> Offsets:
    """Return when each of some rows of a batch was due: where it does not say, when it was taken."""
    rows = offsets - batch.first
    taken_ns = batch.timestamp
    since = np.full(len(rows), taken_ns) if isinstance(taken_ns, int) else np.asarray(taken_ns, np.int64)[rows]
    column = batch.columns.get("due")
    if column is None:
        return since
    values, valid = int64s(column)
    return np.where(valid[rows], values[rows], since)


def in_order(deliveries: list[Delivery]) -> list[Delivery]:
    """Return what goes to a seat by due time, then id; rows of one batch stay together as far as that lets them."""
    if len(deliveries) == 1 and deliveries[0].count == 1:
        return deliveries
    dues = [each.due_ns for each in deliveries if each.due_ns is not None]
    if len(dues) < len(deliveries):
        return deliveries
    if len(deliveries) == 1:
        due_ns, ids = dues[0], deliveries[0].picks()
    else:
        due_ns = np.concatenate(dues)
        ids = np.concatenate([(each.shard << OFFSET_BITS) + each.batch.first + each.picks() for each in deliveries])
    if _ascends(due_ns, ids):
        return deliveries
    order = np.lexsort((ids, due_ns))
    sizes = np.array([each.count for each in deliveries], np.int64)
    whose = np.repeat(np.arange(len(deliveries)), sizes)[order]
    rows = order - (np.cumsum(sizes) - sizes)[whose]
    cuts = [0, *(np.flatnonzero(whose[1:] != whose[:-1]) + 1).tolist(), len(order)]
    return [deliveries[int(whose[start])].ordered(rows[start:stop]) for start, stop in pairwise(cuts)]


_NONE = np.empty(0, np.int64)


def _ascends(due_ns: Offsets, ids: Offsets) -> bool:
    """Tell whether rows stand by due time and, where that is one, by id."""
    up = ids[1:] > ids[:-1]
    if up.all():
        return bool((due_ns[1:] >= due_ns[:-1]).all())
    later, same = due_ns[1:] > due_ns[:-1], due_ns[1:] == due_ns[:-1]
    return bool((later | (same & up)).all())
