"""The `shared` policy: one lane; whoever has room takes the next rows, those who wait longest first."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.delivery.pages import Lanes
from penstock.delivery.policies.policy import Taker
from penstock.delivery.ready import Ready
from penstock.message import Batch, Offsets


class Shared:
    """Competing seats, in turns."""

    name = "shared"
    many = False

    def lanes_of(self, batch: Batch, offsets: Offsets) -> Lanes | None:
        """Put all rows into one lane."""
        return None

    def open_to(self, taker: Taker, ready: Ready, now_ns: int) -> Sequence[int]:
        """Let everybody take from it."""
        return (0,)

    def served(self, lane: int, taker: Taker, rows: int, until_ns: int) -> None:
        """Need not know."""
