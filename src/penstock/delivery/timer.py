"""The due timer of a topic: when its next row becomes due.

Keeps the rows that were published with a due time, once per topic whatever the number of subscriptions (ruling 11),
and one timer for them and for whatever else waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from penstock.clock import MILLISECOND, SECOND, Clock, Timer
from penstock.columns import Offsets
from penstock.delivery.calendar import Calendar

#: Due rows are looked for at least this often while any wait, in case the wall clock jumps.
CHECK_NS = SECOND

#: After a look it rests for so many times as long as that took, up to a bound: what falls due meanwhile goes out
#: together, and those who answer have their turns. A few rows cost nearly what hundreds do.
RESTS, REST_NS_MAX = 2, 4 * MILLISECOND


class DueTimer:
    """Calls `due` when something is; `others` tells when something else than a published row is."""

    def __init__(
        self, clock: Clock, shards: int, due: Callable[[], None], others: Callable[[], Sequence[int | None]]
    ) -> None:
        self._clock = clock
        self._call = due
        self._others = others
        self._calendars: list[Calendar | None] = [None] * shards
        #: Per shard: nothing at or above this offset was ever kept.
        self._ends = [0] * shards
        self._timer: Timer | None = None
        self._at_ns = 0
        #: It does not call before this, on the monotonic clock.
        self._rest_ns = 0
        self._seen_ns = clock.now()

    def grow(self, shards: int) -> None:
        """Keep rows of so many shards from now on."""
        more = shards - len(self._ends)
        self._calendars += [None] * more
        self._ends += [0] * more

    def see(self, wall_ns: int) -> None:
        """Note that published rows due by this time are taken for due and not kept here."""
        self._seen_ns = max(self._seen_ns, wall_ns)

    def seen_ns(self) -> int:
        """Return the latest time up to which published rows were taken for due; the clock may be behind it now."""
        return self._seen_ns

    @property
    def is_set(self) -> bool:
        """Whether it will call."""
        return self._timer is not None

    def wait_for(self, shard: int, due_ns: Offsets, offsets: Offsets) -> None:
        """Keep rows until they are due."""
        calendar = self._calendars[shard]
        if calendar is None:
            calendar = self._calendars[shard] = Calendar(self._clock.now())
        calendar.put(due_ns, offsets)
        self._ends[shard] = max(self._ends[shard], int(offsets[-1]) + 1)
        self.set()

    def between(self, shard: int, first: int, end: int) -> int:
        """Return how many published rows of a range of offsets are not due yet."""
        calendar = self._calendars[shard]
        if calendar is None or first >= self._ends[shard]:  # the common case: all of them were passed
            return 0
        return calendar.between(first, end)

    def coming(self, shard: int, until_ns: int) -> tuple[Offsets, Offsets]:
        """Return when published rows of a shard are due, and which those are, of those due before a time."""
        calendar = self._calendars[shard]
        if calendar is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        due_ns, offsets = calendar.coming(until_ns)
        return due_ns, offsets

    def set(self) -> None:
        """Look when the next row is due and wake up then."""
        times = [calendar.next_ns() for calendar in self._calendars if calendar is not None and len(calendar)]
        due = [time_ns for time_ns in (*times, *self._others()) if time_ns is not None]
        if not due:
            return
        delay_ns = min(max(min(due) - self._clock.now(), 0), CHECK_NS)
        at_ns = max(self._clock.monotonic() + delay_ns, self._rest_ns)
        if self._timer is not None:
            if self._at_ns <= at_ns:
                return
            self._timer.cancel()
        self._at_ns = at_ns
        self._timer = self._clock.call_at(at_ns, self._fire)

    def pop(self, shard: int, wall_ns: int) -> Offsets | None:
        """Return the published rows of a shard that are due by a time, which is to judge them afterwards too."""
        calendar = self._calendars[shard]
        if calendar is None or not len(calendar):
            return None
        self.see(wall_ns)
        return calendar.pop(wall_ns)

    def cancel(self) -> None:
        """Call no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        self._timer = None
        began_ns = self._clock.monotonic()
        try:
            self._call()
        finally:
            ended_ns = self._clock.monotonic()
            self._rest_ns = ended_ns + min(RESTS * (ended_ns - began_ns), REST_NS_MAX)
            self.set()
