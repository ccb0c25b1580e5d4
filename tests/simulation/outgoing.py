"""The way out of the node, simulated: connections to others that are refused, slow, cut, or half open.

Both ends are real asyncio protocols. What one end writes arrives at the other in order, in random cuts, late, or not at
all once the connection is broken; calls at an end die with the process it belongs to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Literal, cast

from penstock.clock import MILLISECOND
from penstock.wire.dial import Failed
from tests.simulation.clock import Call, Scheduler, SimClock
from tests.simulation.network import Weather

#: What becomes of a dial: it is taken, refused, or nobody ever answers.
Mood = Literal["accept", "refuse", "silent"]


class End(asyncio.Transport):
    """One end of a connection, the transport of its protocol."""

    def __init__(self, wire: Wire, protocol: asyncio.Protocol, clock: SimClock, peer: tuple[str, int]) -> None:
        super().__init__()
        self.protocol = protocol
        self.clock = clock
        #: Its protocol heard that the connection is gone.
        self.gone = False
        self.far: End
        #: What it wrote last arrives at this time.
        self.arrives_ns = 0
        self._wire = wire
        self._peer = peer
        self._closing = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another one hear from now on."""
        self.protocol = cast(asyncio.Protocol, protocol)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send to the other end."""
        if not self._closing and not self.gone:
            self._wire.carry(self, bytes(data))

    def write_eof(self) -> None:
        """Send no more; both ends here end then."""
        self.close()

    def close(self) -> None:
        """End once everything sent has left."""
        if not self._closing:
            self._closing = True
            self._wire.end(self)

    def abort(self) -> None:
        """End at once."""
        self.close()

    def is_closing(self) -> bool:
        """Tell whether it was closed from here."""
        return self._closing

    def pause_reading(self) -> None:
        """Read nothing for now; nobody here is so slow that it mattered."""

    def resume_reading(self) -> None:
        """Read again."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return the peer's address."""
        return self._peer if name == "peername" else default


class Wire:
    """One connection."""

    def __init__(self, scheduler: Scheduler, weather: Weather) -> None:
        self._scheduler = scheduler
        self._weather = weather
        #: Nothing arrives any more, and nobody knows.
        self.dead = False
        self.near: End
        self.far: End

    def open(self, near: tuple[asyncio.Protocol, SimClock], far: tuple[asyncio.Protocol, SimClock], port: int) -> None:
        """Connect both ends; the far one sees the near one's port."""
        self.near, self.far = End(self, *near, ("127.0.0.2", 4160)), End(self, *far, ("127.0.0.1", port))
        self.near.far, self.far.far = self.far, self.near
        for end in (self.far, self.near):
            end.clock.run(partial(end.protocol.connection_made, end))

    def carry(self, end: End, data: bytes) -> None:
        """Take bytes from one end to the other."""
        for piece in self._weather.cuts(data):
            end.arrives_ns = max(end.arrives_ns, self._scheduler.time_ns + self._weather.delay_ns())
            self._scheduler.at(end.arrives_ns, partial(self._arrive, end.far, piece), end.far.clock)

    def end(self, end: End) -> None:
        """Let one end go, and the other hear of it behind everything that was sent."""
        self._scheduler.soon(partial(self._lose, end, None), end.clock)
        if not self.dead:
            at_ns = max(end.arrives_ns, self._scheduler.time_ns) + self._weather.delay_ns()
            self._scheduler.at(at_ns, partial(self._lose, end.far, None), end.far.clock)

    def cut(self) -> None:
        """Break it; each side learns of it in its own time."""
        self.dead = True
        for end in (self.near, self.far):
            at_ns = self._scheduler.time_ns + self._weather.delay_ns() + MILLISECOND
            self._scheduler.at(at_ns, partial(self._lose, end, ConnectionResetError("cut")), end.clock)

    def _arrive(self, end: End, piece: bytes) -> None:
        def arrive() -> None:
            if not self.dead and not end.gone and not end.is_closing():
                end.protocol.data_received(piece)

        end.clock.run(arrive)

    def _lose(self, end: End, error: Exception | None) -> None:
        def lose() -> None:
            if not end.gone:
                end.gone = True
                end.protocol.connection_lost(error)

        end.clock.run(lose)


class Outside:
    """What the node can dial."""

    def __init__(self, scheduler: Scheduler, weather: Weather) -> None:
        self.mood: Mood = "accept"
        self.wires: list[Wire] = []
        self._scheduler = scheduler
        self._weather = weather
        self._listening: dict[int, tuple[Callable[[], asyncio.Protocol], SimClock]] = {}
        self._ports = 50_000

    def listen(self, port: int, accept: Callable[[], asyncio.Protocol], clock: SimClock) -> None:
        """Let a process take connections."""
        self._listening[port] = accept, clock

    def die(self, clock: SimClock) -> None:
        """Let a process be gone: the other ends of its connections learn of it."""
        clock.alive = False
        self._listening = {port: found for port, found in self._listening.items() if found[1] is not clock}
        for wire in self.wires:
            if clock in (wire.near.clock, wire.far.clock) and not wire.dead:
                wire.cut()
        self._tidy()

    def dial(self, clock: SimClock, port: int, protocol: asyncio.Protocol, failed: Failed) -> Call:
        """Connect a process to who listens; whatever comes of it comes later."""
        mood, delay_ns = self.mood, self._weather.delay_ns()
        if mood == "silent":
            return Call(clock, lambda: None)
        return self._scheduler.at(
            self._scheduler.time_ns + delay_ns, partial(self._answer, clock, port, protocol, failed, mood), clock
        )

    def _answer(self, clock: SimClock, port: int, protocol: asyncio.Protocol, failed: Failed, mood: Mood) -> None:
        found = self._listening.get(port)
        if found is None or mood == "refuse":
            failed("refused")
            return
        self._ports += 1
        wire = Wire(self._scheduler, self._weather)
        self._tidy()
        self.wires.append(wire)
        wire.open((protocol, clock), (found[0](), found[1]), self._ports)

    def _tidy(self) -> None:
        self.wires = [w for w in self.wires if (w.near.clock.alive and not w.near.gone) or not w.far.gone]
