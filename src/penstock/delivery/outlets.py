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

UNTAGGED = 0


class Outlet:
    """Rows of one tag."""

    __slots__ = ("_turn", "again", "fresh")

    def __init__(self) -> None:
        self.again: deque[Offsets] = deque()
        self.fresh: deque[Offsets] = deque()
        self._turn = True

    def __bool__(self) -> bool:
        return bool(self.again or self.fresh)

    def queue(self) -> deque[Offsets] | None:
        """Return where the next rows come from, None if there are none."""
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
            (outlet.again if again else outlet.fresh).append(part)

    def empty(self) -> list[Offsets]:
        """Take out all pieces, those to be handed out again first."""
        outlets = list(self._by_code.values())
        pieces = [piece for outlet in outlets for piece in outlet.again]
        pieces += [piece for outlet in outlets for piece in outlet.fresh]
        pieces += self.unsorted
        self._by_code.clear()
        self.unsorted.clear()
        return pieces


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
