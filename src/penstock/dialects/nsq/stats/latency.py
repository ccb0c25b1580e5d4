"""How long messages take from publish to FIN: percentiles over a sliding window, in bounded memory.

Owns the sketch: counts in buckets of equal ratio. Knows no topic, no message and no clock: times are passed in.
Invariant: a percentile is within ERROR of one that a sorted list would give, however many values came.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

#: Buckets for each doubling, so that the middle of one is off by at most 1.1 %.
STEPS = 32
ERROR = 2 ** (1 / (2 * STEPS)) - 1
#: Everything below a microsecond is one bucket, everything above 104 days another.
LOW_BITS, HIGH_BITS = 10, 53
BUCKETS = (HIGH_BITS - LOW_BITS) * STEPS + 2

Counts = npt.NDArray[np.int64]


class Percentile(msgspec.Struct, frozen=True):
    """So much of all takes at most `value` nanoseconds."""

    quantile: float
    value: float


class Percentiles(msgspec.Struct, frozen=True):
    """What nsqd calls e2e_processing_latency."""

    count: int = 0
    percentiles: list[Percentile] | None = None


class Latency:
    """The values of one window in two halves: the older is forgotten when the younger is full, as in nsqd."""

    __slots__ = ("_half_ns", "_halves", "_since_ns")

    def __init__(self, window_ns: int, monotonic_ns: int) -> None:
        self._half_ns = max(window_ns // 2, 1)
        self._since_ns = monotonic_ns
        self._halves = [np.zeros(BUCKETS, np.int64), np.zeros(BUCKETS, np.int64)]

    def add(self, value_ns: int, count: int, monotonic_ns: int) -> None:
        """Take in one value, so many times. Budget: 0.5 us."""
        self._move(monotonic_ns)
        self._halves[0][_bucket(value_ns)] += count

    def add_all(self, values_ns: npt.NDArray[np.int64], monotonic_ns: int) -> None:
        """Take in many values. Budget: 20 ns each from 1,000 on."""
        self._move(monotonic_ns)
        self._halves[0] += np.bincount(_buckets(values_ns), minlength=BUCKETS)

    def counts(self, monotonic_ns: int) -> Counts:
        """Return how many values of the window are in each bucket; sums of these are counts of several sketches."""
        self._move(monotonic_ns)
        return self._halves[0] + self._halves[1]

    def _move(self, monotonic_ns: int) -> None:
        passed = (monotonic_ns - self._since_ns) // self._half_ns
        if passed <= 0:
            return
        older = self._halves[1]
        older[:] = 0
        if passed == 1:
            self._halves = [older, self._halves[0]]
        else:
            self._halves[0][:] = 0
        self._since_ns += passed * self._half_ns


def percentiles(counts: Counts, quantiles: Sequence[float]) -> Percentiles:
    """Return what buckets say about each quantile."""
    total = int(counts.sum())
    sums = np.cumsum(counts)
    return Percentiles(total, [Percentile(q, _value(sums, total, q)) for q in quantiles])


def _value(sums: Counts, total: int, quantile: float) -> float:
    if total == 0:
        return 0.0
    rank = max(1, math.ceil(quantile * total))
    return _middle(int(np.searchsorted(sums, rank)))


def _middle(bucket: int) -> float:
    """Return the middle of a bucket by ratio; of the two open ones their edge."""
    return float(round(2 ** (LOW_BITS + (bucket - 0.5 if 0 < bucket < BUCKETS - 1 else bucket) / STEPS)))


def _bucket(value_ns: int) -> int:
    if value_ns < 1 << LOW_BITS:
        return 0
    return min(int((math.log2(value_ns) - LOW_BITS) * STEPS) + 1, BUCKETS - 1)


def _buckets(values_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    logs = np.log2(np.maximum(values_ns, 1 << LOW_BITS)) - LOW_BITS
    found = np.minimum((logs * STEPS).astype(np.int64) + 1, BUCKETS - 1)
    found[values_ns < 1 << LOW_BITS] = 0
    return found
