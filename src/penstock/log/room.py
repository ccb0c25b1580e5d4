"""The room that one shard has taken from its topic's quota.

Owns what the quota counts of the shard, and how large the open segment may become within it. Knows nothing of what
makes room. Invariant: the open segment reaches `open_bytes_max` only with bytes that the quota has counted.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.log.quota import Quota
from penstock.log.rewrite import Rewrites
from penstock.log.segments import Segments
from penstock.message import Rows
from penstock.settings import TopicSettings

#: About what a frame and each of its rows take on disk beside their bodies and columns.
FRAME_BYTES = 1024
ROW_BYTES = 32


class Room:
    """How much one shard may store before it has to ask."""

    __slots__ = ("_counted", "_quota", "_rewrites", "_segments", "_ticked_end", "open_bytes_max", "segment_bytes")

    def __init__(self, quota: Quota, segments: Segments, rewrites: Rewrites, settings: TopicSettings) -> None:
        self._quota = quota
        self._segments = segments
        self._rewrites = rewrites
        #: What the quota counts of this shard: in segments, and in files that are yet to be removed.
        self._counted = (0, 0)
        self._ticked_end = 0
        #: The size that the open segment may reach before more room must be taken.
        self.open_bytes_max = 0
        #: The size at which the open segment is closed.
        self.segment_bytes = 0
        self.resize(settings)
        self.count()

    def resize(self, settings: TopicSettings) -> None:
        """Have segments as large as a topic's settings ask, where the quota allows it."""
        self.segment_bytes = self._quota.segment_bytes(settings.segment_bytes, settings.shards)

    def take(self, rows: Rows, make_room: Callable[[int], None]) -> None:
        """Take room for rows, and a step more; `make_room` is asked where there is none, and may refuse them."""
        size = len(rows.body) + FRAME_BYTES + ROW_BYTES * rows.count
        for column in rows.columns.values():
            size += 64 * rows.count if isinstance(column, list) else column.nbytes
        self.count()
        if self._quota.left() < size:
            make_room(size)
        self.count(self._quota.step(size))

    def count(self, ahead: int = 0) -> None:
        """Let the quota count what the files hold now, and this much for what comes next."""
        stored, doomed = self._segments.bytes + ahead, self._rewrites.doomed_bytes
        self.open_bytes_max = stored - self._segments.closed_bytes
        self._quota.add(stored - self._counted[0], doomed - self._counted[1])
        self._counted = stored, doomed

    def tick(self, end: int) -> None:
        """Give back what was taken ahead if nothing was stored since the last tick."""
        quiet, self._ticked_end = end == self._ticked_end, end
        if quiet and self._counted != (self._segments.bytes, self._rewrites.doomed_bytes):
            self.count()

    @property
    def tight(self) -> bool:
        """Whether there is no room for files that nobody needs any more."""
        return self._quota.tight

    def give_back(self) -> None:
        """Let the quota count nothing of this shard any more."""
        self._quota.add(-self._counted[0], -self._counted[1])
        self._counted = (0, 0)
