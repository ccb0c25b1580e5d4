"""Brokers that are killed and come back, over a registry that answers late, twice or not at all, while clocks jump."""

from __future__ import annotations

from random import Random

import pytest

from penstock.clock import SECOND
from penstock.cluster.denial import Denial
from tests.cluster.brokers import Broker, World, kind_of
from tests.registry.far import Trouble

TROUBLE = Trouble(refused=0.05, request_lost=0.03, answer_lost=0.05, late=0.03)
TOPICS = ("a", "b", "c")
NAMES = ("one", "two", "three")
RACKS = ("r1", "r2")


class Chaos:
    """One run. Whoever touches the storage without the lock fails it at once; the rest is judged when all is quiet."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(is_far=True, trouble=TROUBLE)
        self.brokers: dict[str, Broker] = {name: self.world.broker(name) for name in NAMES}
        #: Consumers by topic and id: the broker each is with.
        self.consumers: dict[tuple[str, str], str] = {}

    def step(self) -> None:
        """Let somebody do something."""
        name = self.random.choice(NAMES)
        broker, topic = self.brokers[name], self.random.choice(TOPICS)
        match self.random.randrange(10):
            case 0 | 1 if kind_of(broker, topic):
                dealer = self.random.choice(("simple", "gladiator", "rack"))
                broker.overseer.create(topic, {"bucket_count": 16, "time_window_ms": 1000, "dealer": dealer})
            case 1:
                broker.overseer.delete(topic)
            case 2 | 3 | 4:
                self.join(broker, topic, f"c{self.random.randrange(5)}")
            case 5 | 6 if self.consumers:
                (topic, ident), here = self.random.choice(sorted(self.consumers.items()))
                del self.consumers[topic, ident]
                self.brokers[here].records.leave("consumer", topic, ident)
            case 7:
                self.kill(name)
            case 8:
                self.world.machine.scheduler.jump(self.random.choice((-3600, -1, 1, 3600)) * SECOND)
            case _:
                broker.is_well = not broker.is_well
        self.world.run(self.random.random() * 4)

    def join(self, broker: Broker, topic: str, ident: str) -> None:
        try:
            entry = broker.overseer.find(topic)
        except Denial:
            return
        before = self.consumers.get((topic, ident))
        self.consumers[topic, ident] = broker.name
        rack = RACKS[int(ident[1:]) % 2]
        broker.records.join("consumer", broker.client(entry, ident, rack))
        if before is not None and before != broker.name:  # it hangs up there
            self.brokers[before].records.leave("consumer", topic, ident)

    def kill(self, name: str) -> None:
        """Kill a broker with its consumers, and start another of its name."""
        self.brokers[name].kill()
        self.brokers[name] = self.world.broker(name)
        self.consumers = {key: here for key, here in self.consumers.items() if here != name}

    def rest(self) -> None:
        """Let everybody be well, and everything come to its end."""
        self.world.trouble = Trouble()
        for broker in self.brokers.values():
            broker.is_well = True
            broker.registry.trouble = Trouble()  # type: ignore[attr-defined]
        self.world.run(90)


@pytest.mark.parametrize("seed", range(12))
def test_everything_comes_to_its_end_and_every_broker_sees_the_same(seed: int) -> None:
    chaos = Chaos(seed)
    for _ in range(60):
        chaos.step()
    chaos.rest()
    world, brokers = chaos.world, list(chaos.brokers.values())
    assert world.keys("deleted") == world.keys("fence") == world.keys("masters") == []
    topics = [broker.overseer.topics() for broker in brokers]
    assert topics[0] == topics[1] == topics[2]
    assert all(entry.state == "live" for entry in topics[0])
    assert set(world.store.rows) == {entry.incarnation for entry in topics[0]}
    for entry in topics[0]:
        here = {each.id for each in brokers[0].records.members(entry.id, entry.incarnation)}
        tables = [broker.tables.at_present(entry.id) for broker in brokers]
        for table in tables if here else ():
            assert table is not None
            assert {member.name for member in table.members} == here
            assert table.epoch == (tables[0].epoch if tables[0] else 0)
            assert sorted(bucket for name in here for bucket in table.work(name).own) == list(range(16))
        joined = {ident for (topic, ident), _ in chaos.consumers.items() if topic == entry.id}
        assert here <= joined, "somebody who left is still there"
