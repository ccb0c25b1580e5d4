"""The due timer of a topic: when its next row becomes due.

Keeps the rows that were published with a due time, once per topic whatever the number of subscriptions (ruling 11),
and one timer for them and for whatever else waits. Where a subscription hands rows out ahead of their time, all of them
hear of rows that long ahead.
"""

from __future__ import annotations

from collections import deque
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


_NONE = np.empty(0, np.int64)


class DueTimer:
    """Calls `due` when something is; `others` tells when something else than a published row is.

    `lead_ns` tells how long before they are due rows shall be announced.
    """

    def __init__(
        self,
        clock: Clock,
        shards: int,
        due: Callable[[], None],
        others: Callable[[], Sequence[int | None]],
        lead_ns: Callable[[], int] = int,
    ) -> None:
        self._clock = clock
        self._call = due
        self._others = others
        self._lead_ns = lead_ns
        self._calendars: list[Calendar | None] = [None] * shards
        #: What was announced ahead of its time by shard, as (the last due time, due times, offsets) of each look; most
        #: never have any, and an empty one takes 760 bytes.
        self._early: dict[int, deque[tuple[int, Offsets, Offsets]]] = {}
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

    def see(self, wall_ns: int) -> int:
        """Note that published rows are not kept here any more whose time to be announced has come.

        Return the time by which those are due.
        """
        until_ns = wall_ns + self._lead_ns()
        self._seen_ns = max(self._seen_ns, until_ns)
        return until_ns

    def seen_ns(self) -> int:
        """Return the latest time up to which published rows were announced; the clock may be behind it now."""
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
        _, early = self._announced(shard)
        return calendar.between(first, end) + int(((early >= first) & (early < end)).sum())

    def coming(self, shard: int, until_ns: int) -> tuple[Offsets, Offsets]:
        """Return when published rows of a shard are due, and which those are, of those due before a time."""
        calendar = self._calendars[shard]
        if calendar is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        due_ns, offsets = calendar.coming(until_ns)
        early_ns, early = self._announced(shard)
        if not len(early):
            return due_ns, offsets
        soon = early_ns < until_ns
        return np.concatenate((early_ns[soon], due_ns)), np.concatenate((early[soon], offsets))

    def _announced(self, shard: int) -> tuple[Offsets, Offsets]:
        """Return when rows are due that were announced ahead of their time and are not due yet, and which they are."""
        early, now_ns = self._early.get(shard), self._clock.now()
        while early and early[0][0] <= now_ns:
            early.popleft()
        if not early:
            return _NONE, _NONE
        due_ns = np.concatenate([piece[1] for piece in early])
        later = due_ns > now_ns
        return due_ns[later], np.concatenate([piece[2] for piece in early])[later]

    def set(self) -> None:
        """Look when the next row is due and wake up then."""
        lead_ns = self._lead_ns()
        due = [time_ns for time_ns in self._others() if time_ns is not None]
        kept = [calendar.next_ns() for calendar in self._calendars if calendar is not None and len(calendar)]
        due += [time_ns - lead_ns for time_ns in kept if time_ns is not None]
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

    def pop(self, shard: int, wall_ns: int) -> tuple[Offsets, int] | None:
        """Return the published rows of a shard whose time to be announced has come, and the time they are due by."""
        calendar = self._calendars[shard]
        if calendar is None or not len(calendar):
            return None
        until_ns = self.see(wall_ns)
        due_ns, offsets = calendar.take(until_ns)
        if until_ns > wall_ns and len(offsets):
            early = self._early.setdefault(shard, deque())
            while early and early[0][0] <= wall_ns:
                early.popleft()
            early.append((int(due_ns[-1]), due_ns, offsets))
        return offsets, until_ns

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
