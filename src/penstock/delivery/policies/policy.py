"""The seam for dispatch policies: which rows go into which lane, and who may take from which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.delivery.pages import Lanes
from penstock.delivery.ready import Ready
from penstock.message import Batch, Offsets


class Taker(Protocol):
    """A seat, as a policy sees it."""

    holder: int
    #: The lane of the tag it asks for, 0 if it asks for none.
    lane: int
    name: str


class Policy(Protocol):
    """Who gets which row. Arrays in, arrays out; a lane is a number of the policy's own."""

    name: str
    #: Rows stand in several lanes; with one lane, none of the methods is called.
    many: bool

    def lanes_of(self, batch: Batch, offsets: Offsets) -> Lanes | None:
        """Return the lane of each of these rows of a batch; None puts all into lane 0."""

    def open_to(self, taker: Taker, ready: Ready, now_ns: int) -> Sequence[int]:
        """Return the lanes a seat may take from now, in the order in which they are tried."""

    def served(self, lane: int, taker: Taker, rows: int, until_ns: int) -> None:
        """Hear that a lane was tried for a seat, and how many rows it gave, leased until then."""
