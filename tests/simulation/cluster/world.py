"""One run: three nodes over one registry and one store, those who use them, what goes wrong, and the book of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from penstock.clock import MILLISECOND, SECOND
from penstock.node.topic import Topic
from penstock.peers.far import Target, Unreached, reached
from penstock.registry import EmbeddedRegistry
from tests.cluster.fake_store import FakeStore
from tests.simulation.clock import Scheduler, SimClock
from tests.simulation.cluster.book import Book, Message
from tests.simulation.cluster.member import DOWN_NS, Member
from tests.simulation.cluster.people import Publisher, Receivers, Worker, rows_of
from tests.simulation.cluster.plan import LEASE_NS, NODES, PATIENCE_NS, make_plan
from tests.simulation.cluster.roads import Roads
from tests.simulation.disk import Died, Platter, SimDisk
from tests.simulation.history import History
from tests.simulation.network import Weather
from tests.simulation.world import Outcome

#: Everything must be delivered this long after everything has healed.
HEAL_NS = 60 * SECOND

#: A run that has seen so many events heals: another seed finds more than the rest of it.
EVENTS_MAX = 2500
#: What may happen to a node.
TROUBLES = (
    *("kill", "fuse", "pause", "pause", "stand still", "stand still", "registry", "store", "both", "stop"),
    *("roads", "roads", "all registry", "all store"),
)


class ClusterWorld:
    """Everything of one seed."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed = seed
        self.history = History(trace=trace)
        self.plan = make_plan(self.random("plan"))
        self.scheduler = Scheduler(self.random("turns"))
        self.book = Book(self.history, lambda: self.scheduler.time_ns)
        clock = SimClock(self.scheduler, 0, self.random("registry's timers"))
        disk = SimDisk(Platter(self.random("registry's disk")), self.scheduler, clock, 1.0)
        self._server = EmbeddedRegistry.open(disk, clock, "data/registry")
        self._store = FakeStore()
        roads = Roads(self.scheduler, Weather(self.random("roads"), MILLISECOND, 0.3))
        self.members = [
            Member(name, seed, self.plan, self.scheduler, self._server, self._store, roads, self._ended)
            for name in NODES
        ]
        self.is_busy = True
        #: What publishers wait for, by where they went.
        self.under_way: dict[Member, list[Message]] = {}
        self._finding = self.random("finding")
        self.publisher = Publisher(self, self.random("publisher"))
        self._troubles = self.random("trouble")

    def random(self, what: str) -> Random:
        """Return randomness of its own for one part of the world, so that parts do not disturb each other."""
        return Random(f"{self.seed} cluster {what}")

    def find(self, name: str, random: Random) -> tuple[Member, Topic] | None:
        """Return any node that says it has a topic."""
        found = [(member, topic) for member in self.members if (topic := member.topic(name)) is not None]
        return random.choice(found) if found else None

    def way(self, name: str, random: Random) -> tuple[Member, Target] | None:
        """Return any node, and how one publishes to a topic there; None where that cannot be now."""
        awake = [member for member in self.members if member.is_awake]
        if not awake:
            return None
        member = random.choice(awake)
        assert member.node is not None
        found = reached(member.node, name)
        return None if found is None or isinstance(found, Unreached) else (member, found)

    # --- the run --------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Live through the plan, heal, and check what must be true then."""
        for number, member in enumerate(self.members):
            self.scheduler.after(number * 100 * MILLISECOND, member.boot)
        self._make()
        scheduler = self.scheduler
        scheduler.after(SECOND, self.publisher.go_on)
        for name in self.plan.topics:
            for number in range(2):
                scheduler.after(SECOND, Worker(self, name, self.random(f"worker {name} {number}")).go_on)
        scheduler.after(SECOND, Receivers(self, self.random("receivers")).go_on)
        scheduler.after(4 * SECOND, self._trouble)
        scheduler.after(100 * MILLISECOND, self._audit)
        self._pass(4 * SECOND + self.plan.duration_ns, lambda: self.history.events > EVENTS_MAX)
        self._heal()
        book = self.book
        return Outcome(self.history.digest(), self.history.events, len(book.messages), book.checks, scheduler.time_ns)

    def _pass(self, duration_ns: int, stop: Callable[[], bool] | None = None) -> None:
        until_ns = self.scheduler.time_ns + duration_ns
        while self.scheduler.time_ns < until_ns and not (stop is not None and stop()):
            try:
                self.scheduler.run_until(until_ns, stop)
            except Died:  # a process is gone, the world goes on
                continue

    def _make(self) -> None:
        """Have topics and subscriptions made, wherever somebody can."""
        random = self._finding
        for name, settings in self.plan.topics.items():
            found = self.find(name, random)
            awake = [member for member in self.members if member.is_awake]
            if found is None and awake:
                node = random.choice(awake).node
                assert node is not None
                node.obtain(name, settings).then(_unheard)
            elif found is not None and not found[1].deleted:
                for subscription, chosen in self.plan.subscriptions.items():
                    if subscription not in found[1].subscriptions:
                        found[1].create_subscription(subscription, chosen, earliest=True).then(_unheard)
        self.scheduler.after(200 * MILLISECOND, self._make)

    def _audit(self) -> None:
        """Check the sums at any moment, and that no node has a bug to report."""
        for member in self.members:
            node = member.node
            if node is None:
                continue
            if node.bugs:
                entries = node.ledger.entries("bug")
                self.book.fail("no bugs", "; ".join(str(sample.content) for sample in entries[0].samples))
            for topic in node.topics.values():
                for subscription in topic.subscriptions.values():
                    counts = subscription.counts()
                    if counts.pop("passed") != sum(counts.values()):
                        self.book.fail(
                            "the books balance", f"{topic.name}/{subscription.name} of {member.name}: {counts}"
                        )
        self.scheduler.after(100 * MILLISECOND, self._audit)

    # --- what goes wrong ------------------------------------------------------------------------------------------

    def _ended(self, member: Member, how: str) -> None:
        self.book.record("end", member.name, how)
        for message in self.under_way.pop(member, []):
            if message.state == "under way":
                message.state = "unknown"
        self.scheduler.after(int(self._troubles.random() * DOWN_NS), partial(self._boot, member, member.life))

    def _boot(self, member: Member, life: int) -> None:
        if member.node is None and member.life == life:
            self.book.record("boot", member.name)
            member.boot()

    def _trouble(self) -> None:
        if not self.is_busy:
            return
        random, scheduler = self._troubles, self.scheduler
        scheduler.after(int(random.expovariate(1 / self.plan.trouble_ns)), self._trouble)
        member = random.choice(self.members)
        if not member.is_awake:
            return
        what = random.choice(TROUBLES)
        long_ns = int(random.choice((0.2, 1.0, 2.5)) * LEASE_NS * random.uniform(0.5, 1))
        self.book.record("trouble", member.name, what, long_ns // MILLISECOND)
        life = member.life
        if what == "kill":
            member.end("killed")
        elif what == "fuse":
            member.store.fuse = random.randint(1, 20)
        elif what in ("pause", "stand still"):
            member.pause()
            scheduler.after(long_ns, partial(self._go_on, member, life, stood_still=what == "stand still"))
        elif what == "stop":
            member.stop()
        elif what == "roads":
            member.lose_roads()
        elif what == "all store":
            self._store.is_away = True
            scheduler.after(long_ns, self._store.heal)
        elif what == "all registry":
            for each in self.members:
                if each.node is not None:
                    each.registry.is_cut = True
                    scheduler.after(long_ns, partial(self._uncut, each, each.life))
        else:
            if what != "store":
                member.registry.is_cut = True
            if what != "registry":
                member.store.is_cut = True
            scheduler.after(long_ns, partial(self._uncut, member, life))

    def _go_on(self, member: Member, life: int, *, stood_still: bool) -> None:
        if member.life == life and member.node is not None and member.clock.paused:
            self.book.record("goes on", member.name)
            member.go_on(stood_still=stood_still)

    def _uncut(self, member: Member, life: int) -> None:
        if member.life == life and member.node is not None:
            self.book.record("reached", member.name)
            member.store.is_cut = False
            if member.registry.is_cut:
                member.registry.heal()

    # --- the end --------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Let everything be well, and see that everything comes to its end."""
        self.is_busy = False
        self._store.heal()
        self.book.record("heal")
        for member in self.members:
            member.heal()
        until_ns = self.scheduler.time_ns + HEAL_NS
        while not self._is_done():
            if self.scheduler.time_ns >= until_ns:
                self._compare()
                self.book.fail("in the end everything is delivered", self._state())
            self._pass(200 * MILLISECOND)
        self._compare()
        self._pass(PATIENCE_NS + SECOND)
        for name in self.plan.topics:
            message = self.publisher.say(name, self._finding)
            self._pass(10 * SECOND, lambda message=message: message is not None and message.state != "under way")  # type: ignore[misc]
            if message is None or message.state != "stored":
                self.book.fail("in the end everything is taken", f"{name} takes nothing; {self._state()}")

    def _read(self, came: Callable[[], bool]) -> None:
        """Wait for a read, however slow its thread is: rows that are not there yet are not lost."""
        self._pass(HEAL_NS, came)
        if not came():
            self.book.fail("what is stored can be read", self._state())

    def _compare(self) -> None:
        """Compare what the logs hold with what publishers were told."""
        for name in self.plan.topics:
            rows = None
            for _ in range(20):
                found = [topic for member in self.members if (topic := member.topic(name)) is not None]
                if len(found) == 1 and not found[0].is_leaving:
                    rows = rows_of(found[0], self._read)
                if rows is not None:
                    break
                self._pass(SECOND)  # it is on its way to another node
            if rows is None:
                self.book.fail("one owner", f"{len(found)} nodes have {name}; {self._state()}")
            self.book.stored(name, rows)

    def _is_done(self) -> bool:
        if self.book.missing():
            return False
        for name in self.plan.topics:
            found = [topic for member in self.members if (topic := member.topic(name)) is not None]
            if len(found) != 1 or len(found[0].subscriptions) < len(self.plan.subscriptions):
                return False
            if any(each.depth() or each.in_flight() for each in found[0].subscriptions.values()):
                return False
        return True

    def _state(self) -> str:
        left = [f"{each.body.decode()} of {each.topic}" for each in self.book.missing()[:5]]
        places = [
            f"{member.name} has {sorted(member.node.topics) if member.node else 'ended'}"
            + (f", {member.node.share.problems()}" if member.node is not None and member.node.share is not None else "")
            for member in self.members
        ]
        return f"{len(self.book.missing())} are left, such as {left}; {'; '.join(places)}"


def _unheard(_: object, __: Exception | None) -> None:
    return
