"""The lives of a node on one simulated machine, for worlds in which a relay is what is watched."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import NamedTuple, NoReturn

from penstock.clock import MILLISECOND, SECOND
from penstock.config import Config
from penstock.dialects import DIALECTS
from penstock.node.node import Node
from penstock.registry.registry import Registry
from tests.simulation.book import TICK_NS
from tests.simulation.clock import LATE_NS_MAX, Scheduler, SimClock
from tests.simulation.disk import Died, Platter, SimDisk
from tests.simulation.history import History, Violation
from tests.simulation.survival import CLEAN, DEATH, POWER

#: How long a node lives at most, in seconds.
LIVES_S = (0.1, 0.3, 0.3, 1.0, 1.0, 4.0)


class Ending(NamedTuple):
    """How one life of the node ends."""

    kind: str
    after_ns: int
    #: The process dies inside one of the next operations on the disk after that time; 0 means at that time.
    fuse: int
    #: It may die again while it starts.
    start_fuse: int | None
    down_ns: int


def some_ending(random: Random) -> Ending:
    """Draw an ending."""
    kind = random.choice((DEATH, DEATH, DEATH, POWER, CLEAN))
    return Ending(
        kind,
        after_ns=int(random.choice(LIVES_S) * random.uniform(0.5, 1) * SECOND),
        fuse=random.choice((0, random.randint(1, 30))) if kind != CLEAN else 0,
        start_fuse=random.randint(1, 40) if random.random() < 0.15 else None,
        down_ns=int(random.uniform(1, 200) * MILLISECOND),
    )


class Host:
    """One machine, and the node that lives on it again and again."""

    def __init__(self, seed: int, config: Config, history: History, slowness: float) -> None:
        self.seed = seed
        self.config = config
        self.history = history
        self.scheduler = Scheduler(self.random("turns"))
        self.platter = Platter(self.random("disk"))
        #: An ack older than this is in the journal.
        self.slack_ns = config.node.ack_flush_ns + 2 * TICK_NS + 2 * LATE_NS_MAX
        self.life = 0
        self.booted_ns = 0
        self.node: Node | None = None
        self.clock: SimClock
        self._slowness = slowness
        self._started_ns = 0

    def random(self, what: str) -> Random:
        """Return randomness of its own for one part of the world, so that parts do not disturb each other."""
        return Random(f"{self.seed} relay {what}")

    def record(self, kind: str, *fields: object) -> None:
        """Note an event."""
        self.history.record(self.scheduler.time_ns, kind, *fields)

    def fail(self, rule: str, text: str) -> NoReturn:
        """Report a broken promise."""
        raise Violation(rule, text)

    def boot(self, ending: Ending | None = None) -> Node:
        """Start the node; it may die while it starts, and is started again."""
        fuse = ending.start_fuse if ending is not None else None
        while True:
            self.platter.fuse, fuse = fuse, None
            self.clock = self.make_clock()
            disk = self.make_disk(self.clock)
            try:
                registry = self.make_registry(self.clock)
                node = Node(self.config, self.clock, disk, self.random(f"node {self.life}"), registry, DIALECTS)
                self.platter.fuse = None
                break
            except Died:
                self.record("died", "while starting")
                if ending is not None and ending.kind == POWER:
                    self.platter.lose_power()
        self.record("boot", self.life)
        self.booted_ns = self.scheduler.time_ns
        self.node = node
        return node

    def make_clock(self) -> SimClock:
        """Return the clock of the next life."""
        return SimClock(self.scheduler, self._started_ns, self.random(f"timers {self.life}"))

    def make_disk(self, clock: SimClock) -> SimDisk:
        """Return the disk, as the next life sees it."""
        return SimDisk(self.platter, self.scheduler, clock, self._slowness)

    def make_registry(self, clock: SimClock) -> Registry | None:
        """Return the registry where that is elsewhere."""
        return None

    def live(self, ending: Ending, leave: Callable[[], None], gone: Callable[[str], None]) -> None:
        """Go on until the node ends in this way.

        `leave` lets its relay say good-bye where it ends cleanly, `gone` hears how it ended.
        """
        scheduler, node = self.scheduler, self.node
        try:
            self.run(ending.after_ns)
            if ending.fuse:
                self.platter.fuse = ending.fuse
                self.run(200 * MILLISECOND)
            if ending.kind == CLEAN and node is not None:
                leave()
                node.close()
        except Died:
            self.record("died", ending.kind)
        self.platter.fuse = None
        if node is not None and node.bugs:
            entries = node.ledger.entries("bug")
            self.fail("no bugs", "; ".join(str(sample.content) for sample in entries[0].samples))
        self.clock.alive = False
        self.node = None
        self.record("end", ending.kind)
        gone(ending.kind)
        if ending.kind == POWER:
            self.platter.lose_power()
            self._started_ns = scheduler.time_ns
        self.life += 1
        self.run(ending.down_ns)

    def run(self, duration_ns: int, stop: Callable[[], bool] | None = None) -> None:
        """Let time pass."""
        self.scheduler.run_until(self.scheduler.time_ns + duration_ns, stop)


def finish(work: Coroutine[None, None, None]) -> None:
    """Let a coroutine run that waits for nothing."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")
