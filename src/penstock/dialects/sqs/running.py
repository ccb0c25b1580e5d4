"""SQS and SNS at work on a node: the listener, and who is connected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self
from urllib.parse import urlsplit

from penstock.budget import sizes_of
from penstock.config import Config
from penstock.dialect import Bound, Peer, Sample
from penstock.dialects.sqs.api import Api
from penstock.dialects.sqs.config import SqsConfig
from penstock.dialects.sqs.names import Names
from penstock.dialects.sqs.sns.endpoints import Allowed
from penstock.http import Door, Listener
from penstock.http.away import join
from penstock.http.listener import tls_of
from penstock.node.node import Node
from penstock.wire.crowd import Crowd, files_left


class Sqs:
    """The dialect of one node. Without `start` it needs no loop: somebody else connects to its listener."""

    def __init__(self, node: Node, config: Config) -> None:
        sqs, limits = config.of(SqsConfig), config.limits
        sizes = sizes_of(config.memory)
        body_bytes_max = min(sqs.max_body_size, sizes["body"], sizes["input"])
        self.api = Api(node, Names.of(sqs), body_bytes_max, Allowed(sqs.sns_http))
        public = urlsplit(sqs.public_url).hostname
        door = Door(sqs.address, (*config.http.hosts, *([public] if public else [])))
        crowd = Crowd(limits.connections, limits.connections_per_address, files_left())
        self.listener = Listener("sqs.port", self.api, node.clock, node.budget, node.gate, door, crowd)
        join(node, self.listener)

    @classmethod
    async def start(cls, node: Node, config: Config, bound: Bound) -> Self:
        """Serve clients in the running loop."""
        sqs = cls(node, config)
        tls = tls_of(config)
        await sqs.listener.serve(bound.taken(), tls)
        sqs.api.sns.couriers.start()
        return sqs

    async def drain(self) -> None:
        """Let nobody new in, and nobody wait any longer."""
        self.listener.stop()
        self.api.receiver.polls.stop()
        self.api.sns.couriers.stop()

    async def close(self) -> None:
        """Hang up on everybody."""
        self.api.receiver.polls.stop()
        await self.api.sns.couriers.close()
        await self.listener.close()

    def samples(self) -> Iterator[Sample]:
        """Return how many are connected, and how many of them wait."""
        yield Sample("connections", "gauge", "Connections to SQS and SNS.", len(self.listener.connections))
        couriers = self.api.sns.couriers
        yield Sample("endpoints", "gauge", "HTTP endpoints that are subscribed to topics of SNS.", len(couriers))
        yield Sample("endpoint_requests", "gauge", "Requests to endpoints that are not answered.", couriers.waiting)
        yield Sample("endpoint_taken_total", "counter", "Requests that endpoints took.", couriers.sent)
        yield Sample("endpoint_failed_total", "counter", "Requests that endpoints did not take.", couriers.failed)
        yield Sample("polls", "gauge", "Receives that wait for messages.", len(self.api.receiver.polls.waiting))

    def peers(self) -> Iterator[Peer]:
        """Return who is connected."""
        for connection in self.listener.connections:
            yield Peer(connection.peer, "sqs.port")
