"""Thinning: of rows that keep coming, one each time enough time has passed.

Runs on executors, between Arrow batches and Arrow batches, with numpy and pyarrow alone.
Invariant: two rows that stay are of two ids, or at least `within` apart; where the batches are cut does not matter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

#: The columns that say whose row it is, and when it came, in microseconds.
ID, TIME = "_id", "_time"


@dataclasses.dataclass(frozen=True)
class Thinned:
    """Keeps a row of an id only if it is `within` or more after the last it kept; rows come by id and time."""

    within_us: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what stays of each batch."""
        last: tuple[object, int] = (None, 0)
        for batch in batches:
            if not len(batch):
                continue
            ids = batch.column(ID)
            times = batch.column(TIME).to_numpy(zero_copy_only=False)
            changes = np.flatnonzero(np.asarray(pc.not_equal(ids.slice(1), ids.slice(0, len(ids) - 1)))) + 1
            kept: list[int] = []
            for start, end in zip([0, *changes], [*changes, len(batch)], strict=True):
                id_ = ids[int(start)].as_py()
                free_us = last[1] + self.within_us if id_ == last[0] else None
                found = _spaced(times[start:end], self.within_us, free_us)
                kept += [int(start) + row for row in found]
                if found:
                    last = (id_, int(times[start + found[-1]]))
            yield batch.take(pa.array(kept, pa.int64()))


def _spaced(times: npt.NDArray[np.int64], within_us: int, free_us: int | None) -> list[int]:
    """Return the rows to keep of one id, given in order; the first is free from a time on."""
    found = []
    row = 0 if free_us is None else int(np.searchsorted(times, free_us))
    while row < len(times):
        found.append(row)
        row = int(np.searchsorted(times, times[row] + within_us))
    return found
