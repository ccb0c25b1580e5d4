"""NSQ at work on a node: its listeners, its voice towards lookup services, its stats on their way to StatsD."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

from penstock.config import Config, host_and_port
from penstock.dialect import Bound, Peer, Sample
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.http.api import observe, serve_http
from penstock.dialects.nsq.lookup.address import broadcast_address
from penstock.dialects.nsq.lookup.host import NodeHost
from penstock.dialects.nsq.lookup.network import LoopNetwork
from penstock.dialects.nsq.lookup.registrar import Registrar
from penstock.dialects.nsq.lookup.service import Lookup, identity_of
from penstock.dialects.nsq.stats.document import Observer
from penstock.dialects.nsq.stats.statsd import sender
from penstock.dialects.nsq.tcp.server import Server
from penstock.dialects.nsq.tcp.splice import DOOR
from penstock.http import Listener
from penstock.node.node import Node
from penstock.wire.statsd import Statsd, dialler


class Nsq:
    """The dialect of one node."""

    def __init__(self, node: Node, config: Config) -> None:
        self.server = Server(node, config.of(NsqConfig))
        self.lookup: Lookup | None = None
        self.registrar: Registrar
        #: HTTP and, with a certificate, HTTPS, by the keys of their ports.
        self.http: dict[str, Listener] = {}
        self._node = node
        self._config = config
        self._acceptor: asyncio.Server
        self._network = LoopNetwork(config.of(NsqConfig).lookupd_token)
        self._statsd: Statsd | None = None

    @classmethod
    async def start(cls, node: Node, config: Config, bound: Mapping[str, Bound]) -> Self:
        """Serve clients, answer lookups if that is configured, and announce the node."""
        nsq = cls(node, config)
        tcp_port, http_port = bound["nsq.tcp_port"].port, bound["nsq.http_port"].port
        if config.of(NsqConfig).lookup:
            nsq.lookup = await nsq._look_up(bound)
        directory = nsq.lookup.directory if nsq.lookup is not None else None
        nsq.registrar = Registrar(node, identity_of(config, tcp_port, http_port), directory, nsq._network)
        observer = observe(node, config, nsq.server)
        await nsq._serve(bound, observer)
        nsq.registrar.start(map(host_and_port, config.of(NsqConfig).lookupd_tcp_addresses))
        nsq._send_stats(observer, http_port)
        return nsq

    async def _serve(self, bound: Mapping[str, Bound], observer: Observer) -> None:
        for key in ("nsq.https_port", "nsq.http_port"):
            if key in bound:
                serving = serve_http(self._node, self._config, bound, key, observer, self.registrar.replace)
                self.http[key] = await serving
        self._node.doors[DOOR] = self.server.connect_node
        sock = bound["nsq.tcp_port"].taken()
        self._acceptor = await asyncio.get_running_loop().create_server(self.server.connect, sock=sock)

    async def _look_up(self, bound: Mapping[str, Bound]) -> Lookup:
        """Run the lookup service beside the node."""
        node = self._node

        def fault(code: str, text: str, peer: str) -> None:
            node.count_fault("nsq lookup", code, text, peer)

        return await Lookup.start(self._config, node.clock, bound, fault, node.report_bug, node.gate, NodeHost(node))

    def _send_stats(self, observer: Observer, http_port: int) -> None:
        """Send stats to StatsD, where it is configured."""
        nsq = self._config.of(NsqConfig)
        if nsq.statsd_address:
            host = f"{broadcast_address(self._config)}:{http_port}"
            dial = dialler(*host_and_port(nsq.statsd_address))
            self._statsd = sender(observer, self._node.clock, nsq, host, dial)

    async def drain(self) -> None:
        """Let nobody find the node any more, nor connect to it."""
        if self._statsd is not None:
            self._statsd.close()
        self.registrar.close()
        await self._network.close()
        self._acceptor.close()

    async def close(self) -> None:
        """Hang up on everybody."""
        self.server.close()
        if self.lookup is not None:
            await self.lookup.close()
        for listener in self.http.values():
            await listener.close()

    def samples(self) -> Iterator[Sample]:
        """Return how many are connected."""
        yield Sample("connections", "gauge", "NSQ clients that are connected.", len(self.server.connections))
        if self.lookup is not None:
            nodes = len(self.lookup.server.connections)
            yield Sample("lookup_nodes", "gauge", "Nodes connected to the lookup service here.", nodes)

    def peers(self) -> Iterable[Peer]:
        """Return the clients, and the nodes that announce themselves here."""
        for connection in self.server.connections:
            session = connection.session
            yield Peer(
                session.name,
                "nsq.tcp_port",
                session.agreed.client_id,
                session.connected_ns,
                session.receiver.topic.name if session.receiver.topic is not None else "",
                session.seat.subscription.name if session.seat is not None else "",
                session.seat.in_flight if session.seat is not None else 0,
            )
        for node in self.lookup.server.connections if self.lookup is not None else ():
            known = node.session.peer
            yield Peer(node.session.name, "nsq.lookup_tcp_port", known.broadcast_address if known is not None else "")
