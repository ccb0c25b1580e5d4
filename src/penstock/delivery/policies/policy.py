"""The seam for dispatch policies: one method that chooses among consumers with room."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from penstock.delivery.consumer import Consumer
from penstock.delivery.moment import Now
from penstock.delivery.source import Delivery


class Dealer(Protocol):
    """A subscription, as a policy sees it."""

    #: Consumers that had room when they joined it, in turn.
    line: deque[Consumer]

    def can_give(self) -> bool:
        """Tell whether somebody has room and something may be there for him."""

    def take(self, limit: int, consumer: Consumer, now: Now) -> list[Delivery]:
        """Lease rows to a consumer; an empty list means that nothing is there for it now."""

    def stocked(self, consumer: Consumer) -> bool:
        """Tell whether sorted rows may be there for a consumer, where rows are dealt by tag."""

    def hand(self, consumer: Consumer, deliveries: list[Delivery]) -> int:
        """Send leased rows to their consumer and return how many they are."""

    def sort_ahead(self, now: Now) -> bool:
        """Look up the tags of more rows; False if there are none to look up now."""


class Policy(Protocol):
    """Who gets which row."""

    def deal(self, dealer: Dealer, budget: int, now: Now) -> int:
        """Hand out up to `budget` rows and return how many."""
