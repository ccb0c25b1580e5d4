"""One message in n, so that everything that happens to a message is told or nothing is.

Another choice than that of `sample`: a consumer that samples would otherwise get all that is chosen here, or nothing
of it.
Invariant: the choice depends on topic and id alone, and a range or an array gets what its rows would get one by one.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np
import numpy.typing as npt

from penstock.columns import Offsets

#: Multiplied by this (2^32 over the golden ratio), the numbers of blocks that follow each other lie far apart.
STEP = 0x9E3779B9
BITS = (1 << 32) - 1

ONE_IN_MAX = 1 << 16

#: From so many blocks on numpy is faster.
_FEW = 24


def base_of(topic: str, shard: int) -> int:
    """Return where a shard begins: each elsewhere, so that of many short topics some begin with a chosen row."""
    return crc32(b"%d %b" % (shard, topic.encode()))


class Sampler:
    """Chooses one row of each block of n rows, at the place that a hash of the block says."""

    __slots__ = ("one_in",)

    def __init__(self, one_in: int) -> None:
        if not 1 <= one_in <= ONE_IN_MAX:
            raise ValueError(f"one in {one_in}: choose 1 (every message) to {ONE_IN_MAX}")
        self.one_in = one_in

    def one(self, base: int, offset: int) -> bool:
        """Tell whether one row is chosen. Budget: 0.2 us."""
        block, place = divmod(offset, self.one_in)
        return place == ((base + block) * STEP & BITS) * self.one_in >> 32

    def any_of(self, base: int, offsets: list[int]) -> bool:
        """Tell whether one of a handful of rows is chosen, which is mostly not so. Budget: 0.2 us each."""
        n = self.one_in
        last = -1
        for offset in offsets:
            block = offset // n
            if block != last:
                last, chosen = block, block * n + (((base + block) * STEP & BITS) * n >> 32)
            if offset == chosen:
                return True
        return False

    def of_range(self, base: int, first: int, count: int) -> list[int]:
        """Return the chosen rows of those from `first` on. Budget: 1 us for 100 of them, 10 us for 10,000."""
        n, end = self.one_in, first + count
        blocks = range(first // n, (end - 1) // n + 1)
        if len(blocks) <= _FEW:
            chosen = [block * n + (((base + block) * STEP & BITS) * n >> 32) for block in blocks]
        else:
            chosen = self._chosen(base, np.arange(blocks.start, blocks.stop)).tolist()
        # Of the first and the last block only a part may be asked for.
        if chosen[-1] >= end:
            chosen.pop()
        if chosen and chosen[0] < first:
            del chosen[0]
        return chosen

    def of(self, base: int, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Return which rows are chosen. Budget: 10 ns each from 1,000 on."""
        chosen: npt.NDArray[np.bool_] = self._chosen(base, offsets // self.one_in) == offsets
        return chosen

    def _chosen(self, base: int, blocks: Offsets) -> Offsets:
        """Return the row that is chosen of each block."""
        mixed = ((blocks + base) * STEP & BITS) * self.one_in >> 32
        return blocks * self.one_in + mixed
