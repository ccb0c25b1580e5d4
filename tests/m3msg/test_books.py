"""A relay through days of trouble: whatever breaks, every service gets every message that was stored."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from penstock.m3.placement import Placement
from penstock.message import Rows
from tests.m3msg.consumers import Consumer, Way, placed, service, topic

SHARDS = 4
ALL = list(range(SHARDS))


class Trouble:
    """One run: two services, six instances, and somebody who breaks things."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"relay {seed}")
        self.way = Way()
        self.stored: list[bytes] = []
        self.shared = [self.way.consumer() for _ in range(3)]
        self.replicas = [self.way.consumer() for _ in range(3)]
        self.way.topology.placements = {"shared": placed({self.shared[0]: ALL}), "replicated": self._replicated()}
        self.way.topology.say(topic(service("shared"), service("replicated", "replicated"), shards=SHARDS))
        self.way.run()

    def _replicated(self) -> Placement:
        """Every shard has two owners of the three; which ones may change."""
        owned: dict[Consumer, list[int]] = {consumer: [] for consumer in self.replicas}
        for shard in ALL:
            for consumer in self.random.sample(self.replicas, 2):
                owned[consumer].append(shard)
        return placed(owned)

    def publish(self) -> None:
        bodies = [b"%d" % (len(self.stored) + number) for number in range(self.random.choice((1, 3, 40)))]
        keys: list[bytes | None] = [b"k%d" % self.random.randrange(20) for _ in bodies]
        told: list[BaseException | None] = []
        self.way.topic.publish(Rows.of(bodies, "test", {"key": keys}), self, lambda _, error: told.append(error))
        self.way.run(0.05)
        assert told == [None]
        self.stored += bodies

    def step(self) -> None:
        """Do something, most of the time publish."""
        everybody = [*self.shared, *self.replicas]
        what: list[Callable[[], object]] = [
            lambda: self._deaf(self.random.choice(everybody)),
            lambda: self._hang_up(self.random.choice(everybody)),
            lambda: self._replaced(self.random.choice(everybody)),
            lambda: self.way.topology.place("shared", placed(dict.fromkeys(self.random.sample(self.shared, 2), ALL))),
            self.way.restart,
            lambda: self.way.run(self.random.random() * 20),
            self._garbage,
        ]
        if self.random.random() < 0.25:
            self.random.choice(what)()
        self.publish()

    def _deaf(self, consumer: Consumer) -> None:
        consumer.acks = not consumer.acks

    def _hang_up(self, consumer: Consumer) -> None:
        for session in list(consumer.sessions):
            if self.random.random() < 0.5:
                session.hang_up()

    def _garbage(self) -> None:
        for consumer in (*self.shared, *self.replicas):
            for session in consumer.sessions[:1]:
                session.say(self.random.randbytes(self.random.randrange(1, 40)))

    def _replaced(self, consumer: Consumer) -> None:
        """Let a process die, and another one come at its place that knows what the first one got."""
        consumer.die()
        self.way.run(self.random.random() * 5)
        consumer.revive()

    def end(self) -> None:
        """Let everybody be well, and wait until nothing is left to send."""
        for consumer in (*self.shared, *self.replicas):
            consumer.acks = True
        found = self.way.topic.subscriptions
        self.way.until(lambda: all(each.depth() + each.in_flight() == 0 for each in found.values()), 3600)


@pytest.mark.parametrize("seed", range(1, 13))
def test_whatever_breaks_every_service_gets_everything(seed: int) -> None:
    trouble = Trouble(seed)
    for _ in range(60):
        trouble.step()
    trouble.end()
    got = [set(consumer.got) for consumer in trouble.shared]
    assert set.union(*got) == set(trouble.stored)
    twice = [body for body in trouble.stored if sum(body in consumer.got for consumer in trouble.replicas) < 2]
    assert not twice, f"{len(twice)} of {len(trouble.stored)} were not sent to two owners"
