"""One page of row states: arrays over 65,536 offsets, or over what is left of them.

Knows nothing of other pages. Invariant: DONE is 0, so a fresh page and the dummy slot of a shrunk one read the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

DONE, READY, LEASED, WAITING, MOVING = range(5)

PAGE_BITS = 16
PAGE_ROWS = 1 << PAGE_BITS
PAGE_MASK = PAGE_ROWS - 1

#: When a row went out is kept to 65 us in 32 bits, which begin anew after three days: leases are shorter.
BEGAN_BITS = 16
BEGAN_MASK = (1 << 32) - 1

#: The slot of a row that nobody looked for yet.
UNSORTED = -1

#: One number a row, 0 or more: what a policy deals rows by.
Slots = npt.NDArray[np.int32]
Index = npt.NDArray[np.int64]


class Page:
    """Arrays over one page; after `shrink` only over the rows that are left, plus one dummy slot for all others."""

    __slots__ = ("attempts", "began", "deadline", "holder", "index", "left", "limit", "slot", "state", "version")

    def __init__(self) -> None:
        self.state = np.zeros(PAGE_ROWS, np.uint8)
        self.attempts = np.zeros(PAGE_ROWS, np.uint16)
        self.holder = np.zeros(PAGE_ROWS, np.uint16)
        #: LEASED: monotonic time of expiry. WAITING: wall-clock time the row is due.
        self.deadline = np.zeros(PAGE_ROWS, np.int64)
        #: LEASED: when it went out, in units of `BEGAN_BITS`; 0 where that is not known.
        self.began = np.zeros(PAGE_ROWS, np.uint32)
        #: Latest deadline an extended lease may reach; made by the first extend in the page, 0 = not extended yet.
        self.limit: npt.NDArray[np.int64] | None = None
        #: The row's slot, kept only while there are several lanes.
        self.slot: Slots | None = None
        #: Grows when the row is leased, extended by name or given back; kept only where a named holder takes part.
        self.version: npt.NDArray[np.uint32] | None = None
        self.left = 0
        self.index: Index | None = None

    def find(self, rows: Index) -> Index:
        """Return where rows of this page stand in the arrays."""
        if self.index is None:
            return rows
        last = len(self.index)
        at = np.searchsorted(self.index, rows)
        at[self.index[np.minimum(at, last - 1)] != rows] = last
        return at

    def find_one(self, row: int) -> int:
        """Return where one row stands."""
        if self.index is None:
            return row
        at = int(np.searchsorted(self.index, row))
        return at if at < len(self.index) and self.index[at] == row else len(self.index)

    def version_of(self, at: int) -> int:
        """Return the version of the row at a place."""
        return 0 if self.version is None else self.version.item(at)

    def rows(self) -> Index:
        """Return the rows of this page that are not done, ascending."""
        if self.index is None:
            return np.flatnonzero(self.state)
        rows: Index = self.index[self.state[:-1] != DONE]
        return rows

    def lease(self, at: Index, holder: int, deadline_ns: int, now_ns: int) -> None:
        """Put rows at these places on lease; the attempt, and the version, are the caller's affair."""
        self.state[at] = LEASED
        self.holder[at] = holder
        self.deadline[at] = deadline_ns
        self.began[at] = now_ns >> BEGAN_BITS & BEGAN_MASK
        if self.limit is not None:
            self.limit[at] = 0

    def shrink(self) -> None:
        """Keep only what is left, to give the memory back."""
        rows = self.rows()
        at = self.find(rows)

        def kept(values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
            short = np.zeros(len(rows) + 1, values.dtype)
            short[:-1] = values[at]
            return short

        self.state = kept(self.state)  # type: ignore[assignment]
        self.attempts = kept(self.attempts)  # type: ignore[assignment]
        self.holder = kept(self.holder)  # type: ignore[assignment]
        self.deadline = kept(self.deadline)  # type: ignore[assignment]
        self.began = kept(self.began)  # type: ignore[assignment]
        if self.limit is not None:
            self.limit = kept(self.limit)  # type: ignore[assignment]
        if self.slot is not None:
            self.slot = kept(self.slot)  # type: ignore[assignment]
        if self.version is not None:
            self.version = kept(self.version)  # type: ignore[assignment]
        self.index = rows

    def dense(self) -> Page:
        """Return the same with room for every row of the page again."""
        rows, full = self.index, Page()
        assert rows is not None
        full.state[rows], full.attempts[rows] = self.state[:-1], self.attempts[:-1]
        full.holder[rows], full.deadline[rows] = self.holder[:-1], self.deadline[:-1]
        full.began[rows] = self.began[:-1]
        if self.slot is not None:
            full.slots()[rows] = self.slot[:-1]
        if self.version is not None:
            full.versions()[rows] = self.version[:-1]
        full.left = self.left
        return full

    def slots(self) -> Slots:
        """Return the slots of its rows, which are kept from now on."""
        if self.slot is None:
            self.slot = np.full(len(self.state), UNSORTED, np.int32)
        return self.slot

    def versions(self) -> npt.NDArray[np.uint32]:
        """Return the versions of its rows, which are kept from now on."""
        if self.version is None:  # a receipt of before there were versions tells the attempt, and no older one may hold
            self.version = self.attempts.astype(np.uint32)
        return self.version


def since_ns(began: int, now_ns: int) -> int:
    """Return how long a row is out that went out then."""
    return ((now_ns >> BEGAN_BITS) - began & BEGAN_MASK) << BEGAN_BITS


def since_all_ns(began: npt.NDArray[np.uint32], now_ns: int) -> npt.NDArray[np.int64]:
    """Return how long rows are out that went out then."""
    return ((now_ns >> BEGAN_BITS) - began.astype(np.int64) & BEGAN_MASK) << BEGAN_BITS
