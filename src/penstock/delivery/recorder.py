"""What delivery tells to whoever keeps a history of it. Contracts only.

A recorder is told of the rows of one shard in one subscription. Where nobody keeps a history there is none, and a row
costs one look at None.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from penstock.columns import Offsets

Attempts = npt.NDArray[np.uint16]

#: How a lease ends without an ack, and what comes after the last one that failed.
Return = Literal["released", "expired", "dead"]


class Recorder(Protocol):
    """Hears what becomes of rows that were handed out, and of those that never are."""

    def acked_one(self, offset: int) -> None:
        """Hear that one row was finished by its consumer."""

    def acked_few(self, offsets: list[int]) -> None:
        """Hear that a few rows were finished by their consumer."""

    def acked(self, offsets: Offsets) -> None:
        """Hear that rows, ascending and distinct, were finished by their consumer."""

    def returned(self, event: Return, offsets: Offsets, attempts: Attempts, reason: str | None = None) -> None:
        """Hear that leases ended without an ack, or (`dead`) that rows went to the dead-letter topic."""

    def discarded(self, reason: str, count: int) -> None:
        """Hear that rows were finished without being delivered."""
