"""The section [api]: where the admin API listens."""

from __future__ import annotations

from penstock.config import TOKEN_AND_TLS, Config, Endpoint, Section, has_callers
from penstock.config.tree import Port


class ApiConfig(Section, frozen=True, kw_only=True):
    """The admin HTTP listener."""

    #: Off where a node shall open nothing but its dialects' ports.
    enabled: bool = True
    #: Beyond this machine a listener needs TLS and callers, unless `insecure` says otherwise.
    address: str = "127.0.0.1"
    port: Port = 7070


def check(config: Config) -> None:
    """Refuse nothing: everything that is well formed works."""


def endpoints(config: Config) -> list[Endpoint]:
    """Return where it listens."""
    api = config.of(ApiConfig)
    if not api.enabled:
        return []
    port, tls, asks = config.listen_port(api.port), bool(config.tls_cert), has_callers(config)
    return [Endpoint("api.port", "http", "admin API", api.address, port, tls, asks, TOKEN_AND_TLS)]
