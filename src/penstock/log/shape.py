"""The shape a group of rows is kept in: plain lists up to SMALL rows, numpy and Arrow above.

Owns the correction of rows that came in the other shape; decoders normally bring the right one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from penstock.message import SMALL, Column, Cuts, Rows, shaped


def shaped_rows(rows: Rows) -> tuple[Mapping[str, Column], Cuts]:
    """Return columns and cuts in the shape their row count asks for."""
    count, cuts = rows.count, rows.cuts
    if count <= SMALL:
        cuts = cuts if isinstance(cuts, list) else cuts.tolist()
    else:
        cuts = np.asarray(cuts, np.int32)
    return {name: shaped(column, count, name) for name, column in rows.columns.items()}, cuts
