"""Whether a connection is read."""

from __future__ import annotations

import asyncio
from typing import cast

from penstock.wire.reading import Reading


class Transport:
    """Remembers whether it is read."""

    def __init__(self) -> None:
        self.reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return False


def test_a_reason_from_before_the_connection_stands() -> None:
    reading, transport = Reading(), Transport()
    reading.stop(1)
    reading.begin(cast(asyncio.Transport, transport))
    assert not transport.reads
    reading.stop(2)
    reading.start(1)
    assert not transport.reads
    reading.start(2)
    assert transport.reads
