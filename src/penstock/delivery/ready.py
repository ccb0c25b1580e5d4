"""Ready rows of one cursor, in lanes.

A lane holds rows to be handed out again and rows that are new, each as ascending arrays of offsets: 8 bytes a row.
Which lane a row goes into, and who may take from it, is the policy's affair; where a policy has one lane for all, that
is lane 0. Rows whose lane is not known yet wait in `unsorted`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from penstock.delivery.pages import UNSORTED, Lanes
from penstock.message import Offsets

#: Pieces do not grow together beyond this: a page of rows.
PIECE_ROWS_MAX = 1 << 16


class Lane:
    """Ready rows that stand in one line."""

    __slots__ = ("_turn", "again", "fresh")

    def __init__(self) -> None:
        #: Rows to be handed out again, and rows that were never out.
        self.again: deque[Offsets] = deque()
        self.fresh: deque[Offsets] = deque()
        self._turn = True

    def __bool__(self) -> bool:
        return bool(self.again or self.fresh)

    def queue(self, *, ordered: bool = False, more_fresh: bool = False) -> deque[Offsets] | None:
        """Return where the next rows come from, None if there are none; `ordered` is by their offsets.

        `more_fresh` tells that new rows may be found elsewhere as well, so that they have their turn.
        """
        if ordered:
            return lowest(self.again, self.fresh)
        if self.again and (self._turn or not (self.fresh or more_fresh)):
            return self.again
        return self.fresh or None

    def served(self) -> None:
        """Let redelivered and new rows take turns, so that neither starves the other."""
        self._turn = not self._turn


class Ready:
    """All lanes of one cursor."""

    __slots__ = ("_lanes", "many", "only", "unsorted")

    def __init__(self, *, many: bool = False) -> None:
        #: Rows stand in several lanes; else all of them in `only`.
        self.many = many
        self.only = Lane()
        self.unsorted: deque[Offsets] = deque()
        self._lanes: dict[int, Lane] = {}

    def __bool__(self) -> bool:
        return bool(self.only or self.unsorted or self._lanes)

    def lane(self, code: int) -> Lane | None:
        """Return a lane if it has rows."""
        lane = self._lanes.get(code)
        if lane is not None and not lane:
            del self._lanes[code]
            return None
        return lane

    def codes(self) -> list[int]:
        """Return the lanes that have rows."""
        return [code for code in tuple(self._lanes) if self.lane(code) is not None]

    def first(self, code: int) -> int:
        """Return the lowest offset at the head of a lane, which has rows."""
        lane = self._lanes[code]
        queue = lowest(lane.again, lane.fresh)
        return int(queue[0][0]) if queue else 0

    def put(self, offsets: Offsets, lanes: Lanes, *, again: bool) -> None:
        """Add rows to their lanes, in their order."""
        for code, part in _by_lane(offsets, lanes):
            if code == UNSORTED:
                self.unsorted.append(part)
                continue
            lane = self._lanes.get(code)
            if lane is None:
                lane = self._lanes[code] = Lane()
            _append(lane.again if again else lane.fresh, part)

    def drain(self) -> tuple[list[Offsets], list[Offsets], list[Offsets]]:
        """Take out all pieces: rows to be handed out again, new ones, and those of which that is not known here."""
        lanes = [self.only, *self._lanes.values()]
        again = [piece for lane in lanes for piece in lane.again]
        fresh = [piece for lane in lanes for piece in lane.fresh]
        return again, fresh, list(self.unsorted)

    def drop(self, keep: Callable[[Offsets], Offsets]) -> bool:
        """Keep of every piece what `keep` returns; tell whether anything went."""
        queues = [queue for lane in (self.only, *self._lanes.values()) for queue in (lane.again, lane.fresh)]
        dropped = False
        for queue in (*queues, self.unsorted):
            for _ in range(len(queue)):
                piece = queue.popleft()
                kept = keep(piece)
                dropped = dropped or len(kept) < len(piece)
                if len(kept):
                    queue.append(kept)
        return dropped


def lowest(again: deque[Offsets], fresh: deque[Offsets]) -> deque[Offsets] | None:
    """Return the queue whose next row has the lower offset; what came back is turned so that its lowest is next."""
    if len(again) > 1:
        again.rotate(-min(range(len(again)), key=lambda number: int(again[number][0])))
    if again and fresh:
        return again if again[0][0] < fresh[0][0] else fresh
    return again or fresh or None


def replace_head(queue: deque[Offsets], rest: Offsets) -> None:
    """Leave the rest of the first piece in a queue."""
    if len(rest):
        queue[0] = rest
    else:
        queue.popleft()


def _append(queue: deque[Offsets], part: Offsets) -> None:
    """Add a piece at the end; small ones grow together, so that a row that waits costs 8 bytes and not an array."""
    while queue and len(queue[-1]) <= 2 * len(part) <= PIECE_ROWS_MAX and queue[-1][-1] < part[0]:
        part = np.concatenate((queue.pop(), part))
    queue.append(part)


def _by_lane(offsets: Offsets, lanes: Lanes) -> Iterator[tuple[int, Offsets]]:
    first = int(lanes[0])
    if len(lanes) == 1 or bool((lanes == first).all()):
        yield first, offsets
        return
    # A stable sort of 16 bits is a radix sort, ten times as fast.
    order = np.argsort(lanes.astype(np.uint16) if lanes.min() >= 0 and lanes.max() <= 0xFFFF else lanes, kind="stable")
    sorted_lanes = lanes[order]
    cuts = (np.flatnonzero(sorted_lanes[1:] != sorted_lanes[:-1]) + 1).tolist()
    for start, stop in zip((0, *cuts), (*cuts, len(lanes)), strict=True):
        yield int(sorted_lanes[start]), offsets[order[start:stop]]
