"""One simulated TCP connection between a client of the world and the node's real protocol class.

Streams arrive in order within a connection and in any order between connections, in random cuts, late, or not at
all once the connection is cut. A `Tap` sits at the node's end of it: what it hears is exactly what the node was
given and what it wrote, at the moment it did, so the checker need not guess about the network.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from random import Random
from typing import Protocol

from penstock.clock import MILLISECOND
from penstock.wire.layers import Deflate, Layer, Snappy
from tests.simulation.clock import Scheduler, SimClock
from tests.simulation.disk import Died
from tests.simulation.wire import Command, Form, Frame

#: What a client may put between the connection and its commands.
LAYERS: dict[str, Callable[[], Layer]] = {"snappy": Snappy, "deflate": Deflate}

#: What one read brings at most, as in uvloop.
READ_BYTES_MAX = 256_000


class Reader(Protocol):
    """Makes frames of what the node writes."""

    #: In which form message frames come.
    form: Form

    def feed(self, data: bytes) -> list[tuple[Frame, int]]:
        """Return the frames that are whole now, each with how many of the new bytes it needed."""


class Client(Protocol):
    """The far end."""

    def on_frame(self, frame: Frame) -> None:
        """Hear of a frame that arrived whole."""

    def on_lost(self) -> None:
        """Hear that the connection is gone."""


class Tap(Protocol):
    """The node's end, overheard."""

    def received(self, link: Link, commands: list[Command]) -> None:
        """The node is about to handle a read that completes these commands."""

    def handled(self, link: Link) -> None:
        """The node has handled the read."""

    def sent(self, link: Link, frame: Frame) -> None:
        """The node wrote a frame."""

    def hung_up(self, link: Link) -> None:
        """The node will write no more and listen no more."""

    def lost(self, link: Link) -> None:
        """The node is about to learn that the connection is gone."""


class Weather:
    """How the network of one run behaves."""

    def __init__(self, random: Random, latency_ns: int, cut_odds: float) -> None:
        self.random = random
        self.latency_ns = latency_ns
        self.cut_odds = cut_odds

    def delay_ns(self) -> int:
        """Return how long one packet takes."""
        draw = self.random.random()
        return int(self.latency_ns * (draw if draw < 0.97 else 30 * draw))

    def cuts(self, data: bytes) -> list[bytes]:
        """Return a stream's bytes as packets."""
        draw = self.random.random()
        if len(data) < 2 or draw > self.cut_odds:
            return [data]
        places = sorted({self.random.randrange(1, len(data)) for _ in range(1 + int(draw * 10) % 3)})
        edges = [0, *places, len(data)]
        return [data[a:b] for a, b in pairwise(edges)]


