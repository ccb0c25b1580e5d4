"""The memory for messages that were taken in: blocks of one size, so many and no more.

A message that finds no room is dropped, whole; those that are in stay. It holds its blocks until it is stored, and in
a memory topic until nobody needs it any more: what the log does not keep is kept here. Until it is stored they count
as input of the node, afterwards a memory topic counts its rows itself.
Invariant: no more blocks are taken than there are, nor for messages that are not stored more than half of the node's
input has room for: the other half is everybody else's.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from penstock.budget import Share

#: A block, and what of it a message can use: Dory's own numbers, so that `max_buffer` holds as much here as there.
BLOCK_BYTES = 128
USED_BYTES = 120

#: What may be full.
BUFFER, INPUT = "dory.max_buffer", "memory.input_bytes"


class Keeper(Protocol):
    """A topic's shard in memory, as far as this goes."""

    def needed_from(self) -> int | None:
        """Return the first offset that somebody needs; None where the shard is gone."""


class _Kept(NamedTuple):
    """Rows of a memory topic that were stored together."""

    first: int
    #: How many blocks each has.
    blocks: list[int]


class Pool:
    """All blocks of one node."""

    def __init__(self, size_bytes: int, memory: Share) -> None:
        self.blocks_max = max(1, size_bytes // BLOCK_BYTES)
        self.used = 0
        self._memory = memory
        #: Blocks of messages that are not stored.
        self._unstored = 0
        self._unstored_max = memory.bytes_max // 2 // BLOCK_BYTES
        #: What of it is for rows of memory topics, by their shards, the oldest first.
        self._kept: dict[Keeper, deque[_Kept]] = {}

    def take(self, sizes: list[int] | npt.NDArray[np.int64]) -> tuple[int, list[int] | None]:
        """Take blocks for messages of these sizes; return how many, and which found room: None if all did."""
        blocks = blocks_of(sizes)
        total = sum(blocks) if isinstance(blocks, list) else int(blocks.sum())
        if self.used + total > self.blocks_max:
            self._reclaim()
        memory, kept = self._memory, None
        if (
            self.used + total > self.blocks_max
            or self._unstored + total > self._unstored_max
            or memory.used + total * BLOCK_BYTES > memory.bytes_max
        ):
            memory.refused += self.bound == INPUT
            total, kept = _fitting(blocks if isinstance(blocks, list) else blocks.tolist(), self._room())
        self.used += total
        self._unstored += total
        memory.used += total * BLOCK_BYTES
        return total, kept

    def give(self, blocks: int) -> None:
        """Give blocks of messages back that are stored, or are not going to be."""
        self.used -= blocks
        self._unstored -= blocks
        self._memory.used -= blocks * BLOCK_BYTES

    def hold(self, count: int) -> int:
        """Count messages without blocks that wait for their topic as one block of input each; return how many may."""
        kept = min(count, self._input_room())
        self._memory.refused += kept < count
        self._unstored += kept
        self._memory.used += kept * BLOCK_BYTES
        return kept

    def let_go(self, count: int) -> None:
        """Count them no more: what they are published to counts them now."""
        self._unstored -= count
        self._memory.used -= count * BLOCK_BYTES

    @property
    def is_storing(self) -> bool:
        """Whether something was taken in and is not stored."""
        return self._unstored > 0

    @property
    def bound(self) -> str:
        """What leaves the least room."""
        return BUFFER if self._room() == self.blocks_max - self.used else INPUT

    def _room(self) -> int:
        return min(self.blocks_max - self.used, self._input_room())

    def _input_room(self) -> int:
        memory = self._memory
        of_input = min(self._unstored_max - self._unstored, (memory.bytes_max - memory.used) // BLOCK_BYTES)
        return max(of_input, 0)

    def keep(self, keeper: Keeper, first: int, sizes: list[int] | npt.NDArray[np.int64]) -> None:
        """Leave the blocks of rows that were stored with them, until their shard says that nobody needs them."""
        blocks = blocks_of(sizes)
        kept = self._kept.setdefault(keeper, deque())
        kept.append(_Kept(first, blocks if isinstance(blocks, list) else blocks.tolist()))
        stored = sum(kept[-1].blocks)
        self._unstored -= stored
        self._memory.used -= stored * BLOCK_BYTES

    def _reclaim(self) -> None:
        """Give back what rows had that nobody needs any more."""
        for keeper, kept in list(self._kept.items()):
            needed = keeper.needed_from()
            while kept and (needed is None or kept[0].first + len(kept[0].blocks) <= needed):
                self.used -= sum(kept.popleft().blocks)
            if kept and needed is not None and kept[0].first < needed:
                first, blocks = kept.popleft()
                self.used -= sum(blocks[: needed - first])
                kept.appendleft(_Kept(needed, blocks[needed - first :]))
            if not kept:
                del self._kept[keeper]


def blocks_of(sizes: list[int] | npt.NDArray[np.int64]) -> list[int] | npt.NDArray[np.int64]:
    """Return how many blocks each message takes: none for an empty one."""
    if isinstance(sizes, list):
        return [-(-size // USED_BYTES) for size in sizes]
    return -(-sizes // USED_BYTES)


def _fitting(blocks: list[int], room: int) -> tuple[int, list[int]]:
    """Return which messages find room, and how many blocks they take."""
    kept = []
    left = room
    for row, count in enumerate(blocks):
        if count <= left:
            left -= count
            kept.append(row)
    return room - left, kept
