"""Which old segments may go.

Owns ruling 13's sum: what subscriptions need stays, history beyond that is bounded by age and bytes.
Knows nothing of files. Invariant: segments go oldest first, and never one that a subscription still needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.log.segment import Segment
from penstock.settings import TopicSettings


def droppable(
    segments: Sequence[Segment], settings: TopicSettings, needed_from: int | None, now_ns: int, room: int = 0
) -> int:
    """Return how many of the oldest segments are to be dropped; `needed_from` None means no subscription exists.

    Where `room` bytes are needed, so much history goes whatever was promised for it.
    """
    if needed_from is None and not settings.retention_hard:
        return 0
    history = []
    for segment in segments:
        if not segment.sealed or (needed_from is not None and segment.end > needed_from):
            break
        history.append(segment)
    kept_bytes = sum(segment.bytes for segment in history)
    for number, segment in enumerate(history):
        # Without a subscription only the bytes are bounded: nobody has said that the rows are old news.
        aged = needed_from is not None and segment.ts_max < now_ns - settings.retention_age_ns
        if not aged and kept_bytes <= settings.retention_bytes and room <= 0:
            return number
        kept_bytes -= segment.bytes
        room -= segment.bytes
    return len(history)
