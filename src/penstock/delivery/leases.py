"""Which rows each holder has out, and when their leases end.

Expiry runs are (deadline, rows) per holder; the truth is the deadline in the page, so a run that was acked,
released or extended meanwhile is simply found empty when it is popped (ruling 10). Deadlines come in grains, so
that lone messages share runs.
"""

from __future__ import annotations

import heapq

import numpy as np

from penstock.columns import Offsets
from penstock.delivery.pages import Pages

#: Deadlines are rounded up to this, so a lease lasts at most 10 ms longer than asked for and never less.
GRAIN_NS = 10_000_000

#: ... but where rows are dealt by their times, which clients count in milliseconds.
FINE_GRAIN_NS = 1_000_000

#: Runs keep rows that are already acked until their deadline; beyond twice what is out plus this they are cleaned.
STALE_ROWS_MAX = 4096


class _Held:
    """The runs of one holder."""

    __slots__ = ("count", "rows", "runs")

    def __init__(self) -> None:
        self.runs: dict[int, list[list[int] | Offsets]] = {}
        self.rows = 0
        self.count = 0


class Leases:
    """Expiry runs of one subscription over one shard."""

    __slots__ = ("_deadlines", "_held", "_known", "_pages")

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._held: dict[int, _Held] = {}
        self._deadlines: list[tuple[int, int]] = []
        #: What is in the heap: a holder that acks at once would otherwise add the same deadline with every message.
        self._known: dict[tuple[int, int], None] = {}

    def add_range(self, holder: int, first: int, count: int, deadline_ns: int) -> None:
        """Note that a range of rows went out."""
        held = self._held.get(holder)
        if held is None:
            held = self._held[holder] = _Held()
        run = held.runs.get(deadline_ns)
        if run is None:
            held.runs[deadline_ns] = [[first, count]]
            if (deadline_ns, holder) not in self._known:
                self._watch(deadline_ns, holder)
        else:
            last = run[-1]
            if isinstance(last, list) and last[0] + last[1] == first:
                last[1] += count
            else:
                run.append([first, count])
        held.rows += count
        held.count += count
        if held.rows > 2 * held.count + STALE_ROWS_MAX:
            self._clean(holder, held)

    def add(self, holder: int, offsets: Offsets, deadline_ns: int, *, again: bool = False) -> None:
        """Note that picked rows went out, or (`again`) that their lease was extended."""
        held = self._held.setdefault(holder, _Held())
        if deadline_ns not in held.runs:
            held.runs[deadline_ns] = []
            self._watch(deadline_ns, holder)
        held.runs[deadline_ns].append(offsets)
        held.rows += len(offsets)
        if not again:
            held.count += len(offsets)
        if held.rows > 2 * held.count + STALE_ROWS_MAX:
            self._clean(holder, held)

    def less(self, holder: int, count: int) -> None:
        """Note that rows came back; a holder with nothing out has no runs."""
        held = self._held.get(holder)
        if held is not None:
            held.count -= count
            if held.count <= 0:  # the next message makes use of it
                held.runs.clear()
                held.rows = held.count = 0

    def of(self, holder: int) -> Offsets:
        """Return the rows a holder has out now, ascending."""
        held = self._held.get(holder)
        if held is None:
            return np.empty(0, np.int64)
        rows = _distinct([piece for run in held.runs.values() for piece in run])
        return rows[self._pages.leased(rows, holder)]

    def holders(self) -> list[int]:
        """Return who has rows out."""
        return [holder for holder, held in self._held.items() if held.count]

    def expire(self, now_ns: int) -> list[tuple[int, Offsets]]:
        """Return (holder, rows) whose lease has ended; the caller moves them on and says `less`."""
        ended = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            deadline_ns, holder = self._next()
            held = self._held.get(holder)
            run = held.runs.pop(deadline_ns, None) if held is not None else None
            if held is None or run is None:
                continue
            rows = _distinct(run)
            held.rows -= len(rows)
            rows = rows[self._pages.expired(rows, holder, deadline_ns)]
            if len(rows):
                ended.append((holder, rows))
        return ended

    def next_end_ns(self) -> int | None:
        """Return when the next lease may end; None if nobody has any."""
        while self._deadlines:
            deadline_ns, holder = self._deadlines[0]
            held = self._held.get(holder)
            if held is not None and deadline_ns in held.runs:
                return deadline_ns
            self._next()  # all of it was acked, or extended
        return None

    def _watch(self, deadline_ns: int, holder: int) -> None:
        entry = (deadline_ns, holder)
        if entry not in self._known:
            self._known[entry] = None
            heapq.heappush(self._deadlines, entry)

    def _next(self) -> tuple[int, int]:
        entry = heapq.heappop(self._deadlines)
        self._known.pop(entry, None)
        return entry

    def _clean(self, holder: int, held: _Held) -> None:
        held.rows = 0
        for deadline_ns, run in list(held.runs.items()):
            rows = _distinct(run)
            rows = rows[self._pages.expired(rows, holder, deadline_ns)]
            if len(rows):
                held.runs[deadline_ns] = [rows]
                held.rows += len(rows)
            else:
                del held.runs[deadline_ns]


def deadline_after(now_ns: int, lease_ns: int, grain_ns: int = GRAIN_NS) -> int:
    """Return the deadline of a lease that begins now."""
    return -(-(now_ns + lease_ns) // grain_ns) * grain_ns


def _distinct(run: list[list[int] | Offsets]) -> Offsets:
    """Return rows in order, each once: mostly they are so already, which a sort sees and numpy's `unique` does not."""
    rows = np.sort(_flat(run), kind="stable")
    first = np.ones(len(rows), np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=first[1:])
    return rows[first]


def _flat(run: list[list[int] | Offsets]) -> Offsets:
    parts = [np.arange(p[0], p[0] + p[1]) if isinstance(p, list) else p for p in run]
    if not parts:
        return np.empty(0, np.int64)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
