"""Percentages: which rows a subscription gets that takes a fraction of everything.

Owns the draw. A message is drawn by its id alone, so it is taken or not after any redelivery, restart or new reading,
and by Spark as by the broker; a larger fraction takes all that a smaller one takes.
Invariant: the draw is murmur3 (32 bits, seed 42) of the id's eight bytes, lowest first, which is Spark's own `hash` of
a bigint. A batch gets what its ids would get one by one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.columns import Offsets

#: A draw is one of so many numbers.
DRAWS = 1 << 24
SEED = 42

_LOW = np.uint64(0xFFFFFFFF)


def rate_of(fraction: float) -> int:
    """Return how many of all draws are taken; none for 0 and less, all for 1 and more."""
    return min(max(int(fraction * DRAWS), 0), DRAWS)


def verdicts(ids: Offsets, fraction: float) -> npt.NDArray[np.bool_]:
    """Return which ids are taken. Budget: 40 us for 1,000."""
    taken: npt.NDArray[np.bool_] = draws(ids) < rate_of(fraction)
    return taken


def draws(ids: Offsets) -> npt.NDArray[np.uint32]:
    """Return the draw of each id."""
    bits = ids.view(np.uint64)
    mixed = np.full(len(ids), SEED, np.uint32)
    for half in ((bits & _LOW).astype(np.uint32), (bits >> np.uint64(32)).astype(np.uint32)):
        mixed ^= _rotated(half * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        mixed = _rotated(mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    mixed ^= np.uint32(8)
    mixed ^= mixed >> np.uint32(16)
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return mixed & np.uint32(DRAWS - 1)


def _rotated(bits: npt.NDArray[np.uint32], by: int) -> npt.NDArray[np.uint32]:
    return bits << np.uint32(by) | bits >> np.uint32(32 - by)
