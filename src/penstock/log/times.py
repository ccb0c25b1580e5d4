"""Looking for rows by the time they were taken.

Owns the walk over segments and their indexes by time. Knows nothing of caches. Invariant: the wall clock may have
stepped back, so nothing here assumes that times ascend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from penstock.log.manifest import Damage
from penstock.log.segment import Segment, decoder_of
from penstock.message import Batch

#: Bytes read in one go, at least one batch.
READ_BYTES = 4 << 20

Report = Callable[[Segment, list[Damage]], None]


def first_since(segments: Iterable[Segment], time_ns: int, report: Report) -> int | None:
    """Return the first offset whose row was taken at or after a time; blocking for a batch or two."""
    for segment in segments:
        if segment.batches == 0 or segment.ts_max < time_ns:
            continue
        index = segment.entries()
        for number in range(index.since(time_ns), len(index)):
            if index.ts_min[number] >= time_ns:
                return index.firsts[number]
            for batch in _loaded(segment, number, number + 1, report):
                late = np.broadcast_to(np.asarray(batch.timestamp), (batch.count,)) >= time_ns
                if late.any():
                    return batch.first + int(late.argmax())
    return None


def recent(segments: Iterable[Segment], since_ns: int, report: Report) -> Iterator[Batch]:
    """Yield the batches with rows at or after a time, from segments that know duplicates; blocking."""
    for segment in list(segments):
        if segment.ts_max < since_ns or not ("dedup" in segment.columns or segment.sequences):
            continue
        index = segment.entries()
        late = np.flatnonzero(np.array(index.ts_max) >= since_ns)
        start = 0
        while start < len(late):
            first = stop = int(late[start])
            while (
                start < len(late)
                and late[start] == stop
                and index.positions[stop] < index.positions[first] + READ_BYTES
            ):
                start, stop = start + 1, stop + 1
            yield from _loaded(segment, first, stop, report)


def _loaded(segment: Segment, start: int, stop: int, report: Report) -> list[Batch]:
    data, runs, damaged = segment.load(start, stop)
    report(segment, damaged)
    return decoder_of(segment.columns).batches(data, runs)
