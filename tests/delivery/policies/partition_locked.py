"""The `partition-locked` policy, as a queue service with partitions has it: a lane is a range of shown ids.

The lane that was used longest ago goes first; one that gave rows is locked for the time they are leased, whatever
becomes of them; one that gave none is not. Where all that have rows are locked, there is one lane more.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penstock.columns import OFFSET_BITS, Offsets
from penstock.delivery.instant import Instant
from penstock.delivery.pages import Slots
from penstock.delivery.policies.policy import Policy, Stock, Taker
from penstock.message import Batch

#: Shown ids have 63 bits; their highest 31 tell the lane.
ID_BITS, SLOT_BITS = 63, 31
_MASK = np.uint64((1 << ID_BITS) - 1)
_ODD = np.uint64(0x9E3779B97F4A7C15)


def shown_ids(ids: Offsets, key: int) -> Offsets:
    """Return ids as clients see them: a bijection of 63 bits, which looks random."""
    mixed = (ids.astype(np.uint64) * _ODD) & _MASK
    mixed = mixed ^ (mixed >> np.uint64(32)) ^ np.uint64(key)
    return ((mixed * _ODD) & _MASK).astype(np.int64)


class PartitionLocked(Policy):
    """Ranges of ids that lock."""

    name = "partition-locked"
    many = True
    sorts_first = True

    def __init__(self, least: int, most: int, key: int = 0x5DEECE66D) -> None:
        self.lanes = least
        self._most = most
        self._key = key
        self._used: dict[int, int] = {}
        self._locked: dict[int, int] = {}
        self._now_ns = 0

    def slots_of(self, shard: int, batch: Batch, offsets: Offsets) -> Slots | None:
        ids = (shard << OFFSET_BITS) + offsets + 1
        return (shown_ids(ids, self._key) >> (ID_BITS - SLOT_BITS)).astype(np.int32)

    def lanes_of(self, slots: Slots) -> Slots:
        return ((slots.astype(np.int64) * self.lanes) >> SLOT_BITS).astype(np.int32)

    def open_to(self, taker: Taker, stock: Stock, rank: int, now: Instant) -> Iterable[int]:
        self._now_ns = now.monotonic_ns
        if taker.lane:  # its other shards: one look is one lane
            return (taker.lane - 1,)
        codes = stock.codes()
        free = [lane for lane in codes if self._locked.get(lane, 0) <= now.monotonic_ns]
        if codes and not free and self.lanes < self._most:
            self.lanes += 1
            self.deal += 1
        return sorted(free, key=lambda lane: self._used.get(lane, 0))

    def served(self, lane: int, taker: Taker, rows: int, until_ns: int) -> bool:
        if rows == 0:
            return True
        taker.lane = lane + 1
        self._used[lane] = self._now_ns
        self._locked[lane] = until_ns
        return False

    def opens_ns(self, now: Instant) -> int | None:
        return min((until for until in self._locked.values() if until > now.monotonic_ns), default=None)
