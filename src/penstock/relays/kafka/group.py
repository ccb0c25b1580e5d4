"""Messages of one topic that go the same way: rows of one batch of the log, and what sending needs to know of them.

Holds no message apart from the columns it is in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.clock import MILLISECOND
from penstock.columns import OFFSET_BITS, Offsets
from penstock.delivery.source import Delivery
from penstock.message import Batch, int64s
from penstock.settings import MINUTE_NS

if TYPE_CHECKING:
    from penstock.relays.kafka.lane import Lane

Content = bytes
#: A broker refuses a whole set for one record that is an hour ahead of its clock, which may be behind ours
#: (`log.message.timestamp.after.max.ms`).
AHEAD_NS_MAX = 50 * MINUTE_NS


class Group(msgspec.Struct, eq=False):
    """Some rows, on lease."""

    #: Where they came from, and are finished.
    lane: Lane
    shard: int
    batch: Batch
    rows: slice | Offsets
    #: The bytes of key, value and headers of each.
    sizes: Offsets
    #: Their partition, None where the request decides it.
    partition: int | None = None
    #: How often a broker said that they cannot be had now.
    failures: int = 0

    @classmethod
    def of(cls, lane: Lane, delivery: Delivery) -> Group:
        """Return what was handed out."""
        return cls(lane, delivery.shard, delivery.batch, delivery.rows, _sizes(delivery.batch, delivery.rows))

    @property
    def topic(self) -> str:
        """The topic, here as there."""
        return self.lane.name

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.sizes)

    @property
    def bytes(self) -> int:
        """The bytes of all of them."""
        return int(self.sizes.sum())

    @property
    def picks(self) -> Offsets:
        """The rows as an array."""
        rows = self.rows
        return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows

    @property
    def ids(self) -> Offsets:
        """What the seat calls them."""
        return self.picks + (self.batch.first + (self.shard << OFFSET_BITS) + 1)

    @property
    def times_ns(self) -> Offsets:
        """When each began to wait: at its producer's time, but not later than it came."""
        taken, said, valid = self._times()
        return np.where(valid, np.minimum(said, taken), taken)

    @property
    def times_ms(self) -> Offsets:
        """The producer's time of each as it said it, else when it came."""
        taken, said, valid = self._times()
        return np.where(valid, said, taken) // MILLISECOND

    @property
    def stamps_ms(self) -> int | Offsets:
        """The time of each record, one number where all have one: the producer's if brokers take it, else when it came.

        They take none far ahead, and none before 1970.
        """
        time = self.batch.timestamp
        if isinstance(time, int) and "event_time" not in self.batch.columns:
            return time // MILLISECOND
        taken, said, valid = self._times()
        return np.where(valid & (said >= 0) & (said <= taken + AHEAD_NS_MAX), said, taken) // MILLISECOND

    @property
    def routes(self) -> tuple[Offsets, npt.NDArray[np.bool_]] | None:
        """The partition key of each, and which have one; None where none has."""
        column = self.batch.columns.get("route")
        if column is None:
            return None
        values, valid = int64s(column)
        values, valid = values[self.rows], valid[self.rows]
        return (values, valid) if valid.any() else None

    def cut(self, first: int, end: int) -> Group:
        """Return some of them that follow each other."""
        rows = self.rows
        some = slice(rows.start + first, rows.start + end) if isinstance(rows, slice) else rows[first:end]
        return Group(self.lane, self.shard, self.batch, some, self.sizes[first:end], self.partition, self.failures)

    def picked(self, mask: npt.NDArray[np.bool_]) -> Group:
        """Return those that a mask says."""
        return Group(
            self.lane, self.shard, self.batch, self.picks[mask], self.sizes[mask], self.partition, self.failures
        )

    def contents(self) -> Iterator[tuple[Content | None, Content]]:
        """Yield key and value of each, for whoever writes down single messages."""
        for row in self.picks.tolist():
            key = self.batch.row_value("key", row)
            yield (key if isinstance(key, Content) else None), self.batch.row_body(row)

    def _times(self) -> tuple[Offsets, Offsets, npt.NDArray[np.bool_]]:
        """Return when each came, what its producer said, and whether it did."""
        batch, count = self.batch, self.count
        times = batch.timestamp
        if isinstance(times, int):
            taken = np.full(count, times, np.int64)
        else:
            taken = np.asarray(times, np.int64)[self.rows]
        column = batch.columns.get("event_time")
        if column is None:
            return taken, taken, np.zeros(count, np.bool_)
        said, valid = int64s(column)
        return taken, said[self.rows], valid[self.rows]


def _sizes(batch: Batch, rows: slice | Offsets) -> Offsets:
    cuts = np.asarray(batch.cuts, np.int64)
    if isinstance(rows, slice):
        sizes = np.diff(cuts[rows.start : rows.stop + 1])
    else:
        sizes = cuts[rows + 1] - cuts[rows]
    for name in ("key", "headers"):
        column = batch.columns.get(name)
        if column is None:
            continue
        if isinstance(column, pa.Array):
            sizes = sizes + np.asarray(pc.binary_length(column).fill_null(0), np.int64)[rows]
        else:
            lengths = [len(cell) if isinstance(cell, bytes | bytearray | memoryview | str) else 0 for cell in column]
            sizes = sizes + np.array(lengths, np.int64)[rows]
    return sizes
