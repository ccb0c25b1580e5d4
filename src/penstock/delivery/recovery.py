"""How row states become a journal's snapshot, and how they come back from a journal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from penstock.columns import Offsets
from penstock.delivery import journal as records
from penstock.delivery.instant import Instant
from penstock.delivery.journal import HOLE, SKIPPED, State
from penstock.delivery.page import LEASED, READY, WAITING, Page
from penstock.delivery.source import Entry
from penstock.delivery.states import RowStates


def recover(
    states: RowStates, state: State, due: tuple[Offsets, Offsets], number_of: Callable[[str], int], now: Instant
) -> Offsets:
    """Take up rows that a journal tells, `due` being those that were not due yet; return the ready ones."""
    rows, attempts = state.rows, state.attempts
    if len(rows) == 0:
        return rows
    held = state.holder >= 0
    published = np.minimum(np.searchsorted(due[0], rows), max(len(due[0]) - 1, 0))
    first_due = np.where(due[0][published] == rows, due[1][published], 0) if len(due[0]) else 0 * rows
    due_ns = np.where(state.due_ns > 0, state.due_ns, np.where(attempts == 0, first_due, 0))
    later = (due_ns > now.wall_ns) & ~held
    leased = held & (due_ns > now.wall_ns)
    ready = ~(later | leased)
    states.pages.hold(rows[ready], READY, attempts[ready])
    states.pages.hold(rows[later], WAITING, attempts[later], due_ns[later])
    states.pages.hold(rows[leased], READY, attempts[leased] - 1)
    if state.versions.any():
        states.pages.keep_versions()
    for place in np.unique(state.holder[leased]).tolist():
        holder = number_of(state.names[place])
        for deadline in np.unique(due_ns[leased & (state.holder == place)]).tolist():
            part = rows[leased & (state.holder == place) & (due_ns == deadline)]
            ends = now.monotonic_ns + deadline - now.wall_ns  # as its holder was told
            states.pages.lease(part, holder, ends)
            states.leases.add(holder, part, ends)
    if state.versions.any():
        states.pages.set_versions(rows, np.where(state.versions == 0, attempts, state.versions))
    again = later & ((attempts > 0) | (due_ns <= states.agenda.seen_ns()))
    if again.any():
        states.agenda.calendar(now.wall_ns).put(due_ns[again], rows[again])
    states.ready, states.waiting, states.leased = int(ready.sum()), int(later.sum()), int(leased.sum())
    states.returning = int((later & (attempts > 0)).sum())
    return rows[ready]


def snapshot(states: RowStates, cursor: int, skips: list[tuple[int, int]], now: Instant) -> npt.NDArray[np.int64]:
    """Return the entries that say everything anew, page by page: 5 million held rows take some 20 ms."""
    kept: list[Entry] = []
    gaps: list[Entry] = []
    between: list[npt.NDArray[np.int64]] = []
    floor = last = None
    for first, page, rows in states.pages.walk():
        offsets = first + rows
        if last is None:
            floor = int(offsets[0])
        elif offsets[0] > last + 1:
            gaps.append((HOLE, last + 1, int(offsets[0]) - 1, 0, 0))
        cuts = np.flatnonzero(np.diff(rows) > 1)
        # The rows between two unfinished ones are finished; why is in the counts.
        between.append(records.table(HOLE, offsets[cuts] + 1, offsets[cuts + 1] - 1, 0))
        last = int(offsets[-1])
        kept += _kept_of(states, page, rows, offsets, now)
    if last is not None and last + 1 < cursor:
        gaps.append((HOLE, last + 1, cursor - 1, 0, 0))
    gaps += [(SKIPPED, first, end - 1, 0, 0) for first, end in skips]
    return records.snapshot(cursor if floor is None else floor, states.counts, gaps, kept, between)


def _kept_of(states: RowStates, page: Page, rows: Offsets, offsets: Offsets, now: Instant) -> list[Entry]:
    """Return the entries of those rows of a page of which more than "not finished" must be told."""
    at = page.find(rows)
    told = page.attempts[at] > 0
    if not told.any():  # when a row that was never handed out is due stands in the log
        return []
    at, offsets = at[told], offsets[told]
    state, attempts, deadline = page.state[at], page.attempts[at].astype(np.int64), page.deadline[at]
    versions = page.version[at].astype(np.int64) if page.version is not None else 0 * offsets
    leased = state == LEASED
    holders = page.holder[at]
    held = leased & np.isin(holders, list(states.names))
    due_ns = np.where(state != LEASED, deadline, np.where(held, deadline - now.monotonic_ns + now.wall_ns, 0))
    if not states.agenda.lead_ns:  # since when a row is ready concerns nobody later
        due_ns[state == READY] = 0
    # A row on a connection's lease comes again after a crash with the attempt it is on.
    attempts[leased & ~held] -= 1
    again = ~held & ((attempts > 0) | (versions > 0))
    entries = records.pending(records.RELEASED, offsets[again], attempts[again], due_ns[again], versions[again])
    for holder in np.unique(holders[held]).tolist():
        his = held & (holders == holder)
        entries += records.named(holder, states.names[holder])
        entries += records.pending(records.HELD, offsets[his], attempts[his], due_ns[his], versions[his], holder)
    return entries
