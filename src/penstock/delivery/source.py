"""What delivery needs of a shard and of its journal, and what it hands to a consumer. Contracts only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.columns import Offsets, id_of
from penstock.message import Batch, Done

Entry = tuple[int, int, int, int, int]


class Source(Protocol):
    """One shard, as a reader sees it."""

    number: int
    #: No version of a lease above this one was given out before; see `Pages`.
    last_version: int

    @property
    def start(self) -> int:
        """Everything that was stored from here on is kept."""

    @property
    def kept_from(self) -> int:
        """Before `start`, from here on, is kept what is still waited for."""

    @property
    def readable_end(self) -> int:
        """Rows below it may be delivered."""

    def read(self, offset: int, joined_below: int = 0) -> Batch | None:
        """Return the batch in memory that holds `offset` or comes next after it.

        Batches of fewer rows than `joined_below` may come together with those behind them.
        """

    def fetch(self, offset: int, done: Callable[[], None]) -> None:
        """Bring the batch at `offset` into memory, then call `done`."""

    def rows_between(self, first: int, end: int) -> int:
        """Return how many rows are stored in a range of offsets."""


class JournalFile(Protocol):
    """Where delivery state is written; see `journal` for what the five numbers mean."""

    @property
    def bloated(self) -> bool:
        """Whether a snapshot would make the file at least half as large."""

    def append(self, entries: Sequence[Entry] | npt.NDArray[np.int64]) -> None:
        """Write entries as one frame."""

    @property
    def needs_snapshot(self) -> bool:
        """Whether only a snapshot makes what was written safe: a sync failed."""

    def compact(self, entries: npt.NDArray[np.int64]) -> None:
        """Start anew with a snapshot."""

    def keep(self, done: Done) -> None:
        """Call `done` once everything written survives a power loss, at once if it does."""

    def close(self, snapshot: Callable[[], npt.NDArray[np.int64]]) -> None:
        """Close the file; the snapshot is written if what is there cannot be made safe."""

    def remove(self) -> None:
        """Close the file and delete it."""


class Delivery(msgspec.Struct, eq=False):
    """Rows of one batch on their way to one consumer, leased to it."""

    shard: int
    batch: Batch
    #: A slice of the batch, or picked rows.
    rows: slice | Offsets
    count: int
    #: The same for all rows, or one each.
    attempts: int | npt.NDArray[np.uint16]
    #: Of leases that outlive connections, the version of each.
    versions: list[int] | None = None
    #: Of policies that go by it: when each row was due, or could go out again. It may be still to come. Where another
    #: order goes before, 0.
    due_ns: Offsets | None = None

    def ordered(self, order: Offsets) -> Delivery:
        """Return some of the rows, or all, in another order."""
        attempts = self.attempts if isinstance(self.attempts, int) else self.attempts[order]
        due_ns = None if self.due_ns is None else self.due_ns[order]
        some = Delivery(self.shard, self.batch, self.picks()[order], len(order), attempts, due_ns=due_ns)
        if self.versions is not None:
            some.versions = [self.versions[at] for at in order.tolist()]
        return some

    def picked(self, mask: npt.NDArray[np.bool_]) -> Delivery:
        """Return some of the rows; the mask has one entry for each."""
        return self.ordered(np.flatnonzero(mask))

    def picks(self) -> Offsets:
        """Return the rows as an array."""
        return np.arange(self.rows.start, self.rows.stop) if isinstance(self.rows, slice) else self.rows

    def each(self) -> Iterator[tuple[int, int, int]]:
        """Yield (id, attempts, row of the batch) of each row, for dialects that say one at a time."""
        for offset, times in zip(self.offsets(), self.tries(), strict=True):
            yield id_of(self.shard, offset), times, offset - self.batch.first

    def tries(self) -> list[int]:
        """Return which attempt this is of each row."""
        return [self.attempts] * self.count if isinstance(self.attempts, int) else self.attempts.tolist()

    def ids(self) -> list[int]:
        """Return the id of each row."""
        first = id_of(self.shard, self.batch.first)
        if isinstance(self.rows, slice):
            return list(range(first + self.rows.start, first + self.rows.stop))
        return [first + row for row in self.rows.tolist()]

    def offsets(self) -> list[int]:
        """Return the offset of each row."""
        first = self.batch.first
        if isinstance(self.rows, slice):
            return list(range(first + self.rows.start, first + self.rows.stop))
        return [first + row for row in self.rows.tolist()]
