"""Rows picked by tag, traffic bits and bucket, as a reader of the log asks for them.

Owns the verdict on a record batch. Knows nothing of files or calls, and needs pyarrow alone, because Spark executors
run it too. Invariant: a row without a value in a column that is asked about does not pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


def asked(tags: object, traffic: object, buckets: object) -> list[str]:
    """Return the columns that must be looked at."""
    pairs = (("tag", tags), ("traffic", traffic), ("bucket", buckets))
    return [name for name, value in pairs if value is not None]


def picked(
    batch: pa.RecordBatch, tags: Sequence[str] | None, traffic: int | None, buckets: Sequence[int] | None
) -> pa.RecordBatch:
    """Return the rows that have one of the tags, any of the bits, and a bucket in [low, high)."""
    if not asked(tags, traffic, buckets):
        return batch
    # Imported late: it takes a tenth of a second, which a process that picks nothing need not wait for.
    import pyarrow.compute as pc

    masks = []
    if tags is not None:
        masks.append(pc.is_in(batch.column("tag"), pa.array(tags, pa.string())))
    if traffic is not None:
        masks.append(pc.not_equal(pc.bit_wise_and(batch.column("traffic"), pa.scalar(traffic, pa.int64())), 0))
    if buckets is not None:
        bucket = batch.column("bucket")
        masks.append(pc.and_(pc.greater_equal(bucket, buckets[0]), pc.less(bucket, buckets[1])))
    mask = masks[0]
    for other in masks[1:]:
        mask = pc.and_(mask, other)
    return batch.filter(mask)