class Link(asyncio.Transport):
    """A connection, seen from the node as its transport."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: SimClock,
        weather: Weather,
        tap: Tap,
        client: Client,
        number: int,
        reader: Reader,
        *,
        headers: bool,
    ) -> None:
        super().__init__()
        self.number = number
        #: Whether its client and a topic must agree on headers.
        self.headers = headers
        self.client = client
        #: The node called `write_eof`, `close` or `abort`.
        self.closing = False
        self.node_gone = False
        self.client_gone = False
        self._scheduler = scheduler
        self._clock = clock
        self._weather = weather
        self._tap = tap
        self._protocol: asyncio.Protocol
        # Client to node.
        self._up_at_ns = 0
        self._up_sent = 0
        self._up_fed = 0
        self._up_dead = False
        self._commands: deque[tuple[int, Command]] = deque()
        self._inbox = bytearray()
        self._reading = True
        # Node to client.
        self._down_at_ns = 0
        self._down_sent = 0
        self._down_heard = 0
        self._down_dead = False
        self._frames: deque[tuple[int, Frame]] = deque()
        self._reader = reader
        # Compression: what the client asked for, and its half once the node has granted it and once it heard so.
        self._asked = ""
        self._layer: Layer | None = None
        self._up_layer: Layer | None = None
        #: Listens to what the client sends through it: a command may be whole before its last compressed byte is there.
        self._ear: Layer | None = None
        self._buffered = 0
        self._high = 64 * 1024
        self._low = 16 * 1024
        self._full = False
        self._stalled_until_ns = 0
        self._held = 0

    def open(self, protocol: asyncio.Protocol) -> None:
        """Connect the node's end."""
        self._protocol = protocol
        protocol.connection_made(self)

    # --- the client's end -----------------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        """Send a command to the node."""
        if self.client_gone:
            return
        data = command.data if self._up_layer is None else self._up_layer.send(command.data)
        self._up_sent += len(command.data)
        self._commands.append((self._up_sent, command))
        for piece in self._weather.cuts(data):
            self._up_at_ns = max(self._up_at_ns, self._scheduler.time_ns + self._weather.delay_ns())
            self._scheduler.at(self._up_at_ns, partial(self._arrive, piece), self._clock)

    def read_as(self, form: Form) -> None:
        """Say in which form message frames come from now on."""
        self._reader.form = form

    def ask_for(self, layer: str) -> None:
        """Say that the client is about to ask for a layer; nothing may be sent until it was granted."""
        self._asked = layer

    def put_layer(self) -> None:
        """Send through the layer from now on."""
        self._up_layer = self._layer

    def close(self) -> None:
        """Hang up: the client's end, or (called by the node) the node's."""
        self.write_eof()
        self._at_node(self._scheduler.time_ns, partial(self._lose_node, None))

    def leave(self) -> None:
        """Let the client hang up; what it sent still arrives."""
        self.client_gone = True
        self._at_node(self._up_at_ns + self._weather.delay_ns(), partial(self._lose_node, None))

    def cut(self) -> None:
        """Break the connection; what was under way arrives or does not, each side learns of it in its own time."""
        random = self._weather.random
        self._up_dead = self._up_dead or random.random() < 0.5
        self._down_dead = self._down_dead or random.random() < 0.5
        self._at_node(
            max(self._up_at_ns, self._scheduler.time_ns) + self._weather.delay_ns(),
            partial(self._lose_node, ConnectionResetError()),
        )
        self._lose_client_later()

    def vanish(self) -> None:
        """Let the client be gone without the node hearing of it."""
        self.client_gone = True
        self._down_dead = True

    def stall(self, duration_ns: int) -> None:
        """Let the client not read for a while."""
        self._stalled_until_ns = self._scheduler.time_ns + duration_ns
        self._scheduler.at(self._stalled_until_ns, self._read_held)

    def crash(self) -> None:
        """Let the node be gone: nothing more happens at its end."""
        self.node_gone = True
        self._down_dead = self._down_dead or self._weather.random.random() < 0.5
        self._lose_client_later()

    # --- client to node -------------------------------------------------------------------------------------------

    def _arrive(self, piece: bytes) -> None:
        if not self._up_dead and not self.node_gone:
            self._inbox += piece
            self._feed()

    def _feed(self) -> None:
        if self._inbox and self._reading and not self.node_gone:
            count = min(READ_BYTES_MAX, len(self._inbox))
            data = bytes(self._inbox[:count])
            del self._inbox[:count]
            self._up_fed += count if self._ear is None else len(self._ear.receive(data))
            commands = []
            while self._commands and self._commands[0][0] <= self._up_fed:
                commands.append(self._commands.popleft()[1])
            self._tap.received(self, commands)
            self._protocol.data_received(data)
            if not self._clock.alive:  # a parser may have caught the word of it
                raise Died
            self._tap.handled(self)
            if self._inbox:
                self._scheduler.soon(self._feed, self._clock)

    def pause_reading(self) -> None:
        """Give the node no more for now."""
        self._reading = False

    def resume_reading(self) -> None:
        """Go on giving."""
        self._reading = True
        self._scheduler.soon(self._feed, self._clock)

    def is_reading(self) -> bool:
        """Tell whether the node reads."""
        return self._reading

    # --- node to client -------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send to the client."""
        if self.node_gone or self.closing or not self._clock.alive:
            return
        content = bytes(data)
        layer = self._layer
        for frame, end in self._reader.feed(content if layer is None else layer.receive(content)):
            self._tap.sent(self, frame)
            self._frames.append((self._down_sent + (end if layer is None else len(content)), frame))
            if self._asked and frame.data.startswith(b"{"):
                make, self._asked = LAYERS[self._asked], ""
                self._layer, self._ear = make(), make()
        self._down_sent += len(content)
        self._buffered += len(content)
        for piece in self._weather.cuts(content):
            self._down_at_ns = max(self._down_at_ns, self._scheduler.time_ns + self._weather.delay_ns())
            self._scheduler.at(self._down_at_ns, partial(self._hear, len(piece)))
        if self._buffered > self._high and not self._full:
            self._full = True
            self._protocol.pause_writing()

    def _hear(self, count: int) -> None:
        if self._down_dead or self.client_gone:
            return
        if self._scheduler.time_ns < self._stalled_until_ns:
            self._held += count
            return
        self._buffered -= count
        self._down_heard += count
        while self._frames and self._frames[0][0] <= self._down_heard and not self.client_gone:
            self.client.on_frame(self._frames.popleft()[1])
        if self._full and self._buffered <= self._low and not self.node_gone:
            self._scheduler.soon(self._drained, self._clock)

    def _read_held(self) -> None:
        if self._scheduler.time_ns >= self._stalled_until_ns:
            held, self._held = self._held, 0
            self._hear(held)

    def _drained(self) -> None:
        if self._full and self._buffered <= self._low and not self.node_gone:
            self._full = False
            self._protocol.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Say when the node is told to stop and to go on writing."""
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Return how much the client has not read yet."""
        return self._buffered

    # --- the end --------------------------------------------------------------------------------------------------

    def write_eof(self) -> None:
        """Send no more; the client sees the end after everything before it, and hangs up as well."""
        if self.closing:
            return
        self.closing = True
        self._tap.hung_up(self)
        self._scheduler.at(max(self._down_at_ns, self._scheduler.time_ns) + self._weather.delay_ns(), self._end)

    def _end(self) -> None:
        if self.client_gone or self._down_dead:
            return
        self._lose_client()
        self._at_node(
            max(self._up_at_ns, self._scheduler.time_ns) + self._weather.delay_ns(), partial(self._lose_node, None)
        )

    def abort(self) -> None:
        """Drop the connection at once."""
        if not self.closing:
            self.closing = True
            self._tap.hung_up(self)
        self._down_dead = True
        self._at_node(self._scheduler.time_ns, partial(self._lose_node, None))
        self._lose_client_later()

    def is_closing(self) -> bool:
        """Tell whether the node has closed it."""
        return self.closing or self.node_gone

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return the peer's address."""
        return ("127.0.0.1", self.number) if name == "peername" else default

    def _lose_node(self, error: Exception | None) -> None:
        if not self.node_gone:
            self._tap.lost(self)
            self.node_gone = True
            self._protocol.connection_lost(error)
            self._tap.handled(self)

    def _lose_client_later(self) -> None:
        at_ns = self._scheduler.time_ns if self._down_dead else max(self._down_at_ns, self._scheduler.time_ns)
        self._scheduler.at(at_ns + self._weather.delay_ns() + MILLISECOND, self._lose_client)

    def _lose_client(self) -> None:
        if not self.client_gone:
            self.client_gone = True
            self.client.on_lost()

    def _at_node(self, time_ns: int, call: Callable[[], None]) -> None:
        self._scheduler.at(time_ns, call, self._clock)
