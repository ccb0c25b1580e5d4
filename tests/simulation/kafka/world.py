"""One run: a node that relays to a simulated Kafka, what goes wrong at both, and the book in which it is checked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TypeVar

from penstock.clock import MILLISECOND, SECOND, Clock
from penstock.message import Rows
from penstock.relays.kafka.conversation import Manner
from penstock.relays.kafka.outside import KafkaOutside
from penstock.relays.kafka.relay import Relay
from penstock.wire.dial import Dialling, Failed
from tests.simulation.history import History
from tests.simulation.host import Ending, Host, finish
from tests.simulation.kafka.book import Book
from tests.simulation.kafka.cluster import Kafka
from tests.simulation.kafka.plan import Plan, make_plan
from tests.simulation.survival import DEATH
from tests.simulation.world import Outcome

T = TypeVar("T")
#: What a thread takes that compresses.
WORK_NS_MAX = 200 * MILLISECOND
#: Everything must be in Kafka this long after everything has healed.
HEAL_NS = 120 * SECOND
#: Messages that are published in one life of the node: another seed finds more than more of them.
MESSAGES_MAX = 250
#: The partition keys.
KEYS = 5


class Way:
    """The node's way to Kafka, for as long as the node's process lives."""

    def __init__(self, world: KafkaWorld) -> None:
        self._kafka = world.kafka
        self._clock = world.host.clock

    def dial(self, host: str, port: int, protocol: asyncio.Protocol, failed: Failed) -> Dialling:
        """Connect."""
        outside = self._kafka.outside
        outside.mood = next(broker.mood for broker in self._kafka.brokers if broker.port == port)
        return outside.dial(self._clock, port, protocol, failed)


class KafkaWorld:
    """Everything of one seed."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed = seed
        self.history = History(trace=trace)
        self.plan: Plan = make_plan(Random(f"{seed} plan of a relay to Kafka"))
        self.host = Host(seed, self.plan.config, self.history, self.plan.slowness)
        self.book = Book(self.host, self.plan)
        self.kafka = Kafka(self.host, self.plan, self.book.committed)
        self._relay: Relay | None = None
        self._random = self.host.random("people")
        self._count = 0
        self._busy = True
        #: Turns for which the sums did not agree.
        self._unsettled = 0

    def run(self) -> Outcome:
        """Live through the plan, heal, and check what must be true then."""
        self._boot(None)
        scheduler = self.host.scheduler
        scheduler.after(self.plan.gap_ns, self._publish)
        scheduler.after(self.plan.trouble_ns, self._trouble)
        scheduler.after(MILLISECOND, self._audit)
        for ending in self.plan.endings:
            self._live(ending)
        self._heal()
        return Outcome(
            self.history.digest(), self.history.events, len(self.book.messages), self.book.checks, scheduler.time_ns
        )

    def _live(self, ending: Ending) -> None:
        self.host.live(ending, self._leave, self._crash)
        self._boot(ending)

    def _boot(self, ending: Ending | None) -> None:
        node = self.host.boot(ending)
        node.discards.listeners.append(self.book.thrown)
        for name, (settings, _) in self.plan.topics.items():
            node.obtain(name, settings)
        random, config = self.host.random(f"relay {self.host.life}"), self.plan.relay
        manner = Manner(node.clock, Way(self), random, client_id="sim", timeout_ns=config.socket_timeout_ns)
        outside = KafkaOutside(config, manner, run=partial(self._beside, node.clock), beside_bytes=0)
        self._relay = Relay(node, config, outside, random)
        self._relay.watch = self.book.watch

    def _beside(self, clock: Clock, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Tell what came of work some time later, if the process is still there."""
        wait_ns = int(self._random.random() ** 4 * WORK_NS_MAX)
        clock.call_at(clock.monotonic() + wait_ns, partial(done, work()))

    def _leave(self) -> None:
        """Let the relay send what it has in hand, as a stopping node does."""
        relay, node = self._relay, self.host.node
        if relay is None or node is None:
            return
        ended: list[bool] = []
        relay.router.drain(lambda: ended.append(True))
        self.host.run(self.plan.relay.shutdown_max_delay_ns, lambda: bool(ended))
        finish(relay.close())
        node.stop()

    def _crash(self, kind: str) -> None:
        """Let the relay be gone with the node."""
        self.kafka.outside.die(self.host.clock)
        self._relay = None
        self.book.crash(kind)

    # --- people ---------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        if not self._busy:
            return
        random, node = self._random, self.host.node
        self.host.scheduler.after(int(random.expovariate(1 / self.plan.gap_ns)), self._publish)
        if node is None or node.stopping or self._count >= MESSAGES_MAX * (self.host.life + 1):
            return
        name = random.choice(list(self.plan.topics))
        topic = node.topics.get(name)
        if topic is None:
            return
        bodies, keys = [], []
        for _ in range(random.randint(1, self.plan.rows_max)):
            self._count += 1
            key = random.randrange(KEYS) if random.random() < 0.7 else None
            bodies.append(b"m%06d" % self._count)
            keys.append(key)
            self.book.publish(bodies[-1], key, topic.settings.durability)
        columns = {"route": list(keys), "key": [None if key is None else b"k%d" % key for key in keys]}
        rows = Rows.of(bodies, "test", columns)
        topic.publish(rows, self, lambda _, error: self.book.told(bodies, error))

    def _trouble(self) -> None:
        if not self._busy:
            return
        kafka, random, scheduler = self.kafka, self._random, self.host.scheduler
        what = random.choice(("kill", "move", "move", "cut", "half open", "refuse", "silent", "accept"))
        broker = random.choice(kafka.brokers)
        self.host.record("trouble", what, broker.number)
        if what == "kill":
            kafka.kill(broker)
            scheduler.after(int(random.random() * 400 * MILLISECOND), partial(kafka.start, broker))
        elif what == "move":
            kafka.move()
        elif what == "cut":
            for wire in kafka.outside.wires:
                wire.cut()
        elif what == "half open":
            for wire in kafka.outside.wires:
                wire.dead = True
        else:
            broker.mood = what  # type: ignore[assignment]
            scheduler.after(int(random.random() * 300 * MILLISECOND), partial(setattr, broker, "mood", "accept"))
        scheduler.after(int(random.expovariate(1 / self.plan.trouble_ns)), self._trouble)

    def _audit(self) -> None:
        """Check the sums at any moment."""
        if self._relay is not None:
            settled = self.book.check_sums(self._relay)
            self._unsettled = 0 if settled else self._unsettled + 1
            if self._unsettled > 50:
                self.host.fail("taken = acked + held + discarded", "they never agree")
        self.host.scheduler.after(1 + int(self._random.random() * 20 * MILLISECOND), self._audit)

    # --- the end --------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Let everything be well, and see that all of it is in Kafka and stays as it is."""
        self._busy = False
        self.host.record("heal")
        self.kafka.heal()
        self.host.run(HEAL_NS, self._is_calm)
        if not self._is_calm():
            self.host.fail("everything arrives", self._state())
        self.book.check_arrived()
        if not self.plan.is_forgetful and self.plan.relay.idempotence:
            for life, producers in self.kafka.used.items():
                if len(producers) > 1:
                    self.host.fail("a life has one producer", f"life {life} has {len(producers)}")
        if self.plan.crash_at_end:
            self._live(Ending(DEATH, self.host.slack_ns + MILLISECOND, 0, None, MILLISECOND))
            self.host.run(3 * SECOND)
            if not self._is_calm():
                self.host.fail("everything arrives", self._state())

    def _is_calm(self) -> bool:
        node, relay = self.host.node, self._relay
        if node is None or relay is None or relay.router.held:
            return False
        for name in self.plan.topics:
            topic = node.topics.get(name)
            subscription = topic.subscriptions.get(self.plan.relay.subscription) if topic is not None else None
            if subscription is None or subscription.depth() or subscription.in_flight():
                return False
        return True

    def _state(self) -> str:
        assert self._relay is not None
        router = self._relay.router
        return f"{router.held} in hand, {self._relay.waiting()} wait; the relay says {router.trouble!r}"
