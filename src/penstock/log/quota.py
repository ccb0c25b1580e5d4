"""How many bytes of segments may be stored: by one topic, and by all topics of a node together.

Owns the sums. Knows nothing of segments or of what makes room. Shards take room ahead in steps, so that an append
costs one comparison; what they have not used yet counts as used, and goes back when they are quiet.
Invariant: `used` is never less than what the segments below it hold.
"""

from __future__ import annotations

from threading import Lock

#: Room taken ahead at most: an append of this much more asks again.
STEP_BYTES_MAX = 1 << 20
#: A step is at most this part of what is left, so that shards which share a quota do not starve each other at its end.
STEP_PART = 16
#: A segment is at most this part of a quota: only whole ones can go.
SEGMENT_PART = 8
#: But not smaller than this.
SEGMENT_BYTES_MIN = 64 << 10

UNLIMITED = 1 << 62

#: Shards that are opened in threads count as well.
_SUMS = Lock()


class Quota:
    """A bound on stored bytes, inside another one where there is one; 0 is no bound."""

    __slots__ = ("_within", "bytes_max", "doomed", "used")

    def __init__(self, bytes_max: int = 0, within: Quota | None = None) -> None:
        self.bytes_max = bytes_max
        #: What segments hold, and room taken ahead for them.
        self.used = 0
        #: What files hold that no segment needs any more, and that readers beside the node may still have open.
        self.doomed = 0
        self._within = within

    def add(self, used: int, doomed: int) -> None:
        """Count bytes that came (or went, if negative)."""
        if not (used or doomed):
            return
        with _SUMS:
            self.used += used
            self.doomed += doomed
        if self._within is not None:
            self._within.add(used, doomed)

    def left(self) -> int:
        """Return how much more may be stored."""
        here = self.bytes_max - self.used if self.bytes_max else UNLIMITED
        return here if self._within is None else min(here, self._within.left())

    def step(self, size: int) -> int:
        """Return how much room to take ahead by whoever needs so much of what is left."""
        return max(size, min(STEP_BYTES_MAX, self.left() // STEP_PART))

    def segment_bytes(self, asked: int, shards: int) -> int:
        """Return how large segments may become where they were asked to become so large."""
        most = asked if not self.bytes_max else max(self.bytes_max // (SEGMENT_PART * shards), SEGMENT_BYTES_MIN)
        return min(asked, most) if self._within is None else min(most, self._within.segment_bytes(asked, 1))

    @property
    def tight(self) -> bool:
        """Whether there is no room for files that nobody needs any more."""
        here = bool(self.bytes_max) and self.used + self.doomed > self.bytes_max
        return here or (self._within is not None and self._within.tight)
