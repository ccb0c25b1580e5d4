"""Dory's inputs at work on a node: their sockets, their senders, what is counted."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Self

from penstock import http as httpkit
from penstock.config import Config
from penstock.dialect import Bound, Peer, Sample
from penstock.dialects.dory.codec import MALFORMED, Places
from penstock.dialects.dory.config import DATAGRAM, HTTP, STREAM, TCP, DoryConfig, mode_of
from penstock.dialects.dory.connection import Connection
from penstock.dialects.dory.datagrams import Datagrams
from penstock.dialects.dory.door import Door
from penstock.dialects.dory.pages import Pages
from penstock.dialects.dory.pool import BLOCK_BYTES, Pool
from penstock.http.listener import tls_of
from penstock.node.node import Node
from penstock.wire.crowd import Crowd, files_left

#: Senders that connect together wait here. Over a UNIX socket the next one waits outside, which costs it nothing.
BACKLOG = 1024
UNIX_BACKLOG = 16

#: How long a stopping node waits for what its inputs took to be stored, and how often it looks.
END_S = 2.0
END_STEP_S = 0.01

#: What is counted has Dory's own names: operators and their scripts look for them. Those of one connected input begin
#: with what it is.
STREAMS = ("UnixStream", "Tcp")
ENDS = ("CleanDisconnect", "UncleanDisconnect", "SocketError", "InvalidSizeField", "MsgBodyTooLarge", "ForwardMsg")
NAMES = (
    "MsgCreate",
    "UnixDgInputAgentForwardMsg",
    "NewUnixClient",
    "NewTcpClient",
    "InputAgentDiscardMsgMalformed",
    "InputAgentDiscardMsgUnsupportedApiKey",
    "InputAgentDiscardAnyPartitionMsgUnsupportedApiVersion",
    "InputAgentDiscardPartitionKeyMsgUnsupportedApiVersion",
    "InputAgentDiscardMsgNoMem",
    *(f"{stream}Input{end}" for stream in STREAMS for end in ENDS),
)


class Counters(dict[str, int]):
    """How often each thing happened since the start; every name is there."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(NAMES, 0))

    def samples(self) -> Iterator[Sample]:
        """Return them as figures."""
        text = "What happened at Dory's inputs, by Dory's own names."
        for name, count in self.items():
            yield Sample("input_total", "counter", text, count, {"name": name})


