"""Counting messages by when they are due or their leases end: a piece in each turn, however many there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from penstock.columns import Offsets
from penstock.delivery.page import LEASED, PAGE_ROWS, READY, WAITING

if TYPE_CHECKING:
    from penstock.delivery.subscription import Subscription

Status: TypeAlias = Literal["all", "available", "waiting", "processing"]

#: So many pages are looked at in one turn where they hold few rows; of full ones it is one.
_PAGES = 64

_MS = 1_000_000
_STATES: Mapping[Status, tuple[int, ...]] = {
    "all": (READY, WAITING, LEASED),
    "available": (READY,),
    "waiting": (WAITING,),
    "processing": (LEASED,),
}


class Counting:
    """One question: how many messages are in a state, of those whose position lies in a range of times.

    The position of a message that is available is known where its due time was kept; else it counts as any time.
    """

    def __init__(self, subscription: Subscription, status: Status, from_ms: int | None, to_ms: int | None) -> None:
        self.total = 0
        self._now = subscription.host.now()
        self._states = _STATES[status]
        self._low_ns = -(1 << 62) if from_ms is None else from_ms * _MS
        self._high_ns = 1 << 62 if to_ms is None else to_ms * _MS
        self._left = [(each, each.states.pages.first() or 0) for each in subscription.cursors]

    def step(self) -> bool:
        """Count a piece; True when that was the last."""
        looked, pages = 0, _PAGES
        while self._left and pages and looked < PAGE_ROWS:
            cursor, at = self._left.pop()
            end = (at // PAGE_ROWS + 1) * PAGE_ROWS
            rows = cursor.states.pages.between(at, end)
            state, _, times_ns, _ = cursor.states.pages.details(rows)
            self._count(state, times_ns)
            if end < cursor.position.offset:
                self._left.append((cursor, end))
            looked, pages = looked + len(rows), pages - 1
        return not self._left

    def _count(self, state: Offsets, times_ns: Offsets) -> None:
        now = self._now
        leased = state == LEASED
        position = np.where(leased, times_ns - now.monotonic_ns + now.wall_ns, times_ns)
        # What is ready ahead of its time, for those who hold it until then, waits.
        state = np.where((state == READY) & (times_ns > now.wall_ns), WAITING, state)
        inside = (position >= self._low_ns) & (position < self._high_ns)
        self.total += int((np.isin(state, self._states) & inside).sum())
