"""The `routed` policy: rows go where a number of theirs says, and who has which numbers is told by a relay.

A row's slot is the hash of its key, else its `route`, else its offset, modulo the number of slots: a `route` is what
somebody else made of the key, who may have had another number of slots. Which slots stand in one lane, and which seats
take from it, changes with a placement; nothing is read again for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from penstock.columns import Column, Offsets
from penstock.delivery.instant import Instant
from penstock.delivery.page import Slots
from penstock.delivery.policies.policy import Policy, Stock, Taker
from penstock.keyed import hashes_of
from penstock.message import Batch, int64s

_BYTES = bytes | bytearray | memoryview


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
    """Return the slot of each of these rows of a batch. Budget: 20 ns a row, 0.1 us with a key."""
    known = batch.wire.get(Routed)
    if known is None or known[0] != slots:
        # Asked when rows are put into lanes, and again when they are sent.
        known = batch.wire[Routed] = slots, _routes(batch, slots)
    found: Slots = known[1][offsets - batch.first]
    return found


def _routes(batch: Batch, slots: int) -> Slots:
    found = np.arange(batch.first, batch.end) % slots
    column = batch.columns.get("route")
    if column is not None:
        values, valid = int64s(column)
        found = np.where(valid, values % slots, found)
    keys = batch.columns.get("key")
    if keys is not None:
        hashes = _hashes(keys)
        found = np.where(hashes >= 0, hashes % slots, found)
    return found.astype(np.int32)


def _hashes(keys: Column) -> npt.NDArray[np.int64]:
    if isinstance(keys, list):
        return np.array(hashes_of(bytes(key) if isinstance(key, _BYTES) else None for key in keys), np.int64)
    return np.array(hashes_of(keys.to_pylist()), np.int64)