class Dory:
    """The dialect of one node. Without `start` it needs no loop: somebody else calls `connect` and `receive`."""

    def __init__(self, node: Node, config: Config) -> None:
        self.node = node
        self.config = config.of(DoryConfig)
        limits = config.limits
        #: All senders are of this machine: what one address may have is no bound for them.
        self.crowd = Crowd(limits.connections, limits.connections, files_left())
        self.counters = Counters()
        self.pool = Pool(self.config.max_buffer, node.budget.input)
        self.connections: set[Connection] = set()
        self.doors = {
            DATAGRAM: Door(self, DATAGRAM, "UnixDgInputAgent", "unix"),
            STREAM: Door(self, STREAM, "UnixStreamInput", "unix"),
            TCP: Door(self, TCP, "TcpInput", "127.0.0.1:0"),
        }
        self._servers: list[asyncio.Server] = []
        self._datagrams: Datagrams | None = None
        #: Its status pages, and who serves them; none where they are switched off.
        self.pages: Pages | None = None
        self._listener: httpkit.Listener | None = None

    @classmethod
    async def start(cls, node: Node, config: Config, bound: Mapping[str, Bound]) -> Self:
        """Serve senders in the running loop."""
        dory = cls(node, config)
        loop = asyncio.get_running_loop()
        chosen = dory.config
        if DATAGRAM in bound:
            sock = bound[DATAGRAM].taken()
            _set_mode(bound[DATAGRAM], chosen.unix_datagram_mode)
            overflow = partial(dory.receive, room=False)
            size = chosen.max_datagram_msg_size
            failed = partial(node.report_bug, "dory datagrams")
            memory = node.budget.input
            most = min(chosen.max_buffer, memory.bytes_max // 2)
            dory._datagrams = Datagrams(sock, size, most, memory, dory.receive, overflow, failed)
        if STREAM in bound:
            _set_mode(bound[STREAM], chosen.unix_stream_mode)
            made = partial(dory.connect, STREAM)
            sock = bound[STREAM].taken()
            dory._servers.append(await loop.create_unix_server(made, sock=sock, backlog=UNIX_BACKLOG))
        if TCP in bound:
            made = partial(dory.connect, TCP)
            dory._servers.append(await loop.create_server(made, sock=bound[TCP].taken(), backlog=BACKLOG))
        if HTTP in bound:
            await dory._show(config, bound[HTTP].taken())
        return dory

    async def _show(self, config: Config, sock: socket.socket) -> None:
        node, limits = self.node, config.limits
        self.pages = Pages(node, self.config, self.counters)
        crowd = Crowd(limits.connections, limits.connections_per_address, files_left())
        door = httpkit.Door(self.config.address, config.http.hosts)
        self._listener = httpkit.Listener(HTTP, self.pages, node.clock, node.budget, node.gate, door, crowd)
        await self._listener.serve(sock, tls_of(config))

    def connect(self, listener: str) -> Connection:
        """Make the protocol of a new connection."""
        return Connection(self, self.doors[listener])

    def receive(self, data: bytes, starts: Places, stops: Places, cut: list[bytes], *, room: bool = True) -> None:
        """Take datagrams in; those for which there was no room, and such as were too large, are counted."""
        door = self.doors[DATAGRAM]
        try:
            if cut:
                door.refuse({MALFORMED: cut})
            if len(starts):
                door.take(data, starts, stops, door, room=room)
        except Exception as failure:
            self.node.report_bug("dory datagrams", failure)

    def enter(self, connection: Connection, door: Door) -> None:
        """Count a connection in."""
        self.connections.add(connection)
        self.crowd.enter(door.listener)
        self.counters["NewTcpClient" if door.listener == TCP else "NewUnixClient"] += 1

    def leave(self, connection: Connection, door: Door) -> None:
        """Count it out, if it was in."""
        if connection in self.connections:
            self.connections.discard(connection)
            self.crowd.leave(door.listener)

    async def drain(self) -> None:
        """Take nothing more in, connections first, datagrams last, and see what was taken stored."""
        for server in reversed(self._servers):
            server.close()
        for connection in list(self.connections):
            connection.hang_up()
        if self._datagrams is not None:
            self._datagrams.end()
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + END_S
        while self.pool.is_storing and loop.time() < end_s:
            await asyncio.sleep(END_STEP_S)

    async def close(self) -> None:
        """Be gone."""
        await self.drain()
        for door in self.doors.values():
            door.close()
        if self.pages is not None:
            self.pages.close()
        if self._listener is not None:
            await self._listener.close()

    def samples(self) -> Iterator[Sample]:
        """Return its figures."""
        yield Sample("connections", "gauge", "Senders that are connected by stream or TCP.", len(self.connections))
        yield Sample("pool_bytes", "gauge", "What dory.max_buffer holds.", self.pool.used * BLOCK_BYTES)
        waiting = self._datagrams.waiting_bytes if self._datagrams is not None else 0
        yield Sample("datagrams_waiting_bytes", "gauge", "Datagrams that wait for the loop.", waiting)
        yield from self.counters.samples()

    def peers(self) -> Iterable[Peer]:
        """Return who is connected."""
        return [Peer(each.name, each.listener, "", each.connected_ns) for each in self.connections]


def _set_mode(bound: Bound, mode: str) -> None:
    wanted = mode_of(mode, bound.endpoint.key)
    if wanted is not None:
        os.chmod(bound.endpoint.address, wanted)
