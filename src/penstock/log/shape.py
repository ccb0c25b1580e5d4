"""The shape a group of rows is kept in: plain lists up to SMALL rows, numpy and Arrow above.

Owns the correction of rows that came in the other shape; decoders normally bring the right one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from penstock.columns import SMALL, Buffer, Column, Cuts
from penstock.errors import InvariantError
from penstock.message import Rows, shaped


def shaped_rows(rows: Rows) -> tuple[Mapping[str, Column], Cuts, Buffer]:
    """Return columns, cuts and body in the shape their row count asks for, the body without what is in no row."""
    count, cuts, body = rows.count, rows.cuts, rows.body
    if count <= 0:
        raise InvariantError("there are no rows to store")
    low, high = int(cuts[0]), int(cuts[-1])
    if low or high != len(body):
        body = bytes(memoryview(body)[low:high])
        cuts = [cut - low for cut in cuts] if isinstance(cuts, list) else cuts - np.int32(low)
    if count <= SMALL:
        cuts = cuts if isinstance(cuts, list) else cuts.tolist()
    else:
        cuts = np.asarray(cuts, np.int32)
    return {name: shaped(column, count, name) for name, column in rows.columns.items()}, cuts, body
