"""What holds a shared log: ordered records in partitions, one writer at a time. Contracts only.

Kafka is one (`librdkafka.py`), the simulation's is another. Everything here blocks, and is called from threads.
Invariant: once `writer` has returned, no record of an earlier writer of that name can come behind what is there, and
every record that an earlier one was told is there is read before those of the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol


class Partition(NamedTuple):
    """One ordered sequence of records."""

    topic: str
    number: int


class Record(NamedTuple):
    """What is written."""

    value: bytes
    headers: Mapping[str, bytes]


class Stored(NamedTuple):
    """What is read; offsets are the store's own, and rise, but not one by one."""

    offset: int
    value: bytes
    headers: Mapping[str, bytes]


class FencedError(OSError):
    """Another writer of this name has begun: whatever this one still has to say, nobody may hear that it was kept."""


class AwayError(OSError):
    """The store did not answer in time, so nobody knows what became of what was sent; the writer is of no use any more.

    Another `writer` of the same name, and a look at what is there, tell.
    """


class GoneError(OSError):
    """A topic, or the partition of it that was asked for, is not there."""


class TooLargeError(OSError):
    """The store takes no record as large as this one, however often it is sent."""


class Writer(Protocol):
    """The only one who writes under its name."""

    def send(self, partition: Partition, records: Sequence[Record]) -> Sequence[int]:
        """Return the offsets of records once all are kept for good, in this order. Several threads may send at once.

        FencedError, AwayError, GoneError or TooLargeError: whether some of them are kept, nobody knows.
        """

    def send_soon(self, partition: Partition, record: Record, told: Callable[[int | OSError], None]) -> bool:
        """Send a record without waiting; `told` hears its offset on some thread, or the error that `send` would raise.

        False where that cannot be done at once: nothing is sent then.
        """

    def close(self) -> None:
        """Write nothing more; what was sent stays."""


class Store(Protocol):
    """A cluster's shared log."""

    def make(self, topic: str, partitions: int) -> None:
        """Make a topic, or give one that is there more partitions; nothing happens where it has as many."""

    def drop(self, topic: str) -> None:
        """Remove a topic; nothing happens if it is gone already."""

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has; 0 if there is none."""

    def topics(self) -> Sequence[str]:
        """Return the names of all topics of this cluster's."""

    def writer(self, name: str) -> Writer:
        """Return the one writer of a name, and shut every earlier one out first."""

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """Return the offset of the first record that is kept, and the one behind the last; GoneError without it."""

    def read(self, partition: Partition, start: int, end: int) -> Iterator[Stored]:
        """Yield the records from `start` on, before `end`; GoneError if those at `start` were let go."""

    def cut(self, partition: Partition, before: int) -> None:
        """Let records before an offset go."""

    def close(self) -> None:
        """Hang up."""
