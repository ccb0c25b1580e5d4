"""The `tagged` policy: rows with a tag go to the seats that ask for it, and to nobody else.

In force while some seat of the subscription asks for a tag. A row whose tag nobody claims goes to seats that ask for
none; a row that must wait for its seat delays no other row.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penstock.columns import Offsets
from penstock.delivery.instant import Instant
from penstock.delivery.page import Slots
from penstock.delivery.policies.policy import Policy, Stock, Taker
from penstock.filters.tag import TagTable
from penstock.message import Batch


class Tagged(Policy):
    """A lane for each tag that was ever claimed, lane 0 for all other rows."""

    name = "tagged"
    many = True

    def __init__(self) -> None:
        self._tags = TagTable()
        #: How many seats ask for each tag, by its lane.
        self._claims: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._claims)

    def claim(self, tag: str) -> int:
        """Take note that a seat asks for a tag; return the lane of its rows."""
        lane = self._tags.code(tag)
        self._claims[lane] = self._claims.get(lane, 0) + 1
        return lane

    def unclaim(self, tag: str) -> None:
        """Take note that a seat asks for a tag no more."""
        lane = self._tags.code(tag)
        left = self._claims[lane] - 1
        if left:
            self._claims[lane] = left
        else:
            del self._claims[lane]

    def slots_of(self, shard: int, batch: Batch, offsets: Offsets) -> Slots | None:
        """Return the lanes of the rows' tags."""
        column = batch.columns.get("tag")
        if column is None:
            return None
        return self._tags.codes(column)[offsets - batch.first].astype(np.int32)

    def open_to(self, taker: Taker, stock: Stock, rank: int, now: Instant) -> Iterable[int]:
        """Give a seat its own tag; to those who ask for none what has none, and what nobody asks for."""
        if taker.lane:
            return (taker.lane,)
        return [lane for lane in stock.codes() if lane not in self._claims]
