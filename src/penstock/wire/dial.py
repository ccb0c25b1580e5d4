"""The way out: connections from this process to an address.

`Dialler` is a seam. `LoopDialler` stands on an asyncio loop; the simulation has one whose connections are refused,
slow, cut or half open. Nothing here decides when to dial or for how long to wait: that is `link`'s.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Protocol

#: Told why there is no connection.
Failed = Callable[[str], None]


class Dialling(Protocol):
    """A connection that is being made."""

    def cancel(self) -> object:
        """Make it not come about; nobody hears of it any more."""


class Dialler(Protocol):
    """Makes connections."""

    def dial(self, host: str, port: int, protocol: asyncio.Protocol, failed: Failed) -> Dialling:
        """Connect; the protocol hears `connection_made`, or `failed` is told why, but not from inside this call."""


class LoopDialler:
    """Connections of the running loop. Every task is kept until it ends, and ended by `close`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        """Take what puts every connection into TLS; without it, whoever speaks does that, or nobody."""
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()

    def dial(self, host: str, port: int, protocol: asyncio.Protocol, failed: Failed) -> Dialling:
        """Connect; the protocol hears `connection_made`, or `failed` is told why, but not from inside this call."""
        return self.start(_dial(host, port, protocol, failed, self._tls))

    def start(self, work: Coroutine[None, None, None]) -> Dialling:
        """Let something else run that ends with the connections."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End whatever is under way."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


async def _dial(
    host: str, port: int, protocol: asyncio.Protocol, failed: Failed, tls: ssl.SSLContext | None = None
) -> None:
    try:
        await asyncio.get_running_loop().create_connection(lambda: protocol, host, port, ssl=tls)
    except (OSError, UnicodeError) as error:  # an error of TLS is one of the system's
        failed(str(error) or type(error).__name__)
