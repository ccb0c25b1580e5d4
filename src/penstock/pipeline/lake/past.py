"""Batches that are in a table already: whether one that comes again under its number is the same.

Owns what is remembered of a batch: its rows, and a mark made of what Parquet knows of its files anyway. Knows nothing
of formats. Invariant: a batch is skipped because its rows are in, or it is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

from penstock.errors import Refusal
from penstock.pipeline.lake.home import Batch, Home
from penstock.pipeline.lake.staged import Staged

#: So many batches are remembered of each app: as many as Spark keeps in a checkpoint.
PAST_MAX = 100


def remember(home: Home, app: str, version: int, staged: Sequence[Staged]) -> None:
    """Write down a batch that is about to go in; one that was about to and did not is forgotten for it."""
    batch = Batch(version, sum(each.rows for each in staged), mark(staged))
    before = [each for each in home.past(app) if each.version < version]
    home.remember(app, [*before, batch][-PAST_MAX:])


def check(home: Home, app: str, version: int, last: int, staged: Sequence[Staged]) -> None:
    """Refuse a batch that is not the one that is in under its number; `last` is the highest one that is in."""
    rows = sum(each.rows for each in staged)
    past = home.past(app)
    known = next((batch for batch in past if batch.version == version), None)
    if not rows or (known is None and version == last and not past):
        return  # nothing could be missing; or a version wrote it that remembered nothing
    if known is None:
        found = f"is not among the last ones that were written there, and the last one is {last}"
    elif known.rows != rows:
        found = f"was written there with {known.rows} rows, and comes with {rows} now"
    elif known.mark != mark(staged):
        found = f"was written there with {known.rows} rows, and comes with {rows} others now"
    else:
        return
    raise Refusal(
        "conflict",
        f"table {home.table}: batch {version} of {app} {found}; nothing of it is written. Two queries share this name: "
        "a checkpoint was copied, or an older one was put back. Give this one a home or a checkpoint of its own",
    )


def mark(staged: Sequence[Staged]) -> str:
    """Return the same text for the same rows, whatever files they are in."""
    partitions: Counter[str] = Counter()
    for each in staged:
        partitions[repr(sorted(each.partition.items()))] += each.rows
    ranges = []
    for name in sorted({name for each in staged for name in each.ranges}):
        filled = [each for each in staged if each.nulls.get(name) != each.rows]
        if all(name in each.ranges for each in filled):
            ranges.append((name, *_span([each.ranges[name] for each in filled])))
    return blake2b(repr((sorted(partitions.items()), ranges)).encode(), digest_size=8).hexdigest()


def _span(ranges: list[tuple[object, object]]) -> tuple[str, str]:
    lows, highs = zip(*ranges, strict=True)
    return str(min(lows)), str(max(highs))
