"""Leases on their way to a consumer, as one batch of columns in the order of (due, id)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.client.timeline.wire import PUSHED
from penstock.columns import Offsets
from penstock.delivery.instant import Instant
from penstock.delivery.source import Delivery
from penstock.dialects.timeline import columns
from penstock.dialects.timeline.reading import Found
from penstock.dialects.timeline.timeline import MS, Timeline, shard_ids

#: Rows of a push, mostly.
_NAMES = 256


class Name:
    """A consumer's id as a column, as long as is asked for."""

    def __init__(self, consumer: str) -> None:
        self._value = pa.scalar(consumer.encode(), pa.binary())
        self._cells = pa.repeat(self._value, _NAMES)

    def cells(self, count: int) -> pa.BinaryArray:
        """Return it so many times."""
        if count > len(self._cells):
            self._cells = pa.repeat(self._value, count)
        return self._cells.slice(0, count)


class Push(NamedTuple):
    """What goes out together."""

    batch: pa.RecordBatch
    #: The core ids of its rows, and what clients call them.
    ids: Offsets
    names: list[bytes]


def of_deliveries(timeline: Timeline, consumer: Name, deliveries: Sequence[Delivery], now: Instant) -> Push:
    """Return what was just leased."""
    return _ordered(
        [
            _part(timeline, consumer, Found(each.shard, each.batch, rows := each.picks(), rows), now)
            for each in deliveries
        ]
    )


def of_leases(timeline: Timeline, consumer: Name, found: Sequence[Found], now: Instant) -> Push:
    """Return what was leased before."""
    return _ordered([_part(timeline, consumer, each, now) for each in found])


def due_ms(timeline: Timeline, found: Found, picks: columns.Picks) -> Offsets:
    """Return when rows are due: since their last release, where they had one."""
    shard, batch, rows, _ = found
    due = columns.due_ms(batch, picks)
    if not timeline.released:
        return due
    ids = shard_ids(shard, batch.first + rows).tolist()
    known = [timeline.released.get(id_, (first, 0))[0] for id_, first in zip(ids, due.tolist(), strict=True)]
    return np.array(known, np.int64)


def _part(timeline: Timeline, consumer: Name, found: Found, now: Instant) -> tuple[pa.RecordBatch, Offsets]:
    shard, batch, rows, _ = found
    offsets = batch.first + rows
    attempts, ends_ns, versions = timeline.subscription.cursors[shard].states.pages.leases(offsets)
    ids = shard_ids(shard, offsets)
    picks = columns.picks(rows)
    due = due_ms(timeline, found, picks)
    ends_ms = (ends_ns + (now.wall_ns - now.monotonic_ns)) // MS
    cells = [
        pa.array(ends_ms.view(np.uint64)),
        consumer.cells(len(rows)),
        columns.message_ids(batch, shard, picks),
        columns.bodies(batch, picks),
        pa.array(np.maximum(due, 0).view(np.uint64)),
        columns.groups(batch, picks),
        pa.array(columns.wire_versions(versions, attempts).astype(np.uint16)),
        pa.array(columns.buckets(batch, shard, picks, timeline.choices.bucket_count).astype(np.uint16)),
    ]
    return pa.RecordBatch.from_arrays(cells, schema=PUSHED), ids


def _ordered(parts: list[tuple[pa.RecordBatch, Offsets]]) -> Push:
    if len(parts) == 1:
        batch, ids = parts[0]
    else:
        ids = np.concatenate([part[1] for part in parts])
        batch = pa.concat_batches([part[0] for part in parts])
    names = columns.values(batch.column("message_id"))
    times = np.asarray(batch.column("timestamp_ms")).view(np.int64)
    if (times[1:] >= times[:-1]).all() and (names == sorted(names) or (times[1:] > times[:-1]).all()):
        return Push(batch, ids, names)
    order = np.array(sorted(range(len(names)), key=list(zip(times.tolist(), names, strict=True)).__getitem__), np.int64)
    return Push(batch.take(pa.array(order)), ids[order], [names[at] for at in order.tolist()])
