"""Which stored rows are due later, read from the log without reading bodies.

Owns the walk over the due column. Knows nothing of the calendar it fills. Invariant: every readable row whose due
time lies after the asked one is named once, in the order of the log.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.columns import Offsets
from penstock.errors import CorruptionError
from penstock.log.segment import Segment, decoder_of
from penstock.message import int64s

#: Enough for the metadata of a batch with all columns and a sequence.
HEAD_BYTES = 8 << 10
#: Batches from this size on have their due column read alone; smaller ones are read whole, so many bytes at a time.
LARGE_BYTES = 64 << 10
READ_BYTES = 4 << 20

Found = list[tuple[Offsets, Offsets]]


def due_rows(segments: Sequence[Segment], from_offset: int, after_ns: int) -> tuple[Offsets, Offsets]:
    """Return (offsets, due times) of the rows from an offset on that are due after a time; blocking."""
    found: Found = []
    for segment in segments:
        if "due" in segment.columns and segment.due_max > after_ns:
            _of_segment(segment, from_offset, found)
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    offsets = np.concatenate([piece[0] for piece in found])
    due = np.concatenate([piece[1] for piece in found])
    chosen = (due > after_ns) & (offsets >= from_offset)
    return offsets[chosen], due[chosen]


def _of_segment(segment: Segment, from_offset: int, found: Found) -> None:
    index = segment.entries()
    number = index.at(from_offset)
    while number < len(index):
        if index.lengths[number] >= LARGE_BYTES and _of_large(segment, number, found):
            number += 1
            continue
        stop = number + 1
        limit = index.positions[number] + READ_BYTES
        while stop < len(index) and index.lengths[stop] < LARGE_BYTES and index.positions[stop] < limit:
            stop += 1
        _of_small(segment, number, stop, found)
        number = stop


def _of_large(segment: Segment, number: int, found: Found) -> bool:
    """Read the due column alone; False if this batch does not allow it. A wrong due time here only costs a wait:
    the row itself is checked when it is read."""
    index = segment.entries()
    position, count = index.positions[number], index.counts[number]
    head = segment.read(position, min(HEAD_BYTES, index.lengths[number]))
    try:
        ranges = decoder_of(segment.columns).due_ranges(head)
    except CorruptionError:
        return False
    if ranges is None:
        return False
    nulls, validity, values = ranges
    if nulls == count:
        return True
    due = np.frombuffer(segment.read(position + values[0], values[1]), "<i8")
    offsets = np.arange(index.firsts[number], index.firsts[number] + count)
    if len(due) != count:
        return False
    if nulls:
        bits = np.frombuffer(segment.read(position + validity[0], validity[1]), np.uint8)
        valid = np.unpackbits(bits, count=count, bitorder="little").astype(bool)
        offsets, due = offsets[valid], due[valid]
    found.append((offsets, due))
    return True


def _of_small(segment: Segment, start: int, stop: int, found: Found) -> None:
    data, runs, _ = segment.load(start, stop)
    for batch in decoder_of(segment.columns).batches(data, runs):
        column = batch.columns.get("due")
        if column is not None:
            due, valid = int64s(column)
            found.append((np.arange(batch.first, batch.end)[valid], due[valid]))
