"""What a subscription writes down about a shard, and how its state comes back from that.

Five numbers an entry: (op, first, last, attempts, due). A range of finished rows gives the reason as op and the
number of rows really in it as `attempts` (offsets may have holes); START begins anew at `first`; RELEASED and HELD
keep attempts and due time of rows that are not finished; COUNT carries a total through a snapshot; SKIPPED are rows
that were removed before the cursor came to them, and that it finishes when it does.

Invariant: finishing is final. So entries of one flush may be written releases first, finished ranges after, and a
replay in any cut of whole frames gives a state that was true at some moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.delivery.source import Entry
from penstock.message import Offsets

START, ACKED, FILTERED, EXPIRED, DEAD, REMOVED, HOLE, RELEASED, HELD, COUNT, SKIPPED = range(11)

#: The reasons a row can be finished for; both sums of the ledger are made of these.
FINISHED = (ACKED, FILTERED, EXPIRED, DEAD, REMOVED)
NAMES = {ACKED: "acked", FILTERED: "filtered", EXPIRED: "expired", DEAD: "dead_lettered", REMOVED: "removed"}
#: Those of them that end a row which no consumer acked or failed too often.
DISCARDED = (FILTERED, EXPIRED, REMOVED)


class State(NamedTuple):
    """A subscription's state over one shard, as replayed."""

    #: First row never handed out.
    cursor: int
    #: Rows below the cursor that are not finished, ascending, with attempts and the time they are due (0: now).
    rows: Offsets
    attempts: Offsets
    due_ns: Offsets
    #: Which of them are on a lease that outlives connections; `due_ns` is then the lease's wall-clock deadline.
    held: npt.NDArray[np.bool_]
    counts: dict[int, int]
    #: Rows from the cursor on that are not wanted any more, first and end of each range.
    skips: list[tuple[int, int]]


def ranges(offsets: Offsets) -> tuple[Offsets, Offsets]:
    """Return ascending, distinct offsets as (first, last) of each run without a gap."""
    cuts = np.flatnonzero(np.diff(offsets) != 1)
    first = offsets[np.concatenate(([0], cuts + 1))]
    last = offsets[np.concatenate((cuts, [len(offsets) - 1]))]
    return first, last


def finished(op: int, offsets: Offsets) -> list[Entry]:
    """Return the entries that finish these rows for one reason."""
    return finished_ranges(op, *ranges(offsets))


def finished_ranges(op: int, first: Offsets, last: Offsets) -> list[Entry]:
    """Return the entries that finish these ranges for one reason."""
    return [(op, a, b, b - a + 1, 0) for a, b in zip(first.tolist(), last.tolist(), strict=True)]


def table(op: int, first: Offsets, last: Offsets, rows: int | Offsets) -> npt.NDArray[np.int64]:
    """Return entries of one kind as an array, for when there are many."""
    out = np.zeros((len(first), 5), np.int64)
    out[:, 0], out[:, 1], out[:, 2], out[:, 3] = op, first, last, rows
    return out


def pending(op: int, offsets: Offsets, attempts: Offsets, due_ns: Offsets) -> list[Entry]:
    """Return the entries that keep rows with their attempts and due time, equal neighbours as one range."""
    if len(offsets) == 0:
        return []
    breaks = (np.diff(offsets) != 1) | (np.diff(attempts.astype(np.int64)) != 0) | (np.diff(due_ns) != 0)
    cuts = np.flatnonzero(breaks)
    heads, tails = np.concatenate(([0], cuts + 1)), np.concatenate((cuts, [len(offsets) - 1]))
    columns = (offsets[heads], offsets[tails], attempts[heads], due_ns[heads])
    return [(op, *entry) for entry in zip(*(column.tolist() for column in columns), strict=True)]


def replay(entries: npt.NDArray[np.int64], start: int) -> State:
    """Return the state that entries describe; a subscription that wrote none begins at `start`."""
    counts = dict.fromkeys(FINISHED, 0)
    ops = entries[:, 0] if len(entries) else np.empty(0, np.int64)
    starts = np.flatnonzero(ops == START)
    if len(starts):
        start = int(entries[starts[-1], 1])
        entries = entries[starts[-1] + 1 :]
        ops = entries[:, 0]
    for _, kind, value, _, _ in entries[ops == COUNT].tolist():
        counts[kind] = value
    for op in FINISHED:
        counts[op] += int(entries[ops == op, 3].sum())
    is_done = (ops >= ACKED) & (ops <= HOLE)
    done_first, done_last = _merged(entries[is_done, 1], entries[is_done, 2], start)
    kept = entries[(ops == RELEASED) | (ops == HELD)]
    cursor = max([start, *(done_last[-1:] + 1).tolist(), *(kept[:, 2] + 1).tolist()[-1:]])
    if len(kept):
        cursor = max(cursor, int(kept[:, 2].max()) + 1)
    rows = _gaps(start, done_first, done_last, cursor)
    attempts = np.zeros(len(rows), np.int64)
    due_ns = np.zeros(len(rows), np.int64)
    held = np.zeros(len(rows), np.bool_)
    for op, first, last, tries, due in kept.tolist():
        low, high = np.searchsorted(rows, (first, last + 1))
        attempts[low:high] = tries
        due_ns[low:high] = due
        held[low:high] = op == HELD
    skipped = entries[ops == SKIPPED].tolist()
    skips = [(max(first, cursor), last + 1) for _, first, last, _, _ in skipped if last >= cursor]
    return State(cursor, rows, attempts, due_ns, held, counts, skips)


def snapshot(
    floor: int,
    counts: Mapping[int, int],
    gaps: Sequence[Entry],
    kept: Sequence[Entry],
    tables: Sequence[npt.NDArray[np.int64]] = (),
) -> npt.NDArray[np.int64]:
    """Return the entries a journal begins anew with."""
    entries: list[Entry] = [(START, floor, floor, 0, 0)]
    entries.extend((COUNT, op, value, 0, 0) for op, value in counts.items() if value)
    return np.concatenate([np.array([*entries, *gaps, *kept], np.int64).reshape(-1, 5), *tables])


def _merged(first: Offsets, last: Offsets, floor: int) -> tuple[Offsets, Offsets]:
    """Return ranges sorted and joined where they touch, from `floor` on."""
    keep = last >= floor
    first, last = np.maximum(first[keep], floor), last[keep]
    if len(first) == 0:
        return first, last
    order = np.argsort(first, kind="stable")
    first, reach = first[order], np.maximum.accumulate(last[order])
    heads = np.concatenate(([0], np.flatnonzero(first[1:] > reach[:-1] + 1) + 1))
    tails = np.concatenate((heads[1:] - 1, [len(first) - 1]))
    return first[heads], reach[tails]


def _gaps(start: int, first: Offsets, last: Offsets, end: int) -> Offsets:
    """Return every offset from `start` to `end` that is in none of the ranges, which are ascending and apart."""
    lows = np.concatenate(([start], last + 1))
    sizes = np.maximum(np.concatenate((first, [end])) - lows, 0)
    before = np.cumsum(sizes) - sizes
    rows: Offsets = np.repeat(lows - before, sizes) + np.arange(int(sizes.sum()))
    return rows
