"""Which segments of one shard go, and which are rewritten.

Owns the rewrites, and where what is kept begins. Knows nothing of subscriptions: it is told what they need, and asks
again before rows go. Invariant: nobody finds a row in memory whose segment is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from penstock.clock import Clock
from penstock.columns import Offsets
from penstock.disk import Disk
from penstock.log import retention, seal
from penstock.log.compact import KNOWN_NS_MIN, worthwhile
from penstock.log.manifest import Damage, ManifestWriter
from penstock.log.quota import Quota
from penstock.log.read_cache import ReadCache
from penstock.log.rewrite import Rewrites
from penstock.log.room import Room
from penstock.log.segment import Segment
from penstock.log.segments import Segments
from penstock.log.weight import Measures
from penstock.settings import TopicSettings

#: Segments compacted between two looks at what is needed.
COMPACTED_MAX = 16


class Kept(Protocol):
    """The shard, as far as what it keeps goes."""

    path: str
    start: int
    kept_from: int
    end: int
    damaged: list[Damage]
    measures: Measures
    waiting: Callable[[int, int], Offsets | None]

    @property
    def settings(self) -> TopicSettings:
        """How the topic keeps messages."""

    def damage_found(self, segment: Segment, damaged: list[Damage]) -> None:
        """Take note of batches that cannot be read."""


class Upkeep:
    """What becomes of one shard's closed segments."""

    __slots__ = ("_cache", "_disk", "_kept", "_manifest", "_segments", "rewrites", "room")

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        kept: Kept,
        segments: Segments,
        manifest: ManifestWriter,
        cache: ReadCache,
        quota: Quota,
    ) -> None:
        self._disk = disk
        self._kept = kept
        self._segments = segments
        self._manifest = manifest
        self._cache = cache
        self.rewrites = Rewrites(disk, clock, segments, manifest, self._rewritten)
        self.room = Room(quota, segments, self.rewrites, kept.settings)

    def tick(self, monotonic_ns: int) -> None:
        """Remove files that nobody reads any more, start the next rewrite, and give back room that is not used."""
        self.rewrites.tick(monotonic_ns, self._kept.settings.compression, hurry=self.room.tight)
        self.room.tick(self._kept.end)

    def retain(self, needed_from: int | None, now_ns: int, room: int) -> int:
        """Drop old segments that nobody needs, more of them to make room; return how many rows that were.

        One that is kept for a few rows only is rewritten with these alone, a little later.
        """
        closed, settings, waiting = self._segments.closed, self._kept.settings, self._kept.waiting
        free, pinned = retention.surplus(closed, settings, needed_from, waiting, now_ns, room)
        dropped = self.drop([segment for segment in free if segment is not self.rewrites.under_way])
        if pinned:
            known_ns = self._segments.last_ns - max(settings.dedup_window_ns, KNOWN_NS_MIN)
            chosen = [each for each in pinned if worthwhile(*each, known_ns)]
            self.rewrites.compact(chosen[:COMPACTED_MAX], self._kept.measures, self._compacted)
        return dropped

    def drop(self, dropped: list[Segment]) -> int:
        """Drop segments, needed or not; return how many rows that were."""
        if not dropped:
            return 0
        self._segments.drop(dropped)
        self.rewrites.doom_segments(dropped)
        for segment in dropped:
            self._let_go(segment)
        self._changed()
        return sum(segment.rows for segment in dropped)

    def _let_go(self, segment: Segment) -> None:
        """Let nobody find rows that are not stored any more."""
        kept = self._kept
        kept.damaged[:] = [found for found in kept.damaged if not segment.first <= found.first < segment.end]
        self._cache.drop(segment)
        first = self._segments.first
        kept.kept_from = first.first if first is not None else kept.end
        kept.start = self._segments.first_from(max(kept.start, segment.end), kept.end)

    def _rewritten(self, old: Segment, merged: seal.Merged) -> bool:
        """A rewrite is done: its generation takes the place of the old one."""
        self._kept.damage_found(old, merged.damaged)
        segment = Segment.of(self._disk, self._kept.path, merged.info)
        segment.holes = list(old.holes)
        self._segments.replace(old, segment)
        self._changed()
        return True

    def _compacted(self, kept: Offsets, old: Segment, merged: seal.Merged) -> bool:
        """Put what was kept of a segment in its place, unless somebody needs more of it by now."""
        self._kept.damage_found(old, merged.damaged)
        needed = self._kept.waiting(old.first, old.end)
        if merged.damaged or needed is None or not np.isin(needed, kept).all():
            return False
        self._segments.replace(old, Segment.of(self._disk, self._kept.path, merged.info))
        self._let_go(old)
        self._changed()
        return True

    def _changed(self) -> None:
        self._manifest.start()
        self.room.count()
