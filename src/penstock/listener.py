"""A listener: one ASGI application on one socket, in the loop that runs the node.

Owns the HTTP server around an application: binding, limits on what comes before the application sees anything, and
an orderly end. Knows nothing of what is served.
Invariant: after `close` no connection and no request of it is left.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Told (what was wrong, who sent it) when bytes arrive that are no HTTP request.
Fault: TypeAlias = Callable[[str, str], None]

#: Request line and headers together; nginx and Go stop at about as much.
HEAD_BYTES_MAX = 64 * 1024

#: An idle connection is kept this long: more than the pause between two scrapes, or two commands of a person.
KEEP_ALIVE_S = 75

BACKLOG = 1024


class Listener:
    """A running HTTP listener."""

    def __init__(self, server: asyncio.Server, state: ServerState, port: int) -> None:
        #: The port that was bound, also where any free one was asked for.
        self.port = port
        self._server = server
        self._state = state

    async def close(self, grace_s: float = 2.0) -> None:
        """Take no more requests, let running ones end for a while, then cut them off."""
        self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        await self._ended(grace_s)
        for connection in list(self._state.connections):
            connection.transport.abort()
        # A request learns that its client is gone and ends by itself; what does not is made to.
        await self._ended(grace_s)
        for task in list(self._state.tasks):
            task.cancel()
        await self._ended(grace_s)

    async def _ended(self, grace_s: float) -> None:
        if self._state.tasks:
            await asyncio.wait(set(self._state.tasks), timeout=grace_s)


async def listen(app: App, address: str, port: int, fault: Fault, tls: tuple[str, str] | None = None) -> Listener:
    """Serve an application; OSError if the address cannot be bound. `tls` is (certificate file, key file)."""
    config = Config(
        app,
        http=_protocol(fault),
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        log_level="error",
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        ssl_certfile=tls[0] if tls else None,
        ssl_keyfile=tls[1] if tls else None,
    )
    config.load()
    state = ServerState()
    bound = _bind(address, port)
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(
            lambda: config.http_protocol_class(config=config, server_state=state, app_state={}),  # type: ignore[call-arg]
            sock=bound,
            ssl=config.ssl,
            backlog=BACKLOG,
        )
    except BaseException:
        bound.close()
        raise
    return Listener(server, state, bound.getsockname()[1])


def _bind(address: str, port: int) -> socket.socket:
    family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound


def _protocol(fault: Fault) -> type[HttpToolsProtocol]:
    """Return uvicorn's protocol with a bound on the head of a request, and garbage reported to the node."""

    class Protocol(HttpToolsProtocol):
        _in_head = False
        _head_bytes = 0

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                    self.send_400_response(f"The head of a request has at most {HEAD_BYTES_MAX} bytes.")

        def on_message_begin(self) -> None:
            self._in_head, self._head_bytes = True, 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._in_head = False
            super().on_headers_complete()

        def send_400_response(self, msg: str) -> None:
            client = self.client
            fault(msg, f"{client[0]}:{client[1]}" if client else "")
            self._in_head = False
            super().send_400_response(msg)

    return Protocol
