"""The simulated way out: a dial is taken, refused or never answered, and a broken connection says so or does not."""

from __future__ import annotations

import asyncio
from random import Random
from typing import cast

from penstock.clock import MILLISECOND, SECOND
from tests.simulation.clock import Scheduler, SimClock
from tests.simulation.network import Weather
from tests.simulation.outgoing import Outside


class Ear(asyncio.Protocol):
    """Remembers what it heard, and may say it again."""

    def __init__(self, *, echo: bool = False) -> None:
        self.story: list[object] = []
        self.echo = echo
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.story.append("made")

    def data_received(self, data: bytes) -> None:
        self.story.append(data)
        if self.echo:
            self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.story.append("lost" if exc is None else str(exc))


class Scene:
    """Two processes and what is between them."""

    def __init__(self, cut_odds: float = 0.0) -> None:
        self.scheduler = Scheduler(Random("turns"))
        self.outside = Outside(self.scheduler, Weather(Random("network"), MILLISECOND, cut_odds))
        self.near_clock, self.far_clock = (SimClock(self.scheduler, 0, Random(name)) for name in ("near", "far"))
        self.near, self.far = Ear(), Ear(echo=True)
        self.outside.listen(1, lambda: self.far, self.far_clock)

    def dial(self, port: int = 1) -> None:
        self.outside.dial(self.near_clock, port, self.near, self.near.story.append)
        assert self.near.story == []
        self.run()

    def run(self) -> None:
        self.scheduler.run_until(self.scheduler.time_ns + SECOND)


def test_bytes_go_both_ways_in_order_and_in_pieces() -> None:
    scene = Scene(cut_odds=1.0)
    scene.dial()
    sent = bytes(range(256)) * 4
    for at in range(0, len(sent), 64):
        scene.near.transport.write(sent[at : at + 64])
    scene.run()
    for ear in (scene.near, scene.far):
        assert ear.story[0] == "made"
        assert b"".join(cast(list[bytes], ear.story[1:])) == sent
        assert len(ear.story) > 20
    scene.near.transport.write(b"last")
    scene.near.transport.close()
    scene.run()
    assert b"".join(cast(list[bytes], scene.far.story[1:-1])) == sent + b"last"
    assert scene.far.story[-1] == scene.near.story[-1] == "lost"


def test_a_dial_may_be_refused_or_never_answered() -> None:
    for mood, port, story in (("refuse", 1, ["refused"]), ("accept", 2, ["refused"]), ("silent", 1, [])):
        scene = Scene()
        scene.outside.mood = mood  # type: ignore[assignment]
        scene.dial(port)
        assert scene.near.story == story


def test_a_connection_that_is_cut_is_noticed_by_both() -> None:
    scene = Scene()
    scene.dial()
    scene.outside.wires[0].cut()
    scene.near.transport.write(b"x")
    scene.run()
    assert scene.near.story == scene.far.story == ["made", "cut"]


def test_a_connection_that_is_half_open_is_noticed_by_nobody() -> None:
    scene = Scene()
    scene.dial()
    scene.outside.wires[0].dead = True
    scene.near.transport.write(b"x")
    scene.run()
    assert scene.near.story == scene.far.story == ["made"]
    scene.near.transport.abort()
    scene.run()
    assert (scene.near.story, scene.far.story) == (["made", "lost"], ["made"])


def test_a_process_that_died_is_noticed_by_the_other() -> None:
    scene = Scene()
    scene.dial()
    scene.outside.die(scene.far_clock)
    scene.run()
    assert (scene.near.story, scene.far.story) == (["made", "cut"], ["made"])
