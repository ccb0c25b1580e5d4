"""The `routed` policy: rows go where a number of theirs says, and who has which numbers is told by a relay.

A row's slot is its `route`, else the hash of its key, else its offset, modulo the number of slots. Which slots stand in
one lane, and which seats take from it, changes with a placement; nothing is read again for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from penstock.columns import Column, Offsets
from penstock.delivery.instant import Instant
from penstock.delivery.page import Slots
from penstock.delivery.policies.policy import Policy, Stock, Taker
from penstock.keyed import shard_of
from penstock.message import Batch, int64s


class Routed(Policy):
    """Slots dealt to seats by their names."""

    name = "routed"
    many = True
    new_first = True

    def __init__(self) -> None:
        self.slots = 1
        self._lanes = np.zeros(1, np.int32)
        self._open: Mapping[str, Sequence[int]] = {}

    def deal_to(self, lanes: Slots, takers: Mapping[str, Sequence[int]]) -> None:
        """Deal by a lane for each slot, and the lanes of each seat; lanes that nobody has keep their rows."""
        self.slots, self._lanes, self._open = len(lanes), lanes, takers
        self.deal += 1

    def slots_of(self, shard: int, batch: Batch, offsets: Offsets) -> Slots:
        """Return where the rows are to go."""
        return routes(batch, offsets, self.slots)

    def lanes_of(self, slots: Slots) -> Slots:
        """Return the lane of each slot."""
        return self._lanes[slots]

    def open_to(self, taker: Taker, stock: Stock, rank: int, now: Instant) -> Iterable[int]:
        """Give a seat its own lanes."""
        return self._open.get(taker.name, ())


def routes(batch: Batch, offsets: Offsets, slots: int) -> Slots:
    """Return the slot of each of these rows of a batch. Budget: 20 ns a row with a route, 0.6 us with a key only."""
    known = batch.wire.get(Routed)
    if known is None or known[0] != slots:
        # Asked when rows are put into lanes, and again when they are sent.
        known = batch.wire[Routed] = slots, _routes(batch, slots)
    found: Slots = known[1][offsets - batch.first]
    return found


def _routes(batch: Batch, slots: int) -> Slots:
    found = np.arange(batch.first, batch.end) % slots
    column = batch.columns.get("route")
    values, valid = int64s(column) if column is not None else (found, np.zeros(batch.count, np.bool_))
    keys = batch.columns.get("key")
    if keys is not None and not valid.all():
        by_key = [-1 if key is None else shard_of(key, slots) for key in _keys(keys)]
        found = np.where(np.array(by_key) >= 0, by_key, found)
    return np.where(valid, values % slots, found).astype(np.int32)


def _keys(column: Column) -> list[bytes | None]:
    cells = column if isinstance(column, list) else column.to_pylist()
    return [bytes(cell) if isinstance(cell, bytes | bytearray | memoryview) else None for cell in cells]
