"""What goes wrong while the node lives: broken connections, a full disk, a wall clock that is set, turned bits."""

from __future__ import annotations

from random import Random
from typing import Protocol

from penstock.clock import MILLISECOND, SECOND
from penstock.node.node import Node
from tests.simulation.book import Book
from tests.simulation.clock import Scheduler
from tests.simulation.disk import Platter
from tests.simulation.network import Link
from tests.simulation.plan import Plan

#: A thread's work may end this much before the loop hears of it: a sync's, and a compaction's.
UNHEARD_NS = (60 * MILLISECOND, 350 * MILLISECOND)


class Surroundings(Protocol):
    """What there is to go wrong."""

    scheduler: Scheduler
    book: Book
    busy: bool
    node: Node | None
    plan: Plan
    platter: Platter
    links: dict[int, Link]


class Trouble:
    """Misfortunes at random times."""

    def __init__(self, world: Surroundings, random: Random) -> None:
        self._world = world
        self._random = random

    def begin(self) -> None:
        """Let those come that the plan has."""
        plan, after = self._world.plan, self._world.scheduler.after
        if plan.breaks_ns:
            after(plan.breaks_ns, self._break)
        if plan.full_ns:
            after(plan.full_ns, self._fill)
        if plan.jumps:
            after(300 * MILLISECOND, self._jump)
        if plan.spoils_ns:
            after(plan.spoils_ns, self._spoil)

    def make_space(self) -> None:
        """Let the disk be full no more."""
        book = self._world.book
        if book.is_full:
            self._world.platter.capacity_bytes = 1 << 40
            book.is_full = False
            book.full_ns = book.now_ns
            book.record("disk", "has space")

    def mend(self) -> None:
        """Let syncs succeed again."""
        self._world.platter.fails = lambda _: False

    def mark_spoiled(self) -> None:
        """Note of which topics the node, about to be gone, has not made up for a failed sync: those are as after a
        power loss."""
        node, book = self._world.node, self._world.book
        for model in book.topics.values():
            topic = node.topics.get(model.name) if node is not None else None
            shards = topic.shards if topic is not None else []
            unmended = any(shard.read_only or shard.journals_suspect for shard in shards)
            model.spoiled = unmended or book.now_ns < model.unheard_ns

    def flip(self) -> None:
        """Turn one bit around in a file of a log."""
        world, files = self._world, self._world.platter.files
        paths = [path for path in sorted(files) if path.endswith((".arrows", ".index")) and files[path].data]
        if paths:
            path = self._random.choice(paths)
            number = int(path.split("/")[2])
            for topic in world.book.topics.values():
                if topic.number == number:
                    topic.shaken = topic.was_shaken = True
            world.book.record("flip", path, world.platter.flip(path))

    def _break(self) -> None:
        world = self._world
        if not world.busy or not world.plan.breaks_ns:
            return
        alive = [link for link in world.links.values() if not link.node_gone and not link.client_gone]
        if alive:
            link = self._random.choice(alive)
            if self._random.random() < 0.8:
                world.book.record("cut", link.number)
                link.cut()
            else:
                world.book.record("vanish", link.number)
                link.vanish()
                link.client.on_lost()
        for number in [number for number, link in world.links.items() if link.node_gone]:
            del world.links[number]
        world.scheduler.after(int(self._random.expovariate(1 / world.plan.breaks_ns)), self._break)

    def _fill(self) -> None:
        world, scheduler = self._world, self._world.scheduler
        if not world.busy or not world.plan.full_ns:
            return
        if world.node is None:
            scheduler.after(world.plan.full_ns, self._fill)
            return
        world.platter.capacity_bytes = world.platter.used_bytes + self._random.choice((0, 100, 1000))
        world.book.is_full = True
        world.book.full_ns = scheduler.time_ns
        world.book.record("disk", "full")
        scheduler.after(int(self._random.random() * 150 * MILLISECOND), self.make_space)
        scheduler.after(int(self._random.expovariate(1 / world.plan.full_ns)) + 160 * MILLISECOND, self._fill)

    def _spoil(self) -> None:
        """Let the next syncs of logs or journals fail: one, or also those that would make up for it."""
        world, left = self._world, self._random.choice((1, 1, 2, 4))
        if not world.busy or not world.plan.spoils_ns:
            return

        def fails(path: str) -> bool:
            nonlocal left
            if not left or world.node is None or not path.endswith((".arrows", ".arrows.new", ".journal")):
                return False
            left -= 1
            world.book.record("spoil", path)
            number = int(path.split("/")[2])
            for topic in world.book.topics.values():
                if topic.number == number:
                    topic.spoiled_ns = world.scheduler.time_ns
                    topic.unheard_ns = topic.spoiled_ns + UNHEARD_NS[path.endswith(".journal")]
            return True

        world.platter.fails = fails
        world.scheduler.after(int(self._random.expovariate(1 / world.plan.spoils_ns)), self._spoil)

    def _jump(self) -> None:
        if self._world.busy:
            by_ns = int(self._random.uniform(-1, 1) * SECOND)
            self._world.book.record("wall clock", by_ns)
            self._world.scheduler.jump(by_ns)
            self._world.scheduler.after(int(self._random.random() * SECOND), self._jump)
