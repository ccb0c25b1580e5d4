"""When the waiting rows of one shard are looked for, as far as their topic does not announce them.

The topic announces published rows by their due times to all its subscriptions, so long ahead as any of them wants. What
was given back until later, what was announced too early for this one, what the clock was set back behind and what is
ready ahead of its time stands here. Knows no clock: times are passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from penstock.columns import Offsets
from penstock.delivery.calendar import Calendar
from penstock.delivery.page import WAITING
from penstock.delivery.pages import Pages

_NONE = np.empty(0, np.int64)


class Agenda:
    """The times at which one subscription looks for rows of one shard by itself."""

    __slots__ = ("_ahead", "_calendar", "_pages", "lead_ns", "seen_ns")

    def __init__(self, pages: Pages, seen_ns: Callable[[], int]) -> None:
        self._pages = pages
        self._calendar: Calendar | None = None
        #: Rows that became ready ahead of their time: a time by which each piece is due, and which these are.
        self._ahead: deque[tuple[int, Offsets]] | None = None
        #: Tells up to which due time the topic announced published rows: it will not announce these again.
        self.seen_ns = seen_ns
        #: Waiting rows are ready so long before they are due.
        self.lead_ns = 0

    def clear(self) -> None:
        """Look for nothing."""
        self._calendar = self._ahead = None

    def calendar(self, wall_ns: int) -> Calendar:
        """Return the calendar, made if there is none."""
        if self._calendar is None:
            self._calendar = Calendar(wall_ns)
        return self._calendar

    def put(self, offsets: Offsets, due_ns: Offsets, wall_ns: int) -> None:
        """Look for rows when their time comes."""
        self.calendar(wall_ns).put(due_ns - self.lead_ns, offsets)

    def put_published(self, offsets: Offsets, due_ns: Offsets, wall_ns: int) -> None:
        """Look for those of some rows that the topic does not announce."""
        unannounced = due_ns <= self.seen_ns()
        if unannounced.any():
            self.put(offsets[unannounced], due_ns[unannounced], wall_ns)

    def set_lead(self, lead_ns: int, wall_ns: int) -> None:
        """Look for waiting rows so long before they are due from now on."""
        if lead_ns != self.lead_ns:
            self.lead_ns = lead_ns
            rows = self._pages.held()
            state, attempts, due_ns, _ = self._pages.details(rows)
            unannounced = (state == WAITING) & ((attempts > 0) | (due_ns <= self.seen_ns()))
            if unannounced.any():
                self.put(rows[unannounced], due_ns[unannounced], wall_ns)

    def pop(self, wall_ns: int) -> Offsets:
        """Return the rows whose time has come."""
        return self._calendar.pop(wall_ns) if self._calendar is not None and len(self._calendar) else _NONE

    def next_ns(self) -> int | None:
        """Return the wall-clock time at which `pop` has something to return."""
        return self._calendar.next_ns() if self._calendar is not None and len(self._calendar) else None

    def coming(self, announced: Offsets, until_ns: int, wall_ns: int) -> Offsets:
        """Return when rows are due that are not yet and are before a time; the topic announces some of them."""
        offsets = announced
        if self._calendar is not None:
            offsets = np.concatenate((announced, self._calendar.coming(until_ns)[1]))
        offsets = np.unique(offsets)
        state, _, due_ns, _ = self._pages.details(offsets)
        waiting = due_ns[state == WAITING]
        found: Offsets = np.concatenate((waiting, self.ahead(wall_ns)))
        return found[found < until_ns]

    # --- ready ahead of their time --------------------------------------------------------------------------------

    def note_ahead(self, offsets: Offsets, last_ns: int) -> None:
        """Note that rows are ready which are due by a time that may be to come; those that are due are forgotten."""
        if self.lead_ns:
            if self._ahead is None:
                self._ahead = deque()
            while self._ahead and self._ahead[0][0] <= last_ns - self.lead_ns:
                self._ahead.popleft()
            self._ahead.append((last_ns, offsets))

    def ahead(self, wall_ns: int) -> Offsets:
        """Return when those rows are due that are ready and not due yet. Budget: 100 ns a row."""
        pieces = [offsets for last_ns, offsets in self._ahead or () if last_ns > wall_ns]
        if not pieces:
            return _NONE
        rows = np.concatenate(pieces)
        rows = np.sort(rows[self._pages.ready(rows)])
        due_ns = self._pages.details(rows[np.diff(rows, prepend=-1) > 0])[2]  # np.unique takes ten times as long
        found: Offsets = due_ns[due_ns > wall_ns]
        return found
