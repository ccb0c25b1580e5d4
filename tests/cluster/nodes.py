"""Several nodes that own slots of one cluster, on virtual time; each may be killed, paused or cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from random import Random
from typing import Any, TypeVar

from penstock.clock import MILLISECOND, SECOND
from penstock.cluster.orders import Orders
from penstock.cluster.places import KEYS
from penstock.cluster.slots import Slots
from penstock.config import ClusterConfig
from penstock.errors import Refusal
from penstock.registry import EmbeddedRegistry, Event
from penstock.registry.answer import Answer
from penstock.registry.registry import Lease, Proposal, UnknownOutcomeError
from tests.registry.far import Far, Trouble
from tests.simulation.clock import Call, SimClock
from tests.simulation.machine import Machine

T = TypeVar("T")
LEASE_NS = 4 * SECOND
#: A question to a registry that cannot be reached is given up after this time.
PATIENCE_NS = 5 * SECOND


class NodeClock(SimClock):
    """A clock whose process may be paused: time goes on, and nothing is called until it wakes up."""

    paused = False

    def pause(self) -> None:
        self.paused, self._held = True, list[tuple[Call, Callable[[], None]]]()

    def wake(self) -> None:
        self.paused = False
        for made, call in self._held:
            self._scheduler.soon(partial(self._run, made, call), self)

    def run(self, call: Callable[[], None]) -> None:
        self._run(Call(self, call), call)

    def call_soon(self, call: Callable[[], None]) -> None:
        made: Call = self._scheduler.soon(lambda: self._run(made, call), self)

    def call_at(self, monotonic_ns: int, call: Callable[[], None]) -> Call:
        made: Call = super().call_at(monotonic_ns, lambda: self._run(made, call))
        return made

    def _run(self, made: Call, call: Callable[[], None]) -> None:
        if self.paused:
            self._held.append((made, call))
        elif not made.cancelled:  # also not by something that was called since it woke up
            call()


class Way(Far):
    """The way of one node to the registry; it may be cut."""

    def __init__(self, server: EmbeddedRegistry, clock: NodeClock, random: Random, trouble: Trouble) -> None:
        self.is_cut = False
        self._unheard: list[Sequence[Event]] = []
        super().__init__(server, clock, random, trouble)

    def propose(
        self,
        puts: Mapping[str, bytes],
        deletes: Iterable[str] = (),
        guards: Mapping[str, int] | None = None,
        lease: Lease | None = None,
    ) -> Proposal:
        if not self.is_cut:
            return super().propose(puts, deletes, guards, lease)
        return self._given_up(UnknownOutcomeError("no answer in time"))

    def lease(self, ttl_ns: int) -> Answer[Lease]:
        if not self.is_cut:
            return super().lease(ttl_ns)
        return self._given_up(Refusal("unavailable", "the registry is away"))

    def later(self, call: Callable[[], None]) -> None:
        if not self.is_cut:
            super().later(call)

    def heal(self) -> None:
        self.is_cut, unheard = False, self._unheard
        self._unheard = []
        for events in unheard:
            super()._heard(events)

    def _heard(self, events: Sequence[Event]) -> None:
        if self.is_cut:
            self._unheard.append(events)
        else:
            super()._heard(events)

    def _given_up(self, error: Exception) -> Answer[T]:
        answer: Answer[T] = Answer()
        self._clock.call_at(self._clock.monotonic() + PATIENCE_NS, lambda: answer.refuse(error))
        return answer


class Node:
    """One node: its slots, what it was told of them, and its way to the registry."""

    def __init__(self, world: World, config: ClusterConfig, disk: str) -> None:
        self.name = config.node
        self.world = world
        self.clock = NodeClock(world.machine.scheduler, 0, Random(f"timers {self.name}"))
        self.registry = Way(world.server, self.clock, Random(self.name), world.trouble)
        #: What it serves, by what it was told; and everything it was told, in order.
        self.serves: dict[int, int] = {}
        self.told: list[tuple[str, int]] = []
        self.closing_ns = 100 * MILLISECOND
        self.slots = Slots(
            self.registry,
            self.clock,
            config,
            f"life {next(world.births)}",
            self._took,
            self._lost,
            self._give_up,
            disk,
        )
        self.orders = Orders(self.slots)

    def _took(self, slot: int, epoch: int) -> None:
        assert self.slots.is_mine(slot)
        assert slot not in self.serves
        self.serves[slot] = epoch
        self.told.append(("took", slot))

    def _lost(self, slot: int) -> None:
        assert not self.slots.is_mine(slot)
        del self.serves[slot]
        self.told.append(("lost", slot))

    def _give_up(self, slot: int) -> Answer[None]:
        assert self.slots.is_mine(slot)
        epoch = self.serves[slot]
        done: Answer[None] = Answer()

        def closed() -> None:
            if self.serves.get(slot) == epoch:
                assert slot in self.slots.mine or not self.slots.is_mine(slot)
                del self.serves[slot]
                self.told.append(("gave", slot))
            done.give(None)

        self.clock.call_at(self.clock.monotonic() + self.closing_ns, closed)
        return done

    def kill(self) -> None:
        """Let nothing of it happen any more; the registry forgets it by itself."""
        self.clock.alive = False
        self.registry._unwatch()


class World:
    """A registry, and the nodes of a cluster over it."""

    def __init__(self, slots: int = 16, trouble: Trouble | None = None, seed: int = 0) -> None:
        self.machine = Machine(seed)
        self.trouble = trouble or Trouble()
        self.count = slots
        self.server = EmbeddedRegistry.open(self.machine.disk, self.machine.clock, "data/registry")
        self.births = count()
        self.nodes: list[Node] = []

    def node(self, name: str, cluster: str = "blue", disk: str = "", **config: Any) -> Node:
        fields: dict[str, Any] = {"name": cluster, "slots": self.count, "lease_ns": LEASE_NS, "node": name, **config}
        node = Node(self, ClusterConfig(**fields), disk)
        self.nodes.append(node)
        return node

    def joined(self, name: str, **config: Any) -> Node:
        """Return a node that has come."""
        node = self.node(name, **config)
        self.answered(node.slots.start())
        return node

    def run(self, seconds: float) -> None:
        """Let time pass; at no moment does a slot belong to two nodes."""
        scheduler = self.machine.scheduler
        scheduler.run_until(scheduler.time_ns + int(seconds * SECOND), self._checked)

    def until(self, holds: Callable[[], object], seconds: float = 120) -> float:
        """Let time pass until something is so, and return how long that took."""
        began = self.machine.scheduler.time_ns
        while not holds():
            spent = (self.machine.scheduler.time_ns - began) / SECOND
            assert spent < seconds, "it never came to be"
            self.run(0.01)
        return (self.machine.scheduler.time_ns - began) / SECOND

    def answered(self, answer: Answer[T]) -> T:
        self.until(lambda: answer.is_given)
        return answer.now()

    @property
    def live(self) -> list[Node]:
        return [node for node in self.nodes if node.clock.alive]

    def counts(self) -> list[int]:
        """Return how many slots each node serves; all of them are where everybody thinks, or it is no answer."""
        owners = {slot: node.name for node in self.live for slot in node.serves}
        known = [
            {slot: owner.name for slot in range(self.count) if (owner := node.slots.owner(slot))} for node in self.live
        ]
        agreed = len(owners) == self.count and all(each == owners for each in known)
        return [len(node.serves) for node in self.live] if agreed else []

    def keys(self, prefix: str) -> list[str]:
        return [key.removeprefix(KEYS) for key in self.server.list(KEYS + prefix)]

    def put(self, key: str, value: bytes) -> None:
        """Write something into the registry, as somebody with its tools may."""
        self.server.propose({KEYS + key: value}).now()

    def _checked(self) -> bool:
        owners: dict[int, str] = {}
        for node in self.live:
            for slot in node.slots.mine:
                other = owners.setdefault(slot, node.name)
                assert other == node.name, f"slot {slot} belongs to {other} and to {node.name}"
        return False
