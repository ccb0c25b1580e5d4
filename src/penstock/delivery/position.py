"""Where a subscription is in a shard's log: its next row, how far it may go, and what it passes without reading.

Rows at or above `offset` were never seen and cost nothing. Owns the fetching of what is not in memory. What passing
rows means is noted in `RowStates`; lanes, rules and leases are the cursor's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from penstock.columns import Offsets
from penstock.delivery.journal import DISCARDED, HOLE, NAMES, REMOVED, SKIPPED, ranges
from penstock.delivery.rules import Sifted
from penstock.delivery.skips import Skips
from penstock.delivery.source import Source
from penstock.delivery.states import RowStates
from penstock.message import Batch

#: For larger batches a copy would cost as much as it saves ...
FEW_ROWS = 64
#: ... unless each of them is cut into pieces for many seats.
LANES_ROWS = 2048


class Position:
    """A place in a shard, and what lies ahead of it."""

    __slots__ = (
        "_fetching",
        "_lost",
        "_nothing_at",
        "_states",
        "_wake",
        "gate",
        "joined_below",
        "judged_ns",
        "judged_to",
        "offset",
        "passed",
        "skips",
        "source",
    )

    def __init__(
        self, source: Source, states: RowStates, wake: Callable[[], None], lost: Callable[[int], bool]
    ) -> None:
        self.source = source
        self._states = states
        self._wake = wake
        #: Told from which offset on nothing can be read; tells whether that lets others go on.
        self._lost = lost
        #: A paused topic lets nobody pass this offset.
        self.gate: int | None = None
        #: Batches of fewer rows are read together with those behind them.
        self.joined_below = FEW_ROWS
        self.begin(source.start)

    def begin(self, offset: int, skips: Iterable[tuple[int, int]] = ()) -> None:
        """Stand at an offset, with nothing known of what comes."""
        self.offset = offset
        #: Rows passed since the subscription began.
        self.passed = 0
        #: Rows ahead that were removed before anybody came there.
        self.skips = Skips(skips)
        #: Rows below it were judged, at this time, and may go out straight from the batch.
        self.judged_to = 0
        self.judged_ns = 0
        self._fetching = False
        self._nothing_at = (-1, -1)

    # --- ahead ----------------------------------------------------------------------------------------------------

    def ahead(self) -> bool:
        """Tell whether the log may hold rows that were not seen yet."""
        end = self.source.readable_end
        if self.gate is not None and self.gate < end:
            end = self.gate
        return self.offset < end and not self._fetching and self._nothing_at != (self.offset, end)

    @property
    def is_fetching(self) -> bool:
        """Whether what comes next is on its way from the disk."""
        return self._fetching

    def end(self) -> int:
        """Return the offset up to which rows may be seen now."""
        end = self.source.readable_end
        return end if self.gate is None or self.gate > end else self.gate

    def behind(self) -> int:
        """Return how many rows may be seen and were not yet, as their offsets tell."""
        return self.end() - self.offset

    def is_past(self, offset: int) -> bool:
        """Tell whether nothing below an offset is still to come."""
        if self.offset >= offset or self.source.rows_between(self.offset, offset) == 0:
            return True
        end = self.end()
        return end >= offset and self._nothing_at == (self.offset, end)  # what is there cannot be read

    def unread(self) -> list[tuple[int, int]]:
        """Return the stretches of offsets that are still to come, first and end of each."""
        at, end = self.offset, self.end()
        stretches: list[tuple[int, int]] = []
        if at >= end or self._nothing_at == (at, end):
            return stretches
        for first, after in self.skips.between(at, end):
            if at < first:
                stretches.append((at, first))
            at = after
        if at < end:
            stretches.append((at, end))
        return stretches

    def unread_rows(self) -> int:
        """Return how many rows are still to come."""
        return sum(self.source.rows_between(*stretch) for stretch in self.unread())

    def stored(self, offsets: Offsets) -> Offsets:
        """Return those of ascending offsets ahead whose rows are there and were not removed."""
        offsets = offsets[offsets < self.source.readable_end]
        if len(offsets) == 0:
            return offsets
        there: list[int] = []
        rows_between = self.source.rows_between
        for first, last in zip(*(ends.tolist() for ends in ranges(offsets)), strict=True):
            run = range(first, last + 1)
            whole = rows_between(first, last + 1) == len(run)
            there += run if whole else [each for each in run if rows_between(each, each + 1)]
        if self.skips.firsts:
            there = [each for each in there if self.skips.end_at(each) == each]
        return np.array(there, np.int64)

    # --- reading --------------------------------------------------------------------------------------------------

    def batch_at(self, offset: int) -> Batch | None:
        """Return the batch that holds an offset or comes next after it; None while it is fetched."""
        batch = self.source.read(offset, self.joined_below)
        if batch is None and not self._fetching:
            self._fetching = True
            self.source.fetch(offset, lambda: self._fetched(offset))
        return batch

    def _fetched(self, offset: int) -> None:
        self._fetching = False
        if self.source.read(offset) is None:  # damaged or lost to the end: wait for something new
            self._nothing_at = (offset, self.end())
            if not self._lost(offset):
                return
        self._wake()

    # --- passing unread -------------------------------------------------------------------------------------------

    def skip(self, first: int, end: int) -> None:
        """Remove a range of rows that are still ahead; costs the same whatever their number."""
        first = max(first, self.offset)
        if first < end:
            self.skips.add(first, end)
            self._states.journal.passed(SKIPPED, first, end, 0)
            self.judged_to = 0  # what was judged before may hold some of them
            self.pass_skipped()

    def pass_skipped(self) -> bool:
        """Finish the removed rows that come next, unread; False if there are none."""
        end = self.skips.end_at(self.offset)
        if end == self.offset:
            return False
        self.pass_to(end, REMOVED)
        return True

    def pass_to(self, end: int, op: int) -> None:
        """Finish every row up to an offset, unread."""
        states = self._states
        rows = self.source.rows_between(self.offset, end)
        states.journal.passed(op, self.offset, end, rows)
        states.counts[op] += rows
        if states.recorder is not None and rows and op in DISCARDED:
            states.recorder.discarded(NAMES[op], rows)
        self.passed += rows
        self.offset = end
        self.skips.drop_below(end)

    def pass_hole(self, end: int) -> None:
        """Go on at an offset before which nothing is stored."""
        self._states.journal.passed(HOLE, self.offset, end, 0)
        self.offset = end
        self.skips.drop_below(end)

    def without_skips(self, sifted: Sifted, first: int, end: int) -> Sifted:
        """Finish what was removed ahead of time of a stretch that is passed now; return the rest."""
        skipped = self.skips.offsets(first, end)
        if len(skipped) == 0:
            return sifted
        self.skips.drop_below(end)
        self._states.finish(REMOVED, skipped)
        return sifted.without(skipped)
