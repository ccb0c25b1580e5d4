"""A lookup service in another process, and the node's registrar that tells it over simulated connections."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Protocol

from penstock.clock import MILLISECOND, SECOND
from penstock.config import Config
from penstock.dialects.nsq.choices import NsqChoices
from penstock.dialects.nsq.lookup.codec import Identity
from penstock.dialects.nsq.lookup.link import Channels, Pace
from penstock.dialects.nsq.lookup.registrar import Registrar
from penstock.dialects.nsq.lookup.service import Lookup
from penstock.node.node import Node
from penstock.wire.dial import Dialling, Failed
from tests.fakes import gate_of
from tests.simulation.book import Book
from tests.simulation.clock import Scheduler, SimClock
from tests.simulation.network import Weather
from tests.simulation.outgoing import Outside
from tests.simulation.topics import topics_of

PORT = 4160
ME = Identity(version="1.3.0", tcp_port=4150, http_port=4151, hostname="h", broadcast_address="me", distributed_id="me")

#: Lives are short here, so everything happens sooner than outside.
PACE = Pace(150 * MILLISECOND, retry_ns_min=5 * MILLISECOND, retry_ns_max=80 * MILLISECOND, connect_ns=60 * MILLISECOND)

#: The service must know everything this long after everything has healed.
TOLD_NS = 3 * SECOND


class Surroundings(Protocol):
    """What is needed of the world."""

    scheduler: Scheduler
    weather: Weather
    book: Book
    busy: bool

    def random(self, what: str) -> Random:
        """Return randomness of its own for one part of the world."""


class Way:
    """The node's way to the service, for as long as the node's process lives."""

    def __init__(self, outside: Outside, clock: SimClock) -> None:
        self._outside = outside
        self._clock = clock

    def dial(self, host: str, port: int, protocol: asyncio.Protocol, failed: Failed) -> Dialling:
        """Connect."""
        return self._outside.dial(self._clock, port, protocol, failed)

    def ask(self, host: str, port: int, topic: str, done: Channels) -> None:
        """Never happens: the service says that it has no HTTP port, so no channels come back from it."""
        raise AssertionError("a service without an HTTP port was asked")


class Elsewhere:
    """A lookup service that comes and goes, and what goes wrong on the way to it."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self._random = world.random("lookup")
        #: Mean time between two things that go wrong, if any do.
        self._gap_ns = self._random.choice((0, 30, 100, 100)) * MILLISECOND
        self._outside = Outside(world.scheduler, Weather(self._random, world.weather.latency_ns, 0.3))
        self._clock: SimClock | None = None
        self._lookup: Lookup | None = None
        self._registrar: Registrar | None = None
        self._node: tuple[Node, SimClock] | None = None
        self._start()

    def begin(self) -> None:
        """Let things go wrong from now on."""
        if self._gap_ns:
            self._world.scheduler.after(self._gap_ns, self._trouble)

    # --- the node -------------------------------------------------------------------------------------------------

    def attach(self, node: Node, clock: SimClock) -> None:
        """Let a node announce itself."""
        self._node = node, clock
        self._registrar = Registrar(node, ME, None, Way(self._outside, clock), PACE)
        self._registrar.start([("lookup", PORT)])

    def leave(self) -> None:
        """Let the node say good-bye, as one does that ends cleanly."""
        if self._registrar is not None:
            self._registrar.close()

    def crash(self) -> None:
        """Let the node's process be gone."""
        if self._node is not None:
            self._outside.die(self._node[1])
        self._node = self._registrar = None

    # --- the service ----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        scheduler = self._world.scheduler
        self._clock = clock = SimClock(scheduler, 0, self._random)
        self._lookup = lookup = Lookup(Config(), clock, self._fault, self._bug, gate_of(clock))
        lookup.tcp_port = PORT
        self._outside.listen(PORT, lookup.server.connect, clock)

    def _stop(self) -> None:
        if self._clock is not None:
            self._outside.die(self._clock)
        self._clock = self._lookup = None

    def _fault(self, code: str, text: str, peer: str) -> None:
        self._world.book.fail("a node speaks the lookup protocol", f"{code} {text}")

    def _bug(self, where: str, error: BaseException) -> None:
        self._world.book.fail("no bugs", f"{where}: {error!r}")

    # --- what goes wrong ------------------------------------------------------------------------------------------

    def _trouble(self) -> None:
        if not self._world.busy or not self._gap_ns:
            return
        what = self._random.choice(("cut", "half open", "refuse", "silent", "accept", "restart"))
        self._world.book.record("lookup", what)
        outside = self._outside
        if what == "cut":
            for wire in outside.wires:
                wire.cut()
        elif what == "half open":
            for wire in outside.wires:
                wire.dead = True
        elif what == "restart":
            self._stop()
            self._world.scheduler.after(int(self._random.random() * 200 * MILLISECOND), self._again)
        else:
            outside.mood = what  # type: ignore[assignment]
        self._world.scheduler.after(int(self._random.expovariate(1 / self._gap_ns)), self._trouble)

    def _again(self) -> None:
        if self._lookup is None:
            self._start()

    # --- the end --------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Let everything be well, and see that the service comes to know what the node has."""
        self._again()
        self._outside.mood = "accept"
        scheduler = self._world.scheduler
        scheduler.run_until(scheduler.time_ns + TOLD_NS, lambda: not self._difference())
        difference = self._difference()
        if difference:
            self._world.book.fail("a lookup service knows what the node has", difference)

    def _difference(self) -> str:
        """Return what the service knows and the node has not, or the other way round."""
        assert self._node is not None
        assert self._lookup is not None
        known, directory = self._known(), self._lookup.directory
        had = {(topic.name, name) for topic in topics_of(self._node[0]) for name in ("", *topic.subscriptions)}
        if known != had:
            return f"it knows {sorted(known - had)} too much and {sorted(had - known)} not"
        for topic in topics_of(self._node[0]):
            meta, extended = directory.meta(topic.name), topic.chosen.of(NsqChoices).extend != "off"
            if meta is None or (meta.extend_support, meta.partition_num) != (extended, topic.settings.shards):
                return f"it takes {topic.name} for {meta}"
        return ""

    def _known(self) -> set[tuple[str, str]]:
        """Return the topics and channels that came over the connection that stands; broken ones may be listed yet."""
        assert self._lookup is not None
        standing = {
            f"127.0.0.1:{wire.far.get_extra_info('peername')[1]}"  # type: ignore[index]
            for wire in self._outside.wires
            if not wire.dead and not wire.near.gone and not wire.far.gone
        }
        records = self._lookup.directory.records()
        return {(r.topic, r.channel) for r in records if r.peer.id in standing and r.category != "client"}
