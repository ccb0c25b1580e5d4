"""A listener: one application, its connections, and an orderly end.

Invariant: after `close` no connection and no request of it is left.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING

from penstock.budget import Budget
from penstock.callers import Gate
from penstock.clock import SECOND, Clock, Timer
from penstock.config import Config
from penstock.http.connection import Connection
from penstock.http.door import Door
from penstock.wire.crowd import Crowd
from penstock.wire.tls import ask_clients, server_context

if TYPE_CHECKING:
    from penstock.http.app import App
    from penstock.http.away import Away

#: Connections are looked over this often, so that none of them needs a timer of its own.
SWEEP_NS = 5 * SECOND

#: How often a closing listener looks whether its connections are gone.
END_STEP_S = 0.01


class Listener:
    """Everybody who is connected to one place. Without `serve` it needs no loop: somebody else calls `connect`."""

    def __init__(
        self,
        key: str,
        app: App,
        clock: Clock,
        budget: Budget,
        gate: Gate,
        door: Door | None = None,
        crowd: Crowd | None = None,
        *,
        asks_token: bool = False,
    ) -> None:
        """Take who judges callers; with `asks_token` the node's token, where it has one, must be shown here."""
        #: The name of the endpoint.
        self.key = key
        self.app = app
        self.clock = clock
        #: Bodies that are not all there are held in it, and answers that are not read.
        self.budget = budget
        self.gate = gate
        self.asks_token = asks_token
        #: Without one, only this machine is known by name.
        self.door = door or Door()
        self.crowd = crowd or Crowd()
        self.connections: set[Connection] = set()
        #: Where requests about topics of other nodes go; None where there is no cluster.
        self.away: Away | None = None
        #: Requests that took the parser's way.
        self.requests = 0
        self._server: asyncio.Server | None = None
        self._sweeper: Timer = clock.call_at(clock.monotonic() + SWEEP_NS, self._sweep)

    def connect(self) -> Connection:
        """Make the protocol of a new connection."""
        return Connection(self)

    def connect_node(self, node: str) -> Connection:
        """Make the protocol of a connection over which another node brings requests."""
        return Connection(self, node)

    async def serve(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Take connections on a bound socket."""
        self._server = await asyncio.get_running_loop().create_server(self.connect, sock=bound, ssl=tls)

    async def close(self, grace_s: float = 2.0) -> None:
        """Take no more requests, let running ones end for a while, then cut them off."""
        self.stop()
        await self._ended(grace_s)
        for connection in list(self.connections):
            connection.transport.abort()
        await self._ended(grace_s)

    def stop(self) -> None:
        """Take no more connections, and end each as soon as it is answered."""
        self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.shut_down()

    async def _ended(self, grace_s: float) -> None:
        """Wait until nothing is left, or for so long."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + grace_s
        while self.connections and loop.time() < end_s:
            await asyncio.sleep(END_STEP_S)

    def _sweep(self) -> None:
        """Hang up on clients that keep a connection and do nothing with it."""
        now_ns = self.clock.monotonic()
        for connection in list(self.connections):
            connection.sweep(now_ns)
        self._sweeper.cancel()
        self._sweeper = self.clock.call_at(now_ns + SWEEP_NS, self._sweep)


def tls_of(config: Config) -> ssl.SSLContext | None:
    """Return TLS with the node's certificate, None where it has none; clients may show theirs if somebody vouches."""
    if not config.tls_cert:
        return None
    context = server_context(config.tls_cert, config.tls_key, config.tls_min_version)
    if config.tls_client_ca:
        ask_clients(context, config.tls_client_ca, "tls_client_ca", required=False)
    return context
