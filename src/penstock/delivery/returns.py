"""How rows come back that were out and are not done: released, left behind by whoever had them, or held too long.

Owns what that means for others of their key (an earlier row takes the later ones back with it) and whether they go out
again at once or wait. Knows nothing of seats; what happens is noted for the journal and told to the recorder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from penstock.columns import Offsets
from penstock.delivery.instant import Instant
from penstock.delivery.page import READY, WAITING

if TYPE_CHECKING:
    from penstock.delivery.states import RowStates


class Returns:
    """The way back into one subscription over one shard."""

    def __init__(self, states: RowStates, queue: Callable[[Offsets], None]) -> None:
        self._states = states
        #: Puts rows that are ready into their lanes.
        self._queue = queue
        #: Rows taken back from each holder because an earlier one of their key came back.
        self.revoked: dict[int, int] = {}

    def release(self, offsets: Offsets, holder: int, due_ns: int, now: Instant) -> Offsets:
        """Give rows back, to go out again at once or not before `due_ns`; return those the holder does not have."""
        good = self._states.pages.leased(offsets, holder)
        mine = offsets[good]
        if len(mine):
            self._given_back(mine, holder, "released", None, due_ns if due_ns > now.wall_ns else 0, now)
        return offsets[~good]

    def leave(self, holder: int, now: Instant) -> int:
        """Give back everything a holder has; return how much that was."""
        mine = self._states.leases.of(holder)
        if len(mine):
            self._given_back(mine, holder, "released", "left", 0, now)
        return len(mine)

    def expire(self, now: Instant) -> list[tuple[int, int]]:
        """Give back what was held too long; return (holder, rows) of each."""
        states, ended = self._states, []
        for holder, rows in states.leases.expire(now.monotonic_ns):
            if states.keys is not None:  # a row that ended before may have revoked some of these
                rows = rows[states.pages.leased(rows, holder)]
            self._given_back(rows, holder, "expired", None, 0, now)
            ended.append((holder, len(rows)))
        return ended

    def back(self, offsets: Offsets, due_ns: int, now: Instant) -> None:
        """Make rows ready that were out, or let them wait until `due_ns`; the holder's part is the caller's affair."""
        states = self._states
        queue = self._revoke(offsets, delayed=due_ns > 0)
        if states.names and len(offsets):
            states.pages.next_versions(offsets)
        attempts = states.pages.attempts(offsets).astype(np.int64)
        versions = states.pages.versions(offsets)
        states.journal.released(offsets, attempts, np.full(len(offsets), due_ns), versions)
        if due_ns:
            states.pages.move(offsets, WAITING, due_ns)
            states.agenda.put(offsets, np.full(len(offsets), due_ns), now.wall_ns)
            states.waiting += len(offsets)
            states.returning += len(offsets)
        else:
            states.pages.move(offsets, READY, now.wall_ns if states.keeps_due else 0)
            states.ready += len(offsets)
            if len(queue):
                self._queue(queue)

    def _given_back(
        self, rows: Offsets, holder: int, event: str, reason: str | None, due_ns: int, now: Instant
    ) -> None:
        states = self._states
        states.leases.less(holder, len(rows))
        states.leased -= len(rows)
        if states.recorder is not None and len(rows):
            states.recorder.returned(event, rows, states.pages.attempts(rows), reason)  # type: ignore[arg-type]
        self.back(rows, due_ns, now)

    def _revoke(self, offsets: Offsets, *, delayed: bool) -> Offsets:
        """Take back later rows of keys whose earlier rows come back; return which of those may be queued now."""
        states = self._states
        if states.keys is None:
            return offsets
        queue, revoked = states.keys.came_back(offsets.tolist(), delayed=delayed)
        if revoked:
            rows = np.array(sorted(revoked), np.int64)
            _, attempts, _, holders = states.pages.details(rows)
            if states.recorder is not None:
                states.recorder.returned("released", rows, states.pages.attempts(rows), "order")
            for holder in np.unique(holders).tolist():
                count = int((holders == holder).sum())
                states.leases.less(holder, count)
                self.revoked[holder] = self.revoked.get(holder, 0) + count
            states.pages.move(rows, READY)
            states.journal.released(rows, attempts, np.zeros(len(rows), np.int64), states.pages.versions(rows))
            states.leased -= len(rows)
            states.ready += len(rows)
        return np.array(sorted(queue), np.int64)
