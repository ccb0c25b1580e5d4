"""What Kafka said it has, as far as sending needs it: brokers, and which partitions they lead.

Pure. A topic with an error is not there, nor is a partition whose leader is no broker that is known; two answers are
equal if nothing in them would send a message elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

#: What Kafka says of a partition that has a leader and lacks a replica: it takes messages.
REPLICA_NOT_AVAILABLE = 9


class Broker(NamedTuple):
    """Where a broker is."""

    id: int
    host: str
    port: int


class Partition(NamedTuple):
    """A partition that somebody leads."""

    id: int
    leader: int
    error: int = 0

    @property
    def is_available(self) -> bool:
        """Whether messages without a partition of their own may go there."""
        return self.error in (0, REPLICA_NOT_AVAILABLE)


class KafkaTopic(msgspec.Struct, frozen=True):
    """A topic without an error: its partitions that are led, by their numbers."""

    partitions: tuple[Partition, ...]
    #: The numbers of all its partitions, those that nobody leads as well.
    numbers: tuple[int, ...]

    @property
    def available(self) -> tuple[Partition, ...]:
        """The partitions that messages without one may go to."""
        return tuple(partition for partition in self.partitions if partition.is_available)


class Cluster(msgspec.Struct, frozen=True):
    """All of it."""

    brokers: Mapping[int, Broker]
    topics: Mapping[str, KafkaTopic]

    @property
    def in_service(self) -> frozenset[int]:
        """The brokers that lead a partition that is available: only they are sent to."""
        return frozenset(
            partition.leader
            for topic in self.topics.values()
            for partition in topic.partitions
            if partition.is_available
        )


class SaidTopic(NamedTuple):
    """A topic as an answer has it: its error, and (number, leader, error) of each partition."""

    name: str
    error: int
    partitions: tuple[tuple[int, int, int], ...]


def cluster(brokers: Iterable[Broker], topics: Iterable[SaidTopic]) -> Cluster:
    """Return what an answer means; of what it has twice, the first holds."""
    known: dict[int, Broker] = {}
    for broker in brokers:
        known.setdefault(broker.id, broker)
    found: dict[str, KafkaTopic] = {}
    for topic in topics:
        if topic.error or topic.name in found:
            continue
        said: dict[int, Partition] = {}
        for number, leader, error in topic.partitions:
            said.setdefault(number, Partition(number, leader, error))
        led = tuple(said[number] for number in sorted(said) if said[number].leader in known)
        found[topic.name] = KafkaTopic(led, tuple(sorted(said)))
    return Cluster(known, found)
