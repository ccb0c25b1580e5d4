"""What a node has of etcd: waited for at the start, claimed for its data directory, let go at the end."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from random import Random
from typing import TYPE_CHECKING

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.registry.etcd.registry import EtcdRegistry
    from penstock.registry.etcd.zones import Zones

#: A start that waits says so this often, beginning a moment after it began.
SAY_S = 10.0
SAY_FIRST_S = 2.0

_log = logging.getLogger("penstock.etcd")


class Etcd:
    """Clients by zone, and the node's registry where it is there."""

    def __init__(self, config: Config) -> None:
        from penstock.registry.etcd.zones import Zones

        self.zones: Zones = Zones(config.etcd.zones)
        self.registry: EtcdRegistry | None = None
        self._config = config

    @property
    def where(self) -> str:
        """What people call the place of the registry."""
        config = self._config.registry
        endpoints = self.zones.client(config.zone).members.config.endpoints
        return f"the registry {config.prefix} in etcd ({', '.join(endpoints)})"

    async def follow(self) -> EtcdRegistry:
        """Return the registry, whosever it is, once it is followed; ConfigError if etcd does not answer in time."""
        from penstock.clock import LoopClock
        from penstock.registry.etcd.registry import EtcdRegistry

        loop, config = asyncio.get_running_loop(), self._config.registry
        self.registry = EtcdRegistry(self.zones.client(config.zone), LoopClock(loop), config.prefix)
        await self._wait(self.registry)
        return self.registry

    async def open_registry(self) -> EtcdRegistry:
        """Return the node's own registry, or its cluster's."""
        from penstock.disk import LocalDisk
        from penstock.node.claim import check_shared, claim

        registry, where = await self.follow(), self.where
        if self._config.cluster.name:
            check_shared(registry, where)
            return registry
        disk = LocalDisk(asyncio.get_running_loop(), group=self._config.data_mode == "group")
        try:
            await claim(registry, disk, self._config.data_dir, Random(os.urandom(32)), where)
        finally:
            disk.close()
        return registry

    async def close(self) -> None:
        """Hang up."""
        if self.registry is not None:
            await self.registry.close()
        await self.zones.close()

    async def _wait(self, registry: EtcdRegistry) -> None:
        began, mirror = time.monotonic(), registry.mirror
        until = began + self._config.registry.start_timeout_ns / 1e9
        say_at = began + SAY_FIRST_S
        while not mirror.is_current:
            now = time.monotonic()
            if mirror.refused:
                raise ConfigError(mirror.why)
            if now >= until:
                raise ConfigError(
                    f"{registry.away()}. Start it, or check [etcd.zones.{self._config.registry.zone}]; "
                    f"registry.start_timeout says how long a node waits"
                )
            if now >= say_at:
                _log.warning("waiting for etcd: %s; giving up in %.0f s", registry.away(), until - now)
                say_at = now + SAY_S
            try:
                async with asyncio.timeout(min(until, say_at) - now):
                    await mirror.turn()
            except TimeoutError:
                pass
