"""One run: a node with a timeline, its registry beside it or far away, those who use it, and what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pyarrow as pa

from penstock.client.timeline import wire
from penstock.client.wire import encoded
from penstock.clock import MILLISECOND, SECOND
from penstock.cluster.presence import TTL_NS
from penstock.dialects.timeline.errors import Fault
from penstock.dialects.timeline.service import Service
from penstock.errors import Refusal
from penstock.registry import EmbeddedRegistry
from penstock.registry.answer import Answer
from penstock.registry.registry import Figure, Registry
from tests.cluster.nodes import NodeClock
from tests.cluster.nodes import Way as RegistryWay
from tests.simulation.clock import Scheduler, SimClock
from tests.simulation.cluster.outside import ProcessClock, ProcessDisk
from tests.simulation.disk import Platter, SimDisk
from tests.simulation.history import History
from tests.simulation.host import Ending, Host
from tests.simulation.survival import CLEAN, DEATH
from tests.simulation.timelines.book import TELLING_NS, Book, Message
from tests.simulation.timelines.people import Consumer, Exchange, Producer, Way, wall_of
from tests.simulation.timelines.plan import DUE_MS_MAX, TOPIC, Plan, make_plan
from tests.simulation.world import Outcome

#: Everything must be delivered and deleted this long after everything has healed.
HEAL_NS = 120 * SECOND
AUDIT_NS = 50 * MILLISECOND
#: A run that has seen so many events heals: another seed finds more than the rest of it.
EVENTS_MAX = 4000
#: Nobody who vanished is taken for somebody who is there for longer than this: three pings, and what follows them.
VANISHED_NS = 5 * SECOND


class FarRegistry(RegistryWay):
    """A registry elsewhere, that says when it cannot be reached."""

    def figures(self) -> Iterable[Figure]:
        """Return whether it can be reached."""
        yield Figure("up", "gauge", "1 while changes can be made.", int(not self.is_cut))

    def close(self) -> None:
        """Hear no more; it goes on elsewhere."""
        self._unwatch()
        self._watchers.clear()


class TimelineHost(Host):
    """A machine whose process may stand still, and whose registry may be elsewhere."""

    def __init__(self, seed: int, plan: Plan, history: History) -> None:
        super().__init__(seed, plan.config, history, plan.slowness)
        self._trouble = plan.registry
        self._server: EmbeddedRegistry | None = None
        self.registry: FarRegistry | None = None
        if plan.registry is not None:
            clock = SimClock(self.scheduler, 0, self.random("registry's timers"))
            disk = SimDisk(Platter(self.random("registry's disk")), self.scheduler, clock, 1.0)
            self._server = EmbeddedRegistry.open(disk, clock, "data/registry")

    def make_clock(self) -> SimClock:
        """Return one that can be paused."""
        return ProcessClock(self.scheduler, self.random(f"timers {self.life}"))

    def make_disk(self, clock: SimClock) -> SimDisk:
        """Return one whose threads are paused with the process."""
        assert isinstance(clock, ProcessClock)
        return ProcessDisk(self.platter, self.scheduler, clock, self.random(f"threads {self.life}"))

    def make_registry(self, clock: SimClock) -> Registry | None:
        """Return the way to the one elsewhere, if it is."""
        if self._server is None or self._trouble is None:
            return None
        assert isinstance(clock, NodeClock)
        if self.registry is not None:
            self.registry._unwatch()
        self.registry = FarRegistry(self._server, clock, self.random(f"registry {self.life}"), self._trouble)
        return self.registry


class TimelineWorld:
    """Everything of one seed."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed = seed
        self.history = History(trace=trace)
        self.plan = make_plan(self.random("plan"))
        self.host = TimelineHost(seed, self.plan, self.history)
        self.book = Book(self.history, self.host.scheduler, self.plan, self.host.slack_ns)
        self.service: Service | None = None
        self.is_busy = True
        self._is_made = False
        self._random = self.random("trouble")
        self._producer = Producer(self, self.random("producer"))
        self._consumers = [
            Consumer(self, person, self.random(f"consumer {person.name}")) for person in self.plan.people
        ]
        #: Streams of consumers that went without a word, and when.
        self._vanished: list[tuple[Exchange, int]] = []
        #: Until when consumers of a life that is over may be taken for members: what it said of them hangs on a lease.
        self._ghosts_ns = 0
        self._offset_ns = 0
        self._jumped_ns = -SECOND
        if self.plan.registry is not None:
            trouble = self.plan.registry
            lossy = trouble.answer_lost + trouble.request_lost + trouble.late > 0
            self.book.patience_ns = 60 * trouble.delay_ns + (15 * SECOND if lossy else 0)

    def random(self, what: str) -> Random:
        """Return randomness of its own for one part of the world, so that parts do not disturb each other."""
        return Random(f"{self.seed} timelines {what}")

    @property
    def scheduler(self) -> Scheduler:
        """The world's time."""
        return self.host.scheduler

    def true_ms(self) -> int:
        """Return the time, by clocks that are right."""
        return wall_of(self.scheduler.time_ns)

    # --- the run --------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Live through the plan, heal, and check what must be true then."""
        self._boot(None)
        self.scheduler.after(0, self._make)
        self.scheduler.after(SECOND // 2, self._producer.go_on)
        for number, consumer in enumerate(self._consumers):
            self.scheduler.after(number * 150 * MILLISECOND, consumer.come)
        self.scheduler.after(self.plan.move_ns, self._move)
        self.scheduler.after(self.plan.trouble_ns, self._trouble)
        self.scheduler.after(AUDIT_NS, self._audit)
        for ending in self.plan.endings:
            self.host.live(ending, self._leave, self._gone)
            self._boot(ending)
            if self.history.events > EVENTS_MAX:
                break
        self.host.run(2 * SECOND)
        self._heal()
        book = self.book
        return Outcome(
            self.history.digest(), self.history.events, len(book.messages), book.checks, self.scheduler.time_ns
        )

    def _boot(self, ending: Ending | None) -> None:
        node = self.host.boot(ending)
        service = self.service = Service(node, self.plan.config, self.random(f"service {self.host.life}"))
        service.membership.resident = lambda: 0
        self.book.booted()

    def _leave(self) -> None:
        """End in good order."""
        assert self.service is not None
        self._wake(stood_still=False)
        node = self.service.node
        self.service.close()
        node.stop()
        self.host.run(50 * MILLISECOND)

    def _gone(self, kind: str) -> None:
        self.service = None
        self._vanished.clear()
        self._ghosts_ns = self.scheduler.time_ns + TTL_NS + SECOND
        if kind == CLEAN:
            self.book.stopped()
        else:
            self.book.crashed()

    def _make(self) -> None:
        """Have the topic made, as often as it takes."""
        self.scheduler.after(500 * MILLISECOND, self._make)
        service = self.service
        if service is None or self._paused:
            return
        way = Way(self, self._random, "operator")
        asked = encoded(wire.TimelineCreate(id=TOPIC, **self.plan.settings))
        service.act("create", way.caller, asked).then(self._made)

    def _made(self, reply: Any, error: Exception | None) -> None:
        if reply.error is None and not self._is_made:
            self._is_made = True
            self.book.record("made", TOPIC)

    # --- what people ask for --------------------------------------------------------------------------------------

    def asked(self, ask: Callable[[], Answer[pa.RecordBatch]], op: str) -> Answer[pa.RecordBatch]:
        """Return an answer, whatever becomes of the question."""
        try:
            return ask()
        except (Fault, Refusal) as error:
            return Answer.refused(error)

    def change(
        self,
        way: Way,
        session: str,
        command: str,
        message: Message,
        who: str,
        version: int,
        after_ms: int,
        then: Callable[[Message, dict[str, Any]], None] | None = None,
    ) -> None:
        """Bring a change to the node, and note what becomes of it there."""
        book, life = self.book, self.book.life

        def act() -> None:
            new_ms = self.scheduler.wall_ns() // MILLISECOND + after_ms
            rows = pa.record_batch(
                [
                    pa.array([message.id.encode()], pa.binary()),
                    pa.array([version or None], pa.uint16()),
                    pa.array([None], pa.uint16()),
                    pa.array([None if command == "delete" else new_ms], pa.uint64()),
                ],
                wire.CHANGED,
            )
            words = wire.Change(session_id=session, command=command)
            told: list[bool] = []

            def answered(reply: pa.RecordBatch | None, error: Exception | None) -> None:
                told.append(True)
                if book.life != life:
                    return
                if reply is None:
                    book.record("refused", command, message.id, error)
                    return
                row = reply.to_pylist()[0]
                book.changed(message, command, who, version, row["kind"], row, new_ms)
                if then is not None:
                    way.down(lambda: then(message, row))

            try:
                self.asked(lambda: way.service.change_messages(way.caller, words, rows), command).then(answered)
            finally:  # also where the node dies at a write of it
                if not told:
                    book.unknown(message)

        way.up(act)

    # --- what goes wrong ------------------------------------------------------------------------------------------

    @property
    def _paused(self) -> bool:
        clock = self.host.clock
        return isinstance(clock, ProcessClock) and clock.paused

    def vanished(self, exchange: Exchange | None) -> None:
        """Hear of a consumer that went without a word."""
        if exchange is not None and exchange.talk is not None:
            self._vanished.append((exchange, self.scheduler.time_ns))

    def _move(self) -> None:
        """Let somebody come or go."""
        if not self.is_busy:
            return
        random = self._random
        self.scheduler.after(int(random.expovariate(1 / self.plan.move_ns)), self._move)
        consumer = random.choice(self._consumers)
        if consumer.is_here:
            consumer.leave()
        else:
            consumer.come()

    def _trouble(self) -> None:
        if not self.is_busy:
            return
        random, scheduler = self._random, self.scheduler
        scheduler.after(int(random.expovariate(1 / self.plan.trouble_ns)), self._trouble)
        what = random.choice(("registry", "pause", "stand still", "clock", "clock", "slow reader"))
        long_ns = int(random.choice((0.05, 0.5, 2, 7)) * SECOND * random.uniform(0.5, 1))
        if self.service is None or self._paused:
            return
        life = self.book.life
        if what == "registry" and self.host.registry is not None and not self.host.registry.is_cut:
            self.host.registry.is_cut = True
            scheduler.after(long_ns, lambda: self._reach(life))
        elif what in ("pause", "stand still") and scheduler.time_ns - self._jumped_ns > TELLING_NS:
            self._pause()
            scheduler.after(long_ns // 2, lambda: self._wake(stood_still=what == "stand still", life=life))
        elif what == "clock" and self.plan.jump_ms and scheduler.time_ns - self.book.woke_ns > TELLING_NS:
            self._jump(random.randint(-self.plan.jump_ms, self.plan.jump_ms) * MILLISECOND)
        elif what == "slow reader":
            exchange = random.choice(self._consumers).exchange
            if exchange is not None and exchange.talk is not None:
                exchange.is_full = True
                scheduler.after(long_ns, lambda: self._drain(exchange, life))
        else:
            return
        self.book.record("trouble", what, long_ns // MILLISECOND)
        self.book.disturb()

    def _jump(self, by_ns: int) -> None:
        self.book.record("clock", by_ns // MILLISECOND)
        self.scheduler.jump(by_ns)
        self._offset_ns += by_ns
        self._jumped_ns = self.scheduler.time_ns
        self.book.disturb()

    def _pause(self) -> None:
        clock = self.host.clock
        assert isinstance(clock, ProcessClock)
        self.book.paused_ns = self.scheduler.time_ns
        clock.pause()

    def _wake(self, *, stood_still: bool, life: int | None = None) -> None:
        clock = self.host.clock
        if (life is None or life == self.book.life) and isinstance(clock, ProcessClock) and clock.paused:
            clock.go_on(stood_still=stood_still)
            self.book.woke_ns = self.scheduler.time_ns
            if stood_still:
                self.book.stood_still(self.book.woke_ns - self.book.paused_ns)
            self.book.disturb()

    def _reach(self, life: int) -> None:
        registry = self.host.registry
        if life == self.book.life and registry is not None and registry.is_cut:
            registry.heal()
            self.book.record("reached")
            self.book.disturb()

    def _drain(self, exchange: Exchange, life: int) -> None:
        exchange.is_full = False
        if life == self.book.life and not exchange.is_over and exchange.talk is not None and self.service is not None:
            self.host.clock.call_soon(exchange.talk.drained)
        self.book.disturb()

    # --- at any moment --------------------------------------------------------------------------------------------

    def _audit(self) -> None:
        self.scheduler.after(AUDIT_NS, self._audit)
        service, book = self.service, self.book
        if service is None or self._paused:
            book.disturb()
            return
        node = service.node
        if node.bugs:
            entries = node.ledger.entries("bug")
            book.fail("no bugs", "; ".join(str(sample.content) for sample in entries[0].samples))
        topic = node.topics.get(TOPIC)
        for subscription in topic.subscriptions.values() if topic is not None else ():
            counts = subscription.counts()
            if counts.pop("passed") != sum(counts.values()):
                book.fail("the books balance", f"{counts}")
        if not self._is_serving(service):
            book.disturb()
        book.audit()

    def _is_serving(self, service: Service) -> bool:
        """Tell whether everything is such that everybody should be served."""
        registry = self.host.registry
        now_ns = self.scheduler.time_ns
        self._vanished = [
            each
            for each in self._vanished
            if not each[0].is_over and (now_ns - each[1] < VANISHED_NS or not each[0].has_ponged)
        ]
        here = [each for each in self._consumers if each.is_here]
        if now_ns < self._ghosts_ns and len(here) < len(self._consumers):
            return False
        if not here or self._vanished or (registry is not None and registry.is_cut):
            return False
        if not service.node.health.may_push(TOPIC) or service.node.health.reasons():
            return False
        timeline = service.topics.by_name.get(TOPIC)
        if timeline is None or not timeline.is_whole.is_given:
            return False
        for consumer in here:
            exchange = consumer.exchange
            if exchange is None or not exchange.is_hydrated or exchange.is_over or exchange.is_full:
                return False
            if exchange.room <= 0:
                return False
        return True

    # --- the end --------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Let everything be well, and see that everything is delivered."""
        self.is_busy = False
        self.book.record("heal")
        self._wake(stood_still=False)
        self._reach(self.book.life)
        if self._offset_ns:
            self._jump(-self._offset_ns)
        for consumer in self._consumers:
            if consumer.exchange is not None:
                self._drain(consumer.exchange, self.book.life)
        stays = self._random.choice(self._consumers)
        for consumer in self._consumers:  # whoever is left has everything to do
            if consumer is stays or self._random.random() < 0.5:
                if not consumer.is_here:
                    consumer.come()
            elif consumer.is_here:
                consumer.leave()
        for exchange, _ in self._vanished:
            if not exchange.is_over and not exchange.has_ponged:  # nobody but its connection would ever tell
                exchange.is_over = True
                self.host.clock.call_soon(exchange.talk.closed)
        self._producer.go_on()
        self.host.run(DUE_MS_MAX * MILLISECOND)
        self.host.run(HEAL_NS + 2 * self.plan.jump_ms * MILLISECOND, self._is_calm)
        if not self._is_calm():
            self.book.fail("in the end everything is delivered", self._state())
        missing = self.book.missing()
        if missing:
            self.book.fail("nothing is lost", f"{missing[0].id} and {len(missing) - 1} more never came")
        if self.host.life % 2:
            self.host.live(
                Ending(DEATH, self.host.slack_ns + MILLISECOND, 0, None, MILLISECOND), self._leave, self._gone
            )
            self._boot(None)
            self.host.run(3 * SECOND)
            if not self._is_calm():
                self.book.fail("what was deleted stays so", self._state())

    def _is_calm(self) -> bool:
        service = self.service
        if service is None:
            return False
        timeline = service.topics.by_name.get(TOPIC)
        if timeline is None or timeline.count("all"):
            return False
        return not any(each.state in ("under way", "unknown") for each in self.book.messages.values())

    def _state(self) -> str:
        service = self.service
        assert service is not None
        timeline = service.topics.by_name.get(TOPIC)
        if timeline is None:
            return f"the topic is not at work; {service.node.health.reasons()}"
        counts = {status: timeline.count(status) for status in ("available", "waiting", "processing")}
        states = [each.state for each in self.book.messages.values()]
        held = {name: states.count(name) for name in sorted(set(states))}
        return f"{counts}, {held}, {sorted(timeline.consumers)}, {service.node.health.reasons()}"
