"""The lookup service at work: a directory with its two listeners.

Runs beside a node or alone; it differs only in who hears of faults and whether there is a node to ask.
Invariant: after `close` no connection of it is left.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Self

import msgspec

from penstock.budget import Budget
from penstock.callers import Gate
from penstock.clock import Clock
from penstock.config import Config, MemoryConfig
from penstock.dialect import Bound
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.lookup.address import broadcast_address, crowd, door
from penstock.dialects.nsq.lookup.codec import Identity
from penstock.dialects.nsq.lookup.directory import Directory
from penstock.dialects.nsq.lookup.http import Host, Http
from penstock.dialects.nsq.lookup.server import Bug, Server
from penstock.dialects.nsq.lookup.session import Fault
from penstock.dialects.nsq.tcp.identify import VERSION
from penstock.http import Listener

#: Little is held here for anybody, and nothing is stored.
MEMORY = MemoryConfig(budget_bytes=64 << 20)


class Lookup:
    """A lookup service."""

    def __init__(
        self, config: Config, clock: Clock, fault: Fault, report_bug: Bug, gate: Gate, host: Host | None = None
    ) -> None:
        nsq = config.of(NsqConfig)
        self._config = config
        self.directory = Directory(
            nsq.tombstone_lifetime_ns,
            nsq.inactive_producer_timeout_ns,
            nsq.lookup_names_max,
            nsq.lookup_registrations_max,
        )
        self.tcp_port = 0
        self.http_port = 0
        budget = Budget(MEMORY, config.limits, clock)
        self.server = Server(self.directory, clock, self.identity, fault, report_bug, budget.body, gate, crowd(config))
        self.app = Http(self.directory, clock, self.identity, host, fault, report_bug)
        self._acceptor: asyncio.Server | None = None
        #: Nothing of a body is used here, so little of it is held.
        self.listener = Listener("nsq.lookup_http_port", self.app, clock, budget, gate, door(config), crowd(config))

    def identity(self) -> Identity:
        """Return what the service says of itself."""
        return msgspec.structs.replace(identity_of(self._config, self.tcp_port, self.http_port), takes_meta=True)

    @classmethod
    async def start(
        cls,
        config: Config,
        clock: Clock,
        bound: Mapping[str, Bound],
        fault: Fault,
        report_bug: Bug,
        gate: Gate,
        host: Host | None = None,
    ) -> Self:
        """Take nodes and HTTP requests on bound sockets."""
        lookup = cls(config, clock, fault, report_bug, gate, host)
        tcp, http = bound["nsq.lookup_tcp_port"], bound["nsq.lookup_http_port"]
        lookup.tcp_port, lookup.http_port = tcp.port, http.port
        lookup._acceptor = await asyncio.get_running_loop().create_server(lookup.server.connect, sock=tcp.taken())
        await lookup.listener.serve(http.taken())
        return lookup

    async def close(self) -> None:
        """Hang up on everybody."""
        if self._acceptor is not None:
            self._acceptor.close()
        self.server.close()
        await self.listener.close()


def identity_of(config: Config, tcp_port: int, http_port: int) -> Identity:
    """Return what a node or service with this configuration says of itself."""
    address = broadcast_address(config)
    return Identity(
        version=VERSION,
        tcp_port=tcp_port,
        http_port=http_port,
        hostname=socket.gethostname(),
        broadcast_address=address,
        # Upstream's programs do not look at it; ours and Youzan's take it for the word that partitions are known.
        distributed_id=f"{address}:{tcp_port}",
    )
