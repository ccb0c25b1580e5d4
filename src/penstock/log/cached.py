"""How much of the log all shards together keep in memory.

Owns the fair share: those that keep little keep it, the large ones give until all fit. Knows nothing of what a shard
keeps or why; whatever goes can be read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Cached(Protocol):
    """A shard, as far as its memory goes."""

    @property
    def cached_bytes(self) -> int:
        """How much of the log it keeps in memory."""

    def trim(self, bytes_max: int) -> None:
        """Keep no more than this."""


def share(shards: Sequence[Cached], bytes_max: int) -> None:
    """Trim the largest shards to one size, such that all of them fit."""
    sizes = [shard.cached_bytes for shard in shards]
    if sum(sizes) > bytes_max:
        most = level(sizes, bytes_max)
        for shard, size in zip(shards, sizes, strict=True):
            if size > most:
                shard.trim(most)


def level(sizes: Sequence[int], bytes_max: int) -> int:
    """Return the size to which the largest must come down, such that all of them fit."""
    left = bytes_max
    for number, size in enumerate(sorted(sizes)):
        fair = left // (len(sizes) - number)
        if size > fair:
            return fair
        left -= size
    return max(sizes, default=0)
