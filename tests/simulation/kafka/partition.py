"""One partition of a simulated Kafka: who leads it, what its leader has, and how much of that all replicas have."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

#: What Kafka remembers of each producer in a partition.
REMEMBERED = 5
OUT_OF_ORDER = 45


class Records(NamedTuple):
    """A record batch."""

    producer: int
    sequence: int
    bodies: tuple[bytes, ...]
    #: The life of the node that sent it.
    life: int

    @property
    def end(self) -> int:
        """The sequence that the next batch of its producer has."""
        return self.sequence + len(self.bodies)


class Partition:
    """A log with a leader; -1 where nobody leads it."""

    def __init__(self, topic: str, number: int, leader: int) -> None:
        self.topic = topic
        self.number = number
        self.leader = leader
        #: Grows whenever it gets a leader: what the one before said of its log holds no more.
        self.epoch = 0
        self.log: list[Records] = []
        #: How many of them all replicas have.
        self.committed = 0

    def append(self, records: Records) -> tuple[int, int]:
        """Append as Kafka does; return an error, and how many batches must be committed for the answer."""
        if records.producer >= 0:
            known = [at for at, each in enumerate(self.log) if each.producer == records.producer][-REMEMBERED:]
            for at in known:
                there = self.log[at]
                if (there.sequence, len(there.bodies)) == (records.sequence, len(records.bodies)):
                    return 0, at + 1
            if known and self.log[known[-1]].end != records.sequence:
                return OUT_OF_ORDER, 0
        self.log.append(records)
        return 0, len(self.log)

    def commit(self, count: int) -> list[Records]:
        """Have so many batches on all replicas; return those that are new there."""
        before, self.committed = self.committed, max(self.committed, min(count, len(self.log)))
        return self.log[before : self.committed]

    def move(self, leader: int, random: Random) -> list[Records]:
        """Let another broker lead, which has all that was committed and perhaps some more; return the latter."""
        self.leader = leader
        self.epoch += 1
        if leader < 0:
            return []
        del self.log[random.randint(self.committed, len(self.log)) :]
        return self.commit(len(self.log))
