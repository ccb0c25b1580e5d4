"""When messages that wait for company have enough of it: by time, number or bytes, whichever comes first.

Pure: columns in, batches out, time passed in.
Invariant: groups that come in one piece are cut into the same batches as if each message came alone.
"""

from __future__ import annotations

from typing import Generic, Protocol, Self, TypeVar

import msgspec
import numpy as np

from penstock.columns import Offsets


class Messages(Protocol):
    """Messages in a row, as far as batching and assembly look at them."""

    @property
    def count(self) -> int:
        """How many they are."""

    @property
    def sizes(self) -> Offsets:
        """The bytes of key, value and headers of each."""

    @property
    def times_ns(self) -> Offsets:
        """When each began to wait, in unix time."""

    def cut(self, first: int, end: int) -> Self:
        """Return some of them."""


G = TypeVar("G", bound=Messages)


class BatchLimits(msgspec.Struct, frozen=True):
    """What completes a batch; 0 = not that."""

    time_ns: int = 0
    messages: int = 0
    bytes: int = 0

    @property
    def is_set(self) -> bool:
        """Whether anything ever completes one; nothing waits otherwise."""
        return bool(self.time_ns or self.messages or self.bytes)


class Batcher(Generic[G]):
    """One batch that grows."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self.groups: list[G] = []
        self.count = 0
        self._bytes = 0
        self._oldest_ns = 0

    @property
    def deadline_ns(self) -> int | None:
        """When it is complete whatever comes, in unix time; None where nothing waits, or not for that."""
        return self._oldest_ns + self._limits.time_ns if self.groups and self._limits.time_ns else None

    def add(self, group: G, now_ns: int) -> list[list[G]]:
        """Take messages in and return the batches that they complete. Budget: 10 us for any number, and 5 a batch."""
        limits, done, at, count = self._limits, list[list[G]](), 0, group.count
        ends = np.cumsum(np.maximum(group.sizes, 1))
        times = group.times_ns if limits.time_ns else None
        late = np.flatnonzero(times + limits.time_ns <= now_ns) if times is not None else None
        while at < count:
            fit = self._fitting(ends, late, at, now_ns)
            if fit <= 0 and self.groups:
                done.append(self.flush())
                continue
            end = at + max(fit, 1)  # one that is too large for any batch goes alone
            self._append(group.cut(at, end) if end - at < count else group, int(ends[end - 1] - _before(ends, at)))
            if times is not None:
                oldest = int(times[at:end].min())
                self._oldest_ns = oldest if len(self.groups) == 1 else min(self._oldest_ns, oldest)
            at = end
            if self._is_full(now_ns):
                done.append(self.flush())
        return done

    def flush(self) -> list[G]:
        """Return what waits, and begin anew."""
        groups, self.groups = self.groups, []
        self.count = self._bytes = 0
        return groups

    def _append(self, group: G, size: int) -> None:
        self.groups.append(group)
        self.count += group.count
        self._bytes += size

    def _fitting(self, ends: Offsets, late: Offsets | None, at: int, now_ns: int) -> int:
        """Return how many of the rest join before the batch is complete; 0 where not even one has room."""
        limits, fit = self._limits, len(ends) - at
        if limits.bytes:
            room = limits.bytes - self._bytes + _before(ends, at)
            fit = int(np.searchsorted(ends, room, "right")) - at
        if limits.messages:
            fit = min(fit, limits.messages - self.count)
        if late is not None and fit > 1:
            if self.groups and self._oldest_ns + limits.time_ns <= now_ns:
                return 1
            place = int(np.searchsorted(late, at))
            if place < len(late):
                fit = min(fit, int(late[place]) - at + 1)
        return fit

    def _is_full(self, now_ns: int) -> bool:
        limits = self._limits
        return bool(
            (limits.messages and self.count >= limits.messages)
            or (limits.bytes and self._bytes >= limits.bytes)
            or (limits.time_ns and self._oldest_ns + limits.time_ns <= now_ns)
        )


def _before(ends: Offsets, at: int) -> int:
    return int(ends[at - 1]) if at else 0
