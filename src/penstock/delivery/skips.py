"""Rows ahead of a cursor that were removed before it came to them, as ranges of offsets.

Owns the ranges only; what passing one means is the cursor's affair. A range costs the same whether it holds one row
or a million, because an emptied topic leaves one behind for each of its subscriptions.
Invariant: ranges ascend, do not touch each other and are not empty.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import numpy as np

from penstock.columns import Offsets


class Skips:
    """Ranges [first, end) in order."""

    __slots__ = ("_ends", "firsts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        #: Where each begins; empty if there are none, which the way of every message looks at.
        self.firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in sorted(ranges):
            self.add(first, end)

    def ranges(self) -> list[tuple[int, int]]:
        """Return all ranges, first and end of each."""
        return list(zip(self.firsts, self._ends, strict=True))

    def add(self, first: int, end: int) -> None:
        """Take in a range, joined with those it touches."""
        if first >= end:
            return
        low = bisect_left(self._ends, first)
        high = bisect_right(self.firsts, end)
        if low < high:
            first, end = min(first, self.firsts[low]), max(end, self._ends[high - 1])
        self.firsts[low:high] = [first]
        self._ends[low:high] = [end]

    def drop_below(self, offset: int) -> None:
        """Forget everything below an offset."""
        gone = bisect_right(self._ends, offset)
        del self.firsts[:gone], self._ends[:gone]
        if self.firsts and self.firsts[0] < offset:
            self.firsts[0] = offset

    def end_at(self, offset: int) -> int:
        """Return the end of the range that holds an offset, or the offset itself if none does."""
        at = bisect_right(self.firsts, offset) - 1
        return max(self._ends[at], offset) if at >= 0 else offset

    def between(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return what lies inside [first, end), as ranges."""
        low, high = bisect_right(self._ends, first), bisect_left(self.firsts, end)
        pairs = zip(self.firsts[low:high], self._ends[low:high], strict=True)
        return [(max(a, first), min(b, end)) for a, b in pairs]

    def offsets(self, first: int, end: int) -> Offsets:
        """Return every offset inside [first, end), ascending; the caller keeps the stretch short."""
        parts = [np.arange(a, b) for a, b in self.between(first, end)]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)
