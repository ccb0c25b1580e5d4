"""Aggregated metrics that are written alike, as an aggregator writes those of ids of one length, read as a table.

Invariant: it says what `metric_columns` says of them, or nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.m3.alike import Alike, Numbers, Table

_FIELD = tuple(no << 3 | 2 for no in range(9))
_KIND, _TIME, _VALUE, _TRAFFIC = 1 << 3, 3 << 3, 4 << 3 | 1, 1 << 3


class Found(NamedTuple):
    """What metrics say; a single number, or bytes, where all say the same."""

    ids: pa.Array
    kinds: Numbers | int
    times_ns: Numbers | int
    values: npt.NDArray[np.float64]
    policies: pa.Array | bytes
    traffic: Numbers | int


def read(table: Table) -> Found | None:
    """Return what the metrics of these rows say; None if they are not alike."""
    rows = Alike(table)
    whole = rows.nested(_FIELD[1], 0, rows.size)
    timed = rows.nested(_FIELD[1], whole[0], rows.size) if whole is not None else None
    policy = rows.nested(_FIELD[2], timed[1], rows.size) if timed is not None else None
    routing = rows.nested(_FIELD[3], policy[1], rows.size) if policy is not None else None
    if whole is None or timed is None or policy is None or routing is None:
        return None
    at, end = timed
    kinds, at = rows.optional(_KIND, at, end)
    id_ = rows.nested(_FIELD[2], at, end) or (at, at)
    times, at = rows.optional(_TIME, id_[1], end)
    values = np.zeros(len(table))
    if rows.tag(at, end) == _VALUE and at + 9 <= end:
        values = np.ascontiguousarray(table[:, at + 1 : at + 9]).view("<f8").reshape(-1)
        at += 9
    annotation = rows.nested(_FIELD[5], at, end) or (at, at)
    traffic, last = rows.optional(_TRAFFIC, *routing)
    if annotation[1] != end or last != routing[1] or routing[1] != whole[1] or whole[1] != rows.size:
        return None
    policies = rows.same(*policy)
    return Found(
        rows.column(*id_), kinds, times, values, rows.column(*policy) if policies is None else policies, traffic
    )
