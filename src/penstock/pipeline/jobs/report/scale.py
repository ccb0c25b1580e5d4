"""Distributions of sizes and times: counted in classes that grow with the value, read off as percentiles.

Owns the classes and what is read off them. A class also keeps the least and the greatest value in it, so a percentile
is exact where a class holds one value. Invariant: it is never off by more than a class is wide, 2.2 % of the value,
whatever the weights, and never outside of what was seen.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pyspark.sql import Column

#: Classes for each doubling of the value: 2 ** (1 / 32) is 1.022.
PER_DOUBLING = 32
#: Values below are classes of their own.
PLAIN = 32


def class_of(value: Column, per_doubling: int = PER_DOUBLING) -> Column:
    """Return the class of a whole number that is not negative; null of null."""
    from pyspark.sql import functions as sql

    logarithm = sql.floor(sql.log2(value) * per_doubling)
    return sql.when(value < PLAIN, value).when(value >= PLAIN, logarithm + PLAIN).cast("int")


def classes_of(values: npt.NDArray[np.int64], per_doubling: int = PER_DOUBLING) -> npt.NDArray[np.int64]:
    """Return the classes of whole numbers, as `class_of` has them."""
    logarithms = np.log(np.maximum(values, 1)) / np.log(2.0)
    return np.where(values < PLAIN, values, np.floor(logarithms * per_doubling).astype(np.int64) + PLAIN)


class Class(NamedTuple):
    """Values that are nearly alike."""

    weight: int
    low: int
    high: int


class Distribution:
    """How often which values were seen."""

    def __init__(self, classes: Iterable[tuple[int, int, int]]) -> None:
        self.classes = sorted((Class(*each) for each in classes), key=lambda each: (each.low, each.high))

    @cached_property
    def _sums(self) -> list[int]:
        return list(itertools.accumulate(each.weight for each in self.classes))

    @property
    def total(self) -> int:
        """Return how many values were seen."""
        return self._sums[-1] if self.classes else 0

    @property
    def least(self) -> int:
        """Return the smallest value."""
        return self.classes[0].low if self.classes else 0

    @property
    def greatest(self) -> int:
        """Return the largest value."""
        return max((each.high for each in self.classes), default=0)

    def percentile(self, share: float) -> float:
        """Return the smallest value that this share of all values does not exceed; share is 0 to 1."""
        if not self.classes:
            return 0.0
        rank = share * self.total
        at = min(bisect.bisect_left(self._sums, rank), len(self.classes) - 1)
        found = self.classes[at]
        inside = (rank - (self._sums[at] - found.weight)) / found.weight
        return found.low + (found.high - found.low) * min(max(inside, 0.0), 1.0)

    def merged(self, other: Distribution) -> Distribution:
        """Return both together."""
        return Distribution([*self.classes, *other.classes])

    def counts(self, edges: list[float]) -> list[int]:
        """Return how many values lie between each edge and the next; a class counts where its middle is."""
        found = [0] * (len(edges) - 1)
        for each in self.classes:
            at = bisect.bisect_right(edges, (each.low + each.high) / 2) - 1
            found[min(max(at, 0), len(found) - 1)] += each.weight
        return found
