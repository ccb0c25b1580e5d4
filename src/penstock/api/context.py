"""What all requests of one API server share: the node, the measure of the loop, and the moment of its end."""

from __future__ import annotations

import asyncio
from zlib import crc32

import penstock
from penstock.config import Config
from penstock.node.node import Node
from penstock.node.polls import Polls
from penstock.observe.lag import LoopLag

#: Connections share this many publishers, so that each keeps its shard and all of them use every shard.
PUBLISHERS = 64


class Publisher:
    """The one a topic gives a shard to; see ruling 27 of the design."""


class Context:
    """What a request needs besides itself."""

    def __init__(self, node: Node, config: Config) -> None:
        self.node = node
        self.config = config
        self.polls = Polls(node)
        self.lag = LoopLag(node.clock)
        self.version = penstock.__version__
        self.publish_bytes_max = min(config.node.request_bytes, node.budget.input.bytes_max)
        self.message_bytes_max = config.node.message_bytes
        #: Done when the server ends; whoever waits, waits for this too.
        self.closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._publishers = [Publisher() for _ in range(PUBLISHERS)]

    def publisher(self, client: tuple[str, int] | None) -> Publisher:
        """Return the publisher of a connection: always the same one, so that its messages keep their order."""
        return self._publishers[crc32(repr(client).encode()) % PUBLISHERS]

    def close(self) -> None:
        """Let everybody who waits go."""
        self.lag.stop()
        if not self.closing.done():
            self.closing.set_result(None)
