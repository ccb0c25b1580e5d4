"""Node to node: what one node of a cluster brings to another, and how each knows the other.

Its row beside those of the dialects; its settings are the cluster's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.config import Config, Section, peer_endpoints
from penstock.dialect import Bound, Dialect, Running

if TYPE_CHECKING:
    from penstock.node.node import Node


class PeersConfig(Section, frozen=True, kw_only=True):
    """Nothing beside [cluster]."""


def check(config: Config) -> None:
    """Refuse nothing: [cluster] is looked at as a whole."""


async def _start(node: Node, config: Config, bound: Mapping[str, Bound]) -> Running:
    from penstock.peers.running import Running

    return await Running.start(node, config, bound["cluster.port"])


PEERS = Dialect("peers", PeersConfig, check, peer_endpoints, _start)
