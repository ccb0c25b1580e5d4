"""The newest batches of a shard, in memory, in order.

Owns what of the end of the log needs no disk. Knows nothing of segments. Invariant: it holds every stored row from
`start` on, so a miss below `start` means "on disk" and a miss above it means "nothing there".
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice

from penstock.columns import SMALL
from penstock.message import Batch

#: What a batch costs beside its bytes, measured with what a consumer's dialect keeps of it: objects, dictionaries,
#: lists, and what is lost between them. Above SMALL rows the objects are numpy's and Arrow's.
BATCH_BYTES = 1000
LARGE_BATCH_BYTES = 2500
#: The same for a row: its places in two lists of numbers, or in two arrays.
ROW_BYTES = 100
LARGE_ROW_BYTES = 16
#: Bodies are there twice: as they are stored, and in the frames that are made once for all consumers.
COPIES = 2
#: Dropped places at the front before the arrays are moved up; amortises the move.
GAP_MAX = 4096
#: Small batches are read as one up to this: enough to make what each of them costs vanish, and still a short step.
RUN_BATCHES_MAX = 1024
RUN_ROWS_MAX = 8192
RUN_BYTES_MAX = 1 << 20


class Tail:
    """A bounded run of batches at the end of the log."""

    __slots__ = ("_batches", "_firsts", "_head", "bytes", "rows", "start")

    def __init__(self, start: int) -> None:
        #: From this offset on, everything stored is here.
        self.start = start
        self.bytes = 0
        self.rows = 0
        self._firsts = array("q")
        self._batches: list[Batch | None] = []
        self._head = 0

    def __len__(self) -> int:
        return len(self._batches) - self._head

    def __iter__(self) -> Iterator[Batch]:
        for number in range(self._head, len(self._batches)):
            batch = self._batches[number]
            if batch is not None:
                yield batch

    def add(self, batch: Batch) -> None:
        """Append the newest batch."""
        self._firsts.append(batch.first)
        self._batches.append(batch)
        count = batch.count
        if batch.columns or count > SMALL:
            self.bytes += cost(batch)
        else:
            self.bytes += BATCH_BYTES + COPIES * len(batch.body) + ROW_BYTES * count
        self.rows += count

    def at(self, offset: int) -> Batch | None:
        """Return the batch that holds an offset, or the first one after it; `offset` is not below `start`."""
        newest = self._batches[-1] if self._batches else None
        if newest is not None and newest.first <= offset:  # what is delivered as it comes is the newest batch
            return newest if offset < newest.first + newest.count else None
        number = bisect_right(self._firsts, offset, self._head) - 1
        if number >= self._head:
            batch = self._batches[number]
            if batch is not None and offset < batch.first + batch.count:
                return batch
        number += 1
        return self._batches[number] if number < len(self._batches) else None

    def run(self, offset: int, end: int, below: int) -> list[Batch]:
        """Return the batches from the one at an offset on, up to an end, that may be read as one: all have few rows."""
        number = bisect_left(self._firsts, offset, self._head)
        first = self._batches[number]
        found: list[Batch] = []
        rows = size_bytes = 0
        assert first is not None
        for each in islice(self._batches, number, None):
            assert each is not None
            rows += each.count
            size_bytes += len(each.body)
            if (
                each.count >= below
                or rows > RUN_ROWS_MAX
                or len(found) == RUN_BATCHES_MAX
                or size_bytes > RUN_BYTES_MAX
                or each.end > end
                or each.first != offset
                or each.sequence
                or each.source != first.source
                or each.columns.keys() != first.columns.keys()
            ):
                break
            found.append(each)
            offset = each.end
        return found

    def drop_oldest(self) -> Batch:
        """Forget the oldest batch."""
        batch = self._batches[self._head]
        assert batch is not None
        self._batches[self._head] = None
        self._head += 1
        self.bytes -= cost(batch)
        self.rows -= batch.count
        self.start = batch.end
        if self._head >= GAP_MAX and 2 * self._head > len(self._batches):
            del self._batches[: self._head]
            del self._firsts[: self._head]
            self._head = 0
        return batch

    def drop_below(self, offset: int, bytes_min: int, batches_max: int) -> bool:
        """Forget some of the oldest batches that end at or below an offset, and leave so many bytes; True if all went.

        Not all at once: a sync lets go of whatever came since the one before, and thousands of lone messages take tens
        of milliseconds to be freed.
        """
        for _ in range(batches_max):
            if self.bytes <= bytes_min or self._head + 1 >= len(self._batches):
                return True
            oldest = self._batches[self._head]
            assert oldest is not None
            if oldest.first + oldest.count > offset:
                return True
            self.drop_oldest()
        return False

    def drop_from(self, offset: int) -> None:
        """Forget every batch that begins at or after an offset."""
        while len(self) and self._firsts[-1] >= offset:
            batch = self._batches.pop()
            self._firsts.pop()
            assert batch is not None
            self.bytes -= cost(batch)
            self.rows -= batch.count
        self.start = min(self.start, offset)


def cost(batch: Batch) -> int:
    """Return about how many bytes of memory a batch holds."""
    if batch.count <= SMALL:
        size = BATCH_BYTES + COPIES * len(batch.body) + ROW_BYTES * batch.count
    else:
        size = LARGE_BATCH_BYTES + COPIES * len(batch.body) + LARGE_ROW_BYTES * batch.count
    for column in batch.columns.values():
        size += 64 * batch.count if isinstance(column, list) else column.nbytes
    return size
