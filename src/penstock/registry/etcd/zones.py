"""The zones: every etcd cluster that the configuration names, each with one client for all who use it.

Loads gRPC when the first client is asked for, and not before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.config import ZoneConfig
from penstock.errors import ConfigError, hint

if TYPE_CHECKING:
    from penstock.registry.etcd.client import Client


class Zones:
    """Clients by zone, each made when it is first asked for, on the loop that runs then."""

    def __init__(self, configs: Mapping[str, ZoneConfig]) -> None:
        self._configs = configs
        self._clients: dict[str, Client] = {}

    def client(self, name: str) -> Client:
        """Return the client of a zone."""
        if name not in self._configs:
            raise ConfigError(f"there is no [etcd.zones.{name}]; {hint(name, list(self._configs), 'add it')}")
        if name not in self._clients:
            from penstock.registry.etcd.client import Client

            self._clients[name] = Client(name, self._configs[name])
        return self._clients[name]

    @property
    def clients(self) -> Mapping[str, Client]:
        """Return those that somebody uses."""
        return self._clients

    async def close(self) -> None:
        """Hang up everywhere; mirrors must be closed before."""
        for client in self._clients.values():
            await client.close()
        self._clients.clear()
