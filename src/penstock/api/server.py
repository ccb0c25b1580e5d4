"""The admin API on its socket."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.api.app import Api
from penstock.api.context import Context
from penstock.config import Config
from penstock.dialect import Bound, Peer, Sample
from penstock.listener import Listener, listen
from penstock.node import Node


class ApiServer:
    """A running admin API."""

    def __init__(self, context: Context, listener: Listener) -> None:
        #: The port that was bound.
        self.port = listener.port
        self._context = context
        self._listener = listener

    async def drain(self) -> None:
        """Go on answering: who stops a node wants to see how it stops."""

    async def close(self) -> None:
        """Take no more requests, answer those that wait, and end."""
        self._context.close()
        await self._listener.close()

    def samples(self) -> Iterable[Sample]:
        """Return how many are connected."""
        return [Sample("connections", "gauge", "Connections to the admin API.", len(self._listener.connections))]

    def peers(self) -> Iterable[Peer]:
        """Return who is connected."""
        return [Peer(connection.peer, "api.port") for connection in self._listener.connections]


async def serve(node: Node, config: Config, bound: Bound) -> ApiServer:
    """Start the admin API in the running loop."""
    context = Context(node, config)
    tls = (config.tls_cert, config.tls_key) if config.tls_cert else None

    def fault(text: str, peer: str) -> None:
        node.count_fault("api", "bad_request", text, peer)

    listener = await listen(Api(context), bound.taken(), fault, tls)
    context.lag.start()
    return ApiServer(context, listener)
