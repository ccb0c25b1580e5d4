"""Whether a connection is read."""

from __future__ import annotations

import asyncio

from penstock.wire.reading import Reading

TURN, FULL = 1, 2


class Paused(asyncio.Transport):
    """A transport that remembers what was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.ends = False

    def pause_reading(self) -> None:
        self.asked.append("pause")

    def resume_reading(self) -> None:
        self.asked.append("resume")

    def is_closing(self) -> bool:
        return self.ends


def test_a_connection_is_read_again_once_no_reason_stands() -> None:
    reading, transport = Reading(), Paused()
    reading.begin(transport)
    reading.stop(TURN)
    reading.stop(FULL)
    reading.start(TURN)
    assert transport.asked == ["pause"]
    reading.start(FULL)
    reading.start(FULL)
    assert (transport.asked, reading.stopped) == (["pause", "resume"], 0)


def test_a_connection_that_closes_or_is_gone_is_not_read_again() -> None:
    reading, transport = Reading(), Paused()
    reading.begin(transport)
    reading.stop(TURN)
    transport.ends = True
    reading.start(TURN)
    assert transport.asked == ["pause"]
    reading.end()
    reading.stop(TURN)
    reading.start(TURN)
    assert transport.asked == ["pause"]
