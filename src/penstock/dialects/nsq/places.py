"""Where rows stand in the queue files that Youzan's NSQ would have written: for traced replies and detailed frames.

Owns the look at one batch, made once and kept with it. The weights themselves are the log's (ruling 5).
Invariant: the position of a row plus its size is the position of the next row, also across an upgrade to headers.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from penstock.columns import Offsets, place_of
from penstock.intake.receipt import Receipt
from penstock.log import weight
from penstock.message import Batch
from penstock.node.topic import Topic

_EDGES = "nsq edges"


class Position(NamedTuple):
    """The bytes of the records before a message, and of its own."""

    queue_offset: int
    raw_size: int


def edges(topic: Topic, shard: int, batch: Batch) -> Offsets:
    """Return where each row of a batch stands, and its end."""
    known: Offsets | None = batch.wire.get(_EDGES)
    if known is None:
        known = batch.wire[_EDGES] = weight.edges(batch, topic.shards[shard].measures)
    return known


def place(topic: Topic, receipt: Receipt, id_: int) -> Position:
    """Return where a stored row stands; one that repeats an older message which left memory stands nowhere."""
    shard, offset = place_of(id_)
    batch = receipt.batch
    if batch is None or not batch.first <= offset < batch.end:
        batch = topic.shards[shard].read(offset)
        if batch is None or batch.first > offset:
            return Position(0, 0)
    row = offset - batch.first
    found = edges(topic, shard, batch)
    return Position(int(found[row]), int(found[row + 1] - found[row]))


def places(topic: Topic, receipt: Receipt) -> list[Position]:
    """Return where all rows of a publish stand, in order. Budget: 0.5 us a row from 1,000 on."""
    batch = receipt.batch
    if batch is None or receipt.elsewhere is not None:
        return [place(topic, receipt, id_) for id_ in receipt.ids()]
    shard, offset = place_of(receipt.first_id)
    row = offset - batch.first
    found = edges(topic, shard, batch)[row : row + receipt.count + 1].tolist()
    return [Position(low, high - low) for low, high in pairwise(found)]
