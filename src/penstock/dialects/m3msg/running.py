"""M3Msg at work on a node: its listener, its connections, what it counts."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Iterator
from typing import Self

from penstock.config import Config
from penstock.dialect import Bound, Peer, Sample
from penstock.dialects.m3msg.config import M3MsgConfig, has_tls
from penstock.dialects.m3msg.connection import LISTENER, Connection
from penstock.node.node import Node
from penstock.wire.crowd import Crowd, files_left
from penstock.wire.tls import ask_clients, server_context

#: A TLS handshake may take this long.
HANDSHAKE_S = 5.0
#: How long connections may take to end, and how often that is looked at.
END_S = 2.0
END_STEP_S = 0.01


class M3Msg:
    """The dialect of one node. Without `start` it needs no loop: somebody else calls `connect`."""

    def __init__(self, node: Node, config: Config) -> None:
        self.node = node
        self.config = config.of(M3MsgConfig)
        limits = config.limits
        self.crowd = Crowd(limits.connections, limits.connections_per_address, files_left())
        self.connections: set[Connection] = set()
        self.received = self.acked = self.refused = self.unreadable = 0
        self._acceptor: asyncio.Server | None = None

    @classmethod
    async def start(cls, node: Node, config: Config, bound: Bound) -> Self:
        """Serve producers in the running loop."""
        m3msg = cls(node, config)
        tls = tls_of(config) if has_tls(config) else None
        m3msg._acceptor = await asyncio.get_running_loop().create_server(
            m3msg.connect, sock=bound.taken(), ssl=tls, ssl_handshake_timeout=HANDSHAKE_S if tls is not None else None
        )
        return m3msg

    def connect(self) -> Connection:
        """Make the protocol of a new connection."""
        return Connection(self)

    def enter(self, connection: Connection, address: str) -> None:
        """Count a connection in."""
        self.connections.add(connection)
        self.crowd.enter(address)

    def leave(self, connection: Connection, address: str) -> None:
        """Count it out, if it was in."""
        if connection in self.connections:
            self.connections.discard(connection)
            self.crowd.leave(address)

    async def drain(self) -> None:
        """Let nobody new in, read nothing more, and ack what was read."""
        if self._acceptor is not None:
            self._acceptor.close()
        for connection in list(self.connections):
            connection.end()

    async def close(self) -> None:
        """Hang up on everybody, with the acks of what is stored."""
        for connection in list(self.connections):
            connection.hang_up()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + END_S
        while self.connections and loop.time() < end_s:
            await asyncio.sleep(END_STEP_S)

    def samples(self) -> Iterator[Sample]:
        """Return its figures."""
        yield Sample("connections", "gauge", "Producers of M3Msg that are connected.", len(self.connections))
        yield Sample("messages_received_total", "counter", "Messages that M3Msg producers sent.", self.received)
        yield Sample("messages_acked_total", "counter", "Messages that M3Msg producers got an ack for.", self.acked)
        text = "Messages of M3Msg producers that were not stored, nor acked."
        yield Sample("messages_refused_total", "counter", text, self.refused)
        yield Sample("messages_unreadable_total", "counter", "Values of M3Msg that are no metrics.", self.unreadable)

    def peers(self) -> Iterable[Peer]:
        """Return who is connected."""
        return [
            Peer(each.name, LISTENER, each.caller.name, each.connected_ns, self.config.topic)
            for each in self.connections
        ]


def tls_of(config: Config) -> ssl.SSLContext:
    """Return TLS with the node's certificate, which asks producers for theirs where somebody vouches for them."""
    context = server_context(config.tls_cert, config.tls_key, config.tls_min_version)
    authority = config.of(M3MsgConfig).tls_client_ca
    if authority:
        ask_clients(context, authority, "m3msg.tls_client_ca")
    return context
