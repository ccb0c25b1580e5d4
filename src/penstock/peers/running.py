"""The way between nodes at work: the listener for the others, and the way to them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Self

from penstock.cluster.places import name_of
from penstock.config import Config, secret_in
from penstock.dialect import Bound, Peer, Sample
from penstock.errors import ConfigError
from penstock.node.node import Node
from penstock.peers.peers import Peers
from penstock.peers.publish import DOOR, door
from penstock.peers.reception import Reception
from penstock.wire.crowd import Crowd, files_left
from penstock.wire.dial import LoopDialler
from penstock.wire.tls import ask_clients, client_context, server_context

#: Whoever may knock at a node hears what the secret makes of two numbers, and could try shorter ones one by one.
SECRET_BYTES_MIN = 16


class Running:
    """Both sides of one node."""

    def __init__(self, node: Node, config: Config, dialler: LoopDialler) -> None:
        secret = secret_of(config.cluster.secret_file)
        limits, name = config.limits, name_of(config.cluster)
        crowd = Crowd(limits.connections, limits.connections_per_address, files_left())
        self._node = node
        self._dialler = dialler
        self.reception = Reception(node, name, secret, crowd)
        self.way = node.peers = Peers(node, name, secret, self._address, dialler)
        node.doors[DOOR] = partial(door, node)
        self._server: asyncio.Server

    @classmethod
    async def start(cls, node: Node, config: Config, bound: Bound) -> Self:
        """Let other nodes in, and go to them."""
        cluster = config.cluster
        inward: ssl.SSLContext | None = None
        outward: ssl.SSLContext | None = None
        if cluster.tls_cert:
            inward = server_context(cluster.tls_cert, cluster.tls_key, config.tls_min_version)
            ask_clients(inward, cluster.tls_ca, "cluster.tls_ca")
            outward = client_context(cluster.tls_ca, cluster.tls_cert, cluster.tls_key)
        running = cls(node, config, LoopDialler(outward))
        loop = asyncio.get_running_loop()
        running._server = await loop.create_server(running.reception.connect, sock=bound.taken(), ssl=inward)
        return running

    def _address(self, name: str) -> str | None:
        return self._node.places.address(name) if self._node.places is not None else None

    async def drain(self) -> None:
        """Go on: what is here until the end is for other nodes' clients, too."""

    async def close(self) -> None:
        """Hang up on every node."""
        self._server.close()
        self.reception.close()
        self.way.close()
        await self._dialler.close()

    def samples(self) -> Iterator[Sample]:
        """Return who came, who was not let in, and where nobody could be reached."""
        yield Sample("refused_total", "counter", "Connections that showed no right to be here.", self.reception.refused)
        for name, count in sorted(self.reception.visits.items()):
            yield Sample("visits_total", "counter", "Connections that another node made.", count, {"node": name})
        for name, count in sorted(self.way.failures.items()):
            text = "Connections to another node that came to nothing."
            yield Sample("failed_total", "counter", text, count, {"node": name})

    def peers(self) -> Iterable[Peer]:
        """Return nobody: a door knows who came by it."""
        return ()


def secret_of(file: str) -> bytes:
    """Return what all nodes know; nothing where certificates are enough."""
    secret = secret_in(file, "cluster's secret").encode() if file else b""
    if file and len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(
            f"{file}: the cluster's secret has {len(secret)} bytes, which can be guessed; give it {SECRET_BYTES_MIN} "
            f"or more: openssl rand -hex 32 > {file}"
        )
    return secret
