"""NSQ clients: what all of them do, and producers that wait or pipeline, with headers or without.

They know only what arrives at their end of the network. Whether the node did right is not theirs to judge.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from penstock.clock import MILLISECOND
from tests.simulation import wire
from tests.simulation.clock import Scheduler
from tests.simulation.extras import NOTHING, some_extras
from tests.simulation.network import LAYERS, Link
from tests.simulation.taste import Taste
from tests.simulation.wire import ERROR, RESPONSE, Command, Frame


class Surroundings(Protocol):
    """What a client needs of the world."""

    scheduler: Scheduler
    #: Nobody publishes or subscribes anew once this is False.
    busy: bool

    def connect(self, client: DialectClient) -> Link | None:
        """Open a connection; None while the node is down."""

    def body(self) -> bytes:
        """Make a body that never was before."""

    def some_id(self) -> int:
        """Return the id of any message somebody has seen."""

    def seen(self, id_: int) -> None:
        """Remember an id."""


class DialectClient:
    """A client of some dialect that comes back when its connection is lost."""

    #: The dialect it speaks.
    speech = ""

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
        self.greet(self.link)
        self.connected(self.link)

    def greet(self, link: Link) -> None:
        """Say what the dialect wants to hear first."""

    def connected(self, link: Link) -> None:
        """Begin."""

    def on_frame(self, frame: Frame) -> None:
        """Hear of a frame that arrived whole."""

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


class NsqClient(DialectClient):
    """A client that speaks NSQ."""

    speech = "nsq"

    #: What to do once the layer that was asked for is there.
    _then: Callable[[Link], None] | None = None

    def greet(self, link: Link) -> None:
        """Say which protocol it speaks."""
        link.send(Command("magic", wire.MAGIC))
        self._then = None

    def introduce(self, link: Link, taste: Taste, then: Callable[[Link], None]) -> None:
        """Say who is there, perhaps ask for compression, and go on."""
        draw = self.random.random()
        said: dict[str, object] = {"client_id": "sim"}
        if draw < 0.25:
            layer = self.random.choice(list(LAYERS))
            link.ask_for(layer)
            self._then = then
            link.send(wire.identify({**said, "feature_negotiation": True, layer: True}, taste))
            return
        if draw < 0.5:
            said["msg_timeout"] = 1000
        elif draw < 0.8:
            said["feature_negotiation"] = draw < 0.65
        if len(said) > 1 or taste != Taste():
            link.send(wire.identify(said, taste))
        then(link)

    def on_frame(self, frame: Frame) -> None:
        """Hear of a frame that arrived whole."""
        link = self.link
        if link is None:
            return
        if self._then is not None:
            self._on_upgrade(link, frame)
        elif frame.data == b"_heartbeat_":
            link.send(wire.plain("NOP"))

    def _on_upgrade(self, link: Link, frame: Frame) -> None:
        """Put the layer in, and say nothing, not even NOP, before it is there: it would be read through the layer."""
        if frame.kind == RESPONSE and frame.data.startswith(b"{"):
            link.put_layer()
        elif frame.data == b"OK" and self._then is not None:
            then, self._then = self._then, None
            then(link)


def publication(world: Surroundings, random: Random, topic: str, headed: float) -> Command:
    """Return one publish of any kind; `headed` is how likely it has headers."""
    draw = random.random()
    if random.random() < headed:
        wall_ns = world.scheduler.wall_ns()
        if draw < 0.2:
            count = random.choice((1, 2, 3, 18))
            extras = [some_extras(random, wall_ns) if random.random() < 0.8 else NOTHING for _ in range(count)]
            return wire.mpub_ext(topic, [world.body() for _ in range(count)], extras)
        return wire.pub_ext(topic, world.body(), some_extras(random, wall_ns))
    if draw < 0.15:
        return wire.mpub(topic, [world.body() for _ in range(random.choice((1, 2, 3, 18)))])
    if draw < 0.25:
        return wire.dpub(topic, world.body(), random.choice((0, 1, 20, 200, 900)))
    return wire.pub(topic, world.body())


class Producer(NsqClient):
    """Publishes to one topic, or to two in turns."""

    def __init__(
        self, world: Surroundings, random: Random, topics: list[str], window: int, gap_ns: int, headed: float
    ) -> None:
        self.topics = topics
        self.window = window
        self.gap_ns = gap_ns
        self.headed = headed
        self.waiting = 0
        super().__init__(world, random)

    def connected(self, link: Link) -> None:
        """Begin."""
        self.waiting = 0
        if self.random.random() < 0.5:
            self.introduce(link, Taste(), self._step)
        else:
            self._step(link)

    def _step(self, link: Link) -> None:
        if self.link is not link or not self.world.busy:
            return
        for _ in range(self.random.choice((1, 1, 1, 2, 5))):
            if self.waiting >= self.window:
                break
            self.waiting += 1
            link.send(publication(self.world, self.random, self.random.choice(self.topics), self.headed))
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

    def on_frame(self, frame: Frame) -> None:
        """Hear of a frame that arrived whole."""
        answers = self._then is None and frame.kind == RESPONSE and frame.data.startswith(b"OK")
        super().on_frame(frame)
        if answers or (frame.kind == ERROR and any(word in frame.data for word in (b"PUB_FAILED", b"PUB_EXT"))):
            self.waiting = max(0, self.waiting - 1)
