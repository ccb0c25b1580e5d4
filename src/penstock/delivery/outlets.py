"""Rows that are ready, by the tag whose consumers may have them.

One outlet per tag code, each with rows to be handed out again and rows that are new; code 0 is the outlet of rows
without a tag, and the only one while nobody asks for a tag. Pieces are ascending arrays of offsets: 8 bytes a row.
Rows whose tag is not known yet wait in `unsorted`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from penstock.delivery.pages import UNSORTED
from penstock.message import Offsets

#: Pieces do not grow together beyond this: a page of rows.
PIECE_ROWS_MAX = 1 << 16


class Outlet:
    """Rows of one tag."""

    __slots__ = ("_turn", "again", "fresh")

    def __init__(self) -> None:
        self.again: deque[Offsets] = deque()
        self.fresh: deque[Offsets] = deque()
        self._turn = True

    def __bool__(self) -> bool:
        return bool(self.again or self.fresh)

    def queue(self, *, ordered: bool = False) -> deque[Offsets] | None:
        """Return where the next rows come from, None if there are none; `ordered` is by their offsets."""
        if ordered:
            return lowest(self.again, self.fresh)
        if self.again and (self._turn or not self.fresh):
            return self.again
        return self.fresh or None

    def served(self) -> None:
        """Let redelivered and new rows take turns, so that neither starves the other."""
        self._turn = not self._turn


class Outlets:
    """All outlets of one cursor."""

    __slots__ = ("_by_code", "unsorted")

    def __init__(self) -> None:
        self._by_code: dict[int, Outlet] = {}
        self.unsorted: deque[Offsets] = deque()

    def __bool__(self) -> bool:
        return bool(self._by_code or self.unsorted)

    def get(self, code: int) -> Outlet | None:
        """Return the outlet of a tag if it has rows."""
        outlet = self._by_code.get(code)
        if outlet is not None and not outlet:
            del self._by_code[code]
            return None
        return outlet

    def codes(self) -> list[int]:
        """Return the tags that have rows."""
        return [code for code in tuple(self._by_code) if self.get(code) is not None]

    def put(self, offsets: Offsets, tags: npt.NDArray[np.uint16], *, again: bool) -> None:
        """Add rows to the outlets of their tags, in their order."""
        for code, part in _by_tag(offsets, tags):
            if code == UNSORTED:
                self.unsorted.append(part)
                continue
            outlet = self._by_code.get(code)
            if outlet is None:
                outlet = self._by_code[code] = Outlet()
            _append(outlet.again if again else outlet.fresh, part)

    def first(self, code: int) -> int:
        """Return the lowest offset at the head of a tag's queues, which has rows."""
        outlet = self._by_code[code]
        queue = lowest(outlet.again, outlet.fresh)
        return int(queue[0][0]) if queue else 0

    def queues(self) -> list[deque[Offsets]]:
        """Return every queue there is."""
        return [queue for outlet in self._by_code.values() for queue in (outlet.again, outlet.fresh)] + [self.unsorted]

    def empty(self) -> tuple[list[Offsets], list[Offsets], list[Offsets]]:
        """Take out all pieces: rows to be handed out again, new ones, and those of which that is not known here."""
        outlets = list(self._by_code.values())
        again = [piece for outlet in outlets for piece in outlet.again]
        fresh = [piece for outlet in outlets for piece in outlet.fresh]
        unsorted = list(self.unsorted)
        self._by_code.clear()
        self.unsorted.clear()
        return again, fresh, unsorted


def lowest(again: deque[Offsets], fresh: deque[Offsets]) -> deque[Offsets] | None:
    """Return the queue whose next row has the lower offset; what came back is turned so that its lowest is next."""
    if len(again) > 1:
        again.rotate(-min(range(len(again)), key=lambda number: int(again[number][0])))
    if again and fresh:
        return again if again[0][0] < fresh[0][0] else fresh
    return again or fresh or None


def _append(queue: deque[Offsets], part: Offsets) -> None:
    """Add a piece at the end; small ones grow together, so that a row that waits costs 8 bytes and not an array."""
    while queue and len(queue[-1]) <= 2 * len(part) <= PIECE_ROWS_MAX and queue[-1][-1] < part[0]:
        part = np.concatenate((queue.pop(), part))
    queue.append(part)


def _by_tag(offsets: Offsets, tags: npt.NDArray[np.uint16]) -> Iterator[tuple[int, Offsets]]:
    first = int(tags[0])
    if len(tags) == 1 or bool((tags == first).all()):
        yield first, offsets
        return
    order = np.argsort(tags, kind="stable")
    sorted_tags = tags[order]
    cuts = (np.flatnonzero(sorted_tags[1:] != sorted_tags[:-1]) + 1).tolist()
    for start, stop in zip((0, *cuts), (*cuts, len(tags)), strict=True):
        yield int(sorted_tags[start]), offsets[order[start:stop]]
