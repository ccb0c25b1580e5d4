"""Consumers of all tempers: they ack, release, extend, sleep or steal, and come and go.

They know only what arrives at their end of the network. Whether the node did right is not theirs to judge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from penstock.clock import MILLISECOND
from tests.simulation import wire
from tests.simulation.clients import NsqClient, Surroundings, publication
from tests.simulation.network import Link
from tests.simulation.taste import Taste
from tests.simulation.wire import ERROR, MESSAGE, Form, Frame


@dataclass(slots=True)
class Temper:
    """How likely a consumer does what with a message; the rest of 1 is silence."""

    ack: float = 0.75
    release: float = 0.1
    extend: float = 0.05
    steal: float = 0.02
    publish: float = 0.0
    think_ns: int = 5 * MILLISECOND


class Subscriber(NsqClient):
    """Takes messages of one channel; one that came with the wrong idea of its topic's headers changes its mind."""

    def __init__(self, world: Surroundings, random: Random, topic: str, channel: str, taste: Taste) -> None:
        self.topic = topic
        self.channel = channel
        self.taste = taste
        super().__init__(world, random)

    def connected(self, link: Link) -> None:
        """Begin."""
        self.introduce(link, replace(self.taste, ordered=False, shard=None), self._subscribe)

    def _subscribe(self, link: Link) -> None:
        taste = self.taste
        link.read_as(Form(taste.extend or taste.ordered, taste.extend, taste.ordered))
        link.send(wire.sub(self.topic, self.channel, ordered=taste.ordered, shard=taste.shard))
        self.subscribed(link)

    def subscribed(self, link: Link) -> None:
        """Begin to take messages."""

    def on_frame(self, frame: Frame) -> None:
        """Hear of a frame that arrived whole."""
        super().on_frame(frame)
        if frame.kind == ERROR and b"E_SUB_EXTEND" in frame.data:
            self.taste = replace(self.taste, extend=frame.data.startswith(b"E_SUB_EXTEND_NEED"))
        elif frame.kind == ERROR and b"E_SUB_FAILED" in frame.data:
            self.taste = replace(self.taste, ordered=False)
        elif frame.kind == MESSAGE and self.link is not None:
            self.got(self.link, frame)

    def got(self, link: Link, frame: Frame) -> None:
        """Take a message."""


class Consumer(Subscriber):
    """A consumer with a temper."""

    def __init__(
        self,
        world: Surroundings,
        random: Random,
        topic: str,
        channel: str,
        taste: Taste,
        temper: Temper,
        publishes_to: str = "",
    ) -> None:
        self.temper = temper
        self.publishes_to = publishes_to
        super().__init__(world, random, topic, channel, taste)

    def subscribed(self, link: Link) -> None:
        """Begin to take messages."""
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
            raw = self.taste.extend or self.taste.ordered  # then an id is any 16 bytes, also those of the next line
            link.send(wire.junk(b"WHAT\n" if raw else b"FIN nothing\n"))
            return
        self.world.scheduler.after(int(self.random.random() * 200 * MILLISECOND), lambda: self._step(link))

    def got(self, link: Link, frame: Frame) -> None:
        """Take a message, and think."""
        self.world.seen(frame.id)
        delay_ns = int(self.random.expovariate(1 / self.temper.think_ns))
        self.world.scheduler.after(delay_ns, lambda: self._decide(link, frame.id, frame.trace))

    def _decide(self, link: Link, id_: int, trace: int | None) -> None:
        if self.link is not link:
            return
        temper, draw = self.temper, self.random.random()
        if self.random.random() < temper.steal:
            other, theirs = self.world.some_id(), None if trace is None else 0
            commands = (wire.fin(other, theirs), wire.touch(other, theirs), wire.req(other, 0, theirs))
            link.send(self.random.choice(commands))
        if draw < temper.ack:
            link.send(wire.fin(id_, trace))
            if self.publishes_to and self.world.busy and self.random.random() < temper.publish:
                link.send(publication(self.world, self.random, self.publishes_to, 0.3))
        elif draw < temper.ack + temper.release:
            link.send(wire.req(id_, self.random.choice((0, 0, 1, 30, 400)), trace))
        elif draw < temper.ack + temper.release + temper.extend:
            link.send(wire.touch(id_, trace))
            delay_ns = int(self.random.random() * 300 * MILLISECOND)
            self.world.scheduler.after(delay_ns, lambda: self._decide(link, id_, trace))


class Drain(Subscriber):
    """Acks everything at once: the consumer that comes when all has healed."""

    def subscribed(self, link: Link) -> None:
        """Begin to take messages."""
        link.send(wire.rdy(50))

    def got(self, link: Link, frame: Frame) -> None:
        """Ack."""
        link.send(wire.fin(frame.id, frame.trace))


class Sulker(Subscriber):
    """Asks for a tag and takes nothing: its rows wait for it, and nobody else's do."""
