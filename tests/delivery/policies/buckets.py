"""The `buckets` policy, as a timeline has it: 65,536 slots dealt in ranges to seats, in order of their names.

A seat takes what is its own first; what is left when everybody was asked, the others may take, next one first. Rows
go out a moment before they are due.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penstock.columns import Offsets
from penstock.delivery.instant import Instant
from penstock.delivery.pages import Slots
from penstock.delivery.policies.policy import Policy, Stock, Taker
from penstock.message import Batch, int64s

SLOTS = 1 << 16


class Buckets(Policy):
    """Ranges of slots, each somebody's own."""

    name = "buckets"
    many = True
    ranks = 2

    def __init__(self, prefetch_ns: int = 0) -> None:
        self.lead_ns = prefetch_ns
        self.table: Slots = np.zeros(SLOTS, np.int32)
        self._seats: dict[str, Taker] = {}

    def joined(self, taker: Taker) -> None:
        self._seats[taker.name] = taker
        self._deal_anew()

    def left(self, taker: Taker) -> None:
        del self._seats[taker.name]
        self._deal_anew()

    def _deal_anew(self) -> None:
        self.deal += 1
        count = len(self._seats)
        for number, name in enumerate(sorted(self._seats)):
            first, end = ((2 * each * SLOTS + count) // (2 * count) for each in (number, number + 1))
            self.table[first:end] = number
            self._seats[name].lane = number

    def slots_of(self, shard: int, batch: Batch, offsets: Offsets) -> Slots | None:
        return int64s(batch.columns["bucket"])[0][offsets - batch.first].astype(np.int32)

    def lanes_of(self, slots: Slots) -> Slots:
        return self.table[slots]

    def open_to(self, taker: Taker, stock: Stock, rank: int, now: Instant) -> Iterable[int]:
        count = max(1, len(self._seats))
        return (taker.lane,) if rank == 0 else [(taker.lane + step) % count for step in range(1, count)]
