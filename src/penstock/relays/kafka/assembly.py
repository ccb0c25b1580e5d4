"""What goes into one produce request: messages from the front of a broker's queue, until the next does not fit.

Pure. Nothing is skipped, so messages leave in the order in which they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, Self, TypeVar

import numpy as np

from penstock.columns import Offsets

#: What a message takes beside key, value and headers, as Dory counts it, who has no headers; today's records take less.
MESSAGE_BYTES = 26


class Queued(Protocol):
    """Messages of one topic in a queue."""

    @property
    def topic(self) -> str:
        """Their topic."""

    @property
    def partition(self) -> int | None:
        """Their partition, None where the request decides it."""

    @property
    def count(self) -> int:
        """How many they are."""

    @property
    def sizes(self) -> Offsets:
        """The bytes of key, value and headers of each."""

    def cut(self, first: int, end: int) -> Self:
        """Return some of them."""


Q = TypeVar("Q", bound=Queued)


def assemble(
    queue: deque[Q], current: Callable[[str], int], request_bytes: int, set_bytes: int
) -> dict[tuple[str, int], list[Q]]:
    """Take the messages of the next request, by topic and partition; the first one is taken whatever its size.

    A message set stays below `set_bytes`, because brokers limit it. Budget: 10 us a group.
    """
    taken: dict[tuple[str, int], list[Q]] = {}
    sums: dict[tuple[str, int], int] = {}
    total, is_first = 0, True
    while queue:
        group = queue[0]
        key = group.topic, current(group.topic) if group.partition is None else group.partition
        ends = np.cumsum(group.sizes)
        in_set = ends + np.arange(1, group.count + 1) * MESSAGE_BYTES
        fit = min(
            int(np.searchsorted(ends, request_bytes - total, "right")),
            int(np.searchsorted(in_set, set_bytes - sums.get(key, 0), "right")),
        )
        if is_first:
            fit, is_first = max(fit, 1), False
        if not fit:
            break
        total += int(ends[fit - 1])
        sums[key] = sums.get(key, 0) + int(in_set[fit - 1])
        if fit < group.count:
            taken.setdefault(key, []).append(group.cut(0, fit))
            queue[0] = group.cut(fit, group.count)
            break
        taken.setdefault(key, []).append(group)
        queue.popleft()
    return taken
