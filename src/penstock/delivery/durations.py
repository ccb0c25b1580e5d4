"""How long messages take, counted between bounds: what a histogram in the metrics is made of.

Knows no message and no clock: times are passed in, of many rows at once. Invariant: however many there were, it holds
one count for each bound.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from penstock.clock import MILLISECOND, SECOND
from penstock.columns import SMALL
from penstock.delivery.source import Delivery
from penstock.message import int64s

#: From a consumer beside the node to one that comes back after lunch.
BOUNDS_NS = (
    *(bound * MILLISECOND for bound in (1, 5, 10, 50, 100, 500)),
    *(bound * SECOND for bound in (1, 5, 10, 30, 60, 300, 3600)),
)
#: Lone messages mostly take less: they need no search.
FIRST_NS = BOUNDS_NS[0]

_BOUNDS = np.array(BOUNDS_NS)


class Durations:
    """Counts between the bounds, and a sum."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        #: The last counts what lies beyond all bounds.
        self.counts = [0] * (len(BOUNDS_NS) + 1)
        self.sum_ns = 0

    def add(self, time_ns: int, count: int = 1) -> None:
        """Count rows that took the same time; the wall clock may have been set back meanwhile. Budget: 0.2 us."""
        if time_ns < 0:
            time_ns = 0
        self.counts[bisect_left(BOUNDS_NS, time_ns)] += count
        self.sum_ns += time_ns * count

    def _add_few(self, times_ns: list[int]) -> None:
        """Count a few rows that took a time each; mostly all of them lie between the same two bounds."""
        low_ns, high_ns = min(times_ns), max(times_ns)
        place = bisect_left(BOUNDS_NS, low_ns)
        if low_ns < 0 or place != bisect_left(BOUNDS_NS, high_ns):
            for time_ns in times_ns:
                self.add(time_ns)
        else:
            self.counts[place] += len(times_ns)
            self.sum_ns += sum(times_ns)

    def add_all(self, times_ns: npt.NDArray[np.int64]) -> None:
        """Count rows that took a time each. Budget: 10 ns a row from 1,000 on."""
        times_ns = np.maximum(times_ns, 0)
        found = np.bincount(np.searchsorted(_BOUNDS, times_ns), minlength=len(self.counts))
        self.counts = (found + self.counts).tolist()
        self.sum_ns += int(times_ns.sum())

    def add_first(self, delivery: Delivery, wall_ns: int) -> None:
        """Count how long rows waited that go out for the first time: since they came, or since they were due."""
        batch, rows = delivery.batch, delivery.rows
        if delivery.count <= SMALL and isinstance(rows, slice) and "due" not in batch.columns:
            times = batch.timestamp
            if not isinstance(times, int) and delivery.attempts == 1:
                some = times[rows] if isinstance(times, list) else times[rows].tolist()
                self._add_few([wall_ns - since_ns for since_ns in some])
                return
        since: int | npt.NDArray[np.int64]
        since = batch.timestamp if isinstance(batch.timestamp, int) else np.asarray(batch.timestamp, np.int64)[rows]
        if "due" in batch.columns:
            since = np.maximum(int64s(batch.columns["due"])[0][rows], since)
        if not isinstance(delivery.attempts, int):
            since = np.broadcast_to(since, delivery.count)[delivery.attempts == 1]
        if isinstance(since, int):
            self.add(wall_ns - since, delivery.count)
        else:
            self.add_all(wall_ns - since)
