"""Messages of one partition that go in one request, and that one request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from penstock.relays.kafka.group import Group
from penstock.relays.kafka.sequences import Place

#: In the order in which they were first sent.
_NUMBERS = count()


class MessageSet:
    """What one partition of one request carries; the broker answers for the whole of it."""

    __slots__ = ("groups", "is_doubtful", "moved", "number", "partition", "sequence", "topic")

    def __init__(self, topic: str, partition: int, groups: list[Group]) -> None:
        self.topic = topic
        self.partition = partition
        self.groups = groups
        self.number = next(_NUMBERS)
        #: The number of its first message in the partition; -1 where nobody numbers them.
        self.sequence = -1
        #: One before was given up, so the broker will refuse it under the number it was sent with.
        self.moved = False
        #: It was sent, and nobody said for sure that the broker does not have it.
        self.is_doubtful = False

    @property
    def place(self) -> Place:
        """Where it goes."""
        return self.topic, self.partition

    @property
    def count(self) -> int:
        """How many messages it has."""
        return sum([group.count for group in self.groups])


class Request:
    """Sets that went together, and wait for their answer."""

    __slots__ = ("is_alone", "sets")

    def __init__(self, sets: Sequence[MessageSet], *, is_alone: bool = False) -> None:
        self.sets = {each.place: each for each in sets}
        #: Nothing goes behind it before it is answered.
        self.is_alone = is_alone

    def __iter__(self) -> Iterator[MessageSet]:
        return iter(self.sets.values())
