"""A listener: one ASGI application on one socket, in the loop that runs the node.

Owns the HTTP server around an application: binding, limits on what comes before and after the application looks at a
request, and an orderly end. Knows nothing of what is served; a dialect may answer some requests in a `Connection` of
its own, below the application.
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

HEAD_TOO_LONG = f"The head of a request has at most {HEAD_BYTES_MAX} bytes."

#: An idle connection is kept this long: more than the pause between two scrapes, or two commands of a person.
KEEP_ALIVE_S = 75

#: A request's head must be there this long after its first byte; nginx gives twice as long.
HEAD_S = 30.0

#: What a client may still send of a body that was answered already, before it is hung up on. Many read no answer
#: before they have sent everything, so it is not little; and it may not take longer than a head.
LEFTOVER_BYTES_MAX = 64 * 1024 * 1024

#: Connections are looked over this often, so that none of them needs a timer of its own.
SWEEP_S = 5.0

#: How often a closing listener looks whether its connections are gone.
END_STEP_S = 0.01

BACKLOG = 1024


class Connection(HttpToolsProtocol):
    """One socket: uvicorn's protocol, with limits on what a client may send and how long it may take."""

    def __init__(self, config: Config, state: ServerState, fault: Fault) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self._fault = fault
        #: No request has begun and not ended yet, as far as its bytes go.
        self.between = True
        #: When the last bytes came, in the loop's seconds; and when the head or the leftover under way began.
        self.heard_s = self.loop.time()
        self._began_s = 0.0
        self._in_head = False
        #: Bytes of the read at hand, requests that began in it, and what earlier reads brought of the head under way.
        self._read_bytes = 0
        self._begun = 0
        self._head_bytes = 0
        self._head_too_long = False
        self._leftover_bytes = 0

    @property
    def peer(self) -> str:
        """Who sends."""
        return f"{self.client[0]}:{self.client[1]}" if self.client else ""

    @property
    def busy(self) -> bool:
        """Whether a request waits for its answer."""
        # uvicorn begins with no cycle, whatever its annotation says.
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]

    def overdue(self, now_s: float) -> bool:
        """Tell whether the client has been silent for too long, or took too long to say what it wants."""
        if self._in_head or (not self.between and not self.busy):
            return now_s - self._began_s > HEAD_S
        return not self.busy and now_s - self.heard_s > KEEP_ALIVE_S

    def data_received(self, data: bytes) -> None:
        """Take what a client sent."""
        self.heard_s = self.loop.time()
        self._read_bytes, self._begun = len(data), 0
        was_between = self.between
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head:
            # Of a head that began behind other requests, this read may have brought little.
            if self._begun == 0 or (was_between and self._begun == 1):
                self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.send_400_response(HEAD_TOO_LONG)
        elif not self.between and not self.busy:
            if not self._leftover_bytes:
                self._began_s = self.heard_s
            self._leftover_bytes += len(data)
            if self._leftover_bytes > LEFTOVER_BYTES_MAX:
                self._fault("The body went on after it was refused.", self.peer)
                self.transport.close()

    def on_message_begin(self) -> None:
        """Count the bytes of its head."""
        self.between = False
        self._begun += 1
        self._in_head, self._head_bytes, self._began_s = True, 0, self.heard_s
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Hand it to the application."""
        self._in_head, self._leftover_bytes = False, 0
        if self._head_bytes + self._read_bytes > HEAD_BYTES_MAX:  # it may be too long: count
            # With the colon, the blank and the line's end, which the parser keeps to itself.
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > HEAD_BYTES_MAX:
                self._head_too_long = True
                raise ValueError(HEAD_TOO_LONG)  # the parser stops, and uvicorn calls it a bad request
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Be ready for the next one."""
        self.between = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Hang up on what is no HTTP, and report it."""
        if self._head_too_long:
            msg = HEAD_TOO_LONG
        self._fault(msg, self.peer)
        self._in_head = False
        super().send_400_response(msg)


#: Makes the protocol of a new connection.
Connect: TypeAlias = Callable[[Config, ServerState, Fault], Connection]


class Listener:
    """A running HTTP listener."""

    def __init__(self, server: asyncio.Server, state: ServerState, port: int) -> None:
        #: The port that was bound, also where any free one was asked for.
        self.port = port
        self._server = server
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    @property
    def connections(self) -> list[Connection]:
        """Those that are open."""
        return [each for each in self._state.connections if isinstance(each, Connection)]

    async def close(self, grace_s: float = 2.0) -> None:
        """Take no more requests, let running ones end for a while, then cut them off."""
        self._sweeper.cancel()
        self._server.close()
        for connection in self.connections:
            connection.shutdown()
        await self._ended(grace_s)
        for connection in self.connections:
            connection.transport.abort()
        # A request learns that its client is gone and ends by itself; what does not is made to.
        await self._ended(grace_s)
        for task in list(self._state.tasks):
            task.cancel()
        await self._ended(grace_s)

    async def _ended(self, grace_s: float) -> None:
        """Wait until nothing is left, or for so long."""
        end_s = self._loop.time() + grace_s
        while (self._state.tasks or self._state.connections) and self._loop.time() < end_s:
            await asyncio.sleep(END_STEP_S)

    def _sweep(self) -> None:
        """Hang up on clients that keep a connection and do nothing with it."""
        now_s = self._loop.time()
        for connection in self.connections:
            if connection.overdue(now_s):
                connection.transport.close()
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)


async def listen(
    app: App,
    bound: socket.socket,
    fault: Fault,
    tls: tuple[str, str] | None = None,
    connect: Connect = Connection,
) -> Listener:
    """Serve an application on a bound socket; `tls` is (certificate file, key file)."""
    config = Config(
        app,
        http=Connection,
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
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(
            lambda: connect(config, state, fault), sock=bound, ssl=config.ssl, backlog=BACKLOG
        )
    except BaseException:
        bound.close()
        raise
    return Listener(server, state, bound.getsockname()[1])
