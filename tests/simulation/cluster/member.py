"""One machine of a cluster, and the node that lives on it again and again."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from penstock.clock import SECOND
from penstock.config import CallersConfig, ClusterConfig, Config, EventsConfig, TopicConfig
from penstock.config.tree import SharedLogConfig
from penstock.log.kafka.engine import Engine
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.registry import EmbeddedRegistry
from tests.cluster.fake_store import FakeStore
from tests.cluster.nodes import Way
from tests.simulation.clock import Scheduler
from tests.simulation.cluster.outside import ProcessClock, ProcessDisk, StoreWay, Threads
from tests.simulation.cluster.plan import LEASE_NS, PATIENCE_NS, PORTS, SLOTS, Plan
from tests.simulation.cluster.roads import Roads
from tests.simulation.disk import Platter


class Member:
    """A machine with a disk of its own, which is a cache."""

    def __init__(
        self,
        name: str,
        seed: int,
        plan: Plan,
        scheduler: Scheduler,
        server: EmbeddedRegistry,
        store: FakeStore,
        roads: Roads,
        ended: Callable[[Member, str], None],
    ) -> None:
        self.name = name
        self._seed = seed
        self._plan = plan
        self._scheduler = scheduler
        self._server = server
        self._store = store
        self._roads = roads
        self._ended = ended
        self._platter = Platter(self._random("disk"))
        self._config = Config(
            data_dir="data",
            shared_log=SharedLogConfig(patience_ns=PATIENCE_NS),
            cluster=ClusterConfig(name="c", node=name, slots=SLOTS, lease_ns=LEASE_NS, port=PORTS[name]),
            topic=TopicConfig(log="kafka"),
            events=EventsConfig(mode="off"),
            callers=CallersConfig(audit="off"),
        )
        self.life = 0
        self.node: Node | None = None
        self.clock: ProcessClock
        self.registry: Way
        self.store: StoreWay

    def _random(self, what: str) -> Random:
        return Random(f"{self._seed} {self.name} {what}")

    @property
    def is_awake(self) -> bool:
        """Whether it does anything at this moment."""
        return self.node is not None and not self.clock.paused

    def topic(self, name: str) -> Topic | None:
        """Return a topic that it has, if it could be asked now."""
        return self.node.topics.get(name) if self.node is not None and not self.clock.paused else None

    def boot(self) -> None:
        """Start the node."""
        self.life += 1
        life, scheduler = self.life, self._scheduler
        clock = self.clock = ProcessClock(scheduler, self._random(f"timers {life}"))
        self.registry = Way(self._server, clock, self._random(f"registry {life}"), self._plan.registry)
        threads = Threads(clock, self._random(f"threads {life}"), self._plan.store_ns)
        self.store = StoreWay(self._store, self._random(f"store {life}"), self._plan.lost, self._died, threads)
        disk = ProcessDisk(self._platter, scheduler, clock, self._random(f"local {life}"))
        engine = Engine(self.store, threads, disk)
        node = self.node = Node(self._config, clock, disk, self._random(f"node {life}"), self.registry, engine=engine)
        assert node.share is not None

        def joined(_: None, error: Exception | None) -> None:
            if error is not None and self.node is node:
                self.end(f"cannot join: {error}")

        self._roads.open(node, clock)
        node.share.start({}).then(joined)

    def _died(self) -> None:
        self.end("died in a send")

    def end(self, how: str) -> None:
        """Be gone, as after kill -9."""
        if self.node is not None:
            self.node = None
            self._roads.die(self.clock)
            self.registry._unwatch()
            self._ended(self, how)

    def stop(self) -> None:
        """Give everything to others, and end."""
        node = self.node
        if node is None or node.share is None:
            return

        def left(_: None, error: Exception | None) -> None:
            if self.node is node and node.share is not None:
                node.stop()
                node.close()
                node.share.close()
                self.end("stopped")

        node.share.leave().then(left)

    def pause(self) -> None:
        """Stand still."""
        self.clock.pause()

    def lose_roads(self) -> None:
        """Have every connection to another node cut."""
        self._roads.break_up(self.clock)

    def go_on(self, *, stood_still: bool) -> None:
        """Go on, with or without a clock that did."""
        self.clock.go_on(stood_still=stood_still)

    def heal(self) -> None:
        """Have nothing between it and the others."""
        if self.node is None:
            self.boot()
            return
        if self.clock.paused:
            self.go_on(stood_still=False)
        self.store.is_cut, self.store.lost, self.store.fuse = False, 0.0, 0
        if self.registry.is_cut:
            self.registry.heal()


#: How long a node that ended is away.
DOWN_NS = 3 * SECOND
