"""Somebody who talks to the node without a connection, with the same calls as the admin API, and tells the book."""

from __future__ import annotations

from random import Random
from typing import Protocol

from penstock.node.node import Node
from tests.simulation.book import Book
from tests.simulation.clock import Scheduler


class Surroundings(Protocol):
    """What they need of the world."""

    scheduler: Scheduler
    book: Book
    busy: bool
    node: Node | None

    def body(self) -> bytes:
        """Make a body that never was before."""


class Actor:
    """Somebody who does something every now and then while the node is up."""

    def __init__(self, world: Surroundings, random: Random, gap_ns: int) -> None:
        self.world = world
        self.random = random
        self._gap_ns = gap_ns
        self._again()

    def _again(self) -> None:
        self.world.scheduler.after(int(self.random.expovariate(1 / self._gap_ns)), self._step)

    def _step(self) -> None:
        self._again()
        if self.world.node is not None and self.world.busy:
            self.act(self.world.node)

    def act(self, node: Node) -> None:
        """Do one thing."""
