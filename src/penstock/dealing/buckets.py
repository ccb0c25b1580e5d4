"""Buckets of messages: drawn when one is created, or computed from its id where it has none."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.columns import Offsets

#: 2^64 over the golden ratio: multiples of it spread numbers that follow each other over their upper bits evenly.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def drawn(count: int, buckets: int, random: np.random.Generator) -> npt.NDArray[np.int32]:
    """Draw a bucket for each of some messages, all of them with the same chance."""
    return random.integers(0, buckets, count, np.int32)


def of_ids(ids: Offsets, buckets: int) -> npt.NDArray[np.int32]:
    """Return the bucket that each of some ids has where none was drawn. Budget: 5 ns a row from 1,000 on."""
    upper = (ids.view(np.uint64) * _SPREAD) >> np.uint64(32)
    return ((upper * np.uint64(buckets)) >> np.uint64(32)).astype(np.int32)
