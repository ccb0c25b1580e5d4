"""A lone row, or a few, of the pages: what a connection says of them one by one, without an array made for it.

Knows nothing of how pages come and shrink. Invariant: it does what `Pages` does with the same rows as arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.delivery.page import DONE, LEASED, PAGE_BITS, PAGE_MASK, PAGE_ROWS, Page

_LEASED = bytes([LEASED])


class FewRows:
    """The rows of pages, a few at a time."""

    __slots__ = ("_less", "_pages")

    def __init__(self, pages: Mapping[int, Page], less: Callable[[int, Page, int], None]) -> None:
        self._pages = pages
        #: Told how many rows of a page are done.
        self._less = less

    def state_of(self, offset: int) -> tuple[int, int]:
        """Return (state, holder) of one row."""
        page = self._pages.get(offset >> PAGE_BITS)
        if page is None:
            return DONE, 0
        at = page.find_one(offset & PAGE_MASK)
        return int(page.state[at]), int(page.holder[at])

    def finish_one(self, offset: int, holder: int) -> int | None:
        """Finish one row if this holder has it on lease; return when it went out, None if it does not have it."""
        number = offset >> PAGE_BITS
        page = self._pages.get(number)
        if page is None:
            return None
        at = page.find_one(offset & PAGE_MASK)
        if page.state[at] != LEASED or page.holder[at] != holder:
            return None
        page.state[at] = DONE
        began = page.began.item(at)
        self._less(number, page, 1)
        return began

    def finish_few(self, offsets: list[int], holder: int, versions: list[int] | None = None) -> list[int | None]:
        """Finish a few rows, as `finish_one` would each; with `versions` only those leased in these."""
        began = self._finish_run(offsets, holder, versions)
        if began is not None:
            return began
        out: list[int | None] = []
        number, page = -1, None
        for place, offset in enumerate(offsets):
            if offset >> PAGE_BITS != number:
                number = offset >> PAGE_BITS
                page = self._pages.get(number)
            if page is None:
                out.append(None)
                continue
            at = offset & PAGE_MASK if page.index is None else page.find_one(offset & PAGE_MASK)
            if (
                page.state.item(at) != LEASED
                or page.holder.item(at) != holder
                or (versions is not None and page.version_of(at) != versions[place])
            ):
                out.append(None)
                continue
            page.state[at] = DONE
            out.append(page.began.item(at))
            self._less(number, page, 1)
        return out

    def _finish_run(self, offsets: list[int], holder: int, versions: list[int] | None) -> list[int | None] | None:
        """Finish rows that stand side by side, as most do that went out together; None changes nothing.

        A piece of an array is looked at as a list or as bytes: a call of numpy's costs as much as some rows.
        """
        first, count = offsets[0], len(offsets)
        page = self._pages.get(first >> PAGE_BITS)
        at = first & PAGE_MASK
        end = at + count
        if (
            page is None
            or page.index is not None
            or end > PAGE_ROWS
            or offsets != list(range(first, first + count))
            or page.state[at:end].tobytes() != _LEASED * count
            or page.holder[at:end].tolist() != [holder] * count
        ):
            return None
        if versions is not None and versions != (
            [0] * count if page.version is None else page.version[at:end].tolist()
        ):
            return None
        page.state[at:end] = DONE
        began: list[int | None] = page.began[at:end].tolist()
        self._less(first >> PAGE_BITS, page, count)
        return began

    def lease_of(self, offset: int, holder: int | None = None) -> tuple[int, int]:
        """Return (deadline, version) of a row on lease; (0, -1) of any other, or of one that another holder has."""
        page = self._pages.get(offset >> PAGE_BITS)
        if page is None:
            return 0, -1
        at = offset & PAGE_MASK if page.index is None else page.find_one(offset & PAGE_MASK)
        if page.state.item(at) != LEASED or (holder is not None and page.holder.item(at) != holder):
            return 0, -1
        return page.deadline.item(at), page.version_of(at)

    def leases_of(self, offsets: list[int]) -> tuple[list[int], list[int]]:
        """Return the deadlines and the versions of a few rows on lease."""
        found = [self.lease_of(offset) for offset in offsets]
        return [deadline_ns for deadline_ns, _ in found], [version for _, version in found]
