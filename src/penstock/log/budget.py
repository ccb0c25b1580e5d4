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
    if sum(shard.cached_bytes for shard in shards) <= bytes_max:
        return
    left = bytes_max
    by_size = sorted(shards, key=lambda shard: shard.cached_bytes)
    for number, shard in enumerate(by_size):
        level = left // (len(by_size) - number)
        if shard.cached_bytes > level:
            for large in by_size[number:]:
                large.trim(level)
            return
        left -= shard.cached_bytes
