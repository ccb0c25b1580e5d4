"""Which number the next messages of a partition get, so that a broker knows what it has already: idempotent producing.

Pure. What a broker may have is sent again under the same number, and keeps it when it is given up; what it surely does
not have, and is given up, leaves no gap: those behind it move up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

#: Numbers are 31 bits, and 0 follows the last one.
MODULUS = 1 << 31

#: What brokers say of numbers: one before is missing; it has them already; the producer is not the one it knows.
OUT_OF_ORDER, DUPLICATE = 45, 46
UNKNOWN_PRODUCER = frozenset((47, 59))
#: What they say of messages that they surely did not take: corrupt, too large, of no topic that can be, too few
#: replicas, not allowed, of a time or form that is refused. Whatever else they say may come after they took them.
REFUSED = frozenset((2, 10, 17, 18, 19, 21, 29, 31, 32, 42, 43, 44, OUT_OF_ORDER, 76, 87))

Place = tuple[str, int]


class Numbered(Protocol):
    """Messages that went, or are to go, to one partition under a number."""

    @property
    def count(self) -> int:
        """How many they are."""

    sequence: int
    #: One before was given up, so the broker will refuse them under the number they were sent with.
    moved: bool


class Sequences:
    """One producer, and its next number for each partition."""

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self._next: dict[Place, int] = {}

    def take(self, place: Place, count: int) -> int:
        """Return the number of the first of so many messages."""
        first = self._next.get(place, 0)
        self._next[place] = (first + count) % MODULUS
        return first

    def give_up(self, place: Place, count: int, later: Iterable[Numbered]) -> None:
        """Close the gap that messages leave; `later` are those of the partition that were numbered after them."""
        self._next[place] = (self._next.get(place, 0) - count) % MODULUS
        for each in later:
            each.sequence = (each.sequence - count) % MODULUS
            each.moved = True

    def forget(self, topic: str) -> None:
        """Begin anew with a topic: it is gone, and what comes under its name is another one."""
        for place in [place for place in self._next if place[0] == topic]:
            del self._next[place]
