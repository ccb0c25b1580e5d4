"""What one consumer wants of the messages that are chosen for it: its header filter, and its share by sampling.

Owns how the two are put together for delivery; the tests themselves are `filters`'.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columns import OFFSET_BITS, Offsets
from penstock.delivery.seat import Keep
from penstock.filters import sample
from penstock.filters.match import HeaderFilter
from penstock.message import Batch


def wanted(headers: HeaderFilter | None, percent: int) -> Keep | None:
    """Return the test for a consumer with this filter and share, None if it wants everything (100 percent)."""
    if headers is None and percent >= sample.ALL:
        return None

    def keep(shard: int, batch: Batch, rows: slice | Offsets) -> npt.NDArray[np.bool_]:
        chosen = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        mask = np.ones(len(chosen), np.bool_)
        if headers is not None:
            mask = _verdicts(headers, batch, chosen)
        if percent < sample.ALL:
            mask &= sample.keep_percent(chosen + ((shard << OFFSET_BITS) + 1 + batch.first), percent)
        return mask

    return keep


def _verdicts(headers: HeaderFilter, batch: Batch, rows: Offsets) -> npt.NDArray[np.bool_]:
    column = batch.columns.get("headers")
    if column is None:
        return np.full(len(rows), headers.verdict(None))
    if isinstance(column, pa.Array):
        return headers.verdicts(column.take(pa.array(rows)))
    return headers.verdicts([column[row] for row in rows.tolist()])
