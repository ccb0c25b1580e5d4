"""NSQ clients of all tempers: producers that wait or pipeline, consumers that ack, release, extend, sleep or steal.

They know only what arrives at their end of the network. Whether the node did right is not theirs to judge.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Protocol

from penstock.clock import MILLISECOND
from tests.simulation import wire
from tests.simulation.clock import Scheduler
from tests.simulation.network import Link
from tests.simulation.wire import ERROR, MESSAGE, Command, Frame


class Surroundings(Protocol):
    """What a client needs of the world."""

    scheduler: Scheduler
    #: Nobody publishes or subscribes anew once this is False.
    busy: bool

    def connect(self, client: NsqClient) -> Link | None:
        """Open a connection; None while the node is down."""

    def body(self) -> bytes:
        """Make a body that never was before."""

    def some_id(self) -> int:
        """Return the id of any message somebody has seen."""

    def seen(self, id_: int) -> None:
        """Remember an id."""


class NsqClient:
    """A client that comes back when its connection is lost."""

    def __init__(self, world: Surroundings, random: Random) -> None:
        self.world = world
        self.random = random
        self.link: Link | None = None
        self.stopped = False
        self.again()

    def again(self) -> None:
        """Try to connect in a moment."""
        self.world.scheduler.after(int(self.random.random() * 40 * MILLISECOND), self._connect)

    def _connect(self) -> None:
        if self.link is not None or self.stopped:
            return
        self.link = self.world.connect(self)
        if self.link is None:
            self.again()
            return
        self.link.send(Command("magic", wire.MAGIC))
        self.connected(self.link)

    def connected(self, link: Link) -> None:
        """Begin."""

    def on_frame(self, frame: Frame) -> None:
        """Hear of a frame that arrived whole."""
        if frame.data == b"_heartbeat_" and self.link is not None:
            self.link.send(wire.plain("NOP"))

    def on_lost(self) -> None:
        """Hear that the connection is gone."""
        self.link = None
        if not self.stopped:
            self.again()

    def leave(self) -> None:
        """Hang up."""
        if self.link is not None:
            self.link.leave()
            self.on_lost()

    def stop(self) -> None:
        """Hang up for good."""
        self.stopped = True
        self.leave()


def introduction(random: Random) -> Command:
    """Say who is there, with or without negotiation."""
    draw = random.random()
    if draw < 0.3:
        command = wire.identify('{"client_id": "sim", "msg_timeout": 1000}')
        command.number = 1000
        return command
    return wire.identify('{"client_id": "sim", "feature_negotiation": %s}' % ("true" if draw < 0.6 else "false"))


class Producer(NsqClient):
    """Publishes to one topic, or to two in turns."""

    def __init__(self, world: Surroundings, random: Random, topics: list[str], window: int, gap_ns: int) -> None:
        self.topics = topics
        self.window = window
        self.gap_ns = gap_ns
        self.waiting = 0
        super().__init__(world, random)

    def connected(self, link: Link) -> None:
        """Begin."""
        self.waiting = 0
        if self.random.random() < 0.5:
            link.send(introduction(self.random))
        self._step(link)

    def _step(self, link: Link) -> None:
        if self.link is not link or not self.world.busy:
            return
        for _ in range(self.random.choice((1, 1, 1, 2, 5))):
            if self.waiting >= self.window:
                break
            self.waiting += 1
            link.send(self._publish())
        draw = self.random.random()
        if draw < 0.01:
            link.send(
                wire.junk(
                    self.random.choice(
                        (b"PUB t0\n\x00\x00", b"WHAT\n", b"PUB $\n", b"MPUB t0\n\x00\x00\x00\x08abcdefgh")
                    )
                )
            )
            return
        if draw < 0.02:
            self.leave()
            return
        self.world.scheduler.after(int(self.random.expovariate(1 / self.gap_ns)), lambda: self._step(link))

    def _publish(self) -> Command:
        topic = self.random.choice(self.topics)
        draw = self.random.random()
        if draw < 0.15:
            return wire.mpub(topic, [self.world.body() for _ in range(self.random.choice((1, 2, 3, 18)))])
        if draw < 0.25:
            return wire.dpub(topic, self.world.body(), self.random.choice((0, 1, 20, 200, 900)))
        return wire.pub(topic, self.world.body())

    def on_frame(self, frame: Frame) -> None:
        """Hear of a frame that arrived whole."""
        super().on_frame(frame)
        if frame.data == b"OK" or (frame.kind == ERROR and b"PUB_FAILED" in frame.data):
            self.waiting = max(0, self.waiting - 1)


@dataclass(slots=True)
class Temper:
    """How likely a consumer does what with a message; the rest of 1 is silence."""

    ack: float = 0.75
    release: float = 0.1
    extend: float = 0.05
    steal: float = 0.02
    publish: float = 0.0
    think_ns: int = 5 * MILLISECOND


class Consumer(NsqClient):
    """Takes messages of one channel."""

    def __init__(
        self, world: Surroundings, random: Random, topic: str, channel: str, temper: Temper, publishes_to: str = ""
    ) -> None:
        self.topic = topic
        self.channel = channel
        self.temper = temper
        self.publishes_to = publishes_to
        super().__init__(world, random)

    def connected(self, link: Link) -> None:
        """Begin."""
        if self.random.random() < 0.7:
            link.send(introduction(self.random))
        link.send(wire.sub(self.topic, self.channel))
        link.send(wire.rdy(self.random.choice((1, 2, 5, 20, 100))))
        self._step(link)

    def _step(self, link: Link) -> None:
        """Change the credit, read slowly, or go, now and then."""
        if self.link is not link:
            return
        draw = self.random.random()
        if draw < 0.25:
            link.send(wire.rdy(self.random.choice((0, 1, 3, 10, 50))))
        elif draw < 0.35:
            link.stall(int(self.random.random() * 200 * MILLISECOND))
        elif draw < 0.38:
            link.send(wire.plain("CLS"))
            self.world.scheduler.after(int(self.random.random() * 50 * MILLISECOND), self.leave)
            return
        elif draw < 0.42:
            self.leave()
            return
        elif draw < 0.43:
            link.send(wire.junk(b"FIN nothing\n"))
            return
        self.world.scheduler.after(int(self.random.random() * 200 * MILLISECOND), lambda: self._step(link))

    def on_frame(self, frame: Frame) -> None:
        """Hear of a frame that arrived whole."""
        super().on_frame(frame)
        link = self.link
        if frame.kind == MESSAGE and link is not None:
            self.world.seen(frame.id)
            delay_ns = int(self.random.expovariate(1 / self.temper.think_ns))
            self.world.scheduler.after(delay_ns, lambda: self._decide(link, frame.id))

    def _decide(self, link: Link, id_: int) -> None:
        if self.link is not link:
            return
        temper, draw = self.temper, self.random.random()
        if self.random.random() < temper.steal:
            link.send(self.random.choice((wire.fin, wire.touch, lambda x: wire.req(x, 0)))(self.world.some_id()))
        if draw < temper.ack:
            link.send(wire.fin(id_))
            if self.publishes_to and self.world.busy and self.random.random() < temper.publish:
                link.send(wire.pub(self.publishes_to, self.world.body()))
        elif draw < temper.ack + temper.release:
            link.send(wire.req(id_, self.random.choice((0, 0, 1, 30, 400))))
        elif draw < temper.ack + temper.release + temper.extend:
            link.send(wire.touch(id_))
            self.world.scheduler.after(int(self.random.random() * 300 * MILLISECOND), lambda: self._decide(link, id_))


class Drain(NsqClient):
    """Acks everything at once: the consumer that comes when all has healed."""

    def __init__(self, world: Surroundings, random: Random, topic: str, channel: str) -> None:
        self.topic = topic
        self.channel = channel
        super().__init__(world, random)

    def connected(self, link: Link) -> None:
        """Begin."""
        link.send(wire.sub(self.topic, self.channel))
        link.send(wire.rdy(50))

    def on_frame(self, frame: Frame) -> None:
        """Hear of a frame that arrived whole."""
        super().on_frame(frame)
        if frame.kind == MESSAGE and self.link is not None:
            self.link.send(wire.fin(frame.id))
