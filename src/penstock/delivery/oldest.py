"""When the row was due that was due first of those that a cursor could hand out.

By the first rows of lanes and by a few batches of what is still to come, so that it costs the same however many there
are. It is asked for many times a second, and what a batch says never changes, so each is looked at once. Pure: the time
is passed in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.columns import Offsets
from penstock.delivery.due_lane import NEVER_NS, due_of
from penstock.delivery.page import READY

if TYPE_CHECKING:
    from penstock.delivery.cursor import Cursor

#: Of what is still to come so many batches are looked at, and so many rows of each.
BATCHES, ROWS = 64, 4096


class _Look(NamedTuple):
    """What was found in one batch."""

    #: Where the rows that were looked at end, and where the batch does.
    end: int
    batch_end: int
    due_ns: int


class Oldest:
    """The row of one shard that was due first."""

    def __init__(self) -> None:
        #: By the offset at which each look began.
        self._looks: dict[int, _Look] = {}

    def ns(self, cursor: Cursor, wall_ns: int) -> int | None:
        """Return about when the oldest row of a cursor was due, of those that are due by a time; None if none is."""
        heads = cursor.ready.heads() if cursor.states.ready else np.empty(0, np.int64)
        state, _, due_ns, _ = cursor.states.pages.details(heads)
        ready = state == READY
        to_come = np.array(list(self._to_come(cursor)), np.int64)
        found = np.concatenate([due_ns[ready & (due_ns > 0)], *_read(cursor, heads[ready & (due_ns == 0)]), to_come])
        return int(found.min()) if len(found := found[found <= wall_ns]) else None

    def _to_come(self, cursor: Cursor) -> Iterator[int]:
        """Yield when the first row of each batch is due that is still to come."""
        before, self._looks = self._looks, {}
        for first, end in cursor.position.unread():
            at = first
            while at < end and len(self._looks) < BATCHES:
                look = before.get(at)
                if look is None or look.end != min(end, look.batch_end, at + ROWS) or at < cursor.source.kept_from:
                    look = _looked(cursor, at, end)
                if look is None:
                    return
                self._looks[at] = look
                yield look.due_ns
                at = look.batch_end


def _looked(cursor: Cursor, at: int, end: int) -> _Look | None:
    batch = cursor.source.read(at)
    if batch is None:
        return None
    stop = min(end, batch.end, at + ROWS)
    rows = np.arange(max(at, batch.first), stop)
    return _Look(stop, batch.end, int(due_of(batch, rows).min()) if len(rows) else NEVER_NS)


def _read(cursor: Cursor, offsets: Offsets) -> Iterator[Offsets]:
    """Yield when rows were due whose times nobody noted, by what is in memory of the log."""
    for offset in offsets[:BATCHES].tolist():
        batch = cursor.source.read(offset)
        if batch is not None and batch.first <= offset:
            yield due_of(batch, np.array([offset]))
