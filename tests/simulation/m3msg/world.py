"""One run: a node that relays to simulated consumer services, what goes wrong at both, and what must hold of that."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random

from penstock.clock import MILLISECOND, SECOND
from penstock.m3.placement import Instance as Placed
from penstock.m3.placement import Placement, Shard
from penstock.m3.topic import ConsumerService, ServiceId, Topic
from penstock.message import Rows
from penstock.relays.m3msg.relay import Relay
from penstock.wire.dial import Dialling, Failed
from tests.m3msg.consumers import Told
from tests.simulation.clock import SimClock
from tests.simulation.history import History
from tests.simulation.host import Ending, Host, finish
from tests.simulation.m3msg.instance import Instance
from tests.simulation.m3msg.plan import NAME, SHARDS, Plan, make_plan
from tests.simulation.network import Weather
from tests.simulation.outgoing import Outside
from tests.simulation.survival import DEATH, POWER
from tests.simulation.world import Outcome

#: Everything must be acked this long after everything has healed.
HEAL_NS = 120 * SECOND
#: Messages that are published in one life of the node.
MESSAGES_MAX = 250
#: Owners of each shard of the replicated service.
COPIES = 2
SHARED, REPLICATED = "shared", "replicated"


class Way:
    """The node's way out, for as long as the node's process lives."""

    def __init__(self, outside: Outside, instances: Sequence[Instance], clock: SimClock) -> None:
        self._outside = outside
        self._instances = instances
        self._clock = clock

    def dial(self, host: str, port: int, protocol: asyncio.Protocol, failed: Failed) -> Dialling:
        """Connect."""
        self._outside.mood = next(each.mood for each in self._instances if each.port == port)
        return self._outside.dial(self._clock, port, protocol, failed)


class M3World:
    """Everything of one seed."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed = seed
        self.history = History(trace=trace)
        self.plan: Plan = make_plan(Random(f"{seed} plan of a relay to M3"))
        self.host = Host(seed, self.plan.config, self.history, self.plan.slowness)
        weather = Weather(self.host.random("services' network"), self.plan.latency_ns, 0.1)
        self._outside = Outside(self.host.scheduler, weather)
        self._random = self.host.random("people of M3")
        self._shared = [self._instance(9000 + number) for number in range(self.plan.shared)]
        self._replicas = [self._instance(9100 + number) for number in range(self.plan.replicas)]
        self._placements: dict[str, Placement] = {}
        self._topology = Told()
        self._relay: Relay | None = None
        #: Whether the publisher of each message was told that it is stored, and nothing took that back.
        self._kept: dict[bytes, bool] = {}
        #: Messages that were sent, over and over.
        self._sent = 0
        self._busy = True

    def _instance(self, port: int) -> Instance:
        random = self.host.random(f"instance {port}")
        return Instance(self.host, self._outside, port, random, self.plan.fault_odds, self._got)

    @property
    def _everybody(self) -> list[Instance]:
        return [*self._shared, *self._replicas]

    def run(self) -> Outcome:
        """Live through the plan, heal, and check what must be true then."""
        self._place_shared()
        self._place_replicas()
        self._boot(None)
        scheduler = self.host.scheduler
        scheduler.after(self.plan.gap_ns, self._publish)
        scheduler.after(self.plan.trouble_ns, self._trouble)
        for ending in self.plan.endings:
            self._live(ending)
        self._heal()
        return Outcome(self.history.digest(), self.history.events, len(self._kept), self._sent, scheduler.time_ns)

    def _live(self, ending: Ending) -> None:
        self.host.live(ending, self._leave, self._crash)
        self._boot(ending)

    def _boot(self, ending: Ending | None) -> None:
        node = self.host.boot(ending)
        node.obtain(NAME, self.plan.settings)
        self._topology = Told()
        self._topology.placements = dict(self._placements)
        kinds = [(SHARED, self._shared), (REPLICATED, self._replicas)]
        self._topology.topic = Topic(
            name=NAME,
            shards=SHARDS,
            services=tuple(
                ConsumerService(service_id=ServiceId(name), consumption=name)  # type: ignore[arg-type]
                for name, some in kinds
                if some
            ),
        )
        way = Way(self._outside, self._everybody, self.host.clock)
        random = self.host.random(f"relay to M3 {self.host.life}")
        self._relay = Relay(node, self.plan.relay, self._topology, way, random)

    def _leave(self) -> None:
        """Let the relay hear the last acks, as a stopping node does."""
        relay, node = self._relay, self.host.node
        if relay is not None and node is not None:
            finish(relay.drain())
            node.stop()
            self.host.run(int(self._random.random() * 100 * MILLISECOND))
            finish(relay.close())
            self._forget()

    def _crash(self, kind: str) -> None:
        """Let the relay be gone with the node."""
        self._outside.die(self.host.clock)
        self._relay = None
        if kind == POWER and self.plan.settings.durability == "os":
            self._kept = dict.fromkeys(self._kept, False)
        self._forget()

    def _forget(self) -> None:
        """Promise nothing of what was in memory."""
        if self.plan.in_memory:
            self._kept = dict.fromkeys(self._kept, False)

    # --- services -------------------------------------------------------------------------------------------------

    def _place_shared(self) -> None:
        """Let some instances have all shards of the shared service between them."""
        if self._shared:
            chosen = self._random.sample(self._shared, self._random.randint(1, len(self._shared)))
            owned: dict[Instance, list[int]] = {instance: [] for instance in chosen}
            for shard in range(SHARDS):
                owned[self._random.choice(chosen)].append(shard)
            self._place(SHARED, owned)

    def _place_replicas(self) -> None:
        """Let each shard have two owners, for good."""
        if self._replicas:
            owned: dict[Instance, list[int]] = {instance: [] for instance in self._replicas}
            for shard in range(SHARDS):
                for instance in self._random.sample(self._replicas, COPIES):
                    owned[instance].append(shard)
            self._place(REPLICATED, owned)

    def _place(self, service: str, owned: Mapping[Instance, Sequence[int]]) -> None:
        instances = {}
        for instance, shards in owned.items():
            name = f"i{instance.port}"
            said = tuple(Shard(shard, "available") for shard in shards)
            instances[name] = Placed(id=name, endpoint=instance.endpoint, shards=said)
            instance.shards.update(shards)
        self.host.record("placed", service, *((each.port, *shards) for each, shards in owned.items()))
        self._placements[service] = Placement(instances=instances, is_sharded=True, shards=SHARDS)
        if self.host.node is not None:
            self._topology.place(service, self._placements[service])

    def _got(self, instance: Instance, rows: list[tuple[bytes, int]]) -> None:
        self._sent += len(rows)
        self.host.record("got", instance.port, rows[0][0], len(rows))
        for body, shard in rows:
            if body not in self._kept:
                self.host.fail("what is sent was published", f"{body!r}")
            owned = {number % SHARDS for number in instance.shards}
            if shard % SHARDS not in owned:
                self.host.fail("an instance gets its own shards", f"{body!r} of {shard} came to {instance.port}")

    # --- people ---------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        if not self._busy:
            return
        random, node = self._random, self.host.node
        self.host.scheduler.after(int(random.expovariate(1 / self.plan.gap_ns)), self._publish)
        topic = node.topics.get(NAME) if node is not None and not node.stopping else None
        if topic is None or len(self._kept) >= MESSAGES_MAX * (self.host.life + 1):
            return
        bodies = [b"m%06d" % (len(self._kept) + each) for each in range(random.randint(1, self.plan.rows_max))]
        self._kept.update(dict.fromkeys(bodies, False))
        rows = Rows.of(bodies, "test", {"key": [b"id %d" % random.randrange(20) for _ in bodies]})
        topic.publish(rows, self, lambda _, error: self._told(bodies, error))

    def _told(self, bodies: list[bytes], error: BaseException | None) -> None:
        self.host.record("stored", bodies[0], len(bodies), error)
        if error is not None:
            self.host.fail("a publish is taken", str(error))
        self._kept.update(dict.fromkeys(bodies, True))

    def _trouble(self) -> None:
        if not self._busy:
            return
        random, scheduler = self._random, self.host.scheduler
        what = random.choice(("kill", "place", "cut", "half open", "refuse", "silent"))
        instance = random.choice(self._everybody)
        self.host.record("trouble", what, instance.port)
        if what == "kill":
            instance.kill()
            scheduler.after(int(random.random() * 400 * MILLISECOND), instance.start)
        elif what == "place":
            self._place_shared()
        elif what == "cut":
            for wire in self._outside.wires:
                wire.cut()
        elif what == "half open":
            for wire in self._outside.wires:
                wire.dead = True
            # Nobody would ever notice: messages go again over the same connection.
            scheduler.after(int(random.random() * 400 * MILLISECOND), partial(self._notice, list(self._outside.wires)))
        else:
            instance.mood = what  # type: ignore[assignment]
            scheduler.after(int(random.random() * 300 * MILLISECOND), partial(setattr, instance, "mood", "accept"))
        scheduler.after(int(random.expovariate(1 / self.plan.trouble_ns)), self._trouble)

    def _notice(self, wires: Sequence[object]) -> None:
        for wire in self._outside.wires:
            if wire in wires and wire.dead:
                wire.cut()

    # --- the end --------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Let everything be well, and see that everybody who should has acked everything."""
        self._busy = False
        self.host.record("heal")
        for instance in self._everybody:
            instance.heal()
        self.host.run(SECOND)
        self.host.run(HEAL_NS, self._is_calm)
        if not self._is_calm():
            self.host.fail("everything arrives", self._state())
        self._check_acked()
        if self.plan.crash_at_end:
            self._live(Ending(DEATH, self.host.slack_ns + MILLISECOND, 0, None, MILLISECOND))
            before = self._sent
            self.host.run(3 * SECOND)
            if self._sent > before or not self._is_calm():
                self.host.fail("what is acked and written down never goes again", f"{self._sent - before} did")

    def _check_acked(self) -> None:
        for body, kept in self._kept.items():
            if not kept or self.plan.drops:
                continue
            if self._shared and not any(body in each.acked for each in self._shared):
                self.host.fail("every service acks every message", f"nobody of {SHARED} acked {body!r}")
            copies = sum(body in each.acked for each in self._replicas)
            if self._replicas and copies < COPIES:
                self.host.fail("every service acks every message", f"{copies} of {REPLICATED} acked {body!r}")

    def _is_calm(self) -> bool:
        node = self.host.node
        topic = node.topics.get(NAME) if node is not None else None
        if topic is None or not topic.subscriptions:
            return False
        return not any(each.depth() or each.in_flight() for each in topic.subscriptions.values())

    def _state(self) -> str:
        node = self.host.node
        assert node is not None
        found = node.topics[NAME].subscriptions.values()
        return "; ".join(f"{each.name}: {each.depth()} wait, {each.in_flight()} are out" for each in found)
