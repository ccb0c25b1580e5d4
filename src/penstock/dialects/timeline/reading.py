"""Reading rows of a topic by their ids, from memory at once and from disk a moment later."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.columns import OFFSET_BITS, Offsets
from penstock.message import Batch

if TYPE_CHECKING:
    from penstock.node.topic import Topic

_MASK = (1 << OFFSET_BITS) - 1


class Found(NamedTuple):
    """Rows of one batch that were asked for."""

    shard: int
    batch: Batch
    rows: Offsets
    #: Where each of them stood in the question.
    at: Offsets

    def picked(self, which: npt.NDArray[np.bool_]) -> Found:
        """Return some of them."""
        return self._replace(rows=self.rows[which], at=self.at[which])


def read(topic: Topic, ids: Offsets, told: Callable[[list[Found]], None]) -> None:
    """Tell the rows of some ids, as far as they can be read; before this returns if all of them are in memory."""
    order = np.argsort(ids, kind="stable")
    places = ids[order] - 1
    found: list[Found] = []

    def step(at: int, *, fetched: bool = False) -> None:
        while at < len(places):
            number, offset = int(places[at]) >> OFFSET_BITS, int(places[at]) & _MASK
            if not 0 <= number < len(topic.shards):
                at += 1
                continue
            shard = topic.shards[number]
            batch = shard.read(offset)
            if batch is None and not fetched and not topic.deleted:
                shard.fetch(offset, partial(step, at, fetched=True))
                return
            fetched = False
            if batch is None or batch.first > offset:  # gone, or cannot be read
                at += 1
                continue
            stop = int(np.searchsorted(places, (number << OFFSET_BITS) + batch.end))
            rows = (places[at:stop] & _MASK) - batch.first
            found.append(Found(number, batch, rows, order[at:stop]))
            at = stop
        told(found)

    step(0)
