"""What rows weigh: how many bytes stand before a row in its shard, as its topic measures them.

Every batch carries its weight, so whoever speaks of byte positions can tell them without reading what came before.
Invariant: the weight of a batch is the sum of the weights of the rows before it, whatever batches they are in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import Column, Offsets
from penstock.message import Batch
from penstock.settings import Measure

#: (first offset that is measured so, the measure), in this order; the first begins at 0.
Measures: TypeAlias = Sequence[tuple[int, Measure]]

UNCHANGED: Measures = ((0, Measure()),)


def weigh(measure: Measure, count: int, body_bytes: int, headers: Column | None) -> int:
    """Return what rows with so many bytes of bodies weigh."""
    total = measure.row_bytes * count + body_bytes
    extra = measure.header_bytes
    if headers is None or extra is None:
        return total
    if isinstance(headers, pa.Array):
        present = count - int(headers.null_count)
        return total + extra * present + int(pc.sum(pc.binary_length(headers)).as_py() or 0)
    for header in headers:
        if header is not None:
            total += extra + len(header)  # type: ignore[arg-type]
    return total


def edges(batch: Batch, measures: Measures) -> Offsets:
    """Return what stands before each row of a batch, and before the next. Budget: 100 ns a row from 1,000 on."""
    sizes = np.diff(np.asarray(batch.cuts, np.int64))
    headers = _sizes(batch.columns.get("headers"))
    ends = [max(start - batch.first, 0) for start, _ in measures[1:]] + [batch.count]
    for (start, measure), end in zip(measures, ends, strict=True):
        rows = slice(max(start - batch.first, 0), end)
        sizes[rows] += measure.row_bytes
        if headers is not None and measure.header_bytes is not None:
            length = headers[rows]
            sizes[rows] += np.where(length < 0, 0, length + measure.header_bytes)
    found: Offsets = batch.weight + np.concatenate([[0], np.cumsum(sizes)])
    return found


def _sizes(column: Column | None) -> Offsets | None:
    """Return how long the headers of rows are, -1 where there are none."""
    if column is None:
        return None
    headers = column if isinstance(column, pa.Array) else pa.array(column, pa.binary())
    return np.asarray(pc.fill_null(pc.binary_length(headers), -1), np.int64)
