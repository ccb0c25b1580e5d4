"""Dynamiq at work on a node: its listener, its queues, and what it tells StatsD."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from penstock.config import Config, host_and_port
from penstock.dialect import Bound, Peer, Sample
from penstock.dialects.dynamiq.config import DynamiqConfig
from penstock.dialects.dynamiq.http import Http
from penstock.dialects.dynamiq.queues import Queues
from penstock.dialects.dynamiq.stats import Stats
from penstock.http import Door, Listener
from penstock.http.away import join
from penstock.http.listener import tls_of
from penstock.node.node import Node
from penstock.wire.crowd import Crowd, files_left
from penstock.wire.statsd import Statsd, dialler

#: What every network carries whole.
PACKET_BYTES_MAX = 508


class Dynamiq:
    """The dialect of one node. Without `start` it needs no loop: somebody else connects to its listener."""

    def __init__(self, node: Node, config: Config) -> None:
        dynamiq, limits = config.of(DynamiqConfig), config.limits
        self.queues = Queues(node, dynamiq.sync_interval_ns)
        self._statsd: Statsd | None = None
        stats = Stats(dynamiq.statsd_prefix) if dynamiq.statsd_address else None
        if stats is not None:
            dial = dialler(*host_and_port(dynamiq.statsd_address))
            interval_ns = dynamiq.statsd_interval_ns
            self._statsd = Statsd(
                stats.lines, node.clock, dial, interval_ns=interval_ns, packet_bytes_max=PACKET_BYTES_MAX
            )
        app = Http(node, config, self.queues, stats)
        crowd = Crowd(limits.connections, limits.connections_per_address, files_left())
        door = Door(dynamiq.address, config.http.hosts)
        self.listener = Listener("dynamiq.port", app, node.clock, node.budget, node.gate, door, crowd)
        join(node, self.listener)

    @classmethod
    async def start(cls, node: Node, config: Config, bound: Bound) -> Self:
        """Serve clients in the running loop."""
        dynamiq = cls(node, config)
        tls = tls_of(config)
        await dynamiq.listener.serve(bound.taken(), tls)
        return dynamiq

    async def drain(self) -> None:
        """Let nobody new in; who has messages may still delete them."""
        if self._statsd is not None:
            self._statsd.close()
        self.queues.close()

    async def close(self) -> None:
        """Hang up on everybody."""
        await self.listener.close()

    def samples(self) -> Iterable[Sample]:
        """Return how many are connected, and how many queues there are."""
        yield Sample("connections", "gauge", "Connections to the queue service.", len(self.listener.connections))
        yield Sample("requests_total", "counter", "Requests to the queue service.", self.listener.requests)
        yield Sample("queues", "gauge", "Queues with partitions.", len(self.queues))

    def peers(self) -> Iterable[Peer]:
        """Return who is connected."""
        return [Peer(connection.peer, "dynamiq.port") for connection in self.listener.connections]
