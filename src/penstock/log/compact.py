"""Compaction: an old segment that few waiting rows hold is rewritten with these rows alone.

Owns which rows of a segment stay, in a thread beside the event loop. Knows nothing of who needs them.
Invariant: a row that stays has the offset, the time and the weight before it that it had.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.columns import SMALL, Column, Cuts, Offsets
from penstock.log import seal
from penstock.log.manifest import Damage
from penstock.log.segment import Segment
from penstock.log.weight import Measures, edges
from penstock.message import Batch, shaped
from penstock.settings import MINUTE_NS

#: About what a frame takes beside its rows.
FRAME_BYTES = 1024


#: A producer's sequence, or a row's own key, may be asked for this long after it was stored, or longer if so set.
KNOWN_NS_MIN = 5 * MINUTE_NS


def worthwhile(segment: Segment, keep: Offsets, known_ns: int) -> bool:
    """Tell whether at least half of a segment would go if only these rows stayed.

    Rows taken after `known_ns` may be asked for by those who publish them again.
    """
    if segment.holes or not segment.rows:
        return False  # what is damaged there stays known while the segment does
    if segment.ts_max >= known_ns and (segment.sequences or "dedup" in segment.columns):
        return False
    runs = 1 + int((np.diff(keep) != 1).sum())
    left = runs * FRAME_BYTES + len(keep) * (segment.bytes // segment.rows)
    return 2 * left <= segment.bytes


def compact(segment: Segment, keep: Offsets, measures: Measures) -> seal.Merged:
    """Write the next generation of a segment with some of its rows, given ascending; blocking, on a thread.

    `measures` say what its rows weigh. What it met of damage makes the result useless.
    """
    damaged: list[Damage] = []
    made = seal.next_generation(segment, _kept(segment, keep, measures, damaged), segment.compression, sparse=True)
    return seal.Merged(made.info(), damaged)


def _kept(segment: Segment, keep: Offsets, measures: Measures, damaged: list[Damage]) -> Iterator[Batch]:
    for batch in seal.batches(segment, damaged):
        low, high = np.searchsorted(keep, (batch.first, batch.end))
        rows = keep[low:high] - batch.first
        if not len(rows):
            continue
        weights = edges(batch, measures)
        for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
            yield part(batch, int(run[0]), int(run[-1]) + 1, int(weights[run[0]]))


def part(batch: Batch, start: int, stop: int, weight: int) -> Batch:
    """Return rows start .. stop - 1 of a batch as one of their own, without its producer sequence."""
    count = stop - start
    ends = np.asarray(batch.cuts)
    low, high = int(ends[start]), int(ends[stop])
    shifted = (ends[start : stop + 1] - low).astype(np.int32)
    cuts: Cuts = shifted.tolist() if count <= SMALL else shifted
    columns: dict[str, Column] = {}
    for name, column in batch.columns.items():
        piece = shaped(_slice(column, start, stop), count, name)
        if any(value is not None for value in piece) if isinstance(piece, list) else piece.null_count < count:
            columns[name] = piece
    times = batch.timestamp if isinstance(batch.timestamp, int) else batch.timestamp[start:stop]
    if count <= SMALL and not isinstance(times, int):
        times = [int(time) for time in times]
    source = batch.source
    if not isinstance(source, str):
        source = shaped(_slice(source, start, stop), count, "source")
    body = memoryview(batch.body)[low:high]
    return Batch(batch.first + start, count, times, cuts, body, source, columns, weight)


def _slice(column: Column, start: int, stop: int) -> Column:
    return column[start:stop] if isinstance(column, list) else column.slice(start, stop - start)
