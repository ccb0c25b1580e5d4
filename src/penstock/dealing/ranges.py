"""Ranges: buckets dealt to consumers in one piece each, in the order of their names.

Invariant: every bucket has one owner; sizes differ by one at most, and nobody is idle while there are buckets enough.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

#: For each bucket the number of the consumer that owns it; -1 for nobody.
Owners: TypeAlias = npt.NDArray[np.int32]

NOBODY = -1


def simple(consumers: int, buckets: int) -> Owners:
    """Return the owner of each bucket: consumer i begins at i * buckets / consumers, rounded half up."""
    if consumers == 0 or buckets == 0:
        return np.full(buckets, NOBODY, np.int32)
    if consumers >= buckets:
        return np.arange(buckets, dtype=np.int32)
    starts = (2 * np.arange(consumers + 1, dtype=np.int64) * buckets + consumers) // (2 * consumers)
    return np.repeat(np.arange(consumers, dtype=np.int32), np.diff(starts))


def simple_ceil(consumers: int, buckets: int) -> Owners:
    """Return what a step of ceil(buckets / consumers) deals: as another implementation does, to be compared with.

    It leaves consumers idle: of 8 that share 9 buckets, 3 get none.
    """
    if consumers == 0 or buckets == 0:
        return np.full(buckets, NOBODY, np.int32)
    return (np.arange(buckets) // -(-buckets // consumers)).astype(np.int32)
