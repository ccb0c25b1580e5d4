"""One connection to a simulated broker: as Kafka does it, a question is looked at when the one before is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import unpack_from
from typing import cast

#: Instead of an answer: the connection ends, or nothing ever comes.
CUT, NEVER = "cut", "never"

Reply = Callable[[bytes | str], None]


class Session(asyncio.Protocol):
    """The broker's end."""

    def __init__(self, asked: Callable[[bytes, Reply], None]) -> None:
        self._asked = asked
        self._data = b""
        self._is_busy = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        self._go_on()

    def _go_on(self) -> None:
        while len(self._data) >= 4 and not self._is_busy:
            (size,) = unpack_from(">i", self._data)
            if len(self._data) < 4 + size:
                return
            question, self._data = self._data[4 : 4 + size], self._data[4 + size :]
            self._is_busy = True
            self._asked(question, self._reply)

    def _reply(self, answer: bytes | str) -> None:
        if answer == CUT:
            self._transport.close()
        elif isinstance(answer, bytes):
            self._is_busy = False
            self._transport.write(answer)
            self._go_on()
