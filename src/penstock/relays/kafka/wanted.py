"""Which messages of a topic are relayed, by tag and header; what is not is finished. Traffic types are the core's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import Offsets
from penstock.delivery.seat import Keep
from penstock.filters.match import EQUAL, HeaderFilter
from penstock.message import Batch

Verdicts = npt.NDArray[np.bool_]


def wanted(tags: Sequence[str], header: str) -> Keep | None:
    """Return what judges rows; None where all are wanted."""
    if not tags and not header:
        return None
    name, _, value = header.partition("=")
    by_header = HeaderFilter(EQUAL, name, value) if header else None
    names = frozenset(tags)

    def keep(_: int, batch: Batch, rows: slice | Offsets) -> Verdicts:
        found = np.ones(batch.count, np.bool_)
        if names:
            found &= _tagged(batch, names)
        if by_header is not None:
            headers = batch.columns.get("headers")
            found &= by_header.verdicts(headers) if headers is not None else np.False_
        some: Verdicts = found[rows]
        return some

    return keep


def _tagged(batch: Batch, names: frozenset[str]) -> Verdicts:
    column = batch.columns.get("tag")
    if column is None:
        return np.zeros(batch.count, np.bool_)
    if isinstance(column, list):
        return np.array([tag in names for tag in column], np.bool_)
    return np.asarray(pc.is_in(column, pa.array(sorted(names), column.type)))
