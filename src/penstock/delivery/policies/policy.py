"""The seam for dispatch policies: one method that chooses among consumers with room."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from penstock.delivery.consumer import Consumer
from penstock.delivery.cursor import Now
from penstock.delivery.source import Delivery


class Dealer(Protocol):
    """A subscription, as a policy sees it."""

    #: Consumers that had room when they joined it, in turn.
    line: deque[Consumer]

    def can_give(self) -> bool:
        """Tell whether somebody has room and something may be there for him."""

    def take(self, limit: int, consumer: Consumer, now: Now) -> list[Delivery]:
        """Lease rows to a consumer."""


class Policy(Protocol):
    """Who gets which row."""

    def deal(self, dealer: Dealer, budget: int, now: Now) -> int:
        """Hand out up to `budget` rows and return how many."""
