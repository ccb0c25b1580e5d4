"""Where a message would stand in an NSQ queue file: the queue offset and raw size of traced replies (ruling 5).

Owns the sums inside one batch; what comes before a batch, the batch itself knows.
Invariant: the position of a row plus its size is the position of the next row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.log.weight import EXTEND_BYTES, HEADER_LENGTH_BYTES, PLAIN_BYTES
from penstock.message import Batch, Offsets


class Position(NamedTuple):
    """The bytes of the records before a message, and of its own."""

    queue_offset: int
    raw_size: int


def positions(batch: Batch, weigh_headers: bool) -> Offsets:
    """Return the position of each row of a batch, and the one after the last."""
    sizes = np.diff(np.asarray(batch.cuts, np.int64)) + (EXTEND_BYTES if weigh_headers else PLAIN_BYTES)
    column = batch.columns.get("headers") if weigh_headers else None
    if column is not None:
        headers = column if isinstance(column, pa.Array) else pa.array(column, pa.binary())
        sizes += np.asarray(pc.fill_null(pc.add(pc.binary_length(headers), HEADER_LENGTH_BYTES), 0), np.int64)
    edges: Offsets = batch.weight + np.concatenate([[0], np.cumsum(sizes)])
    return edges
