"""Node to node: what one node of a cluster brings to another, and how each knows the other.

Its row beside those of the dialects; its settings are the cluster's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.config import peer_endpoints
from penstock.dialect import Bound, Dialect, Running
from penstock.peers.config import PeersConfig, check

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.node.node import Node


async def _start(node: Node, config: Config, bound: Mapping[str, Bound]) -> Running:
    from penstock.peers.running import Running

    return await Running.start(node, config, bound["cluster.port"])


PEERS = Dialect("peers", PeersConfig, check, peer_endpoints, _start)
