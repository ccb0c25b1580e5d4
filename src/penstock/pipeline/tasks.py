"""Sharing out rows: ranges of shards become as many tasks as there are cores, and no more than are worth it.

Owns the arithmetic on offsets, rows and bytes. Knows nothing of topics beyond their ranges.
Invariant: every row of the ranges is in exactly one task; offsets have holes, so rows are never told by subtracting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from penstock.client.wire import ShardRange
from penstock.pipeline.store import Piece

#: A Python task costs about 60 ms before its first row; this many rows take about as long.
TASK_ROWS_MIN = 50_000
TASK_BYTES_MIN = 8 << 20


class Extent:
    """What lies between two offsets of a shard, for planning."""

    def __init__(self, shard: ShardRange) -> None:
        self.shard = shard
        whole = [shard.start, shard.end, shard.rows, shard.bytes]
        self._stretches = [each for each in shard.stretches or [whole] if each[1] > each[0]]

    def rows(self, start: int, end: int) -> int:
        """Return about how many rows there are."""
        return self._sum(start, end, 2)

    def bytes(self, start: int, end: int) -> int:
        """Return about how many bytes there are."""
        return self._sum(start, end, 3)

    def after_rows(self, start: int, end: int, rows: int) -> int:
        """Return the offset that lies this many rows further, at most `end`, at least one row on."""
        return self._after(start, end, rows, 2)

    def after_bytes(self, start: int, end: int, size: int) -> int:
        """Return the offset that lies about this many bytes further, at most `end`, at least one row on."""
        return self._after(start, end, size, 3)

    def _sum(self, start: int, end: int, what: int) -> int:
        total = 0
        for each in self._stretches:
            inside = min(end, each[1]) - max(start, each[0])
            if inside > 0:
                total += -(-each[what] * inside // (each[1] - each[0]))
        return total

    def _after(self, start: int, end: int, amount: int, what: int) -> int:
        amount = max(amount, 1)
        for each in self._stretches:
            low, high = max(start, each[0]), min(end, each[1])
            if low >= high:
                continue
            length = each[1] - each[0]
            inside = -(-each[what] * (high - low) // length)
            if inside >= amount:
                return min(high, low + max(1, amount * length // max(each[what], 1)))
            amount -= inside
        return end


def shared(pieces: Sequence[tuple[Piece, Extent]], cores: int, asked: int | None = None) -> list[list[Piece]]:
    """Return the pieces cut and grouped into tasks of about the same number of rows."""
    rows = sum(extent.rows(*_bounds(piece)) for piece, extent in pieces)
    size = sum(extent.bytes(*_bounds(piece)) for piece, extent in pieces)
    if asked is not None:
        count = asked
    else:
        count = min(cores, max(rows // TASK_ROWS_MIN, size // TASK_BYTES_MIN))
    count = max(1, min(count, rows))
    share = -(-rows // count)
    tasks: list[list[Piece]] = [[]]
    room = share
    for piece, extent in pieces:
        start, end = _bounds(piece)
        while start < end:
            if room <= 0 and len(tasks) < count:
                tasks.append([])
                room = share
            last = len(tasks) == count
            stop = end if last else extent.after_rows(start, end, room)
            taken = extent.rows(start, stop)
            tasks[-1].append(piece._replace(read=dataclasses.replace(piece.read, start=start, end=stop)))
            room -= taken
            start = stop
    return [task for task in tasks if task]


def _bounds(piece: Piece) -> tuple[int, int]:
    assert piece.read.start is not None
    assert piece.read.end is not None
    return piece.read.start, piece.read.end


def limited(extents: Sequence[tuple[Extent, int, int]], rows_max: int | None, bytes_max: int | None) -> list[int]:
    """Return where to stop in each (extent, start, end) so that no more comes than the limits, shared by backlog."""
    ends = [end for _, _, end in extents]
    for limit, measure, after in (
        (rows_max, Extent.rows, Extent.after_rows),
        (bytes_max, Extent.bytes, Extent.after_bytes),
    ):
        if limit is None:
            continue
        sizes = [measure(extent, start, end) for (extent, start, _), end in zip(extents, ends, strict=True)]
        total = sum(sizes)
        if total <= limit:
            continue
        left = limit
        # The small ones first and with a row at least, so that a large backlog elsewhere starves nobody.
        order = sorted((number for number in range(len(sizes)) if sizes[number]), key=sizes.__getitem__)
        for number in order:
            extent, start, _ = extents[number]
            share = left if number == order[-1] else min(left, max(1, limit * sizes[number] // total))
            ends[number] = after(extent, start, ends[number], share) if share > 0 else start
            left -= share
    return ends
