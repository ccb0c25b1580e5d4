"""Which partition a message goes to.

Pure. A message without a partition key goes to the leader of the next available partition, and only what goes out in
one request decides which of that leader's partitions it is; one with a key goes where its key says.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal

import numpy as np

from penstock.columns import Offsets
from penstock.relays.kafka.cluster import Cluster, KafkaTopic

KeyMode = Literal["dory", "stable"]


class Spread:
    """The brokers that messages of one topic go to in turn, each as often as it leads partitions."""

    def __init__(self, topic: KafkaTopic, random: Random) -> None:
        leaders = [partition.leader for partition in topic.available]
        random.shuffle(leaders)
        self._leaders = np.array(leaders, np.int64)
        self._count = 0

    def next(self) -> int:
        """Return the broker of the next batch."""
        self._count += 1
        return int(self._leaders[self._count % len(self._leaders)])

    def many(self, count: int) -> Offsets:
        """Return the brokers of the next so many messages that go one by one."""
        turns = np.arange(self._count + 1, self._count + 1 + count)
        self._count += count
        return self._leaders[turns % len(self._leaders)]

    @property
    def only(self) -> int | None:
        """The broker that gets everything, if there is one that does."""
        first = int(self._leaders[0])
        return first if bool((self._leaders == first).all()) else None


class KeyMap:
    """The partition of each partition key of one topic, and who leads it."""

    def __init__(self, topic: KafkaTopic, in_service: frozenset[int], mode: KeyMode) -> None:
        leaders = {each.id: each.leader for each in topic.partitions if each.leader in in_service}
        # Dory counts only partitions that are led, so keys move when one loses its leader; or all, so that they do not.
        numbers = [each.id for each in topic.partitions] if mode == "dory" else list(topic.numbers)
        self._partitions = np.array(_walked(numbers, leaders), np.int64)
        self._leaders = leaders

    def partitions(self, keys: Offsets) -> Offsets:
        """Return the partition of each key, of which the lower 32 bits count, without a sign."""
        found: Offsets = self._partitions[(keys & 0xFFFFFFFF) % len(self._partitions)]
        return found

    def leader(self, partition: int) -> int:
        """Return who leads one of them."""
        return self._leaders[partition]


def _walked(numbers: Sequence[int], leaders: dict[int, int]) -> list[int]:
    """Return for each place the partition there, or the next one with a leader in service."""
    found: list[int] = []
    for start in range(len(numbers)):
        around = (*numbers[start:], *numbers[:start])
        found.append(next(number for number in around if number in leaders))
    return found


class Rotation:
    """For one broker, the partition that messages without one share in a request: another in each request."""

    def __init__(self, cluster: Cluster, broker: int) -> None:
        self._cluster = cluster
        self._broker = broker
        self._choices: dict[str, tuple[int, ...]] = {}
        self._counts: dict[str, int] = {}

    def current(self, topic: str) -> int:
        """Return the partition for the next request."""
        choices = self._choices.get(topic)
        if choices is None:
            available = self._cluster.topics[topic].available
            choices = tuple(each.id for each in available if each.leader == self._broker)
            self._choices[topic] = choices
        return choices[self._counts.get(topic, 0) % len(choices)]

    def used(self, topic: str) -> None:
        """Go on to the next one."""
        self._counts[topic] = self._counts.get(topic, 0) + 1
