"""Routing as a process has it: what the file declares is put into force, and the policy in etcd is followed.

Everything of etcd is imported here and only where the configuration names a policy.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.node.declared import declare

if TYPE_CHECKING:
    from penstock.node.node import Node
    from penstock.registry.etcd.policy import Follower

#: A start waits so long for a registry that does not answer; what was asked for is done when it does.
DECLARE_S = 10.0

_log = logging.getLogger("penstock.routing")


class Routing:
    """The routing of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._follower: Follower | None = None

    async def begin(self) -> None:
        """Begin before anybody can publish, so that nothing is judged by what does not hold any more."""
        policy = self._node.routing.policy
        if policy is not None:
            from penstock.registry.etcd.policy import Follower

            self._follower = Follower(self._node.zones.client(policy.zone), policy)
            policy.write = self._follower.write
            await self._follower.begin()
        try:
            async with asyncio.timeout(DECLARE_S):
                for answer in declare(self._node):
                    await answer
        except TimeoutError:
            _log.warning("the registry does not answer: what the file says of routing holds once it does")

    async def close(self) -> None:
        """Follow no more."""
        if self._follower is not None:
            await self._follower.close()
