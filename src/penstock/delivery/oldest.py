"""When the row was due that was due first of those that a cursor could hand out.

By the first rows of lanes and by a few batches of what is still to come, so that it costs the same however many there
are. Pure: the time is passed in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from penstock.columns import Offsets
from penstock.delivery.due_lane import due_of
from penstock.delivery.page import READY

if TYPE_CHECKING:
    from penstock.delivery.cursor import Cursor

#: Of what is still to come so many batches are looked at, and so many rows of each.
BATCHES, ROWS = 64, 4096


def oldest_ns(cursor: Cursor, wall_ns: int) -> int | None:
    """Return about when the oldest row of a cursor was due, of those that are due by a time; None if none is."""
    heads = cursor.ready.heads() if cursor.states.ready else np.empty(0, np.int64)
    state, _, due_ns, _ = cursor.states.pages.details(heads)
    ready = state == READY
    times = [due_ns[ready & (due_ns > 0)], *_read(cursor, heads[ready & (due_ns == 0)]), *_to_come(cursor)]
    found = np.concatenate(times)
    return int(found.min()) if len(found := found[found <= wall_ns]) else None


def _read(cursor: Cursor, offsets: Offsets) -> Iterator[Offsets]:
    """Yield when rows were due whose times nobody noted, by what is in memory of the log."""
    for offset in offsets[:BATCHES].tolist():
        batch = cursor.source.read(offset)
        if batch is not None and batch.first <= offset:
            yield due_of(batch, np.array([offset]))


def _to_come(cursor: Cursor) -> Iterator[Offsets]:
    looked = 0
    for first, end in cursor.position.unread():
        at = first
        while at < end and looked < BATCHES:
            batch = cursor.source.read(at)
            if batch is None:
                return
            yield due_of(batch, np.arange(max(at, batch.first), min(end, batch.end, at + ROWS)))
            at, looked = batch.end, looked + 1
