"""The `fair` policy: rows of a key stand in one lane, and lanes take turns, so a key with many rows delays no other.

Rows without a key are a lane of their own. What stands far behind is found by reading ahead, in steps: a backlog costs
what rows in lanes cost (about 20 bytes each), up to a limit, and nobody waits while it is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

import numpy as np

from penstock.columns import Column, Offsets
from penstock.delivery.instant import Instant
from penstock.delivery.page import Slots
from penstock.delivery.policies.policy import Policy, Stock, Taker
from penstock.message import Batch

#: Keys share so many lanes: asking for the next one costs 0.1 ms when all are in use.
LANES = 512

#: So many rows stand in lanes at first, as many more after each time some were handed out, and so many at most (20 MB).
AHEAD_ROWS = 16_384
STEP_ROWS = 2048
AHEAD_ROWS_MAX = 1_000_000


class Fair(Policy):
    """A lane for each key, nearly; the one that waited longest gives first."""

    name = "fair"
    many = True

    def __init__(self) -> None:
        self._ahead = AHEAD_ROWS
        self._turn = 0
        #: The turn in which each lane gave rows last.
        self._turns: dict[int, int] = {}

    def stock(self, room: int) -> int:
        """Ask for more rows in lanes the longer some are handed out: others may stand behind all of them."""
        return self._ahead

    def slots_of(self, shard: int, batch: Batch, offsets: Offsets) -> Slots | None:
        """Return the lanes of the rows' keys."""
        column = batch.columns.get("key")
        return None if column is None else lanes(column)[offsets - batch.first]

    def open_to(self, taker: Taker, stock: Stock, rank: int, now: Instant) -> Iterable[int]:
        """Give the lane that gave rows longest ago."""
        codes = stock.codes()
        if not codes:
            self._ahead = AHEAD_ROWS
        turns = self._turns
        return sorted(codes, key=lambda lane: turns.get(lane, 0))

    def served(self, lane: int, taker: Taker, rows: int, until_ns: int) -> bool:
        """Let other lanes go first the next time."""
        if rows:
            self._turn += 1
            self._turns[lane] = self._turn
            self._ahead = min(self._ahead + STEP_ROWS, AHEAD_ROWS_MAX)
        return True


def lanes(column: Column) -> Slots:
    """Return the lane of each key of a column, 0 for none. Budget: 100 us for 1,000 rows of 100 keys."""
    if isinstance(column, list):
        return np.array([_lane(key) for key in column], np.int32)
    encoded = column.dictionary_encode()
    keys = encoded.dictionary.to_pylist()
    table = np.array([*(_lane(key) for key in keys), 0], np.int32)
    indices = encoded.indices.fill_null(len(keys)) if encoded.indices.null_count else encoded.indices
    found: Slots = table[np.asarray(indices)]
    return found


def _lane(key: object) -> int:
    return crc32(key) % LANES + 1 if isinstance(key, bytes) else 0
