"""The admin API on its socket."""

from __future__ import annotations

from penstock.api.app import Api
from penstock.api.context import Context
from penstock.config import Config
from penstock.listener import Listener, listen
from penstock.node import Node


class ApiServer:
    """A running admin API."""

    def __init__(self, context: Context, listener: Listener) -> None:
        #: The port that was bound.
        self.port = listener.port
        self._context = context
        self._listener = listener

    async def close(self) -> None:
        """Take no more requests, answer those that wait, and end."""
        self._context.close()
        await self._listener.close()


async def serve(node: Node, config: Config) -> ApiServer:
    """Start the admin API in the running loop; OSError if its port cannot be had."""
    address, port = config.listeners()["api.port"]
    context = Context(node, config)
    tls = (config.tls_cert, config.tls_key) if config.tls_cert else None

    def fault(text: str, peer: str) -> None:
        node.count_fault("api", "bad_request", text, peer)

    listener = await listen(Api(context), address, port, fault, tls)
    context.lag.start()
    return ApiServer(context, listener)
