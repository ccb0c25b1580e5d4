"""The admin API on its socket."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.api.app import Api
from penstock.api.context import Context
from penstock.config import Config
from penstock.dialect import Bound, Peer, Sample
from penstock.http import Door, Listener
from penstock.http.away import join
from penstock.http.listener import tls_of
from penstock.node.node import Node
from penstock.wire.crowd import Crowd, files_left

#: Of the open files that other listeners leave alone, this part is the log's; the rest is for who looks after the node.
ADMIN_SHARE = 0.5


class ApiServer:
    """A running admin API."""

    def __init__(self, context: Context, api: Api, listener: Listener, port: int) -> None:
        self.port = port
        self.listener = listener
        self._context = context
        self._api = api

    async def drain(self) -> None:
        """Go on answering: who stops a node wants to see how it stops."""

    async def close(self) -> None:
        """Take no more requests, answer those that wait, and end."""
        self._context.close()
        await self.listener.close()
        await self._api.close()

    def samples(self) -> Iterable[Sample]:
        """Return how many are connected."""
        return [Sample("connections", "gauge", "Connections to the admin API.", len(self.listener.connections))]

    def peers(self) -> Iterable[Peer]:
        """Return who is connected."""
        return [Peer(connection.peer, "api.port") for connection in self.listener.connections]


async def serve(node: Node, config: Config, bound: Bound) -> ApiServer:
    """Start the admin API in the running loop."""
    context = Context(node, config)
    api = Api(context)
    limits = config.limits
    crowd = Crowd(limits.connections, limits.connections_per_address, files_left(ADMIN_SHARE))
    door = Door(bound.endpoint.address, config.http.hosts)
    listener = Listener(bound.endpoint.key, api, node.clock, node.budget, node.gate, door, crowd, asks_token=True)
    join(node, listener)
    await listener.serve(bound.taken(), tls_of(config))
    context.lag.start()
    return ApiServer(context, api, listener, bound.port)
