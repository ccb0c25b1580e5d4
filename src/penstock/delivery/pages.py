"""The state of every row a subscription was handed and has not finished, as arrays in pages of 65,536 offsets.

Owns state, attempts, holder and deadline per row, and the legal moves between states. Knows nothing of consumers'
credit, of bodies, or of time: deadlines are numbers passed in.

Invariant: a row without a page is either finished (below the cursor) or not yet seen (at or above it); DONE is 0,
so a fresh page, the dummy slot of a shrunk page and "no page" all read the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from penstock.columns import Offsets
from penstock.delivery.few import FewRows
from penstock.delivery.page import (
    BEGAN_BITS,
    BEGAN_MASK,
    DONE,
    LEASED,
    PAGE_BITS,
    PAGE_MASK,
    PAGE_ROWS,
    READY,
    UNSORTED,
    WAITING,
    Index,
    Page,
    Slots,
)
from penstock.delivery.versions import Versions

#: A page that the cursor has left shrinks to a sorted list once so few rows are left in it (1/64: 13 KB for 830 KB).
SHRINK_ROWS = PAGE_ROWS >> 6

#: The counter stops here, with its 16 bits; a dialect whose clients read less shows less.
ATTEMPTS_MAX = 0xFFFF

Mask = npt.NDArray[np.bool_]


class Pages:
    """All pages of one subscription over one shard. Every move costs as much as the rows it touches."""

    __slots__ = ("_pages", "_versioned", "current", "few", "numbering")

    def __init__(self, last_version: int = 0) -> None:
        self.numbering = Versions(last_version)
        self._pages: dict[int, Page] = {}
        #: The way of a lone row, and of a few.
        self.few = FewRows(self._pages, self._less)
        self.clear()

    def clear(self) -> None:
        """Begin with no row."""
        self._pages.clear()
        self._versioned = False
        self.numbering.begin_anew()
        #: Number of the page the cursor is in: it stays, empty or not, so that lone messages do not remake it.
        self.current = -1

    def __len__(self) -> int:
        return len(self._pages)

    def count(self, state: int) -> int:
        """Return how many rows are in a state (tests and recovery; costs a scan)."""
        return sum(int((page.state == state).sum()) for page in self._pages.values())

    def lease_fresh(self, first: int, count: int, holder: int, deadline_ns: int, now_ns: int = 0) -> None:
        """Lease rows that were never seen: their first attempt."""
        at, end = first, first + count
        began = now_ns >> BEGAN_BITS & BEGAN_MASK
        while at < end:
            number = at >> PAGE_BITS
            page = self._pages[number] if number == self.current else self._page_at(at)
            low = at & PAGE_MASK
            high = min(PAGE_ROWS, low + end - at)
            if high - low == 1:
                page.state[low] = LEASED
                page.attempts[low] = 1
                page.holder[low] = holder
                page.deadline[low] = deadline_ns
                page.began[low] = began
                if page.limit is not None:
                    page.limit[low] = 0
                if page.version is not None:
                    page.version[low] = self.numbering.first()
            else:
                rows = slice(low, high)
                page.state[rows] = LEASED
                page.attempts[rows] = 1
                page.holder[rows] = holder
                page.deadline[rows] = deadline_ns
                page.began[rows] = began
                if page.limit is not None:
                    page.limit[rows] = 0
                if page.version is not None:
                    page.version[rows] = self.numbering.first()
            page.left += high - low
            at += high - low

    def hold(
        self,
        offsets: Offsets,
        state: int,
        attempts: int | Offsets = 0,
        due_ns: int | Offsets = 0,
        slots: Slots | None = None,
    ) -> None:
        """Take rows that have no state yet (just passed by the cursor, or recovered) into READY or WAITING."""
        for number, part, rows in _split(offsets):
            page = self._dense(number)
            page.state[rows] = state
            # A row without a state has none of these yet, and memory that is not written to costs nothing.
            if not isinstance(attempts, int) or attempts:
                page.attempts[rows] = attempts if isinstance(attempts, int) else attempts[part]
            if not isinstance(due_ns, int) or due_ns:
                page.deadline[rows] = due_ns if isinstance(due_ns, int) else due_ns[part]
            if slots is not None:
                page.slots()[rows] = slots[part]
            page.left += len(rows)

    def slots(self, offsets: Offsets) -> Slots:
        """Return the slots of rows, UNSORTED where nobody looked yet."""
        slots = np.full(len(offsets), UNSORTED, np.int32)
        for number, part, rows in _split(offsets):
            page = self._pages.get(number)
            if page is not None and page.slot is not None:
                slots[part] = page.slot[page.find(rows)]
        return slots

    def set_slots(self, offsets: Offsets, slots: Slots) -> None:
        """Note the slots of rows that have a state."""
        for number, part, rows in _split(offsets):
            self._pages[number].slots()[self._pages[number].find(rows)] = slots[part]

    def forget_slots(self) -> None:
        """Drop all slots: from now on every row is UNSORTED."""
        for page in self._pages.values():
            page.slot = None

    def keep_versions(self) -> None:
        """Count from now on how often each row was leased or given back."""
        if not self._versioned:
            self._versioned = True
            for page in self._pages.values():
                page.versions()

    def versions(self, offsets: Offsets) -> Offsets:
        """Return the versions of rows, 0 where none was given yet."""
        versions = np.zeros(len(offsets), np.int64)
        for number, part, rows in _split(offsets):
            page = self._pages.get(number)
            if page is not None and page.version is not None:
                versions[part] = page.version[page.find(rows)]
        return versions

    def set_versions(self, offsets: Offsets, versions: Offsets) -> None:
        """Give rows that have a state the versions a journal tells."""
        for number, part, rows in _split(offsets):
            page = self._pages[number]
            page.versions()[page.find(rows)] = versions[part]

    def next_versions(self, offsets: Offsets) -> None:
        """Let the versions of rows grow by one."""
        for number, _, rows in _split(offsets):
            page = self._pages[number]
            at = page.find(rows)
            versions = page.versions()
            versions[at] = self.numbering.after(versions[at])

    def lease(self, offsets: Offsets, holder: int, deadline_ns: int, now_ns: int = 0) -> npt.NDArray[np.uint16]:
        """Lease rows that are READY and return which attempt this is for each."""
        attempts = np.empty(len(offsets), np.uint16)
        for number, part, rows in _split(offsets):
            page = self._pages[number]
            at = page.find(rows)
            page.attempts[at] = np.minimum(page.attempts[at], ATTEMPTS_MAX - 1) + 1
            page.lease(at, holder, deadline_ns, now_ns)
            if page.version is not None:
                page.version[at] = self.numbering.after(page.version[at])
            attempts[part] = page.attempts[at]
        return attempts

    def lease_first(self, offsets: Offsets, holder: int, deadline_ns: int, now_ns: int = 0) -> bool:
        """Lease ascending rows if all are READY and none was ever leased; False changes nothing."""
        number = int(offsets[0]) >> PAGE_BITS
        if int(offsets[-1]) >> PAGE_BITS == number:
            parts = [(number, offsets & PAGE_MASK)]
        else:
            parts = [(number, rows) for number, _, rows in _split(offsets)]
        found = []
        for number, rows in parts:
            page = self._pages.get(number)
            if page is None:
                return False
            at = rows if page.index is None else page.find(rows)
            if not (page.state[at] == READY).all() or page.attempts[at].any():
                return False
            found.append((page, at))
        for page, at in found:
            page.attempts[at] = 1
            page.lease(at, holder, deadline_ns, now_ns)
            if page.version is not None:
                versions = page.version[at]
                page.version[at] = self.numbering.after(versions) if versions.any() else self.numbering.first()
        return True

    def ready(self, offsets: Offsets) -> Mask:
        """Tell which rows are READY; others were finished since they were queued."""
        return self._mask(offsets, lambda page, at: page.state[at] == READY)

    def uncount(self, offsets: Offsets) -> None:
        """Take an attempt back, of which nobody heard."""
        for number, _, rows in _split(offsets):
            self._pages[number].attempts[self._pages[number].find(rows)] -= 1

    def attempts(self, offsets: Offsets) -> npt.NDArray[np.uint16]:
        """Return how often each row was leased."""
        attempts = np.zeros(len(offsets), np.uint16)
        for number, part, rows in _split(offsets):
            page = self._pages.get(number)
            if page is not None:
                attempts[part] = page.attempts[page.find(rows)]
        return attempts

    def began(self, offsets: Offsets) -> npt.NDArray[np.uint32]:
        """Return when each row went out."""
        began = np.zeros(len(offsets), np.uint32)
        for number, part, rows in _split(offsets):
            page = self._pages.get(number)
            if page is not None:
                began[part] = page.began[page.find(rows)]
        return began

    def leased(self, offsets: Offsets, holder: int) -> Mask:
        """Tell which rows this holder has on lease."""
        return self._mask(offsets, lambda page, at: (page.state[at] == LEASED) & (page.holder[at] == holder))

    def finish_held(self, offsets: Offsets, holder: int) -> Mask | None:
        """Finish ascending rows that a holder has on lease; return which these are, None if all."""
        all_good = True
        masks = []
        for number, _, rows in _split(offsets):
            page = self._pages.get(number)
            if page is None:
                masks.append(np.zeros(len(rows), np.bool_))
                all_good = False
                continue
            at = rows if page.index is None else page.find(rows)
            good = (page.state[at] == LEASED) & (page.holder[at] == holder)
            if good.all():
                page.state[at] = DONE
                self._less(number, page, len(rows))
            else:
                all_good = False
                page.state[at[good]] = DONE
                self._less(number, page, int(good.sum()))
            masks.append(good)
        if all_good:
            return None
        return masks[0] if len(masks) == 1 else np.concatenate(masks)

    def finish(self, offsets: Offsets) -> None:
        """Finish rows that have a state; the caller has checked which."""
        for number, _, rows in _split(offsets):
            page = self._pages[number]
            page.state[page.find(rows)] = DONE
            self._less(number, page, len(rows))

    def move(self, offsets: Offsets, state: int, due_ns: int | Offsets = 0) -> None:
        """Put rows that have a state into another one."""
        for number, part, rows in _split(offsets):
            page = self._pages[number]
            at = page.find(rows)
            page.state[at] = state
            page.deadline[at] = due_ns if isinstance(due_ns, int) else due_ns[part]

    def waiting(self, offsets: Offsets, wall_ns: int) -> Mask:
        """Tell which rows are WAITING for a time that has come."""
        return self._mask(offsets, lambda page, at: (page.state[at] == WAITING) & (page.deadline[at] <= wall_ns))

    def expired(self, offsets: Offsets, holder: int, deadline_ns: int) -> Mask:
        """Tell which rows are still on the lease that ends at this deadline."""
        return self._mask(
            offsets,
            lambda page, at: (
                (page.state[at] == LEASED) & (page.holder[at] == holder) & (page.deadline[at] == deadline_ns)
            ),
        )

    def extend(
        self, offsets: Offsets, now_ns: int, lease_ns: int, lease_max_ns: int, grain_ns: int, begun_ns: int | None
    ) -> Offsets:
        """Move the deadline of leased rows to a lease from now, not past `lease_max_ns` after delivery; return them.

        `begun_ns` is how long they were leased for at first; where that is not known, the first extend counts instead.
        """
        deadlines = np.empty(len(offsets), np.int64)
        for number, part, rows in _split(offsets):
            page = self._pages[number]
            at = page.find(rows)
            if page.limit is None:
                page.limit = np.zeros(len(page.state), np.int64)
            old = page.deadline[at]
            from_ns = old - begun_ns if begun_ns is not None else now_ns
            limit = np.where(page.limit[at] == 0, from_ns + lease_max_ns, page.limit[at])
            page.limit[at] = limit
            new = np.minimum(-(-(now_ns + lease_ns) // grain_ns) * grain_ns, limit)
            page.deadline[at] = new
            deadlines[part] = new
        return deadlines

    def held(self, below: int | None = None) -> Offsets:
        """Return all rows that have a state, ascending, optionally only those below an offset."""
        parts = [first + rows for first, _, rows in self.walk()]
        rows = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return rows if below is None else rows[rows < below]

    def between(self, first: int, end: int) -> Offsets:
        """Return the rows of a range of offsets that have a state, ascending."""
        low, high = first >> PAGE_BITS, (end - 1) >> PAGE_BITS
        few = high - low < len(self._pages)
        numbers = range(low, high + 1) if few else sorted(n for n in self._pages if low <= n <= high)
        parts = [(n << PAGE_BITS) + self._pages[n].rows() for n in numbers if n in self._pages]
        rows = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return rows[(rows >= first) & (rows < end)]

    def walk(self) -> Iterator[tuple[int, Page, Index]]:
        """Yield (first offset of a page, the page, its rows that have a state), in order."""
        for number in sorted(self._pages):
            rows = self._pages[number].rows()
            if len(rows):
                yield number << PAGE_BITS, self._pages[number], rows

    def first(self) -> int | None:
        """Return the lowest row that has a state."""
        for first, _, rows in self.walk():
            return first + int(rows[0])
        return None

    def arrive(self, offsets: Offsets, wall_ns: int, *, keeps_due: bool) -> Offsets:
        """Make those of ascending rows READY that are WAITING for a time that has come, and return them."""
        page, at = self._one(offsets)
        if page is None:
            offsets = offsets[self.waiting(offsets, wall_ns)]
            self.move(offsets, READY, self.details(offsets)[2] if keeps_due else 0)
            return offsets
        come = (page.state[at] == WAITING) & (page.deadline[at] <= wall_ns)
        if not come.all():
            at, offsets = at[come], offsets[come]
        page.state[at] = READY
        if not keeps_due:
            page.deadline[at] = 0
        return offsets

    def sort(self, offsets: Offsets, slots: Slots) -> Offsets:
        """Note the slots of ascending rows that are READY, and return since when they are, as far as that is kept."""
        page, at = self._one(offsets)
        if page is None:
            self.set_slots(offsets, slots)
            return self.details(offsets)[2]
        page.slots()[at] = slots
        return page.deadline[at]

    def leases(self, offsets: Offsets) -> tuple[Offsets, Offsets, Offsets]:
        """Return (attempts, deadline, version) of rows."""
        page, at = self._one(offsets)
        if page is None or page.version is None:
            _, attempts, deadlines, _ = self.details(offsets)
            return attempts, deadlines, self.versions(offsets)
        return page.attempts[at].astype(np.int64), page.deadline[at], page.version[at].astype(np.int64)

    def _one(self, offsets: Offsets) -> tuple[Page | None, Index]:
        """Return the page that all rows are in, if they are in one, and where they stand there."""
        if not len(offsets):
            return None, offsets
        number = int(offsets[0]) >> PAGE_BITS
        page = self._pages.get(number)
        if page is None or not (offsets >> PAGE_BITS == number).all():
            return None, offsets
        return page, page.find(offsets & PAGE_MASK)

    def details(self, offsets: Offsets) -> tuple[Offsets, Offsets, Offsets, Offsets]:
        """Return (state, attempts, deadline, holder) of rows."""
        out = np.zeros((4, len(offsets)), np.int64)
        for number, part, rows in _split(offsets):
            page = self._pages.get(number)
            if page is not None:
                at = page.find(rows)
                out[0, part], out[1, part] = page.state[at], page.attempts[at]
                out[2, part], out[3, part] = page.deadline[at], page.holder[at]
        return out[0], out[1], out[2], out[3]

    def _mask(self, offsets: Offsets, test: object) -> Mask:
        one, places = self._one(offsets)
        if one is not None:
            return test(one, places)  # type: ignore[operator,no-any-return]
        mask = np.zeros(len(offsets), np.bool_)
        for number, part, rows in _split(offsets):
            page = self._pages.get(number)
            if page is not None:
                mask[part] = test(page, page.find(rows))  # type: ignore[operator]
        return mask

    def _page_at(self, offset: int) -> Page:
        number = offset >> PAGE_BITS
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = Page()
            if self._versioned:
                page.versions()
        if number > self.current:
            left, self.current = self.current, number
            old = self._pages.get(left)
            if old is not None:
                self._less(left, old, 0)
        return page

    def _dense(self, number: int) -> Page:
        page = self._page_at(number << PAGE_BITS)
        if page.index is not None:  # rows come back to a page that had shrunk: only after a recovery
            page = self._pages[number] = page.dense()
        return page

    def _less(self, number: int, page: Page, count: int) -> None:
        page.left -= count
        if number >= self.current:
            return
        if page.left == 0:
            del self._pages[number]
        elif page.left <= SHRINK_ROWS and page.index is None:
            page.shrink()


def _split(offsets: Offsets) -> Iterator[tuple[int, slice, Index]]:
    """Yield (page number, which of the offsets, rows in that page) for each run of offsets in one page."""
    if len(offsets) == 0:
        return
    if len(offsets) == 1:
        offset = int(offsets[0])
        yield offset >> PAGE_BITS, slice(0, 1), offsets & PAGE_MASK
        return
    numbers = offsets >> PAGE_BITS
    cuts = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    start = 0
    for stop in (*cuts.tolist(), len(offsets)):
        yield int(numbers[start]), slice(start, stop), offsets[start:stop] & PAGE_MASK
        start = stop
