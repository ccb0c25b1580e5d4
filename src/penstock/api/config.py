"""The section [api]: where the admin API listens."""

from __future__ import annotations

from penstock.config import Config, Endpoint, Section
from penstock.config.tree import Port


class ApiConfig(Section, frozen=True, kw_only=True):
    """The admin HTTP listener."""

    #: Off where a node shall open nothing but its dialects' ports.
    enabled: bool = True
    #: Beyond this machine it needs `token`, and TLS unless `insecure`; so do the other listeners.
    address: str = "127.0.0.1"
    port: Port = 7070


def check(config: Config) -> None:
    """Refuse nothing: everything that is well formed works."""


def endpoints(config: Config) -> list[Endpoint]:
    """Return where it listens."""
    api = config.of(ApiConfig)
    if not api.enabled:
        return []
    return [Endpoint("api.port", "http", "admin API", api.address, config.listen_port(api.port), bool(config.tls_cert))]
