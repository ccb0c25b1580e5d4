"""A node on a simulated machine, and somebody who publishes to it and consumes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from penstock.columns import Column
from penstock.config import Config, EventsConfig
from penstock.delivery.source import Delivery
from penstock.message import Rows
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.settings import SubscriptionSettings
from tests.simulation.machine import Machine

#: Without a history and its counts, which make topics of their own.
PLAIN = Config(data_dir="data", events=EventsConfig(mode="off"))


class Site:
    """A node on a simulated machine."""

    def __init__(self, config: Config = PLAIN, seed: int = 0) -> None:
        self.machine = Machine(seed)
        self.config = config
        self.start()

    def start(self) -> None:
        """Begin another process on the same disk."""
        self.machine.start()
        self.node = Node(self.config, self.machine.clock, self.machine.disk, Random(1))

    def lose_power(self) -> None:
        """Lose what was not synced, and begin another process."""
        self.machine.lose_power()
        self.start()

    def offer(self, topic: Topic, *bodies: bytes, **columns: Column) -> list[BaseException | None]:
        """Publish, let time pass, and return what the publisher was told."""
        told: list[BaseException | None] = []
        topic.publish(Rows.of(bodies, "test", columns or None), self, lambda _, error: told.append(error))
        self.machine.run()
        return told

    def publish(self, topic: Topic, *bodies: bytes, due_ns: int | None = None) -> None:
        """Publish messages that must be taken."""
        columns: dict[str, Column] = {"due": [due_ns] * len(bodies)} if due_ns is not None else {}
        assert self.offer(topic, *bodies, **columns) == [None]

    def consume(
        self,
        topic: Topic,
        name: str,
        settings: SubscriptionSettings | None = None,
        *,
        credit: int = 100,
        tag: str = "",
        evict: Callable[[], None] = lambda: None,
    ) -> list[bytes]:
        """Return the list into which a new consumer puts every body it gets."""
        got: list[bytes] = []

        def deliver(deliveries: list[Delivery]) -> None:
            for delivery in deliveries:
                got.extend(delivery.batch.row_body(offset - delivery.batch.first) for offset in delivery.offsets())

        subscription = topic.subscribe(name, settings).now()
        self.seat = topic.attach(subscription, deliver, lease_ns=60_000_000_000, tag=tag, evict=evict)
        self.seat.set_credit(credit)
        self.machine.run()
        return got
