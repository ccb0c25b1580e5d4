"""Leases on their way to a consumer, as one batch of columns in the order of (due, id)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.timeline.wire import PUSHED
from penstock.columns import Offsets
from penstock.delivery.instant import Instant
from penstock.delivery.source import Delivery
from penstock.dialects.timeline import columns
from penstock.dialects.timeline.reading import Found
from penstock.dialects.timeline.timeline import MS, Timeline, shard_ids


def of_deliveries(
    timeline: Timeline, consumer: bytes, deliveries: Sequence[Delivery], now: Instant
) -> tuple[pa.RecordBatch, Offsets]:
    """Return what was just leased, and the core ids of its rows."""
    return _ordered(
        [
            _part(timeline, consumer, Found(each.shard, each.batch, rows := each.picks(), rows), now)
            for each in deliveries
        ]
    )


def of_leases(
    timeline: Timeline, consumer: bytes, found: Sequence[Found], now: Instant
) -> tuple[pa.RecordBatch, Offsets]:
    """Return what was leased before, and the core ids of its rows."""
    return _ordered([_part(timeline, consumer, each, now) for each in found])


def due_ms(timeline: Timeline, found: Found) -> Offsets:
    """Return when rows are due: since their last release, where they had one."""
    shard, batch, rows, _ = found
    due = columns.due_ms(batch, rows)
    if not timeline.released:
        return due
    ids = shard_ids(shard, batch.first + rows).tolist()
    known = [timeline.released.get(id_, (first, 0))[0] for id_, first in zip(ids, due.tolist(), strict=True)]
    return np.array(known, np.int64)


def _part(timeline: Timeline, consumer: bytes, found: Found, now: Instant) -> tuple[pa.RecordBatch, Offsets]:
    shard, batch, rows, _ = found
    pages = timeline.subscription.cursors[shard].states.pages
    offsets = batch.first + rows
    _, attempts, ends_ns, _ = pages.details(offsets)
    ids = shard_ids(shard, offsets)
    due = due_ms(timeline, found)
    ends_ms = (ends_ns - now.monotonic_ns + now.wall_ns) // MS
    cells = [
        pa.array(ends_ms.view(np.uint64)),
        pa.repeat(pa.scalar(consumer, pa.binary()), len(rows)),
        columns.message_ids(batch, shard, rows),
        columns.bodies(batch, rows),
        pa.array(np.maximum(due, 0).view(np.uint64)),
        columns.groups(batch, rows),
        pa.array(columns.wire_versions(pages.versions(offsets), attempts).astype(np.uint16)),
        pa.array(columns.buckets(batch, shard, rows, timeline.choices.bucket_count).astype(np.uint16)),
    ]
    return pa.RecordBatch.from_arrays(cells, schema=PUSHED), ids


def _ordered(parts: list[tuple[pa.RecordBatch, Offsets]]) -> tuple[pa.RecordBatch, Offsets]:
    if len(parts) == 1:
        batch, ids = parts[0]
    else:
        ids = np.concatenate([part[1] for part in parts])
        batch = pa.concat_batches([part[0] for part in parts])
    times = np.asarray(batch.column("timestamp_ms")).view(np.int64)
    later = times[1:] > times[:-1]
    if later.all() or ((times[1:] >= times[:-1]).all() and (later | _ascend(batch.column("message_id"))).all()):
        return batch, ids
    order = pc.sort_indices(batch, [("timestamp_ms", "ascending"), ("message_id", "ascending")])
    return batch.take(order), ids[np.asarray(order)]


def _ascend(ids: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    """Tell which ids come after the one before."""
    return np.asarray(pc.greater_equal(ids[1:], ids[:-1]))
