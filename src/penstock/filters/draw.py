"""Drawing one message in n, so that everything that happens to a message is told or nothing is.

Owns that draw. It is another one than that of `sample`: a consumer that samples would otherwise get all that is drawn
here, or nothing of it. Knows nothing of what is told.
Invariant: the draw depends on topic and id alone, and a range or an array gets what its rows would get one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from zlib import crc32

import numpy as np
import numpy.typing as npt

from penstock.message import Offsets

#: A row is drawn if (base + offset) * STEP modulo 2^32 is below a limit. The step is 2^32 over the golden ratio: of
#: rows that follow each other it draws evenly.
STEP = 0x9E3779B9
BITS = (1 << 32) - 1

#: Tables have about three entries for each row that is not drawn.
ONE_IN_MAX = 1 << 16

#: What is drawn of a stretch of so many rows is remembered: the same rows are published, delivered and acked.
_STRETCH_BITS = 12
_STRETCHES_MAX = 256
#: Fewer rows are drawn from by themselves: that is cheaper than a stretch, where nobody asks for the rest of it.
_FEW = 256

_SIGNED = np.int32(STEP - (1 << 32))
_LOWEST = -(1 << 31)


def base_of(topic: str, shard: int) -> int:
    """Return where a shard begins: each elsewhere, so that of many short topics some begin with a row that is drawn."""
    return crc32(b"%d %b" % (shard, topic.encode()))


class Draw:
    """Draws one row in so many.

    The rows drawn from a range are found without a look at the others: from one that is drawn, the next is always one
    of three distances away (the three-gap theorem), and the first is found in a table of what so many steps add.
    """

    __slots__ = ("_down", "_down_by", "_points", "_steps", "_stretches", "_up", "_up_by", "limit")

    def __init__(self, one_in: int) -> None:
        if not 1 <= one_in <= ONE_IN_MAX:
            raise ValueError(f"one in {one_in}: choose 1 (every message) to {ONE_IN_MAX}")
        #: Above BITS if every row is drawn.
        self.limit = (1 << 32) // one_in
        # The fewest steps that end a little further up, and a little further down, than they began.
        self._up = next(step for step in range(1, 1 << 32) if step * STEP & BITS < self.limit)
        self._down = next(step for step in range(1, 1 << 32) if -step * STEP & BITS < self.limit)
        self._up_by, self._down_by = self._up * STEP & BITS, -self._down * STEP & BITS
        # Sorted, and once more a whole turn further, so that a look for a place never wraps.
        points = sorted((step * STEP & BITS, step) for step in range(self._up + self._down))
        self._points = [point + turn for turn in (0, 1 << 32) for point, _ in points]
        self._steps = [step for _, step in points] * 2
        self._stretches: dict[tuple[int, int], list[int]] = {}

    def one(self, base: int, offset: int) -> bool:
        """Tell whether one row is drawn. Budget: 0.1 us."""
        return (base + offset) * STEP & BITS < self.limit

    def of_range(self, base: int, first: int, count: int) -> list[int]:
        """Return the rows that are drawn of those from `first` on. Budget: 2 us for 100 of them, 10 us for 10,000."""
        if count <= _FEW:
            return self._of_range(base, first, count)
        end = first + count
        stretches = range(first >> _STRETCH_BITS, (end - 1 >> _STRETCH_BITS) + 1)
        out = self._stretch(base, stretches[0])
        out = out[bisect_left(out, first) : bisect_left(out, end)]
        for number in stretches[1:]:
            rest = self._stretch(base, number)
            out += rest if rest and rest[-1] < end else rest[: bisect_left(rest, end)]
        return out

    def _stretch(self, base: int, number: int) -> list[int]:
        found = self._stretches.get((base, number))
        if found is None:
            if len(self._stretches) >= _STRETCHES_MAX:
                self._stretches.clear()
            found = self._of_range(base, number << _STRETCH_BITS, 1 << _STRETCH_BITS)
            self._stretches[base, number] = found
        return found

    def _of_range(self, base: int, first: int, count: int) -> list[int]:
        offset = first + self._ahead((base + first) * STEP & BITS)
        end = first + count
        out: list[int] = []
        if offset >= end:
            return out
        at, limit = (base + offset) * STEP & BITS, self.limit
        up, down, up_by, down_by = self._up, self._down, self._up_by, self._down_by
        while offset < end:
            out.append(offset)
            can_up, can_down = at + up_by < limit, at >= down_by
            if can_up and (up < down or not can_down):
                offset, at = offset + up, at + up_by
            elif can_down:
                offset, at = offset + down, at - down_by
            else:
                offset, at = offset + up + down, at + up_by - down_by
        return out

    def of(self, base: int, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Return which rows are drawn. Budget: 3 ns each from 1,000 on."""
        if self.limit > BITS:
            return np.ones(len(offsets), np.bool_)
        # As signed numbers, which numpy compares faster; from -2^31 on they have the same order.
        mixed = (offsets + base).astype(np.int32) * _SIGNED + np.int32(_LOWEST)
        drawn: npt.NDArray[np.bool_] = mixed < np.int32(self.limit + _LOWEST)
        return drawn

    def _ahead(self, at: int) -> int:
        """Return after how many steps from a place a row is drawn for the first time."""
        if at < self.limit:
            return 0
        points, wanted = self._points, (1 << 32) - at
        number = bisect_left(points, wanted)
        best = self._steps[number]
        while points[number + 1] < wanted + self.limit:
            number += 1
            best = min(best, self._steps[number])
        return best
