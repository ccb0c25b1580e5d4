"""Which old segments may go, and which are kept for a few rows only.

Owns ruling 13's sum: what subscriptions need stays, history beyond that is bounded by age and bytes.
Knows nothing of files. Invariant: no segment goes that somebody still needs a row of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.columns import Offsets
from penstock.log.segment import Segment
from penstock.settings import TopicSettings


class Surplus(NamedTuple):
    """Segments that history does not cover, oldest first."""

    #: Nobody needs a row of these.
    free: list[Segment]
    #: Somebody needs these rows of them, and no others.
    pinned: list[tuple[Segment, Offsets]]


def surplus(
    segments: Sequence[Segment],
    settings: TopicSettings,
    needed_from: int | None,
    waiting: Callable[[int, int], Offsets | None],
    now_ns: int,
    room: int = 0,
) -> Surplus:
    """Return what of the oldest segments is kept for no promise.

    All rows from `needed_from` on are needed (None: no subscription exists), of those before it the ones that `waiting`
    names in a range of offsets (None: all of them may be). Where `room` bytes are needed, so much history goes
    whatever was promised for it.
    """
    found = Surplus([], [])
    if needed_from is None and not settings.retention_hard:
        return found
    history = []
    for segment in segments:
        if not segment.sealed or (needed_from is not None and segment.end > needed_from):
            break
        history.append(segment)
    kept_bytes = sum(segment.bytes for segment in history)
    for segment in history:
        # Without a subscription only the bytes are bounded: nobody has said that the rows are old news.
        aged = needed_from is not None and segment.ts_max < now_ns - settings.retention_age_ns
        if not aged and kept_bytes <= settings.retention_bytes and room <= 0:
            break
        kept_bytes -= segment.bytes
        rows = waiting(segment.first, segment.end)
        if rows is None:
            break
        if len(rows):
            found.pinned.append((segment, rows))
        else:
            found.free.append(segment)
            room -= segment.bytes
    return found
