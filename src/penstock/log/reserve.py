"""Offsets reserved ahead, so that none is ever given out twice.

Owns how far offsets may be given out. Knows nothing of rows. Invariant: an offset below `usable_end` is below the
reserved end of a synced state file, so a start after a power loss goes on above it.
"""

from __future__ import annotations

from penstock.disk import Disk
from penstock.log.state import RESERVED_BLOCK, StateFile

#: The next block is reserved in a thread when this many offsets are left.
AHEAD = RESERVED_BLOCK // 4


class Reserve:
    """The offsets that a shard may still give out."""

    __slots__ = ("_busy", "_disk", "_state", "refill_at", "usable_end")

    def __init__(self, disk: Disk, state: StateFile) -> None:
        self._disk = disk
        self._state = state
        self._busy = False
        #: Offsets below this may be given out.
        self.usable_end = 0
        #: Beyond this offset it is time to reserve more.
        self.refill_at = 0

    def begin(self, end: int) -> None:
        """Reserve a block from an offset on in the state; the caller writes it and then calls `synced`."""
        state = self._state.state
        state.reserved_end = max(state.reserved_end, end + RESERVED_BLOCK)

    def synced(self, reached: int) -> None:
        """Allow what the state file is known to hold."""
        self.usable_end = max(self.usable_end, reached)
        self.refill_at = self.usable_end - AHEAD

    def refill(self, end: int) -> None:
        """Reserve the next block in a thread; blocking if offsets below `end` are needed now. OSError only then."""
        urgent = end > self.usable_end
        if self._busy and not urgent:
            return
        state = self._state.state
        state.reserved_end = reached = max(self.usable_end, end) + RESERVED_BLOCK
        try:
            self._state.note()
            if urgent:
                self._state.sync()
                self.synced(reached)
                return
        except OSError:
            if urgent:
                raise
            return  # there is still room in this block; the next append tries again
        self._busy = True

        def finished(_: None, error: BaseException | None) -> None:
            self._busy = False
            if error is None:
                self.synced(reached)

        self._disk.submit("sync", self._state.sync, finished)
